#include "tools/ckpt/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tools/common/error.h"

namespace peal::tools {
namespace {

using nlohmann::json;
constexpr uint64_t kPieceElements = uint64_t{1} << 18;
constexpr uint64_t kMostHeaderBytes = uint64_t{100} << 20;  // the format's own limit
// Of the file's metadata, which has only texts: JSON of what safetensors has no words for.
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kTied = "peal.tied";      // other names of tensors: {"NAME": "TENSOR"}
constexpr const char* kFrozen = "peal.frozen";  // tensors that are not trained: ["TENSOR"]

struct Tensor {
  std::string name;
  uint64_t parameter, elements;
  pealZeroTensor_t tensor;
  bool isHalf;  // bf16 in the file
};

void writeValues(const zero::Checkpoint& checkpoint, const Tensor& tensor, std::ofstream& out) {
  std::vector<float> values;
  std::vector<uint16_t> halves;
  for (uint64_t begin = 0; begin < tensor.elements; begin += kPieceElements) {
    values.resize(std::min(kPieceElements, tensor.elements - begin));
    checkpoint.read(tensor.parameter, tensor.tensor, begin, values);
    if (!tensor.isHalf) {
      out.write(reinterpret_cast<const char*>(values.data()),
                static_cast<std::streamsize>(values.size() * sizeof(float)));
      continue;
    }
    halves.clear();  // exact: weights are bf16
    for (const float value : values) {
      halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
    }
    out.write(reinterpret_cast<const char*>(halves.data()),
              static_cast<std::streamsize>(halves.size() * sizeof(uint16_t)));
  }
}

// Removed at the end, however that comes; by then the whole file has its own name.
struct Unfinished {
  explicit Unfinished(std::string name) : path(std::move(name)) {}
  ~Unfinished() { (void)unlink(path.c_str()); }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  const std::string path;
};

bool bringToDisk(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool done = file >= 0 && fsync(file) == 0;
  if (file >= 0) {
    close(file);
  }
  return done;
}

std::vector<float> readValues(std::ifstream& in, uint64_t offset, uint64_t elements, bool isHalf) {
  std::vector<float> values(elements);
  in.seekg(static_cast<std::streamoff>(offset));
  if (!isHalf) {
    in.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(elements * sizeof(float)));
    return values;
  }
  std::vector<uint16_t> halves(elements);
  in.read(reinterpret_cast<char*>(halves.data()), static_cast<std::streamsize>(elements * sizeof(uint16_t)));
  std::transform(halves.begin(), halves.end(), values.begin(),
                 [](uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); });
  return values;
}

struct Source {
  const std::string& file;
  uint64_t dataOffset, size;
};

pealZeroParameter_t describe(const std::string& name, const std::vector<uint64_t>& shape,
                             const std::string& file) {
  if (shape.size() > PEAL_ZERO_MAX_DIMS) {
    throw UsageError(fmt::format("{}: \"{}\" has {} dimensions, more than {}", file, name, shape.size(),
                                 PEAL_ZERO_MAX_DIMS));
  }
  pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
  parameter.name = name.c_str();
  parameter.dims = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), parameter.extents);
  return parameter;
}

// JSON in which an object may have a name only once: a parser takes one of two. Discarded if it is none.
json parseDistinct(const std::string& text, const std::string& file) {
  std::vector<std::set<std::string>> names;  // of the objects that are open
  return json::parse(
      text,
      [&](int, json::parse_event_t event, const json& key) {
        if (event == json::parse_event_t::object_start) {
          names.emplace_back();
        } else if (event == json::parse_event_t::object_end) {
          names.pop_back();
        } else if (event == json::parse_event_t::key && !names.back().insert(key).second) {
          throw UsageError(fmt::format("{}: its header has {} twice", file, key.dump()));
        }
        return true;
      },
      false);
}

void checkName(const std::string& name, const std::string& file) {
  if (name.empty() || name.find('\0') != name.npos) {
    throw UsageError(
        fmt::format("{}: a tensor is called {}, which no parameter can be", file, json(name).dump()));
  }
}

bool isNumbers(const json& list) {
  return list.is_array() && std::all_of(list.begin(), list.end(),
                                        [](const json& number) { return number.is_number_unsigned(); });
}

void checkEntry(const std::string& name, const json& tensor, const std::string& file) {
  checkName(name, file);
  const bool isWhole = tensor.is_object() && tensor.value("dtype", json()).is_string() &&
                       isNumbers(tensor.value("shape", json())) &&
                       isNumbers(tensor.value("data_offsets", json()));
  if (!isWhole) {
    throw UsageError(fmt::format(
        "{}: the header does not say \"{}\"'s dtype, shape and data_offsets: damaged", file, name));
  }
}

// A tensor's values, and one more, so that an empty one has an address too.
std::vector<float> valuesOf(std::ifstream& in, const Source& source, const std::string& name,
                            const json& tensor) {
  const auto dtype = tensor.at("dtype").get<std::string>();
  const auto offsets = tensor.at("data_offsets").get<std::vector<uint64_t>>();
  if (dtype != "F32" && dtype != "BF16") {
    throw UsageError(
        fmt::format("{}: \"{}\" is of dtype {}; F32 and BF16 can be imported", source.file, name, dtype));
  }
  const uint64_t size = source.size;
  uint64_t elements = 1;
  for (const uint64_t extent : tensor.at("shape").get<std::vector<uint64_t>>()) {
    elements *= std::min(extent, size + 1);
    elements = std::min(elements, size + 1);  // more than the file has is refused below
  }
  const uint64_t bytes = elements * (dtype == "F32" ? 4 : 2);
  if (offsets.size() != 2 || offsets[0] > size || offsets[1] > size || offsets[1] - offsets[0] != bytes ||
      source.dataOffset + offsets[1] > size) {
    throw UsageError(fmt::format("{}: \"{}\" does not lie in the file's {} bytes: damaged or truncated",
                                 source.file, name, size));
  }
  std::vector<float> values = readValues(in, source.dataOffset + offsets[0], elements, dtype == "BF16");
  values.push_back(0);
  return values;
}

// A text of the metadata as JSON; `otherwise` if there is none.
json metadataOf(const json& header, const char* key, const json& otherwise, const std::string& file) {
  const json metadata = header.value(kMetadata, json::object());
  if (!metadata.is_object() || !metadata.contains(key)) {
    return otherwise;
  }
  json found = metadata[key].is_string() ? parseDistinct(metadata[key].get<std::string>(), file) : json();
  const bool isOfNames =
      found.type() == otherwise.type() && std::all_of(found.begin(), found.end(), [&](const json& name) {
        return name.is_string() && name != kMetadata && header.contains(name.get<std::string>());
      });
  if (!isOfNames) {
    throw UsageError(
        fmt::format("{}: what its metadata has as \"{}\" does not name tensors of the file", file, key));
  }
  return found;
}

// Registers all tensors and their other names with a new engine. Returns the values, which it reads when it
// is sealed.
std::vector<std::vector<float>> registerAll(zero::Engine& engine, std::ifstream& in, const Source& source,
                                            const json& header) {
  const json frozen = metadataOf(header, kFrozen, json::array(), source.file);
  const json tied = metadataOf(header, kTied, json::object(), source.file);
  std::vector<std::vector<float>> all;
  for (const auto& [name, tensor] : header.items()) {
    if (name == kMetadata) {
      continue;
    }
    checkEntry(name, tensor, source.file);
    all.push_back(valuesOf(in, source, name, tensor));
    pealZeroParameter_t parameter = describe(name, tensor.at("shape"), source.file);
    parameter.frozen = std::find(frozen.begin(), frozen.end(), name) != frozen.end() ? 1 : 0;
    engine.setInitial(engine.addParameter(parameter), all.back().data());
  }
  if (!in) {
    throw UsageError(fmt::format("{} cannot be read to its end", source.file));
  }
  for (const auto& [name, first] : tied.items()) {
    if (header.contains(name)) {
      throw UsageError(
          fmt::format("{}: \"{}\" is a tensor, and its metadata has it as \"{}\", another name of one",
                      source.file, name, kTied));
    }
    const auto tensor = first.get<std::string>();
    checkName(name, source.file);
    pealZeroParameter_t parameter = describe(name, header[tensor].at("shape"), source.file);
    parameter.tiedTo = tensor.c_str();
    engine.addParameter(parameter);
  }
  return all;
}

}  // namespace

Written exportSafetensors(const zero::Checkpoint& checkpoint, Exported what, const std::string& file,
                          Existing existing) {
  if (existing == Existing::Kept ? std::filesystem::exists(file) : std::filesystem::is_directory(file)) {
    throw UsageError(fmt::format("{} exists{}; choose another name", file,
                                 existing == Existing::Kept ? " (--force replaces it)" : ", a directory"));
  }
  json header{{kMetadata, {{"step", std::to_string(checkpoint.info().step)}}}};
  json tied = json::object(), frozen = json::array();
  std::vector<Tensor> tensors;
  uint64_t offset = 0;
  const auto add = [&](uint64_t index, pealZeroTensor_t tensor, const char* suffix) {
    const pealZeroCheckpointParameter_t parameter = checkpoint.parameter(index);
    const bool isHalf = tensor == pealZeroWeight && parameter.weightBytes != 4;
    const uint64_t bytes = parameter.elements * (isHalf ? 2 : 4);
    const std::string name = std::string(parameter.name) + suffix;
    if (header.contains(name)) {
      throw ToolError(fmt::format("two tensors would be called \"{}\"", name));
    }
    header[name] = {{"dtype", isHalf ? "BF16" : "F32"},
                    {"shape", std::vector<uint64_t>(parameter.shape, parameter.shape + parameter.dimensions)},
                    {"data_offsets", {offset, offset + bytes}}};
    tensors.push_back({name, index, parameter.elements, tensor, isHalf});
    offset += bytes;
  };
  for (uint64_t i = 0; i < checkpoint.info().parameters; ++i) {
    const pealZeroCheckpointParameter_t parameter = checkpoint.parameter(i);
    if (parameter.tiedTo != nullptr) {
      tied[parameter.name] = parameter.tiedTo;
      continue;
    }
    if (parameter.frozen != 0) {
      frozen.push_back(parameter.name);
    }
    if (parameter.frozen != 0 || what == Exported::Weights) {
      add(i, pealZeroWeight, "");
      continue;
    }
    add(i, pealZeroMaster, "");
    if (what == Exported::All) {
      add(i, pealZeroMoment1, ".moment1");
      add(i, pealZeroMoment2, ".moment2");
    }
  }
  if (!tied.empty()) {
    header[kMetadata][kTied] = tied.dump();
  }
  if (!frozen.empty()) {
    header[kMetadata][kFrozen] = frozen.dump();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  const Unfinished unfinished(fmt::format("{}.exporting-{}", file, getpid()));
  std::ofstream out(unfinished.path, std::ios::binary);
  if (!out.is_open()) {
    throw UsageError(fmt::format("cannot write {}: {}", file, std::strerror(errno)));
  }
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << text;
  for (const Tensor& tensor : tensors) {
    writeValues(checkpoint, tensor, out);
  }
  out.close();
  if (!out || !bringToDisk(unfinished.path)) {
    throw ToolError(fmt::format("{} cannot be written whole; it needs {} bytes", file, 8 + length + offset));
  }
  // Not over one that somebody else has made meanwhile.
  const bool replaces = existing == Existing::Replaced;
  if ((replaces || link(unfinished.path.c_str(), file.c_str()) != 0) &&
      ((!replaces && errno == EEXIST) || rename(unfinished.path.c_str(), file.c_str()) != 0)) {
    throw ToolError(fmt::format("cannot give {} its name: {}", file, std::strerror(errno)));
  }
  return {tensors.size(), 8 + length + offset};
}

Written importSafetensors(const std::string& file, const std::string& path, Existing existing) {
  if (existing == Existing::Kept && std::filesystem::exists(path + "/manifest.txt")) {
    throw UsageError(
        fmt::format("{} holds a checkpoint already, of step {}: give another name, or --force to "
                    "replace it",
                    path, zero::Checkpoint(path).info().step));
  }
  std::ifstream in(file, std::ios::binary);
  if (!in.is_open()) {
    throw UsageError(fmt::format("cannot open {}: {}", file, std::strerror(errno)));
  }
  uint64_t length = 0;
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  if (!in || length > kMostHeaderBytes) {
    throw UsageError(
        fmt::format("{} is no safetensors file: at offset 0 there is no length of a header", file));
  }
  std::string text(length, '\0');
  in.read(text.data(), static_cast<std::streamsize>(length));
  const json header = parseDistinct(text, file);
  if (!in || !header.is_object()) {
    throw UsageError(fmt::format("{}: the header at offset 8 is not JSON: damaged or truncated", file));
  }
  Written written{};
  pealComm_t comm = nullptr;
  check(pealCommInitAll(&comm, 1, nullptr), "pealCommInitAll");
  {
    zero::Engine engine(comm, zero::defaultOptions());
    const Source source{file, 8 + length, std::filesystem::file_size(file)};
    const std::vector<std::vector<float>> values = registerAll(engine, in, source, header);
    written.tensors = values.size();
    engine.seal();
    engine.save(path);
  }
  check(pealCommDestroy(comm), "pealCommDestroy");
  written.bytes = zero::Checkpoint(path).info().fileBytes;
  return written;
}

}  // namespace peal::tools
