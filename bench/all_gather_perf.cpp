// all_gather_perf: pealAllGather. The size column is the receive buffer, n shares.
//
// Bound: every element goes to n - 1 ranks, (n - 1)S in all over n ranks.
#include "bench/harness/main.h"

namespace {

using namespace peal::bench;

const Collective kAllGather{
    .program = "all_gather_perf",
    .reduces = false,
    .rooted = false,
    .inPlace = true,
    .extents =
        [](size_t count, size_t elementBytes, int ranks) {
          const size_t share = alignedShare(count, elementBytes, ranks);
          return Extents{share, share * ranks, share, share, 0};
        },
    .busFactor = othersShare,
    .boundFactor = othersShare,
    .result =
        [](const Call& call) {
          std::vector<Piece> pieces;
          for (int rank = 0; rank < call.ranks; ++rank) {
            pieces.push_back({Piece::Source::Rank, call.count, rank});
          }
          return pieces;
        },
    .run =
        [](const void* send, void* receive, const Call& call, pealComm_t comm, pealStream_t stream) {
          return pealAllGather(send, receive, call.count, call.type, comm, stream);
        },
};

}  // namespace

int main(int argc, char** argv) { return benchMain(kAllGather, argc, argv); }
