// Names, sizes and scalar conversions of the data types.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "lib/reduce/reduce.h"

namespace peal {
namespace {

// A binary format whose values are all fp32 values. largestCode: of the finite ones, without sign.
struct Format {
  int exponentBits, mantissaBits;
  uint32_t largestCode, nanCode;
  bool hasInfinity, saturates;

  int bias() const { return (1 << (exponentBits - 1)) - 1; }
  uint32_t signBit() const { return 1u << (exponentBits + mantissaBits); }
  uint32_t infinityCode() const { return largestCode + 1; }
};

constexpr Format kHalf{5, 10, 0x7bff, 0x7e00, true, false};
constexpr Format kBfloat16{8, 7, 0x7f7f, 0x7fc0, true, false};
constexpr Format kE4m3{4, 3, 0x7e, 0x7f, false, true};
constexpr Format kE5m2{5, 2, 0x7b, 0x7f, true, true};

float decode(const Format& format, uint32_t code) {
  const uint32_t magnitude = code & (format.signBit() - 1);
  const float sign = (code & format.signBit()) != 0 ? -1.0F : 1.0F;
  if (magnitude > format.largestCode) {
    return format.hasInfinity && magnitude == format.infinityCode() ? sign * INFINITY : NAN;
  }
  const int exponent = static_cast<int>(magnitude >> format.mantissaBits);
  const uint32_t mantissa = magnitude & ((1u << format.mantissaBits) - 1);
  const uint32_t hidden = exponent > 0 ? 1u << format.mantissaBits : 0;
  const int scale = (exponent > 0 ? exponent : 1) - format.bias() - format.mantissaBits;
  return sign * std::ldexp(static_cast<float>(hidden + mantissa), scale);
}

uint32_t encode(const Format& format, float value) {
  if (std::isnan(value)) {
    return format.nanCode;
  }
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) != 0 ? format.signBit() : 0;
  const uint32_t overflow = format.saturates ? format.largestCode : format.infinityCode();
  if (std::isinf(value)) {
    return sign | overflow;
  }
  // In units of the spacing at value's magnitude; the code of a value is that count plus its exponent's.
  const int leastExponent = 1 - format.bias();
  const int exponent = value == 0 ? leastExponent : std::max(std::ilogb(value), leastExponent);
  const double units = std::ldexp(std::fabs(static_cast<double>(value)), format.mantissaBits - exponent);
  const double floor = std::floor(units);
  const auto below = static_cast<uint32_t>(floor);
  const bool up = units - floor > 0.5 || (units - floor == 0.5 && below % 2 == 1);
  const uint32_t code =
      below + (up ? 1 : 0) + (static_cast<uint32_t>(exponent - leastExponent) << format.mantissaBits);
  return sign | (code > format.largestCode ? overflow : code);
}

struct TypeInfo {
  const char* name;
  const Format* format;  // of types narrower than fp32
};

constexpr std::array<TypeInfo, pealNumTypes> kTypes{{{"int8", nullptr},
                                                     {"uint8", nullptr},
                                                     {"int32", nullptr},
                                                     {"uint32", nullptr},
                                                     {"int64", nullptr},
                                                     {"uint64", nullptr},
                                                     {"half", &kHalf},
                                                     {"float", nullptr},
                                                     {"double", nullptr},
                                                     {"bfloat16", &kBfloat16},
                                                     {"f8e4m3", &kE4m3},
                                                     {"f8e5m2", &kE5m2}}};
constexpr std::array<const char*, pealNumOps> kOpNames{"sum", "prod", "max", "min", "avg"};

}  // namespace

const char* typeName(pealDataType_t type) { return kTypes[type].name; }
const char* opName(pealRedOp_t kind) { return kOpNames[kind]; }

float toFloat(pealDataType_t type, const void* element) {
  if (kTypes[type].format == nullptr) {
    float value = 0;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  uint16_t code = 0;
  std::memcpy(&code, element, elementBytes(type));
  return decode(*kTypes[type].format, code);
}

void fromFloat(pealDataType_t type, float value, void* element) {
  if (kTypes[type].format == nullptr) {
    std::memcpy(element, &value, sizeof value);
    return;
  }
  const auto code = static_cast<uint16_t>(encode(*kTypes[type].format, value));
  std::memcpy(element, &code, elementBytes(type));
}

}  // namespace peal
