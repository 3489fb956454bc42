// alltoall_perf: pealAlltoAll. Not in place.
//
// Bound: n - 1 of n shares leave each rank.
#include "bench/harness/main.h"

namespace {

using namespace peal::bench;

const Collective kAllToAll{
    .program = "alltoall_perf",
    .reduces = false,
    .rooted = false,
    .inPlace = false,
    .extents =
        [](size_t count, size_t elementBytes, int ranks) {
          const size_t share = alignedShare(count, elementBytes, ranks);
          return Extents{share * ranks, share * ranks, share, 0, 0};
        },
    .busFactor = othersShare,
    .boundFactor = othersShare,
    .result =
        [](const Call& call) {
          std::vector<Piece> pieces;
          for (int rank = 0; rank < call.ranks; ++rank) {
            pieces.push_back({Piece::Source::Rank, call.count, rank, call.rank * call.count});
          }
          return pieces;
        },
    .run =
        [](const void* send, void* receive, const Call& call, pealComm_t comm, pealStream_t stream) {
          return pealAlltoAll(send, receive, call.count, call.type, comm, stream);
        },
};

}  // namespace

int main(int argc, char** argv) { return benchMain(kAllToAll, argc, argv); }
