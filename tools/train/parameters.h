// The parameters of the GPT: names, shapes, units and first values, and how the model gets at them.
// The model never owns parameters: whoever trains it (the ZeRO engine, or a test) implements
// ParameterAccess.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace peal::train {

struct ModelShape {
  size_t layers = 0;
  size_t width = 0;
  size_t heads = 0;
  size_t context = 0;  // longest sequence
  size_t vocabulary = 0;
};

struct ParameterSpec {
  std::string name;
  size_t rows;
  size_t columns;    // 1 for a vector
  bool decays;       // whether weight decay applies: matrices yes, gains and biases no
  size_t unit;       // gathered and freed together at stage 3
  double deviation;  // of the normal distribution of the first values; 0: constant `mean`
  double mean;
  size_t count() const { return rows * columns; }
};

// Places in the list: the embeddings, then blocks of kBlockParameters, then the final norm.
inline constexpr size_t kTokenEmbedding = 0;
inline constexpr size_t kPositionEmbedding = 1;
inline constexpr size_t kFirstBlock = 2;
enum BlockParameter : size_t {
  Norm1Gain,
  Norm1Bias,
  QkvWeight,  // (3 width) × width: queries, keys, values of all heads
  QkvBias,
  ProjectWeight,
  ProjectBias,
  Norm2Gain,
  Norm2Bias,
  ExpandWeight,  // (4 width) × width
  ExpandBias,
  ContractWeight,  // width × (4 width)
  ContractBias
};
inline constexpr size_t kBlockParameters = ContractBias + 1;

// Unit 0: embeddings (the token embedding is also the output head). 1 to layers: blocks. Last: final norm.
size_t unitCount(const ModelShape& shape);
size_t blockParameter(size_t block, BlockParameter which);
size_t finalNormGain(const ModelShape& shape);
size_t finalNormBias(const ModelShape& shape);
std::vector<ParameterSpec> parameterSpecs(const ModelShape& shape);

// First values of one parameter, a pure function of (seed, index).
void initialValues(const ParameterSpec& spec, uint64_t seed, size_t index, float* values);

enum class Pass { Forward, Backward };

class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;
  // Between enter and leave the parameters of the unit can be read, and in a backward pass their
  // gradients are given. The model enters units in order 0, 1, … forward and last, …, 1, 0 backward;
  // backward, unit 0 is entered first and left last, because the head is the token embedding.
  virtual void enter(size_t unit, Pass pass) = 0;
  virtual void leave(size_t unit, Pass pass) = 0;
  virtual void read(size_t parameter, float* values) = 0;
  // The whole gradient of this micro-batch, a sum over its tokens. `values` is reused after return.
  virtual void gradientReady(size_t parameter, const float* values) = 0;
};

// A well mixed 64-bit value of three numbers; all randomness of the trainer comes from it.
uint64_t mix(uint64_t seed, uint64_t stream, uint64_t index);

}  // namespace peal::train
