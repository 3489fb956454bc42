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

// Through a buffer of bounded size. safetensors has no two names for one tensor: tied ones are in the file's
// metadata, "peal.tied". Frozen parameters have weights only; their names are in "peal.frozen".
Written exportSafetensors(const zero::Checkpoint& checkpoint, Exported what, const std::string& file,
                          Existing existing);

// F32 and BF16 tensors become the masters of a checkpoint of step 0 with moments of zero; what the metadata
// says of tied and frozen ones holds again. Needs the memory of an engine on one rank: 20 bytes per element.
// A checkpoint that is at `path` stays unless it may go.
Written importSafetensors(const std::string& file, const std::string& path, Existing existing);

}  // namespace peal::tools
