// What a checkpoint needs of an engine, and nothing else: so the files know neither stages nor arenas, and
// the engine knows no files. The engine implements it (engine_checkpoint.cpp).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/zero/checkpoint/format.h"
#include "peal/zero.h"

namespace peal::zero::checkpoint {

enum class Kind { Trained, Frozen, Tied };
// Of a trained parameter's weights. Unknown: a manifest did not say, before 2026-12.
enum class WeightType { Unknown, Bf16, Fp32 };
enum class Conversion { Refused, Allowed };

struct ParameterShape {
  std::string name;
  uint64_t elements = 0;
  std::vector<uint64_t> shape;  // empty: one element without dimensions
  Kind kind = Kind::Trained;
  uint64_t link = 0;  // trained: its group; tied: the parameter of which this is another name
  WeightType weights = WeightType::Unknown;
};

// The scalars that give the moments their meaning: a checkpoint of others continues only if asked to.
struct AdamwNumbers {
  double beta1, beta2, epsilon, weightDecay;
};

class State {
 public:
  virtual ~State() = default;
  virtual std::vector<ParameterShape> parameters() const = 0;
  virtual std::vector<AdamwNumbers> groups() const = 0;
  virtual uint64_t step() const = 0;                   // updates made
  virtual Conversion conversion() const = 0;           // of weights of the other type
  virtual Conversion optimizerConversion() const = 0;  // of other AdamW numbers
  // What this rank saves: over all ranks each element of trained and frozen parameters once. And what it
  // holds, and loads. Trained before frozen, elements > 0, parameters by their ids.
  virtual std::vector<Stretch> saved() const = 0;
  virtual std::vector<Stretch> held() const = 0;
  // A part of one held stretch. Weight and Frozen are bf16.
  virtual Result<void> fetch(Stream stream, const Stretch& stretch, void* to) const = 0;
  // Weight comes after Master, if the checkpoint has it; without it weights are their masters' rounding.
  virtual Result<void> store(Stream stream, const Stretch& stretch, const void* from) = 0;
  // Everything held is stored here: an error of this rank alone, before the others go on to restored().
  virtual Result<void> stored() = 0;
  // And on all ranks: the engine continues after `step` updates. Collective.
  virtual Result<void> restored(uint64_t step) = 0;
};

}  // namespace peal::zero::checkpoint
