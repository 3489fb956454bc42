// Device memory shared by the ranks of one node, as transports/device_memory.h wants it: windows, registered
// buffers, health.
//
// Made by connectDeviceMemory (connect.cpp). Teardown, in this order, in every case:
//   1. registered buffers that are left: peers are asked to close them, and get a moment to do it. After a
//      fault that is when their kernels have left: such a kernel would fault, or read what comes to lie there
//   2. this rank's views of its peers' windows. The owner of this object has seen its kernels end before
//   3. the watch thread: mappings of peers' buffers; then it tells the peers, which may now free what this
//      rank had mapped; then it waits for them, frees the window and ends. If there is anybody to wait for,
//      it does so after the destructor has returned (lingering.h)
//
// A peer that dies: its views end with it, so nothing of ours is kept for it. Our views of its memory stay
// valid until we close them (the driver keeps the pages: not verified on hardware), so kernels on their way
// never fault; loss() tells the executor, which stops them. A registered buffer that is freed before it is
// deregistered: CUDA leaves undefined what peers find at its address. A peer that has not mapped it yet
// cannot any more, and gets copies; deregisterBuffer reports it.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transports/cuda_ipc/regions.h"
#include "transports/cuda_ipc/verify.h"
#include "transports/cuda_ipc/watch.h"
#include "transports/cuda_ipc/window.h"
#include "transports/device_memory.h"

namespace peal::cuda {

// What connecting made.
struct Connected {
  int rank = 0;
  int device = 0;
  std::string name;
  std::shared_ptr<Window> window;
  std::vector<PeerWindow> peers;  // by rank; the own entry has Reach::Self
  std::optional<TimedCopies> copies;
  GpuPath path = GpuPath::SameDevice;  // the slowest of all ranks
  std::string sentence;
  std::shared_ptr<Regions> regions;
  std::unique_ptr<Watch> watch;  // nullptr in a communicator of one rank
};

class CudaIpcMemory final : public DeviceMemory {
 public:
  explicit CudaIpcMemory(Connected connected);
  ~CudaIpcMemory() override;

  std::byte* window() override { return connected_.window->data(); }
  std::byte* peerWindow(int peerRank) override { return at(peerRank).address; }
  Reach reach(int peerRank) const override { return at(peerRank).reach; }
  const std::string& sentence() const override { return connected_.sentence; }
  GpuPath path() const override { return connected_.path; }
  Result<uint64_t> registerBuffer(const void* data, size_t bytes) override;
  Result<void> deregisterBuffer(uint64_t id, Deadline deadline) override;
  Result<void> deregisterAll(Deadline deadline) override;
  uint64_t addressAt(int peerRank, const void* data, size_t bytes) override {
    return connected_.regions->addressAt(peerRank, static_cast<const std::byte*>(data), bytes);
  }
  std::optional<Loss> loss() override;
  void onLoss(std::function<void()> action) override;
  void onWithdrawal(LetGo action) override;
  void farewell(int culpritRank, const std::string& reason) override;

 private:
  const PeerWindow& at(int peerRank) const { return connected_.peers.at(static_cast<size_t>(peerRank)); }
  bool reachesSomebody(Reach reach) const;
  Result<void> check(const void* data, size_t bytes) const;
  Result<void> share(Region& region, Note& note, std::vector<OwnedFd>& files) const;
  bool isFaulty() const { return faulty_.load(std::memory_order_relaxed) || connected_.watch->loss(); }
  Result<void> awaitReaders(Deadline deadline);
  Result<void> retire(uint64_t id, Deadline deadline);

  Connected connected_;
  std::atomic<bool> faulty_{false};  // farewell() named a culprit; nothing is handed over with it
};

}  // namespace peal::cuda
