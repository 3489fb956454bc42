// broadcast_perf: pealBroadcast.
//
// Bound: every element goes to n - 1 ranks, (n - 1)S in all; averaged over n ranks, though one may send it
// all.
#include "bench/harness/main.h"

namespace {

using namespace peal::bench;

const Collective kBroadcast{
    .program = "broadcast_perf",
    .reduces = false,
    .rooted = true,
    .inPlace = true,
    .extents =
        [](size_t count, size_t, int) {
          return Extents{count, count, count, 0, 0};
        },
    .busFactor = [](int) { return 1.0; },
    .boundFactor = othersShare,
    .result =
        [](const Call& call) {
          return std::vector<Piece>{{Piece::Source::Rank, call.count, call.root}};
        },
    .run =
        [](const void* send, void* receive, const Call& call, pealComm_t comm, pealStream_t stream) {
          return pealBroadcast(send, receive, call.count, call.type, call.root, comm, stream);
        },
};

}  // namespace

int main(int argc, char** argv) { return benchMain(kBroadcast, argc, argv); }
