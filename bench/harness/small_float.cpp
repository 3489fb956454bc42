#include "bench/harness/small_float.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace peal::bench {
namespace {

int exponentBias(const TypeInfo& info) { return (1 << (info.exponentBits - 1)) - 1; }

template <class T>
double decodeAs(const void* element) {
  T value;
  std::memcpy(&value, element, sizeof(value));
  return static_cast<double>(value);
}

double decodeSmallFloat(const TypeInfo& info, uint32_t bits) {
  const int topExponent = (1 << info.exponentBits) - 1;
  const int mantissa = static_cast<int>(bits & ((1U << info.mantissaBits) - 1));
  const int exponent = static_cast<int>(bits >> info.mantissaBits) & topExponent;
  const bool negative = (bits >> (info.exponentBits + info.mantissaBits)) != 0;
  double magnitude = 0;
  if (info.type == pealFloat8e4m3 && (bits & 0x7f) == 0x7f) {
    magnitude = std::numeric_limits<double>::quiet_NaN();  // the only NaN; E4M3 has no infinity
  } else if (info.type != pealFloat8e4m3 && exponent == topExponent) {
    magnitude =
        mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else {
    const int hidden = exponent == 0 ? 0 : 1 << info.mantissaBits;
    magnitude = std::ldexp(hidden + mantissa, std::max(exponent, 1) - exponentBias(info) - info.mantissaBits);
  }
  return negative ? -magnitude : magnitude;
}

}  // namespace

uint32_t encodeSmallFloat(float value, const TypeInfo& info) {
  const uint32_t sign = std::signbit(value) ? 1U << (info.exponentBits + info.mantissaBits) : 0;
  if (value == 0) {
    return sign;
  }
  const int least = 1 - exponentBias(info);  // exponent of the smallest normal number
  const int exponent = std::max(std::ilogb(value), least);
  // In units of the last place; a carry into the next power of two carries into the exponent field too.
  const double units = std::nearbyint(std::ldexp(std::fabs(value), info.mantissaBits - exponent));
  return sign |
         ((static_cast<uint32_t>(exponent - least) << info.mantissaBits) + static_cast<uint32_t>(units));
}

double decodeElement(pealDataType_t type, const void* element) {
  switch (type) {
    case pealInt8:
      return decodeAs<int8_t>(element);
    case pealUint8:
      return decodeAs<uint8_t>(element);
    case pealInt32:
      return decodeAs<int32_t>(element);
    case pealUint32:
      return decodeAs<uint32_t>(element);
    case pealInt64:
      return decodeAs<int64_t>(element);
    case pealUint64:
      return decodeAs<uint64_t>(element);
    case pealFloat32:
      return decodeAs<float>(element);
    case pealFloat64:
      return decodeAs<double>(element);
    default: {
      const TypeInfo& info = typeInfo(type);
      uint32_t bits = 0;
      std::memcpy(&bits, element, info.bytes);  // little-endian, as the formats are everywhere peal runs
      return decodeSmallFloat(info, bits);
    }
  }
}

}  // namespace peal::bench
