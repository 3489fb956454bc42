// The reference itself: results do not depend on the order of a sum, they are what plain arithmetic in the
// type gives, and an exchanged, missing, doubled, shifted or stale input shows.
#include "bench/harness/values.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "bench/harness/small_float.h"

namespace peal::bench {
namespace {

using Bytes = std::vector<std::byte>;

const std::vector<Combine> kReductions = parseCombines("all");

// One number in the arithmetic of a type: whole numbers exactly, floats as double until they are rounded.
struct Number {
  int64_t whole = 0;
  double real = 0;
};

Number load(const TypeInfo& info, const std::byte* element) {
  Number number;
  if (info.typeClass == TypeClass::Float) {
    number.real = decodeElement(info.type, element);
    return number;
  }
  std::memcpy(&number.whole, element, info.bytes);
  if (info.typeClass == TypeClass::Signed && info.bytes < 8) {
    const int unused = 64 - 8 * static_cast<int>(info.bytes);
    number.whole = static_cast<int64_t>(static_cast<uint64_t>(number.whole) << unused) >> unused;
  }
  return number;
}

// Rounds to the type and back, as a library does that keeps partial results in it.
Number rounded(const TypeInfo& info, const Number& number) {
  Bytes element(8);
  if (info.typeClass != TypeClass::Float) {
    std::memcpy(element.data(), &number.whole, info.bytes);
    return load(info, element.data());
  }
  if (info.type == pealFloat64) {
    return number;
  }
  const auto narrow = static_cast<float>(number.real);
  if (info.type == pealFloat32) {
    return {0, narrow};
  }
  const uint32_t bits = encodeSmallFloat(narrow, info);
  std::memcpy(element.data(), &bits, info.bytes);
  return load(info, element.data());
}

void store(const TypeInfo& info, const Number& number, std::byte* element) {
  if (info.typeClass != TypeClass::Float) {
    std::memcpy(element, &number.whole, info.bytes);
  } else if (info.type == pealFloat64) {
    std::memcpy(element, &number.real, 8);
  } else if (info.type == pealFloat32) {
    const auto narrow = static_cast<float>(number.real);
    std::memcpy(element, &narrow, 4);
  } else {
    const uint32_t bits = encodeSmallFloat(static_cast<float>(number.real), info);
    std::memcpy(element, &bits, info.bytes);
  }
}

Number combineTwo(const TypeInfo& info, Combine combine, const Number& a, const Number& b) {
  const bool isFloat = info.typeClass == TypeClass::Float;
  switch (combine) {
    case Combine::Prod:
      return rounded(info, isFloat ? Number{0, a.real * b.real} : Number{a.whole * b.whole, 0});
    case Combine::Max:
      return isFloat ? Number{0, std::max(a.real, b.real)} : Number{std::max(a.whole, b.whole), 0};
    case Combine::Min:
      return isFloat ? Number{0, std::min(a.real, b.real)} : Number{std::min(a.whole, b.whole), 0};
    default:
      return rounded(info, isFloat ? Number{0, a.real + b.real} : Number{a.whole + b.whole, 0});
  }
}

Number divided(const TypeInfo& info, const Number& sum, int ranks) {
  if (info.typeClass != TypeClass::Float) {
    return {sum.whole / ranks, 0};
  }
  if (info.type == pealFloat64) {
    return {0, sum.real / ranks};
  }
  return {0, static_cast<float>(sum.real) / static_cast<float>(ranks)};
}

// inputs[k] is what the rank in order[k] sends; scalars likewise.
Bytes fold(const TypeInfo& info, Combine combine, const std::vector<Bytes>& inputs,
           const std::vector<Number>& scalars, const std::vector<int>& order, size_t count) {
  Bytes result(count * info.bytes);
  const auto operand = [&](int rank, size_t i) {
    Number number = load(info, inputs[rank].data() + i * info.bytes);
    if (combine == Combine::MulSum) {
      number = rounded(info, {number.whole * scalars[rank].whole, number.real * scalars[rank].real});
    }
    return number;
  };
  for (size_t i = 0; i < count; ++i) {
    Number total = operand(order[0], i);
    for (size_t k = 1; k < order.size(); ++k) {
      total = combineTwo(info, combine, total, operand(order[k], i));
    }
    if (combine == Combine::Avg) {
      total = divided(info, total, static_cast<int>(order.size()));
    }
    store(info, total, result.data() + i * info.bytes);
  }
  return result;
}

struct Case {
  Case(pealDataType_t type, Combine what, int size, size_t first, size_t elements, uint64_t repetition = 5)
      : info(typeInfo(type)),
        combine(what),
        ranks(size),
        count(elements),
        values(type, what, size, repetition) {
    for (int rank = 0; rank < ranks; ++rank) {
      inputs.emplace_back(count * info.bytes);
      values.input(rank, first, count, inputs.back().data());
      scalars.push_back(load(info, values.scalar(rank).data()));
    }
    expected.resize(count * info.bytes);
    values.reduced(first, count, expected.data());
    order.resize(ranks);
    std::iota(order.begin(), order.end(), 0);
  }
  Bytes plain() const { return fold(info, combine, inputs, scalars, order, count); }
  std::string name() const {
    return fmt::format("{} {} of {} ranks", combineName(combine), info.name, ranks);
  }

  const TypeInfo& info;
  Combine combine;
  int ranks;
  size_t count;
  Values values;
  std::vector<Bytes> inputs;
  std::vector<Number> scalars;
  std::vector<int> order;
  Bytes expected;
};

template <class Check>
void forEveryReduction(const std::vector<int>& rankCounts, const Check& check) {
  for (const pealDataType_t type : parseTypes("all")) {
    for (const Combine combine : kReductions) {
      for (const int ranks : rankCounts) {
        check(type, combine, ranks);
      }
    }
  }
}

TEST(Values, ResultIsExactWhateverTheOrder) {
  std::mt19937 random(7);
  forEveryReduction({1, 2, 3, 4, 7, 8, 9, 33, 128, 301},
                    [&](pealDataType_t type, Combine combine, int ranks) {
                      Case one(type, combine, ranks, 1000, 67);
                      EXPECT_EQ(one.plain(), one.expected) << one.name() << ", in rank order";
                      std::reverse(one.order.begin(), one.order.end());
                      EXPECT_EQ(one.plain(), one.expected) << one.name() << ", backwards";
                      std::shuffle(one.order.begin(), one.order.end(), random);
                      EXPECT_EQ(one.plain(), one.expected) << one.name() << ", shuffled";
                    });
}

TEST(Values, FaultsOfALibraryShow) {
  forEveryReduction({2, 3, 8, 40}, [&](pealDataType_t type, Combine combine, int ranks) {
    const Case right(type, combine, ranks, 0, 1024);
    const bool repeatable = combine == Combine::Max || combine == Combine::Min;
    const auto expectDifferent = [&](const Case& wrong, const char* fault) {
      EXPECT_NE(wrong.plain(), right.expected) << right.name() << ": " << fault << " goes unseen";
    };
    Case exchanged = right;
    exchanged.inputs[0] = exchanged.inputs[1];
    expectDifferent(exchanged, "rank 1's input in place of rank 0's");
    Case missing = right;
    missing.order.pop_back();
    expectDifferent(missing, "a missing rank");
    Case shifted = right;
    std::rotate(shifted.inputs[1].begin(), shifted.inputs[1].begin() + static_cast<long>(right.info.bytes),
                shifted.inputs[1].end());
    expectDifferent(shifted, "an input shifted by one element");
    Case stale = right;
    stale.inputs[1] = Case(type, combine, ranks, 0, 1024, 4).inputs[1];
    expectDifferent(stale, "an input of the call before");
    if (!repeatable) {
      Case doubled = right;
      doubled.order.push_back(1);
      // Compare as sums, so that a mean over one rank more is not what shows.
      if (combine != Combine::Avg) {
        expectDifferent(doubled, "a rank that counts twice");
      }
    }
    if (combine == Combine::MulSum) {
      Case scaled = right;
      std::swap(scaled.scalars[0], scaled.scalars[1]);
      expectDifferent(scaled, "exchanged scalars");
    }
  });
}

TEST(Values, PartsFitTogether) {
  for (const char* type : {"int8", "bf16", "float", "int64"}) {
    for (const Combine combine : {Combine::Copy, Combine::Sum, Combine::Prod}) {
      const Values values(parseTypes(type)[0], combine, 40, 3);
      const size_t bytes = values.type().bytes;
      Bytes whole(5000 * bytes), parts(5000 * bytes);
      values.input(2, 77, 5000, whole.data());
      for (size_t at = 0; at < 5000;) {
        const size_t part = std::min<size_t>(5000 - at, 1 + at % 1500);
        values.input(2, 77 + at, part, parts.data() + at * bytes);
        at += part;
      }
      EXPECT_EQ(whole, parts) << type << " " << combineName(combine);
    }
  }
}

TEST(Values, CopiesDifferByRankIndexAndRepetition) {
  const Values values(pealInt64, Combine::Copy, 4, 1);
  const Values later(pealInt64, Combine::Copy, 4, 2);
  std::vector<uint64_t> seen(6 * 1000);
  values.input(0, 0, 2000, seen.data());
  values.input(3, 0, 2000, seen.data() + 2000);
  values.garbage(0, 0, 1000, seen.data() + 4000);
  later.input(0, 0, 1000, seen.data() + 5000);
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

TEST(SmallFloat, EveryEncodingIsReadBackAndRoundedTo) {
  for (const char* name : {"half", "bfloat16", "f8e4m3", "f8e5m2"}) {
    const TypeInfo& info = typeInfo(parseTypes(name)[0]);
    const uint32_t encodings = 1U << (8 * info.bytes);
    for (uint32_t bits = 0; bits < encodings; ++bits) {
      const double value = decodeElement(info.type, &bits);
      if (!std::isfinite(value)) {
        continue;
      }
      ASSERT_EQ(encodeSmallFloat(static_cast<float>(value), info), bits) << name;
      // A tie goes to the even neighbour, anything above it up.
      const uint32_t next = bits + 1;
      const double above = decodeElement(info.type, &next);
      if ((next & (encodings / 2 - 1)) != 0 && std::isfinite(above)) {
        const double middle = (value + above) / 2;
        ASSERT_EQ(encodeSmallFloat(static_cast<float>(middle), info), bits % 2 == 0 ? bits : next) << name;
        ASSERT_EQ(
            encodeSmallFloat(std::nextafterf(static_cast<float>(middle), static_cast<float>(above)), info),
            next)
            << name;
      }
    }
  }
}

TEST(SmallFloat, KnownEncodings) {
  const auto encode = [](float value, pealDataType_t type) {
    return encodeSmallFloat(value, typeInfo(type));
  };
  EXPECT_EQ(encode(1.0F, pealFloat16), 0x3c00U);
  EXPECT_EQ(encode(-2.0F, pealFloat16), 0xc000U);
  EXPECT_EQ(encode(65504.0F, pealFloat16), 0x7bffU);
  EXPECT_EQ(encode(1.0F, pealBfloat16), 0x3f80U);
  EXPECT_EQ(encode(3.140625F, pealBfloat16), 0x4049U);
  EXPECT_EQ(encode(448.0F, pealFloat8e4m3), 0x7eU);
  EXPECT_EQ(encode(1.0F, pealFloat8e4m3), 0x38U);
  EXPECT_EQ(encode(57344.0F, pealFloat8e5m2), 0x7bU);
  EXPECT_EQ(encode(-1.5F, pealFloat8e5m2), 0xbeU);
}

TEST(Types, NamesOfNcclTestsAndAliases) {
  EXPECT_EQ(parseTypes("all").size(), 12U);
  EXPECT_EQ(parseTypes("float"), std::vector{pealFloat32});
  EXPECT_EQ(parseTypes("bf16"), parseTypes("bfloat16"));
  EXPECT_EQ(parseTypes("half"), std::vector{pealFloat16});
  EXPECT_EQ(parseCombines("all").size(), 6U);
  EXPECT_EQ(parseCombines("mulsum"), std::vector{Combine::MulSum});
  EXPECT_THROW(parseTypes("flaot"), std::runtime_error);
  EXPECT_THROW(parseCombines("plus"), std::runtime_error);
  EXPECT_THROW(parseCombines("none"), std::runtime_error);
}

}  // namespace
}  // namespace peal::bench
