// What one bench measures: the extents of its buffers, the call, the result that is right, and the formulas
// of its columns. Each program under bench/ fills one of these in; the harness does the rest.
#pragma once
#include <cstddef>
#include <vector>

#include "peal/peal.h"

namespace peal::bench {

// Extents in elements, with nccl-tests' meaning. In place one buffer is used: sending starts at
// sendInPlaceAt, receiving at receiveInPlaceAt, both times the rank.
struct Extents {
  size_t send = 0;
  size_t receive = 0;
  size_t parameter = 0;  // the count argument of the call, and the count column
  size_t sendInPlaceAt = 0;
  size_t receiveInPlaceAt = 0;
};

// One call on one rank.
struct Call {
  size_t count = 0;  // Extents::parameter
  pealDataType_t type = pealFloat32;
  pealRedOp_t op = pealSum;
  int root = 0;
  int rank = 0;
  int ranks = 1;
};

// A stretch of the receive buffer and what must be in it.
struct Piece {
  enum class Source { Rank, Reduction, Untouched };
  Source source;
  size_t count;         // elements; pieces follow each other without gaps
  int rank = 0;         // Source::Rank: whose input
  size_t sourceAt = 0;  // where in that input, or in the reduction, the piece starts
};

struct Collective {
  const char* program;  // also the name of the test in reports
  bool reduces;         // has a redop column
  bool rooted;          // has a root column
  bool inPlace;         // the API allows it in place
  // For about `count` elements in all; nccl-tests rounds a rank's share down to 16 bytes.
  Extents (*extents)(size_t count, size_t elementBytes, int ranks);
  double (*busFactor)(int ranks);  // busbw = algbw * busFactor
  // Bytes that a rank must send, averaged over the ranks, over the size column: no algorithm needs less.
  double (*boundFactor)(int ranks);
  std::vector<Piece> (*result)(const Call& call);
  pealResult_t (*run)(const void* send, void* receive, const Call& call, pealComm_t comm,
                      pealStream_t stream);
};

// A rank's share of count elements, rounded down to 16 bytes.
inline size_t alignedShare(size_t count, size_t elementBytes, int ranks) {
  return count / static_cast<size_t>(ranks) & ~(16 / elementBytes - 1);
}

// (n - 1) / n
inline double othersShare(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

}  // namespace peal::bench
