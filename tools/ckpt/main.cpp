// peal-ckpt: lists, verifies and compares checkpoints, and turns them into safetensors and back. Reads
// through peal/zero.h; nothing here knows the format.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/ckpt/safetensors.h"
#include "tools/common/arguments.h"
#include "tools/common/error.h"

namespace peal::tools {
namespace {

constexpr uint64_t kPiece = uint64_t{1} << 18;
constexpr pealZeroTensor_t kTensors[] = {pealZeroMaster, pealZeroMoment1, pealZeroMoment2, pealZeroWeight};
constexpr const char* kTensorNames[] = {"master", "moment1", "moment2", "weights"};

std::string kindOf(const pealZeroCheckpointParameter_t& parameter) {
  return parameter.tiedTo != nullptr ? fmt::format("tied to {}", parameter.tiedTo)
                                     : std::string(parameter.frozen != 0 ? "frozen" : "trained");
}

const char* typeOf(const pealZeroCheckpointParameter_t& parameter) {
  return parameter.weightBytes == 4 ? "fp32" : parameter.weightBytes == 2 ? "bf16" : "-";
}

// Where no checkpoint is, the command line is wrong, and not what is there.
zero::Checkpoint opened(const std::string& path) {
  try {
    return zero::Checkpoint(path);
  } catch (const zero::Failure& failure) {
    if (std::error_code fault; std::filesystem::exists(path + "/manifest.txt", fault)) {
      throw;
    }
    throw UsageError(failure.what());
  }
}

int list(const std::string& path, bool asJson) {
  const zero::Checkpoint checkpoint = opened(path);
  const pealZeroCheckpointInfo_t info = checkpoint.info();
  nlohmann::json parameters = nlohmann::json::array();
  std::string table;
  for (uint64_t i = 0; i < info.parameters; ++i) {
    const pealZeroCheckpointParameter_t parameter = checkpoint.parameter(i);
    const std::vector<uint64_t> shape(parameter.shape, parameter.shape + parameter.dimensions);
    parameters.push_back({{"name", parameter.name},
                          {"elements", parameter.elements},
                          {"shape", shape},
                          {"kind", kindOf(parameter)},
                          {"weightBytes", parameter.weightBytes}});
    table += fmt::format("{:>14}  {:<10} {:<5} {} {}\n", parameter.elements, kindOf(parameter),
                         typeOf(parameter), parameter.name, nlohmann::json(shape).dump());
  }
  if (asJson) {
    const nlohmann::json whole{{"step", info.step},
                               {"id", fmt::format("{:016x}", info.id)},
                               {"elements", info.elements},
                               {"files", info.files},
                               {"fileBytes", info.fileBytes},
                               {"userBytes", info.userBytes},
                               {"hasWeights", info.hasWeights != 0},
                               {"weightBytes", info.weightBytes},
                               {"parameters", parameters}};
    fmt::print("{}\n", whole.dump(2));
    return 0;
  }
  fmt::print("{}: step {}, {} parameters, {} elements, {} files of {} bytes, {} bytes of the user's\n{}",
             path, info.step, info.parameters, info.elements, info.files, info.fileBytes, info.userBytes,
             table);
  return 0;
}

// Reads all values of all parameters; each damaged parameter is told.
int verify(const std::string& path) {
  const zero::Checkpoint checkpoint = opened(path);
  (void)checkpoint.userData();
  std::vector<float> values;
  int damaged = 0;
  for (uint64_t i = 0; i < checkpoint.info().parameters; ++i) {
    const pealZeroCheckpointParameter_t parameter = checkpoint.parameter(i);
    for (const pealZeroTensor_t tensor : kTensors) {
      if (parameter.tiedTo != nullptr || (parameter.frozen != 0 && tensor != pealZeroWeight)) {
        continue;
      }
      try {
        for (uint64_t begin = 0; begin < parameter.elements; begin += kPiece) {
          values.resize(std::min(kPiece, parameter.elements - begin));
          checkpoint.read(i, tensor, begin, values);
        }
      } catch (const zero::Failure& failure) {
        ++damaged;
        fmt::print("{} of {}: {}\n", kTensorNames[tensor], parameter.name, failure.what());
      }
    }
  }
  fmt::print("{}: {}\n", path, damaged == 0 ? "whole" : fmt::format("{} tensors damaged", damaged));
  return damaged == 0 ? 0 : kExitFailure;
}

// How many elements differ in their bits.
uint64_t differences(const zero::Checkpoint& a, uint64_t indexA, const zero::Checkpoint& b, uint64_t indexB,
                     pealZeroTensor_t tensor, uint64_t elements) {
  std::vector<float> left, right;
  uint64_t count = 0;
  for (uint64_t begin = 0; begin < elements; begin += kPiece) {
    left.resize(std::min(kPiece, elements - begin));
    right.resize(left.size());
    a.read(indexA, tensor, begin, left);
    b.read(indexB, tensor, begin, right);
    for (size_t i = 0; i < left.size(); ++i) {
      count += std::bit_cast<uint32_t>(left[i]) != std::bit_cast<uint32_t>(right[i]) ? 1 : 0;
    }
  }
  return count;
}

int compare(const std::string& pathA, const std::string& pathB) {
  const zero::Checkpoint a = opened(pathA), b = opened(pathB);
  std::map<std::string, uint64_t> others;
  for (uint64_t i = 0; i < b.info().parameters; ++i) {
    others.emplace(b.parameter(i).name, i);
  }
  int different = 0;
  const auto tell = [&different](const std::string& sentence) {
    ++different;
    fmt::print("{}\n", sentence);
  };
  if (a.info().step != b.info().step) {
    tell(fmt::format("step: {} and {}", a.info().step, b.info().step));
  }
  if (a.userData() != b.userData()) {
    tell("the user's bytes differ");
  }
  for (uint64_t i = 0; i < a.info().parameters; ++i) {
    const pealZeroCheckpointParameter_t parameter = a.parameter(i);
    const auto found = others.find(parameter.name);
    if (found == others.end()) {
      tell(fmt::format("{}: only in {}", parameter.name, pathA));
      continue;
    }
    const uint64_t index = found->second;
    const pealZeroCheckpointParameter_t other = b.parameter(index);
    others.erase(found);
    if (!std::equal(parameter.shape, parameter.shape + parameter.dimensions, other.shape,
                    other.shape + other.dimensions) ||
        kindOf(parameter) != kindOf(other)) {
      tell(fmt::format("{}: another shape or kind", parameter.name));
      continue;
    }
    if (parameter.weightBytes != 0 && other.weightBytes != 0 && parameter.weightBytes != other.weightBytes) {
      tell(fmt::format("{}: weights are {} and {}", parameter.name, typeOf(parameter), typeOf(other)));
    }
    for (const pealZeroTensor_t tensor : kTensors) {
      if (parameter.tiedTo != nullptr || (parameter.frozen != 0 && tensor != pealZeroWeight)) {
        continue;
      }
      if (const uint64_t count = differences(a, i, b, index, tensor, parameter.elements); count > 0) {
        tell(fmt::format("{}: {} of {} elements of {} differ", parameter.name, count, parameter.elements,
                         kTensorNames[tensor]));
      }
    }
  }
  for (const auto& [name, index] : others) {
    tell(fmt::format("{}: only in {}", name, pathB));
  }
  fmt::print("{}\n", different == 0 ? "the same" : fmt::format("{} differences", different));
  return different == 0 ? 0 : kExitFailure;
}

int run(int argc, char** argv) {
  CLI::App app{"Looks into checkpoints of the ZeRO engine (docs/CHECKPOINTS.md).", "peal-ckpt"};
  app.require_subcommand(1);
  std::string path, other, tensors = "weights";
  bool asJson = false, replaces = false;
  CLI::App* listing = app.add_subcommand("list", "what a checkpoint holds");
  listing->add_flag("--json", asJson, "as JSON");
  CLI::App* verifying = app.add_subcommand("verify", "reads everything and checks every checksum");
  CLI::App* comparing = app.add_subcommand("compare", "whether two hold the same, bit for bit");
  CLI::App* exporting = app.add_subcommand("export", "writes a safetensors file");
  CLI::App* importing = app.add_subcommand("import", "makes a checkpoint of step 0 from a safetensors file");
  for (CLI::App* command : {listing, verifying, comparing, exporting}) {
    command->add_option("checkpoint", path, "its directory")->required();
  }
  comparing->add_option("other", other, "another one")->required();
  exporting->add_option("file", other, "the safetensors file to write")->required();
  exporting
      ->add_option("--tensors", tensors,
                   "weights (as their type is), master (fp32), or all (masters and both moments)")
      ->check(CLI::IsMember({"weights", "master", "all"}))
      ->capture_default_str();
  importing->add_option("file", path, "a safetensors file of F32 and BF16 tensors")->required();
  importing->add_option("checkpoint", other, "the directory to make")->required();
  importing->add_flag("--force", replaces, "replace a checkpoint that is there");
  exporting->add_flag("--force", replaces, "replace a file that is there");
  if (const std::optional<int> code = parseArguments(app, argc, argv)) {
    return *code;
  }
  if (listing->parsed()) {
    return list(path, asJson);
  }
  if (verifying->parsed()) {
    return verify(path);
  }
  if (comparing->parsed()) {
    return compare(path, other);
  }
  const Existing existing = replaces ? Existing::Replaced : Existing::Kept;
  const Exported what = tensors == "all"      ? Exported::All
                        : tensors == "master" ? Exported::Master
                                              : Exported::Weights;
  const Written written = exporting->parsed() ? exportSafetensors(opened(path), what, other, existing)
                                              : importSafetensors(path, other, existing);
  fmt::print("{}: {} {}, {} bytes\n", other, written.tensors, written.tensors == 1 ? "tensor" : "tensors",
             written.bytes);
  return 0;
}

}  // namespace
}  // namespace peal::tools

int main(int argc, char** argv) {
  return peal::tools::guard("peal-ckpt", [&] { return peal::tools::run(argc, argv); });
}
