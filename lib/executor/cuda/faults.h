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
};

// As the host writes it.
Digest digestOf(const DigestWords& words);

// nullopt: none, or one that is still being written.
std::optional<FaultRecord> readFault(const FaultRecord& board);

// nullopt: the kernels left because this rank told them to.
std::optional<Fault> faultOf(const FaultRecord& record, const FaultReader& reader);

}  // namespace peal::cuda
