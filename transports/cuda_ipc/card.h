// What the ranks tell each other while they connect: plain structs of one size, in the blobs of the exchange.
//
// A rank that cannot go on still comes to every exchange, with a reason in its card, so that the others learn
// it at once and all of them decide the same.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "lib/base/gpu_path.h"
#include "lib/base/result.h"
#include "transports/cuda_ipc/handle_post.h"
#include "transports/cuda_ipc/identity.h"

namespace peal::cuda {

// A text in a struct: cut where it is too long, empty for "nothing".
struct Reason {
  std::array<char, 768> characters{};

  void set(const std::string& text) {
    characters.fill('\0');
    std::memcpy(characters.data(), text.data(), std::min(text.size(), characters.size() - 1));
  }
  bool empty() const { return characters[0] == '\0'; }
  std::string text() const { return {characters.data(), strnlen(characters.data(), characters.size())}; }
};

// First exchange: who is where.
struct Card {
  uint64_t windowBytes = 0;
  ProcessIdentity process{};
  std::array<char, 16> deviceUuid{};
  Nonce window{};      // its token
  PostAddress post{};  // where handles of registered memory go
  cudaIpcMemHandle_t handle{};
  int32_t device = -1;  // in the numbers of its process
  int32_t rank = -1;
  Reason noHandle;  // why `handle` is not valid
  Reason failure;   // why this rank cannot take part at all
};

// Second and third: whether this rank reached every peer, and later whether every peer reached it.
struct Vote {
  GpuPath path = GpuPath::HostMemory;  // the slowest to a peer
  Reason against;
};

// For windows in host memory.
struct HostCard {
  uint64_t windowBytes = 0;
  ProcessIdentity process{};
  Nonce window{};
  int32_t file = -1;  // its descriptor in the owner's process
  Reason failure;
};

}  // namespace peal::cuda
