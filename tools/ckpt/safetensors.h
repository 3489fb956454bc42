// Checkpoints to safetensors files and back. The format: 8 bytes of length, a JSON header of that length
// (name -> dtype, shape, data_offsets), the values. https://github.com/huggingface/safetensors
#pragma once
#include <cstdint>
#include <string>

#include "peal/zero.hpp"

namespace peal::tools {

enum class Exported { Weights, Master, All };  // bf16; fp32; fp32 masters and both moments

// What is at the place of a result.
enum class Existing { Kept, Replaced };

struct Written {
  uint64_t tensors, bytes;
};

// Through a buffer of bounded size. Tied names are left out, since safetensors has no two names for one
// tensor; frozen parameters have weights only.
Written exportSafetensors(const zero::Checkpoint& checkpoint, Exported what, const std::string& file,
                          Existing existing);

// F32 and BF16 tensors become the masters of a checkpoint of step 0 with moments of zero. Needs the memory of
// an engine on one rank: 20 bytes per element. A checkpoint that is at `path` stays unless it may go.
Written importSafetensors(const std::string& file, const std::string& path, Existing existing);

}  // namespace peal::tools
