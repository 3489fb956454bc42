// alltoall_perf: every rank sends its r-th share to rank r, by sends and receives in one group. Not in place:
// the API leaves receiving into the buffer that is being sent undefined.
//
// Bound: n - 1 of n shares leave each rank.
#include "bench/harness/main.h"

namespace {

using namespace peal::bench;

pealResult_t exchange(const void* send, void* receive, const Call& call, pealComm_t comm,
                      pealStream_t stream) {
  const size_t shareBytes = call.count * typeInfo(call.type).bytes;
  pealResult_t first = pealGroupStart();
  if (first != pealSuccess) {
    return first;
  }
  for (int peer = 0; peer < call.ranks; ++peer) {
    const auto* share = static_cast<const std::byte*>(send) + peer * shareBytes;
    const pealResult_t sent = pealSend(share, call.count, call.type, peer, comm, stream);
    const pealResult_t received = pealRecv(static_cast<std::byte*>(receive) + peer * shareBytes, call.count,
                                           call.type, peer, comm, stream);
    first = first != pealSuccess ? first : sent != pealSuccess ? sent : received;
  }
  const pealResult_t ended = pealGroupEnd();
  return first != pealSuccess ? first : ended;
}

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
    .run = exchange,
};

}  // namespace

int main(int argc, char** argv) { return benchMain(kAllToAll, argc, argv); }
