// Times MPI_Allreduce as all_reduce_perf times peal: warm-up, a barrier, then the mean over the iterations of
// the rank that took longest. mpi_driver SIZES; see peer.h. Built by bench/peers/between_hosts.py with the
// MPI's own compiler.
#include <mpi.h>

#include "bench/peers/peer.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (const peers::Size& size : peers::parseSizes(argc > 1 ? argv[1] : "")) {
    const size_t count = size.bytes / sizeof(float);
    std::vector<float> in(count), out(count);
    for (size_t i = 0; i < count; ++i) {
      in[i] = peers::valueOf(rank, i);
    }
    const auto once = [&] {
      MPI_Allreduce(in.data(), out.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    };
    for (int i = 0; i < 3; ++i) {
      once();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int i = 0; i < size.iterations; ++i) {
      once();
    }
    double seconds = (MPI_Wtime() - start) / size.iterations, longest = 0;
    MPI_Reduce(&seconds, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
      peers::printRow(size.bytes, longest * 1e6, peers::countWrong(out.data(), count, ranks));
    }
  }
  MPI_Finalize();
}
