#include "transports/ucx/worker.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string_view>

#include "lib/base/config.h"
#include "lib/base/log.h"
#include "transports/ucx/settings.h"

namespace peal::ucx {
namespace {

// Until 1.17, ucp_config_modify knows the settings of a transport without the transport's prefix.
constexpr unsigned kFirstMinorWithPrefix = 17;

std::string nameFor(const Library& library, const std::string& name) {
  constexpr std::string_view kPrefix = "TCP_";
  const bool drops = library.minor < kFirstMinorWithPrefix && name.starts_with(kPrefix);
  return drops ? name.substr(kPrefix.size()) : name;
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::open(const Library& library, const FabricOptions& options,
                                             const UcxOptions& ucxOptions) {
  std::unique_ptr<Worker> worker(new Worker(library));
  PEAL_TRY(worker->makeContext(options, ucxOptions));
  PEAL_TRY(worker->makeWorker());
  return worker;
}

Worker::~Worker() {
  if (worker_ != nullptr) {
    table().workerDestroy(worker_);
  }
  if (context_ != nullptr) {
    table().cleanup(context_);
  }
}

std::string Worker::describeLibrary() const {
  return fmt::format("UCX {} ({})", library_.version, library_.path);
}

// UCX tells its resources only as text: lines "# resource 0 : md 0 dev 1 flags -- tcp/eth0".
std::string Worker::resources() const {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) {
    return "?";
  }
  table().contextPrint(context_, stream);
  fclose(stream);
  const std::unique_ptr<char, decltype(&free)> owned(text, &free);
  std::map<std::string, std::string> devicesOf;
  std::istringstream lines(std::string(text, bytes));
  for (std::string line; std::getline(lines, line);) {
    const size_t name = line.rfind(' ') + 1;
    const size_t slash = line.find('/', name);
    if (line.find("resource ") != std::string::npos && slash != std::string::npos) {
      std::string& devices = devicesOf[line.substr(name, slash - name)];
      devices += (devices.empty() ? "" : ", ") + line.substr(slash + 1);
    }
  }
  std::string all;
  for (const auto& [transport, devices] : devicesOf) {
    all += fmt::format("{}{} on {}", all.empty() ? "" : "; ", transport, devices);
  }
  return all.empty() ? "no transport" : all;
}

Error Worker::failed(const char* call, ucs_status_t status) const {
  return {pealSystemError, fmt::format("{}: {} failed: {}. UCX_LOG_LEVEL=info makes UCX say more.",
                                       describeLibrary(), call, describe(table(), status))};
}

Result<void> Worker::makeContext(const FabricOptions& options, const UcxOptions& ucxOptions) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = table().configRead(nullptr, nullptr, &config); status != UCS_OK) {
    return failed("ucp_config_read (a UCX_* variable in the environment may be wrong)", status);
  }
  const auto release = [this](ucp_config_t* read) { table().configRelease(read); };
  const std::unique_ptr<ucp_config_t, decltype(release)> owned(config, release);
  std::string devices = foreignVariable("UCX_NET_DEVICES").value_or("all devices");
  for (const Setting& setting : settingsFor(options, ucxOptions)) {
    const ucs_status_t status =
        table().configModify(config, nameFor(library_, setting.name).c_str(), setting.value.c_str());
    if (status != UCS_OK && setting.needed) {
      return failed(fmt::format("setting UCX_{}={}", setting.name, setting.value).c_str(), status);
    }
    if (status != UCS_OK) {
      log(LogLevel::Info, fmt::format("{} does not know UCX_{}: {}", describeLibrary(), setting.name,
                                      describe(table(), status)));
    }
    if (setting.name == "NET_DEVICES") {
      devices = setting.value;
    }
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "peal";
  const ucs_status_t status = table().init(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  if (status != UCS_OK) {
    context_ = nullptr;
    return failed(fmt::format("ucp_init over {}", devices).c_str(), status);
  }
  return {};
}

Result<void> Worker::makeWorker() {
  ucp_worker_params_t params{};
  params.field_mask =
      UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT | UCP_WORKER_PARAM_FIELD_FLAGS;
  // One thread at a time, but not always the same.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.am_alignment = 64;
  params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  if (const ucs_status_t status = table().workerCreate(context_, &params, &worker_); status != UCS_OK) {
    worker_ = nullptr;
    return failed("ucp_worker_create", status);
  }
  // Without a descriptor, sleeps are short.
  if (table().workerDescriptor(worker_, &descriptor_) != UCS_OK) {
    descriptor_ = -1;
  }
  return {};
}

Result<std::vector<std::byte>> Worker::address() const {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  if (const ucs_status_t status = table().workerAddress(worker_, &address, &bytes); status != UCS_OK) {
    return failed("ucp_worker_get_address", status);
  }
  const auto* first = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(first, first + bytes);
  table().workerReleaseAddress(worker_, address);
  return copy;
}

}  // namespace peal::ucx
