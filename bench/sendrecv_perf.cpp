// sendrecv_perf: every rank sends to the next and receives from the one before, in one group. Not in place:
// the API leaves receiving into the buffer that is being sent undefined.
//
// Bound: S per rank. A rank alone sends to itself.
#include "bench/harness/main.h"

namespace {

using namespace peal::bench;

pealResult_t sendAndReceive(const void* send, void* receive, const Call& call, pealComm_t comm,
                            pealStream_t stream) {
  const int next = (call.rank + 1) % call.ranks;
  const int before = (call.rank + call.ranks - 1) % call.ranks;
  pealResult_t result = pealGroupStart();
  if (result != pealSuccess) {
    return result;
  }
  const pealResult_t sent = pealSend(send, call.count, call.type, next, comm, stream);
  const pealResult_t received = pealRecv(receive, call.count, call.type, before, comm, stream);
  result = pealGroupEnd();
  return sent != pealSuccess ? sent : received != pealSuccess ? received : result;
}

const Collective kSendRecv{
    .program = "sendrecv_perf",
    .reduces = false,
    .rooted = false,
    .inPlace = false,
    .extents =
        [](size_t count, size_t, int) {
          return Extents{count, count, count, 0, 0};
        },
    .busFactor = [](int) { return 1.0; },
    .boundFactor = [](int ranks) { return ranks > 1 ? 1.0 : 0.0; },
    .result =
        [](const Call& call) {
          const int before = (call.rank + call.ranks - 1) % call.ranks;
          return std::vector<Piece>{{Piece::Source::Rank, call.count, before}};
        },
    .run = sendAndReceive,
};

}  // namespace

int main(int argc, char** argv) { return benchMain(kSendRecv, argc, argv); }
