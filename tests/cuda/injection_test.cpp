// Every CUDA call of a communicator's life fails once, one at a time: an error code and a sentence, no crash,
// no hang, nothing left alive, and the other rank is released.
#include "tests/cuda/injection.h"

namespace {

using namespace peal::test;

// Sums, exchanges halves and waits. True: it all went well.
bool useBuffer(pealComm_t comm, int rank, float* data, const GpuStream& stream, Outcomes& outcomes) {
  constexpr size_t kHalf = kInjectedCount / 2;
  if (!outcomes.ok(pealAllReduce(data, data, kInjectedCount, pealFloat32, pealSum, comm, stream.peal())) ||
      !outcomes.ok(pealGroupStart())) {
    return false;
  }
  outcomes.ok(pealSend(data, kHalf, pealFloat32, 1 - rank, comm, stream.peal()));
  outcomes.ok(pealRecv(data + kHalf, kHalf, pealFloat32, 1 - rank, comm, stream.peal()));
  return outcomes.ok(pealGroupEnd()) && outcomes.ok(pealCommFinalize(comm));
}

void useCommunicator(pealComm_t comm, int rank, int device, const GpuStream& stream, const GpuBuffer& buffer,
                     Outcomes& outcomes) {
  void* more = nullptr;
  void* handle = nullptr;
  bool good = outcomes.ok(pealMemAllocDevice(&more, 64, device));
  good = good && outcomes.ok(pealCommRegister(comm, buffer.data(), buffer.bytes(), &handle));
  good = good && useBuffer(comm, rank, reinterpret_cast<float*>(buffer.data()), stream, outcomes);
  if (handle != nullptr) {
    good = outcomes.ok(pealCommDeregister(comm, handle)) && good;
  }
  outcomes.ok(good ? pealCommDestroy(comm) : pealCommAbort(comm));
  // A call that ends something does it although it reports an error: try again only what stayed.
  if (!outcomes.ok(pealMemFree(more))) {
    static_cast<void>(pealMemFree(more));
  }
}

TEST(Injection, EveryCallOnOneDevice) {
  inProcess(
      injected(),
      [] {
        failEveryCall({0, 0}, useCommunicator, 2);
      },
      std::chrono::seconds(110));
}

TEST(Injection, EveryCallWithPeerAccess) {
  inProcess(
      injected(),
      [] {
        failEveryCall({0, 1}, useCommunicator, 2);
      },
      std::chrono::seconds(110));
}

}  // namespace
