// What the drivers of the peers share: sizes, how often each is timed, values that show a wrong sum, and the
// line that bench/peers/between_hosts.py reads. Only all-reduce of float32, which every peer has.
#pragma once
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace peers {

struct Size {
  size_t bytes;
  int iterations;
};

// "8:500,1024:500": bytes and iterations.
inline std::vector<Size> parseSizes(const char* text) {
  std::vector<Size> sizes;
  char* end = nullptr;
  for (const char* at = text; *at != '\0'; at = *end == ',' ? end + 1 : end) {
    const size_t bytes = std::strtoull(at, &end, 10);
    if (*end != ':') {
      std::fprintf(stderr, "sizes are BYTES:ITERATIONS,..., not %s\n", text);
      std::exit(2);
    }
    sizes.push_back({bytes, static_cast<int>(std::strtol(end + 1, &end, 10))});
  }
  return sizes;
}

// Small whole numbers: their sums are exact in any order.
inline float valueOf(int rank, size_t index) {
  return static_cast<float>((rank + 1) * (1 + static_cast<int>(index % 7)));
}

inline size_t countWrong(const float* sums, size_t count, int ranks) {
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    float expected = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      expected += valueOf(rank, i);
    }
    wrong += sums[i] == expected ? 0 : 1;
  }
  return wrong;
}

inline void printRow(size_t bytes, double microseconds, size_t wrong) {
  std::printf("row %zu %.3f %zu\n", bytes, microseconds, wrong);
  std::fflush(stdout);
}

}  // namespace peers
