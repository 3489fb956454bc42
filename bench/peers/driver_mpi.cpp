// An MPI as a contender: driver_mpi CONTROL SOCKET under its mpirun. Built by bench/peers/run with the MPI's
// own compiler. MPI has no 16-bit floats: these are summed by an operation of the user's, as programs do
// today, with the loop that the compiler vectorises.
#include <mpi.h>

#include <bit>
#include <cstdint>

#include "bench/peers/driver.h"

namespace {

using namespace peers;

// In sight of the compiler, unlike case.h's, so that it vectorises the loop. No infinities and no NaNs.
void sumBfloat16(void* in, void* inOut, int* count, MPI_Datatype* /*type*/) {
  const auto* from = static_cast<const uint16_t*>(in);
  auto* to = static_cast<uint16_t*>(inOut);
  for (int i = 0; i < *count; ++i) {
    const auto left = std::bit_cast<float>(uint32_t{from[i]} << 16);
    const auto right = std::bit_cast<float>(uint32_t{to[i]} << 16);
    const auto bits = std::bit_cast<uint32_t>(left + right);
    to[i] = static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);  // to nearest, ties to even
  }
}

void sumHalf(void* in, void* inOut, int* count, MPI_Datatype* /*type*/) {
  const auto* from = static_cast<const _Float16*>(in);
  auto* to = static_cast<_Float16*>(inOut);
  for (int i = 0; i < *count; ++i) {
    to[i] = static_cast<_Float16>(static_cast<float>(from[i]) + static_cast<float>(to[i]));
  }
}

class MpiPeer : public Peer {
 public:
  MpiPeer() {
    MPI_Op_create(&sumBfloat16, 1, &bfloat16Sum_);
    MPI_Op_create(&sumHalf, 1, &halfSum_);
  }

  Call prepare(const Case& what, void* send, void* recv) override {
    if (what.type != Type::Float && what.collective != Collective::AllReduce) {
      return {{}, "MPI has no 16-bit floats", false};
    }
    return {[this, what, send, recv] { run(what, send, recv); }, "", false};
  }

 private:
  void run(const Case& what, void* send, void* recv) const {
    const MPI_Datatype type = what.type == Type::Float ? MPI_FLOAT : MPI_UINT16_T;
    const MPI_Op sum = what.type == Type::Float ? MPI_SUM : what.type == Type::Half ? halfSum_ : bfloat16Sum_;
    const int count = static_cast<int>(what.count);
    const MPI_Comm all = MPI_COMM_WORLD;
    switch (what.collective) {
      case Collective::AllReduce:
        MPI_Allreduce(send, recv, count, type, sum, all);
        break;
      case Collective::ReduceScatter:
        MPI_Reduce_scatter_block(send, recv, count, type, sum, all);
        break;
      case Collective::AllGather:
        MPI_Allgather(send, count, type, recv, count, type, all);
        break;
      case Collective::Broadcast:
        MPI_Bcast(recv, count, type, kRoot, all);
        break;
      case Collective::Reduce:
        MPI_Reduce(send, recv, count, type, sum, kRoot, all);
        break;
      case Collective::AllToAll:
        MPI_Alltoall(send, count, type, recv, count, type, all);
        break;
      case Collective::SendRecv:
        MPI_Sendrecv(send, count, type, (what.rank + 1) % what.ranks, 0, recv, count, type,
                     (what.rank + what.ranks - 1) % what.ranks, 0, all, MPI_STATUS_IGNORE);
        break;
    }
  }

  MPI_Op bfloat16Sum_ = MPI_OP_NULL, halfSum_ = MPI_OP_NULL;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: driver_mpi CONTROL SOCKET\n");
    return 2;
  }
  MPI_Init(&argc, &argv);
  dieWithParent();
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  Ranks ranks(mapControl(argv[1]), rank, size);
  MpiPeer peer;
  const int code = serve(peer, ranks, argv[2]);
  MPI_Finalize();
  return code;
}
