// What the tuner decides and the executor runs: a family of algorithms, the size of its messages and, on a
// GPU, how they travel. Plain data.
#pragma once
#include <cstddef>
#include <cstdint>

namespace peal {

// ring.h; direct.h with one or two shots; hierarchical.h; tree.h; hierarchical_ring.h. The value travels in
// the digest of every message.
enum class Algorithm : uint8_t { Ring, OneShot, TwoShot, Hierarchical, Tree, HierarchicalRing };

constexpr int kAlgorithmFamilies = 6;

// As PEAL_ALGO takes them.
constexpr const char* kAlgorithmNames[kAlgorithmFamilies] = {"ring",         "one_shot", "two_shot",
                                                             "hierarchical", "tree",     "hierarchical_ring"};

// How a GPU's kernels hand a message over. Simple: the bytes, then a count. LL: 4 bytes of data and 4 of
// flag. LL128: 120 bytes of data and 8 of flag.
enum class Protocol : uint8_t { Simple, LL, LL128 };

struct Choice {
  Algorithm algorithm = Algorithm::OneShot;
  size_t chunkBytes = 0;  // the most bytes of one message
  Protocol protocol = Protocol::Simple;
  int channels = 1;  // blocks that share the work; 1 on the host
  int ahead = 0;     // rounds that earlier stages run ahead (pipeline.h)
};

}  // namespace peal
