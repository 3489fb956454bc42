// Times gloo's all-reduce as all_reduce_perf times peal: warm-up, a barrier, then the mean over the
// iterations.
//
//   gloo_driver SIZES RANK RANKS ADDRESS STORE-FOLDER ALGORITHM
//
// ADDRESS: of this rank's interface. ALGORITHM: ring, bcube, or halving_doubling (in place, busy polling:
// gloo's fastest). See peer.h. Built by bench/peers/between_hosts.py.
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "bench/peers/peer.h"

namespace {

double secondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: gloo_driver SIZES RANK RANKS ADDRESS STORE-FOLDER ALGORITHM\n");
    return 2;
  }
  const int rank = std::atoi(argv[2]), ranks = std::atoi(argv[3]);
  const std::string algorithm = argv[6];
  gloo::transport::tcp::attr attributes;
  attributes.hostname = argv[4];
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  gloo::rendezvous::FileStore store(argv[5]);
  context->connectFullMesh(store, device);
  const bool halving = algorithm == "halving_doubling";
  if (halving) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer != rank) {
        context->getPair(peer)->setSync(true, true);
      }
    }
  }
  for (const peers::Size& size : peers::parseSizes(argv[1])) {
    const size_t count = size.bytes / sizeof(float);
    std::vector<float> in(count), out(count);
    for (size_t i = 0; i < count; ++i) {
      in[i] = out[i] = peers::valueOf(rank, i);
    }
    std::function<void()> once;
    std::shared_ptr<gloo::Algorithm> classic;
    gloo::AllreduceOptions options(context);
    if (halving) {
      classic = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
          context, std::vector<float*>{out.data()}, static_cast<int>(count));
      once = [&] { classic->run(); };
    } else {
      options.setInput(in.data(), count);
      options.setOutput(out.data(), count);
      options.setAlgorithm(algorithm == "ring" ? gloo::AllreduceOptions::Algorithm::RING
                                               : gloo::AllreduceOptions::Algorithm::BCUBE);
      void (*add)(void*, const void*, const void*, size_t) = &gloo::sum<float>;
      options.setReduceFunction(add);
      once = [&] { gloo::allreduce(options); };
    }
    once();
    const size_t wrong = peers::countWrong(out.data(), count, ranks);
    std::fill(out.begin(), out.end(), 0.0F);  // in place, sums of sums would soon be infinite
    once();
    once();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < size.iterations; ++i) {
      once();
    }
    const double seconds = secondsSince(start) / size.iterations;
    if (rank == 0) {
      peers::printRow(size.bytes, seconds * 1e6, wrong);
    }
  }
  // gloo's threads may outlive their context in this version: end without its destructors.
  std::fflush(stdout);
  std::_Exit(0);
}
