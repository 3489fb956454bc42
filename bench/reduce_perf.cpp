// reduce_perf: pealReduce. Ranks other than the root must find their receive buffers as they left them.
//
// Bound: every element has n - 1 sums, (n - 1)S in all; averaged over n ranks.
#include "bench/harness/main.h"

namespace {

using namespace peal::bench;

const Collective kReduce{
    .program = "reduce_perf",
    .reduces = true,
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
          const bool isRoot = call.rank == call.root;
          return std::vector<Piece>{
              {isRoot ? Piece::Source::Reduction : Piece::Source::Untouched, call.count}};
        },
    .run =
        [](const void* send, void* receive, const Call& call, pealComm_t comm, pealStream_t stream) {
          return pealReduce(send, receive, call.count, call.type, call.op, call.root, comm, stream);
        },
};

}  // namespace

int main(int argc, char** argv) { return benchMain(kReduce, argc, argv); }
