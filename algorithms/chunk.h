// How a collective's array is cut: blocks (one per rank), and rounds that take a slice of every block.
//
// Plain arithmetic, host and device code alike. Knows no memory and no types.
#pragma once
#include <cstddef>

#include "algorithms/platform.h"

namespace peal {

// Elements [offset, offset + count) of the operation's array. count may be 0.
struct Chunk {
  size_t offset;
  size_t count;
};

// An array of `total` elements in `parts` blocks. Without `starts` the first total % parts blocks are one
// element longer than the others (10 in 4: 3 3 2 2); with it block i is [starts[i], starts[i + 1]).
struct Blocks {
  size_t total;
  int parts;
  const size_t* starts;  // parts + 1 entries, or nullptr

  constexpr PEAL_HD size_t start(int i) const {
    if (starts != nullptr) {
      return starts[i];
    }
    const size_t n = static_cast<size_t>(parts);
    const size_t k = static_cast<size_t>(i);
    const size_t longer = total % n;
    return total / n * k + (k < longer ? k : longer);
  }
  // The block of rank i modulo parts.
  constexpr PEAL_HD Chunk block(int i) const {
    const int k = ((i % parts) + parts) % parts;
    return {start(k), start(k + 1) - start(k)};
  }
  constexpr PEAL_HD size_t longest() const {
    size_t most = 0;
    for (int i = 0; i < parts; ++i) {
      const size_t count = start(i + 1) - start(i);
      most = count > most ? count : most;
    }
    return most;
  }
};

// One pass: elements [begin, begin + chunkCount) of every block, as far as the block has them.
struct Round {
  Blocks blocks;
  size_t begin;
  size_t chunkCount;

  // The slice of block i modulo parts; empty (at the block's end) if the block is shorter.
  constexpr PEAL_HD_CALL Chunk chunk(int i) const {
    const Chunk block = blocks.block(i);
    const size_t skip = begin < block.count ? begin : block.count;
    const size_t left = block.count - skip;
    return {block.offset + skip, left < chunkCount ? left : chunkCount};
  }
};

}  // namespace peal
