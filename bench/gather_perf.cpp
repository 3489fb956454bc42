// gather_perf: pealGather. Ranks other than the root must find their receive buffers as they left them. Not
// in place: only the root's own share could be.
//
// Bound: every rank but the root sends its share, (n - 1) / n of the array in all; averaged over n ranks.
#include "bench/harness/main.h"

namespace {

using namespace peal::bench;

const Collective kGather{
    .program = "gather_perf",
    .reduces = false,
    .rooted = true,
    .inPlace = false,
    .extents =
        [](size_t count, size_t elementBytes, int ranks) {
          const size_t share = alignedShare(count, elementBytes, ranks);
          return Extents{share, share * ranks, share, 0, 0};
        },
    .busFactor = othersShare,
    .boundFactor = [](int ranks) { return othersShare(ranks) / ranks; },
    .result =
        [](const Call& call) {
          std::vector<Piece> pieces;
          for (int rank = 0; rank < call.ranks; ++rank) {
            pieces.push_back(
                {call.rank == call.root ? Piece::Source::Rank : Piece::Source::Untouched, call.count, rank});
          }
          return pieces;
        },
    .run =
        [](const void* send, void* receive, const Call& call, pealComm_t comm, pealStream_t stream) {
          return pealGather(send, receive, call.count, call.type, call.root, comm, stream);
        },
};

}  // namespace

int main(int argc, char** argv) { return benchMain(kGather, argc, argv); }
