#include "tools/train/parameters.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace peal::train {
namespace {

uint64_t splitMix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

double toUnit(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

constexpr double kDeviation = 0.02;  // GPT-2's

void addBlock(std::vector<ParameterSpec>& specs, const ModelShape& shape, size_t block) {
  const size_t width = shape.width, unit = block + 1;
  // GPT-2: what is added to the residual stream starts smaller, so that its sum over layers does not grow.
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(shape.layers));
  const std::string prefix = "blocks." + std::to_string(block) + ".";
  auto matrix = [&](const char* name, size_t rows, size_t columns, double deviation) {
    specs.push_back({prefix + name, rows, columns, true, unit, deviation, 0});
  };
  auto vector = [&](const char* name, size_t count, double mean) {
    specs.push_back({prefix + name, count, 1, false, unit, 0, mean});
  };
  vector("norm1.gain", width, 1);
  vector("norm1.bias", width, 0);
  matrix("attention.qkv.weight", 3 * width, width, kDeviation);
  vector("attention.qkv.bias", 3 * width, 0);
  matrix("attention.project.weight", width, width, residual);
  vector("attention.project.bias", width, 0);
  vector("norm2.gain", width, 1);
  vector("norm2.bias", width, 0);
  matrix("mlp.expand.weight", 4 * width, width, kDeviation);
  vector("mlp.expand.bias", 4 * width, 0);
  matrix("mlp.contract.weight", width, 4 * width, residual);
  vector("mlp.contract.bias", width, 0);
}

}  // namespace

uint64_t mix(uint64_t seed, uint64_t stream, uint64_t index) {
  return splitMix(splitMix(splitMix(seed) ^ stream) ^ index);
}

size_t unitCount(const ModelShape& shape) { return shape.layers + 2; }
size_t blockParameter(size_t block, BlockParameter which) {
  return kFirstBlock + block * kBlockParameters + which;
}
size_t finalNormGain(const ModelShape& shape) { return kFirstBlock + shape.layers * kBlockParameters; }
size_t finalNormBias(const ModelShape& shape) { return finalNormGain(shape) + 1; }

std::vector<ParameterSpec> parameterSpecs(const ModelShape& shape) {
  std::vector<ParameterSpec> specs;
  specs.push_back({"embedding.token", shape.vocabulary, shape.width, true, 0, kDeviation, 0});
  specs.push_back({"embedding.position", shape.context, shape.width, true, 0, kDeviation, 0});
  for (size_t block = 0; block < shape.layers; ++block)
    addBlock(specs, shape, block);
  specs.push_back({"norm.gain", shape.width, 1, false, shape.layers + 1, 0, 1});
  specs.push_back({"norm.bias", shape.width, 1, false, shape.layers + 1, 0, 0});
  return specs;
}

void initialValues(const ParameterSpec& spec, uint64_t seed, size_t index, float* values) {
  const size_t count = spec.count();
  if (spec.deviation == 0) {
    std::fill(values, values + count, static_cast<float>(spec.mean));
    return;
  }
  for (size_t i = 0; i < count; ++i) {  // Box–Muller
    double radius = std::sqrt(-2 * std::log(toUnit(mix(seed, 2 * index, i))));
    double angle = 2 * std::numbers::pi * toUnit(mix(seed, 2 * index + 1, i));
    values[i] = static_cast<float>(spec.mean + spec.deviation * radius * std::cos(angle));
  }
}

}  // namespace peal::train
