// Opens libucp. See table.h.
#include <dlfcn.h>
#include <fmt/format.h>

#include "transports/ucx/table.h"

namespace peal::ucx {
namespace {

constexpr const char* kLibraryName = "libucp.so.0";
constexpr unsigned kLeastMajor = 1;
constexpr unsigned kLeastMinor = 13;
constexpr const char* kRemedy =
    "UCX 1.13 or newer of major version 1 is needed (Debian: libucx0); without it, use another transport.";

// Fills the table; the first function that is missing goes to `missing`.
class Filler {
 public:
  Filler(const Loader& loader, void* library) : loader_(loader), library_(library) {}

  template <class Function>
  void take(Function& function, const char* name) {
    function = reinterpret_cast<Function>(loader_.symbol(library_, name));
    if (function == nullptr && missing_ == nullptr) {
      missing_ = name;
    }
  }
  const char* missing() const { return missing_; }

 private:
  const Loader& loader_;
  void* library_;
  const char* missing_ = nullptr;
};

const char* fill(Table& table, const Loader& loader, void* library) {
  Filler filler(loader, library);
  filler.take(table.configRead, "ucp_config_read");
  filler.take(table.configModify, "ucp_config_modify");
  filler.take(table.configRelease, "ucp_config_release");
  filler.take(table.init, "ucp_init_version");
  filler.take(table.cleanup, "ucp_cleanup");
  filler.take(table.contextPrint, "ucp_context_print_info");
  filler.take(table.workerCreate, "ucp_worker_create");
  filler.take(table.workerDestroy, "ucp_worker_destroy");
  filler.take(table.workerAddress, "ucp_worker_get_address");
  filler.take(table.workerReleaseAddress, "ucp_worker_release_address");
  filler.take(table.workerProgress, "ucp_worker_progress");
  filler.take(table.workerDescriptor, "ucp_worker_get_efd");
  filler.take(table.workerArm, "ucp_worker_arm");
  filler.take(table.setHandler, "ucp_worker_set_am_recv_handler");
  filler.take(table.endpointCreate, "ucp_ep_create");
  filler.take(table.endpointClose, "ucp_ep_close_nbx");
  filler.take(table.send, "ucp_am_send_nbx");
  filler.take(table.releaseData, "ucp_am_data_release");
  filler.take(table.requestStatus, "ucp_request_check_status");
  filler.take(table.requestFree, "ucp_request_free");
  filler.take(table.statusText, "ucs_status_string");
  return filler.missing();
}

}  // namespace

std::string describe(const Table& table, ucs_status_t status) {
  return fmt::format("{} (UCX status {})", table.statusText(status), static_cast<int>(status));
}

Result<Library> loadLibrary(const Loader& loader) {
  void* handle = loader.open(kLibraryName, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = loader.error();
    return Error{pealSystemError, fmt::format("{} cannot be opened: {}. {}", kLibraryName,
                                              reason != nullptr ? reason : "no reason given", kRemedy)};
  }
  Library library;
  // The version first: an old library lacks functions, and its number says more than their names.
  Filler version(loader, handle);
  version.take(library.table.getVersion, "ucp_get_version");
  version.take(library.table.getVersionString, "ucp_get_version_string");
  if (version.missing() != nullptr) {
    return Error{pealSystemError, fmt::format("{} has no function {}, so it is not UCX's. {}", kLibraryName,
                                              version.missing(), kRemedy)};
  }
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(library.table.getVersion), &info) != 0 && info.dli_fname != nullptr) {
    library.path = info.dli_fname;
  }
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  library.table.getVersion(&major, &minor, &release);
  library.minor = minor;
  library.version = fmt::format("{}.{}.{}", major, minor, release);
  if (major != kLeastMajor || minor < kLeastMinor) {
    return Error{pealSystemError, fmt::format("{} is UCX {}, which peal cannot use. {}", library.path,
                                              library.version, kRemedy)};
  }
  if (const char* missing = fill(library.table, loader, handle); missing != nullptr) {
    return Error{pealSystemError, fmt::format("{} says that it is UCX {} and has no function {}. {}",
                                              library.path, library.version, missing, kRemedy)};
  }
  // UCX takes over the signals of crashes when it is loaded; what a program does about them is its own
  // matter. The function is UCX's, but not part of its API: a version without it keeps the signals.
  void (*leaveSignals)() = nullptr;
  leaveSignals = reinterpret_cast<decltype(leaveSignals)>(loader.symbol(handle, "ucs_debug_disable_signals"));
  if (leaveSignals != nullptr) {
    leaveSignals();
  }
  return library;
}

const Result<Library>& library() {
  static const Result<Library> loaded =
      loadLibrary({&dlopen, &dlsym, []() -> const char* { return dlerror(); }});
  return loaded;
}

}  // namespace peal::ucx
