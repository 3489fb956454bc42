// Inputs of every rank and the exact result of every reduction, computed element by element.
//
// The inputs are chosen so that the right result is one value whatever the order of the sum: whole numbers
// whose magnitudes add up to no more than the type holds exactly (sum, avg, mulsum), powers of two with
// signs (prod of floats), small factors (prod of integers), anything (max, min). Only avg of floats rounds:
// the exact sum is divided by N and rounded as peal.h says. Values depend on rank, index and repetition, so
// that stale data, exchanged ranks and shifted offsets are seen. When a narrow type cannot hold a share of
// every rank, a window of ranks that moves with the index contributes, and the others send the neutral value.
//
// Copies (all-gather, broadcast, ...) move arbitrary bits, NaN patterns included. Used by verify; must not
// use the library: it is the reference that the library is held against.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/harness/types.h"

namespace peal::bench {

class Values {
 public:
  Values(pealDataType_t type, Combine combine, int ranks, uint64_t repetition);

  // Elements [first, first + count) of what `rank` sends.
  void input(int rank, size_t first, size_t count, void* out) const;
  // The same elements of the reduction over all ranks. Not for Combine::Copy.
  void reduced(size_t first, size_t count, void* out) const;
  // What fills a receive buffer of `rank` before the call: unlike any input and any result.
  void garbage(int rank, size_t first, size_t count, void* out) const;
  // MulSum: the scalar of `rank`, as one element. It is a whole number, so that products are exact.
  std::array<std::byte, 8> scalar(int rank) const;

  const TypeInfo& type() const { return info_; }

 private:
  static constexpr size_t kChunk = 1024;  // elements at a time; the scratch stays in the L1 cache
  using Chunk = std::array<int64_t, kChunk>;

  struct Plan {
    int64_t exact = 0;     // largest magnitude that the type holds exactly with all below it
    int bits = 1;          // random bits of a number
    int64_t contributors;  // ranks that contribute to one element
  };
  Plan makePlan() const;
  void buildTable();

  uint64_t seed(int rank) const;
  int64_t scalarOf(int rank) const { return combine_ == Combine::MulSum ? 1 + rank % 2 : 1; }
  void windowStarts(size_t first, size_t count, Chunk& starts) const;
  void numbers(int rank, size_t first, size_t count, const Chunk& starts, Chunk& out) const;
  void fold(int rank, const Chunk& next, size_t count, Chunk& total) const;
  void encode(const Chunk& numbers, size_t count, bool average, void* out) const;
  void raw(uint64_t seed, size_t first, size_t count, void* out) const;

  const TypeInfo& info_;
  Combine combine_;
  int ranks_;
  uint64_t repetition_;
  bool floatProduct_;
  Plan plan_;
  // Formats of 8 and 16 bits: the encoding of number n at [n + tableZero_]; the second is for averages.
  std::vector<uint16_t> table_, averageTable_;
  int64_t tableZero_ = 0;
};

}  // namespace peal::bench
