// What ranks of different processes tell each other about registered buffers, one message of the control
// endpoint each. Ranks of one process need none: their pointers are good as they are.
//
//   Announce  "I registered this region"            answered by Mapped
//   Mapped    "I reach it at that address" (0: not at all, and why)
//   Retire    "I deregister it"                     answered by Closed
//   Withdraw  "the same, after a fault: kernels may be reading it"   answered by Closed, when none does
//   Closed    "I do not have it mapped any more"
//   Leaving   "I have nothing of yours mapped any more, and this is my last note": the owner may free
//             everything. Each rank sends one to every peer, and waits for one from every peer or for the end
//             of its process, before it frees its window and its endpoint.
//
// A link keeps its order, so Retire never overtakes Announce, nor Closed Mapped.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "transports/cuda_ipc/card.h"

namespace peal::cuda {

enum class NoteKind : uint64_t { Announce = 1, Mapped, Retire, Withdraw, Closed, Leaving };

struct Note {
  NoteKind kind{};
  uint64_t id = 0;       // of the region, in its owner's numbers
  uint64_t offset = 0;   // Announce: of the region in the allocation that the handle names, or in its pieces
  uint64_t bytes = 0;    // Announce
  uint64_t address = 0;  // Mapped
  cudaIpcMemHandle_t handle{};
  // Announce: memory of cuMemCreate consists of so many pieces, whose handles came as a packet
  // (handle_post.h). 0: it is what the handle names. Below 0: the packet could not be sent.
  int32_t pieces = 0;
  std::array<uint64_t, HandlePost::kMostFiles> pieceBytes{};
  Reason reason;  // Mapped with address 0; Announce with pieces below 0
};
static_assert(std::is_trivially_copyable_v<Note>);

}  // namespace peal::cuda
