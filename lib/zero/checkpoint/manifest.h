// The manifest: what a checkpoint holds and which files belong to it, as text whose last line is its
// checksum. It is written last, so a directory without a whole one is no checkpoint. docs/CHECKPOINTS.md has
// the grammar. Does no input and output.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/zero/checkpoint/state.h"

namespace peal::zero::checkpoint {

inline constexpr const char* kManifestName = "manifest.txt";
inline constexpr const char* kUserName = "user.bin";
inline constexpr uint64_t kMostManifestBytes = uint64_t{1} << 30;

struct PartEntry {
  std::string name;  // in the directory
  uint64_t bytes = 0;
  uint64_t elements = 0;      // trained and frozen
  uint32_t headChecksum = 0;  // of header and table
};

struct Manifest {
  uint64_t id = 0;  // random
  uint64_t step = 0;
  std::vector<AdamwNumbers> groups;
  uint32_t streams = kFewestStreams;  // of trained parameters
  std::vector<ParameterShape> parameters;
  std::vector<PartEntry> parts;
  uint64_t userBytes = 0;
  uint32_t userChecksum = 0;
};

std::string encodeManifest(const Manifest& manifest);
// file: for the error.
Result<Manifest> parseManifest(const std::string& text, const std::string& file);

// For a tied name the parameter that has the elements, else itself.
inline uint64_t holderOf(const Manifest& manifest, uint64_t parameter) {
  const ParameterShape& shape = manifest.parameters[parameter];
  return shape.kind == Kind::Tied ? shape.link : parameter;
}

std::string partName(uint64_t rank);
const char* weightTypeName(WeightType type);  // "bf16"

// Of all trained parameters, or nothing where they differ. Without any: bf16.
std::optional<WeightType> weightTypeOf(const Manifest& manifest);

}  // namespace peal::zero::checkpoint
