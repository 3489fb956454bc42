#include "lib/executor/cuda/residency.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "lib/executor/cuda/kernels.h"
#include "lib/memory/cuda.h"

namespace peal::cuda {
namespace {

template <class Kernel>
Result<void> lower(int& least, Kernel kernel, int threads) {
  int blocks = 0;
  PEAL_TRY(cudaResult(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0),
                      "asking how many blocks of {} threads fit", threads));
  least = std::min(least, blocks);
  return {};
}

Result<Residency> measure(int device, int threads) {
  const RelaxedCapture relaxed;
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  Residency residency;
  PEAL_TRY(cudaResult(cudaDeviceGetAttribute(&residency.processors, cudaDevAttrMultiProcessorCount, device),
                      "asking device {} for its processors", device));
  int least = std::numeric_limits<int>::max();
  for (const Protocol protocol : {Protocol::Simple, Protocol::LL, Protocol::LL128}) {
    for (const int kind : {pealStatAllReduce, pealStatAllGather}) {  // one that reduces, one that copies
      PEAL_TRY(lower(least, collectiveKernelFor(kind, protocol), threads));
    }
  }
  PEAL_TRY(lower(least, levelsKernel(), std::min(threads, kMostLevelsThreads)));
  PEAL_TRY(lower(least, pointToPointKernel(), threads));
  PEAL_TRY(lower(least, reduceAdamwGatherKernel(), std::min(threads, kMostFusedThreads)));
  residency.blocksPerProcessor = least;
  return residency;
}

}  // namespace

Result<Residency> residencyOn(int device, int threads) {
  static std::mutex mutex;  // guards known
  static std::map<std::pair<int, int>, Residency> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find({device, threads}); found != known.end()) {
    return found->second;
  }
  Result<Residency> measured = measure(device, threads);
  if (measured) {
    known[{device, threads}] = *measured;
  }
  return measured;
}

}  // namespace peal::cuda
