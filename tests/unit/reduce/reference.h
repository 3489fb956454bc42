// A plain second opinion on the formats and the reduction: one element at a time, in double and float, with
// no code shared with lib/reduce. Values are handled as the bits of one element in a uint64_t.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lib/base/cpu.h"
#include "lib/reduce/reduce.h"

namespace peal::reference {

// A value of a low-precision type; and the nearest code to a value: by comparing the distances to all the
// format's values, ties to the even code.
double decode(pealDataType_t type, uint64_t code);
uint64_t encode(pealDataType_t type, double value);

// What one element of the result must be.
uint64_t reduce(pealDataType_t type, const ReduceOp& op, std::span<const uint64_t> sources, int rawSource,
                Finish finish);

// The instruction sets that can run here: up to bestIsa().
std::vector<Isa> isas();

inline constexpr pealDataType_t kTypes[] = {pealInt8,    pealUint8,    pealInt32,      pealUint32,
                                            pealInt64,   pealUint64,   pealFloat16,    pealFloat32,
                                            pealFloat64, pealBfloat16, pealFloat8e4m3, pealFloat8e5m2};
inline constexpr pealDataType_t kNarrowTypes[] = {pealFloat16, pealBfloat16, pealFloat8e4m3, pealFloat8e5m2};

// Names a test after the type that it has as its parameter.
inline constexpr auto kNameOfType = [](const auto& info) { return std::string(typeName(info.param)); };

// Reproducible random numbers.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15U + 1) {}
  uint64_t bits();
  uint64_t below(uint64_t limit) { return bits() % limit; }

 private:
  uint64_t state_;
};

// A random element: mostly of a middling size, so that sums round, now and then any bits at all.
uint64_t randomElement(pealDataType_t type, Random& random);

}  // namespace peal::reference
