// scatter_perf: pealScatter. Not in place: only the root's own share could be.
//
// Bound: the root sends every other rank its share, (n - 1) / n of the array in all; averaged over n ranks.
#include "bench/harness/main.h"

namespace {

using namespace peal::bench;

const Collective kScatter{
    .program = "scatter_perf",
    .reduces = false,
    .rooted = true,
    .inPlace = false,
    .extents =
        [](size_t count, size_t elementBytes, int ranks) {
          const size_t share = alignedShare(count, elementBytes, ranks);
          return Extents{share * ranks, share, share, 0, 0};
        },
    .busFactor = othersShare,
    .boundFactor = [](int ranks) { return othersShare(ranks) / ranks; },
    .result =
        [](const Call& call) {
          return std::vector<Piece>{{Piece::Source::Rank, call.count, call.root, call.rank * call.count}};
        },
    .run =
        [](const void* send, void* receive, const Call& call, pealComm_t comm, pealStream_t stream) {
          return pealScatter(send, receive, call.count, call.type, call.root, comm, stream);
        },
};

}  // namespace

int main(int argc, char** argv) { return benchMain(kScatter, argc, argv); }
