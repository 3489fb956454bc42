#include "tests/unit/reduce/reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace peal::reference {
namespace {

struct Format {
  int exponentBits, mantissaBits;
  bool saturates;
  uint64_t nan;

  int bits() const { return 1 + exponentBits + mantissaBits; }
};

Format formatOf(pealDataType_t type) {
  switch (type) {
    case pealFloat16:
      return {5, 10, false, 0x7e00};
    case pealBfloat16:
      return {8, 7, false, 0x7fc0};
    case pealFloat8e4m3:
      return {4, 3, true, 0x7f};
    default:
      return {5, 2, true, 0x7f};
  }
}

bool isNarrow(pealDataType_t type) { return std::ranges::count(kNarrowTypes, type) != 0; }

// The non-negative finite values of a format in rising order: the position is the code.
std::vector<double> finiteValues(pealDataType_t type) {
  std::vector<double> values;
  for (uint64_t code = 0; std::isfinite(decode(type, code)); ++code) {
    values.push_back(decode(type, code));
  }
  return values;
}

const std::vector<double>& cachedValues(pealDataType_t type) {
  static const std::vector<double> tables[] = {finiteValues(pealFloat16), finiteValues(pealBfloat16),
                                               finiteValues(pealFloat8e4m3), finiteValues(pealFloat8e5m2)};
  return tables[std::ranges::find(kNarrowTypes, type) - std::begin(kNarrowTypes)];
}

template <class T>
T fromBits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
uint64_t toBits(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(value)) {
      return std::is_same_v<T, float> ? 0x7fc00000U : 0x7ff8000000000000U;
    }
  }
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
T combine(pealRedOp_t kind, T x, T y) {
  if (kind == pealMax || kind == pealMin) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(x) || std::isnan(y)) {
        return std::numeric_limits<T>::quiet_NaN();
      }
      if (x == y) {
        return std::signbit(x) == (kind == pealMin) ? x : y;
      }
    }
    return kind == pealMax ? std::max(x, y) : std::min(x, y);
  }
  if constexpr (std::is_integral_v<T>) {
    const auto wideX = static_cast<uint64_t>(x);
    const auto wideY = static_cast<uint64_t>(y);
    return static_cast<T>(kind == pealProd ? wideX * wideY : wideX + wideY);
  } else {
    return kind == pealProd ? x * y : x + y;
  }
}

template <class T>
T divide(T sum, int divisor) {
  if constexpr (std::is_floating_point_v<T>) {
    return sum / static_cast<T>(divisor);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(static_cast<int64_t>(sum) / divisor);
  } else {
    return static_cast<T>(sum / static_cast<uint64_t>(divisor));
  }
}

template <class T>
uint64_t reduceAs(pealRedOp_t kind, std::span<const uint64_t> sources, int rawSource, uint64_t scalar,
                  int divisor) {
  T sum{};
  for (size_t s = 0; s < sources.size(); ++s) {
    T value = fromBits<T>(sources[s]);
    if (static_cast<int>(s) == rawSource) {
      value = combine<T>(pealProd, value, fromBits<T>(scalar));
    }
    sum = s == 0 ? value : combine<T>(kind, sum, value);
  }
  return toBits<T>(divisor == 0 ? sum : divide(sum, divisor));
}

uint64_t reduceNarrow(pealDataType_t type, pealRedOp_t kind, std::span<const uint64_t> sources, int rawSource,
                      uint64_t scalar, int divisor) {
  float sum = 0;
  for (size_t s = 0; s < sources.size(); ++s) {
    auto value = static_cast<float>(decode(type, sources[s]));
    if (static_cast<int>(s) == rawSource) {
      const float product = value * static_cast<float>(decode(type, scalar));
      value = static_cast<float>(decode(type, encode(type, product)));
    }
    sum = s == 0 ? value : combine<float>(kind, sum, value);
  }
  if (type == pealFloat8e5m2 && std::isinf(sum) && (kind == pealMax || kind == pealMin)) {
    return sum > 0 ? 0x7c : 0xfc;
  }
  return encode(type, divisor == 0 ? sum : sum / static_cast<float>(divisor));
}

}  // namespace

double decode(pealDataType_t type, uint64_t code) {
  const Format format = formatOf(type);
  const uint64_t mantissaRange = 1U << format.mantissaBits;
  const uint64_t exponentRange = 1U << format.exponentBits;
  const auto mantissa = static_cast<double>(code % mantissaRange) / static_cast<double>(mantissaRange);
  const uint64_t exponent = code / mantissaRange % exponentRange;
  const double sign = code / mantissaRange / exponentRange % 2 == 1 ? -1 : 1;
  const int bias = static_cast<int>(exponentRange / 2) - 1;
  if (type == pealFloat8e4m3) {
    if (code % 0x80 == 0x7f) {
      return std::numeric_limits<double>::quiet_NaN();
    }
  } else if (exponent == exponentRange - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  return exponent == 0 ? sign * mantissa * std::pow(2.0, 1 - bias)
                       : sign * (1 + mantissa) * std::pow(2.0, static_cast<int>(exponent) - bias);
}

uint64_t encode(pealDataType_t type, double value) {
  const Format format = formatOf(type);
  const std::vector<double>& values = cachedValues(type);
  if (std::isnan(value)) {
    return format.nan;
  }
  const uint64_t sign = std::signbit(value) ? 1ULL << (format.bits() - 1) : 0;
  const double magnitude = std::fabs(value);
  const uint64_t last = values.size() - 1;
  // Above the last value the next one would be a full step further; reaching half of the step is overflow.
  const double step = values[last] - values[last - 1];
  if (magnitude > values[last]) {
    const bool overflows = magnitude - values[last] >= step / 2;
    return sign | (overflows && !format.saturates ? last + 1 : last);
  }
  const auto above =
      static_cast<uint64_t>(std::lower_bound(values.begin(), values.end(), magnitude) - values.begin());
  if (values[above] == magnitude) {
    return sign | above;
  }
  const double toAbove = values[above] - magnitude;
  const double toBelow = magnitude - values[above - 1];
  const bool takeAbove = toAbove < toBelow || (toAbove == toBelow && above % 2 == 0);
  return sign | (takeAbove ? above : above - 1);
}

uint64_t reduce(pealDataType_t type, const ReduceOp& op, std::span<const uint64_t> sources, int rawSource,
                Finish finish) {
  const bool multiplies = op.preMultiply && rawSource >= 0;
  const int divisor = op.kind == pealAvg && finish == Finish::Yes ? op.ranks : 0;
  if (sources.size() == 1 && !multiplies && divisor == 0) {
    return sources[0];
  }
  uint64_t scalar = 0;
  std::memcpy(&scalar, op.scalar.data(), op.scalar.size());
  const int raw = multiplies ? rawSource : -1;
  switch (type) {
    case pealInt8:
      return reduceAs<int8_t>(op.kind, sources, raw, scalar, divisor);
    case pealUint8:
      return reduceAs<uint8_t>(op.kind, sources, raw, scalar, divisor);
    case pealInt32:
      return reduceAs<int32_t>(op.kind, sources, raw, scalar, divisor);
    case pealUint32:
      return reduceAs<uint32_t>(op.kind, sources, raw, scalar, divisor);
    case pealInt64:
      return reduceAs<int64_t>(op.kind, sources, raw, scalar, divisor);
    case pealUint64:
      return reduceAs<uint64_t>(op.kind, sources, raw, scalar, divisor);
    case pealFloat32:
      return reduceAs<float>(op.kind, sources, raw, scalar, divisor);
    case pealFloat64:
      return reduceAs<double>(op.kind, sources, raw, scalar, divisor);
    default:
      return reduceNarrow(type, op.kind, sources, raw, scalar, divisor);
  }
}

std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::Baseline, Isa::Avx2, Isa::Avx512}) {
    if (isa <= bestIsa()) {
      all.push_back(isa);
    }
  }
  return all;
}

// splitmix64
uint64_t Random::bits() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

uint64_t randomElement(pealDataType_t type, Random& random) {
  const uint64_t bits = random.bits();
  const bool anything = random.below(16) == 0;
  const auto middling = [&random](double step) {
    const double value = (0.5 + static_cast<double>(random.below(1U << 20)) * step) *
                         std::pow(2.0, static_cast<double>(random.below(5)) - 2);
    return random.below(2) == 0 ? value : -value;
  };
  constexpr double kStep = 1.0 / (1U << 20);
  if (isNarrow(type)) {
    return anything ? bits & ((1ULL << formatOf(type).bits()) - 1) : encode(type, middling(kStep));
  }
  if (type == pealFloat32) {
    return anything ? bits & 0xffffffffU : toBits(static_cast<float>(middling(kStep)));
  }
  if (type == pealFloat64) {
    return anything ? bits : toBits(middling(kStep / 3));
  }
  const size_t size = elementBytes(type);
  return size == 8 ? bits : bits & ((1ULL << 8 * size) - 1);
}

}  // namespace peal::reference
