// A UCX context and its worker: everything of UCX that a fabric owns besides its endpoints. Freed in order.
#pragma once
#include <memory>
#include <vector>

#include "transports/ucx/table.h"
#include "transports/ucx/ucx.h"

namespace peal::ucx {

class Worker {
 public:
  // `library` outlives the worker.
  static Result<std::unique_ptr<Worker>> open(const Library& library, const FabricOptions& options,
                                              const UcxOptions& ucxOptions);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Table& table() const { return library_.table; }
  const Library& library() const { return library_; }
  ucp_context_h context() const { return context_; }
  ucp_worker_h handle() const { return worker_; }
  int descriptor() const { return descriptor_; }
  // How others reach this worker.
  Result<std::vector<std::byte>> address() const;
  // "UCX 1.13.1 (/lib/libucp.so.0)", for errors.
  std::string describeLibrary() const;
  // "tcp on eth0, lo; rc_verbs on mlx5_0:1".
  std::string resources() const;

 private:
  explicit Worker(const Library& library) : library_(library) {}
  Result<void> makeContext(const FabricOptions& options, const UcxOptions& ucxOptions);
  Result<void> makeWorker();
  Error failed(const char* call, ucs_status_t status) const;

  const Library& library_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
};

}  // namespace peal::ucx
