// What a rank notes in its own window for peers that have given up waiting for it: kernels of collectives the
// passage that they have come to (view.h, wait.cuh), kernels of sends and receives the first of these, here.
// Read by the host of whoever met a deadline (executor.cpp), for its sentence only: nothing is ordered by it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lib/executor/cuda/view.h"

namespace peal::cuda {

// DigestWords in the window's first line, behind the word that peers set. root: the other end. All zeros: the
// rank is in no transfer.
constexpr size_t kTransferNoteAt = kLineBytes / 2;
static_assert(kTransferNoteAt + sizeof(DigestWords) <= kLineBytes);

// What the host copies: the window up to its inboxes, and behind it how many collectives the reader has come
// to itself.
constexpr size_t kWindowNotesBytes = WindowShape::kInboxesAt;
constexpr size_t kOwnSequenceAt = kWindowNotesBytes;
constexpr size_t kNotesPageBytes = kOwnSequenceAt + sizeof(uint64_t);
static_assert(offsetof(ChannelState, sequence) == 0);

}  // namespace peal::cuda
