// What a kernel reported, as a sentence. Reads the record that kernels leave in pinned host memory.
#pragma once
#include <optional>
#include <string>

#include "lib/executor/cuda/view.h"
#include "lib/executor/host/operation.h"

namespace peal::cuda {

// Who reads the record.
struct FaultReader {
  std::string name;  // of the communicator and rank, for messages
  int rank = 0;
  int device = 0;
  int64_t timeoutMs = 0;
  // After a deadline: what the peer that did not come was seen in (seenIn).
  std::optional<DigestWords> seen = std::nullopt;
};

// As the host writes it.
Digest digestOf(const DigestWords& words);

// nullopt: none, or one that is still being written.
std::optional<FaultRecord> readFault(const FaultRecord& board);

// From the notes of a peer's window (kNotesPageBytes, window_notes.h): the first of the sends and receives
// that it is in, else the collective that the reader of `record` is in too, or that it has not come to yet.
// nullopt: neither.
std::optional<DigestWords> seenIn(const std::byte* notes, const FaultRecord& record);

// nullopt: the kernels left because this rank told them to.
std::optional<Fault> faultOf(const FaultRecord& record, const FaultReader& reader);

}  // namespace peal::cuda
