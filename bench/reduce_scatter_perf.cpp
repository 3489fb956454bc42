// reduce_scatter_perf: pealReduceScatter. The size column is the send buffer, n shares.
//
// Bound: every element has n - 1 sums, (n - 1)S in all over n ranks.
#include "bench/harness/main.h"

namespace {

using namespace peal::bench;

const Collective kReduceScatter{
    .program = "reduce_scatter_perf",
    .reduces = true,
    .rooted = false,
    .inPlace = true,
    .extents =
        [](size_t count, size_t elementBytes, int ranks) {
          const size_t share = alignedShare(count, elementBytes, ranks);
          return Extents{share * ranks, share, share, 0, share};
        },
    .busFactor = othersShare,
    .boundFactor = othersShare,
    .result =
        [](const Call& call) {
          return std::vector<Piece>{{Piece::Source::Reduction, call.count, 0, call.rank * call.count}};
        },
    .run =
        [](const void* send, void* receive, const Call& call, pealComm_t comm, pealStream_t stream) {
          return pealReduceScatter(send, receive, call.count, call.type, call.op, comm, stream);
        },
};

}  // namespace

int main(int argc, char** argv) { return benchMain(kReduceScatter, argc, argv); }
