// The functions of UCX that peal calls, as a table of pointers: filled from libucp at run time, or by a test
// that lets any of them fail. UCX's headers give the types; nothing is linked.
#pragma once
#include <ucp/api/ucp.h>

#include <string>

#include "lib/base/result.h"

namespace peal::ucx {

struct Table {
  decltype(&ucp_get_version) getVersion = nullptr;
  decltype(&ucp_get_version_string) getVersionString = nullptr;
  decltype(&ucp_config_read) configRead = nullptr;
  decltype(&ucp_config_modify) configModify = nullptr;
  decltype(&ucp_config_release) configRelease = nullptr;
  decltype(&ucp_init_version) init = nullptr;
  decltype(&ucp_cleanup) cleanup = nullptr;
  decltype(&ucp_context_print_info) contextPrint = nullptr;
  decltype(&ucp_worker_create) workerCreate = nullptr;
  decltype(&ucp_worker_destroy) workerDestroy = nullptr;
  decltype(&ucp_worker_get_address) workerAddress = nullptr;
  decltype(&ucp_worker_release_address) workerReleaseAddress = nullptr;
  decltype(&ucp_worker_progress) workerProgress = nullptr;
  decltype(&ucp_worker_get_efd) workerDescriptor = nullptr;
  decltype(&ucp_worker_arm) workerArm = nullptr;
  decltype(&ucp_worker_set_am_recv_handler) setHandler = nullptr;
  decltype(&ucp_ep_create) endpointCreate = nullptr;
  decltype(&ucp_ep_close_nbx) endpointClose = nullptr;
  decltype(&ucp_am_send_nbx) send = nullptr;
  decltype(&ucp_am_data_release) releaseData = nullptr;
  decltype(&ucp_request_check_status) requestStatus = nullptr;
  decltype(&ucp_request_free) requestFree = nullptr;
  decltype(&ucs_status_string) statusText = nullptr;
};

// "Connection reset by remote peer (UCX status -25)".
std::string describe(const Table& table, ucs_status_t status);

// What dlopen and dlsym do; tests bring their own.
struct Loader {
  void* (*open)(const char* name, int flags);
  void* (*symbol)(void* library, const char* name);
  const char* (*error)();
};

struct Library {
  Table table;
  unsigned minor = 0;   // of version 1
  std::string version;  // "1.13.1"
  std::string path;     // of the file
};

// Opens libucp with `loader` and checks its version. The library stays open for the life of the process: UCX
// has threads and exit handlers of its own.
Result<Library> loadLibrary(const Loader& loader);
// The process's library: opened at the first call, by the system's loader.
const Result<Library>& library();

}  // namespace peal::ucx
