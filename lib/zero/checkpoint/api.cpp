// The C entry points of checkpoints (zero.h): saving and loading go to the engine, reading without an engine
// to the Reader.
#include <algorithm>
#include <cstring>

#include "lib/reduce/adamw.h"
#include "lib/zero/checkpoint/reader.h"
#include "lib/zero/entry.h"

struct pealZeroCheckpoint {
  peal::zero::checkpoint::Reader reader;
};

namespace peal::zero::checkpoint {
namespace {

Result<void> save(Engine& engine, const char* path, const void* data, size_t sizeBytes, SaveMode mode) {
  PEAL_TRY(engine.beginSave(path, {static_cast<const std::byte*>(data), sizeBytes}, mode));
  return mode == SaveMode::Synchronous ? engine.finishSave() : Result<void>();
}

Result<const ParameterShape*> parameterOf(const Manifest& manifest, uint64_t index) {
  if (index >= manifest.parameters.size()) {
    return Error{pealInvalidArgument, fmt::format("there is no parameter {}: the checkpoint has {}, from 0",
                                                  index, manifest.parameters.size())};
  }
  return &manifest.parameters[index];
}

Result<void> readValues(const Reader& reader, uint64_t index, pealZeroTensor_t tensor, uint64_t begin,
                        uint64_t count, float* values) {
  const Result<const ParameterShape*> parameter = parameterOf(reader.manifest(), index);
  if (!parameter) {
    return parameter.error();
  }
  if (tensor < pealZeroMaster || tensor > pealZeroWeight) {
    return Error{pealInvalidArgument, fmt::format("there is no tensor {}", static_cast<int>(tensor))};
  }
  if (begin > (*parameter)->elements || count > (*parameter)->elements - begin) {
    return Error{pealInvalidArgument, fmt::format("{} elements from {} are not all in parameter \"{}\" of {}",
                                                  count, begin, (*parameter)->name, (*parameter)->elements)};
  }
  const Manifest& manifest = reader.manifest();
  const Stretch wanted{holderOf(manifest, index), begin, count};
  const ParameterShape& holder = manifest.parameters[wanted.parameter];
  const bool isFrozen = holder.kind == Kind::Frozen;
  if (isFrozen && tensor != pealZeroWeight) {
    return Error{pealInvalidUsage, fmt::format("parameter \"{}\" is frozen: it has weights only, no master "
                                               "weights and no moments",
                                               (*parameter)->name)};
  }
  const std::vector<Reader::Piece> pieces = reader.pieces({&wanted, 1});
  const bool isWide = holder.weights == WeightType::Fp32;
  const bool isStored = tensor != pealZeroWeight || (manifest.streams == kMostStreams && !isWide);
  const Stream stream = isFrozen ? Stream::Frozen : isStored ? static_cast<Stream>(tensor) : Stream::Master;
  if (tensor == pealZeroWeight && !isStored && manifest.streams == kMostStreams && !isFrozen) {
    // Their roundings are stored beside those of others, and a load checks all: so does who reads everything.
    PEAL_TRY(reader.walk(pieces, Stream::Weight, [](const Stretch&, const void*) {}));
  }
  return reader.walk(pieces, stream, [&](const Stretch& stretch, const void* found) {
    float* to = values + (stretch.begin - begin);
    if (stream == Stream::Weight || stream == Stream::Frozen) {
      std::transform(static_cast<const uint16_t*>(found),
                     static_cast<const uint16_t*>(found) + stretch.elements, to, fromBf16);
      return;
    }
    std::memcpy(to, found, stretch.elements * sizeof(float));
    if (tensor == pealZeroWeight && !isWide) {
      std::transform(to, to + stretch.elements, to, [](float master) { return fromBf16(toBf16(master)); });
    }
  });
}

int bytesOf(WeightType type) { return type == WeightType::Fp32 ? 4 : type == WeightType::Bf16 ? 2 : 0; }

pealZeroCheckpointInfo_t infoOf(const Manifest& manifest) {
  pealZeroCheckpointInfo_t info{};
  info.id = manifest.id;
  info.step = manifest.step;
  info.parameters = manifest.parameters.size();
  info.files = manifest.parts.size();
  for (const PartEntry& part : manifest.parts) {
    info.elements += part.elements;
    info.fileBytes += part.bytes;
  }
  info.userBytes = manifest.userBytes;
  info.hasWeights = manifest.streams == kMostStreams ? 1 : 0;
  info.weightBytes = bytesOf(weightTypeOf(manifest).value_or(WeightType::Unknown));
  const AdamwNumbers& group = manifest.groups.front();
  info.beta1 = group.beta1;
  info.beta2 = group.beta2;
  info.epsilon = group.epsilon;
  info.weightDecay = group.weightDecay;
  return info;
}

// What reading gives: frozen weights are stored in bf16.
int weightBytesOf(const Manifest& manifest, uint64_t index) {
  const ParameterShape& holder = manifest.parameters[holderOf(manifest, index)];
  return holder.kind == Kind::Frozen ? bytesOf(WeightType::Bf16) : bytesOf(holder.weights);
}

// For functions of an opened checkpoint: guard, with the null checks.
template <class Body>
pealResult_t read(pealZeroCheckpoint_t opened, const char* function, const void* pointer, const char* name,
                  Body body) {
  return guard(nullptr, function, [&]() -> Result<void> {
    if (opened == nullptr || pointer == nullptr) {
      return nullArgument(opened == nullptr ? "checkpoint" : name);
    }
    return body(opened->reader);
  });
}

}  // namespace
}  // namespace peal::zero::checkpoint

using namespace peal::zero;  // NOLINT(google-build-using-namespace): this file is the face of that namespace
namespace ck = peal::zero::checkpoint;
using peal::Result;

extern "C" {

pealResult_t pealZeroSave(pealZero_t zero, const char* path, const void* userData, size_t userBytes) {
  return call(zero, __func__, path, "path", [&](Engine& engine) {
    return ck::save(engine, path, userData, userBytes, ck::SaveMode::Synchronous);
  });
}

pealResult_t pealZeroSaveBegin(pealZero_t zero, const char* path, const void* userData, size_t userBytes) {
  return call(zero, __func__, path, "path", [&](Engine& engine) {
    return ck::save(engine, path, userData, userBytes, ck::SaveMode::Asynchronous);
  });
}

pealResult_t pealZeroSaveWait(pealZero_t zero) {
  return call(zero, __func__, [](Engine& engine) { return engine.finishSave(); });
}

pealResult_t pealZeroLoad(pealZero_t zero, const char* path) {
  return call(zero, __func__, path, "path", [&](Engine& engine) { return engine.load(path); });
}

pealResult_t pealZeroLatestCheckpoint(const char* directory, char* path, size_t sizeBytes) {
  return guard(nullptr, __func__, [&]() -> Result<void> {
    if (directory == nullptr || path == nullptr) {
      return nullArgument(directory == nullptr ? "directory" : "path");
    }
    const Result<std::string> latest = ck::latestCheckpoint(directory);
    if (!latest) {
      return latest.error();
    }
    if (latest->size() >= sizeBytes) {
      return peal::Error{pealInvalidArgument,
                         fmt::format("{} does not fit into {} bytes", *latest, sizeBytes)};
    }
    std::memcpy(path, latest->c_str(), latest->size() + 1);
    return {};
  });
}

pealResult_t pealZeroCheckpointOpen(pealZeroCheckpoint_t* checkpoint, const char* path) {
  return guard(nullptr, __func__, [&]() -> Result<void> {
    if (checkpoint == nullptr || path == nullptr) {
      return nullArgument(checkpoint == nullptr ? "checkpoint" : "path");
    }
    *checkpoint = nullptr;
    Result<ck::Reader> reader = ck::Reader::open(path);
    if (!reader) {
      return reader.error();
    }
    *checkpoint = new pealZeroCheckpoint{std::move(*reader)};
    return {};
  });
}

pealResult_t pealZeroCheckpointClose(pealZeroCheckpoint_t checkpoint) {
  delete checkpoint;
  return pealSuccess;
}

pealResult_t pealZeroCheckpointInfo(pealZeroCheckpoint_t checkpoint, pealZeroCheckpointInfo_t* info) {
  return ck::read(checkpoint, __func__, info, "info", [&](const ck::Reader& reader) -> Result<void> {
    *info = ck::infoOf(reader.manifest());
    return {};
  });
}

pealResult_t pealZeroCheckpointParameter(pealZeroCheckpoint_t checkpoint, uint64_t index,
                                         pealZeroCheckpointParameter_t* parameter) {
  return ck::read(checkpoint, __func__, parameter, "parameter",
                  [&](const ck::Reader& reader) -> Result<void> {
                    const Result<const ck::ParameterShape*> found = ck::parameterOf(reader.manifest(), index);
                    if (!found) {
                      return found.error();
                    }
                    const ck::ParameterShape& shape = **found;
                    const bool isTied = shape.kind == ck::Kind::Tied;
                    *parameter = {shape.name.c_str(),
                                  shape.elements,
                                  shape.shape.data(),
                                  shape.shape.size(),
                                  shape.kind == ck::Kind::Frozen ? 1 : 0,
                                  isTied ? reader.manifest().parameters[shape.link].name.c_str() : nullptr,
                                  ck::weightBytesOf(reader.manifest(), index)};
                    return {};
                  });
}

pealResult_t pealZeroCheckpointRead(pealZeroCheckpoint_t checkpoint, uint64_t index, pealZeroTensor_t tensor,
                                    uint64_t begin, uint64_t count, float* values) {
  return ck::read(checkpoint, __func__, values, "values", [&](const ck::Reader& reader) {
    return ck::readValues(reader, index, tensor, begin, count, values);
  });
}

pealResult_t pealZeroCheckpointUserData(pealZeroCheckpoint_t checkpoint, void* data, size_t sizeBytes) {
  return ck::read(checkpoint, __func__, data, "data", [&](const ck::Reader& reader) -> Result<void> {
    const Result<std::string> user = reader.userData();
    if (!user) {
      return user.error();
    }
    if (user->size() > sizeBytes) {
      return peal::Error{pealInvalidArgument,
                         fmt::format("the user's {} bytes do not fit into {}", user->size(), sizeBytes)};
    }
    std::memcpy(data, user->data(), user->size());
    return {};
  });
}

}  // extern "C"
