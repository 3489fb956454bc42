// The device's loops against those of lib/reduce/, bit for bit: all types, operations, numbers of sources,
// alignments and lengths. Compiled twice: with the kernels as the host compiler and as nvcc translate them.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lib/reduce/reduce.h"
#include "tests/cuda/loops_run.h"
#include "tests/unit/reduce/reference.h"

namespace peal::cuda {
namespace {

using reference::kTypes;
using reference::Random;
using Bytes = std::vector<uint8_t>;

struct Operation {
  const char* name;
  pealRedOp_t kind;
  int rawSource = -1, divideBy = 0;
};

std::vector<Operation> operations(int sourceCount) {
  return {{"sum", pealSum},
          {"prod", pealProd},
          {"max", pealMax},
          {"min", pealMin},
          {"avg", pealAvg, -1, sourceCount},
          {"avg over 72", pealAvg, -1, 72},
          {"avg unfinished", pealAvg},
          {"scaled, first raw", pealSum, 0},
          {"scaled, last raw", pealSum, sourceCount - 1}};
}

struct Call {
  pealDataType_t type;
  Operation op;
  size_t count;
  uint64_t scalarBits = 0;
};

Bytes randomArray(pealDataType_t type, size_t count, Random& random) {
  const size_t size = elementBytes(type);
  Bytes array(count * size);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = reference::randomElement(type, random);
    std::memcpy(array.data() + i * size, &bits, size);
  }
  return array;
}

Bytes onHost(const Call& call, const std::vector<Bytes>& sources) {
  ReduceOp op;
  op.kind = call.op.kind;
  op.ranks = call.op.divideBy;
  op.preMultiply = call.op.rawSource >= 0;
  std::memcpy(op.scalar.data(), &call.scalarBits, sizeof call.scalarBits);
  std::vector<const void*> addresses;
  for (const Bytes& source : sources) {
    addresses.push_back(source.data());
  }
  Bytes result(call.count * elementBytes(call.type));
  reduce(call.type, op,
         {.sources = addresses,
          .rawSource = call.op.rawSource,
          .destinations = {result.data(), nullptr},
          .count = call.count,
          .finish = call.op.divideBy != 0 ? Finish::Yes : Finish::No});
  return result;
}

std::string firstDifference(const Call& call, const std::vector<Bytes>& sources, const Bytes& expected,
                            const Bytes& actual) {
  const size_t size = elementBytes(call.type);
  for (size_t i = 0; i < call.count; ++i) {
    if (std::memcmp(expected.data() + i * size, actual.data() + i * size, size) != 0) {
      const auto bits = [&](const Bytes& array) {
        uint64_t value = 0;
        std::memcpy(&value, array.data() + i * size, size);
        return value;
      };
      std::string text = fmt::format("element {} of {}: {:#x}, expected {:#x}, of", i, call.count,
                                     bits(actual), bits(expected));
      for (const Bytes& source : sources) {
        text += fmt::format(" {:#x}", bits(source));
      }
      return text;
    }
  }
  return "";
}

// Where the arrays begin, in bytes behind a page: sources, then destinations.
using Shifts = std::vector<size_t>;

void expectSame(const Call& call, const std::vector<Bytes>& sources, const Shifts& sourceShifts,
                const Shifts& destinationShifts, Shape shape) {
  std::vector<DeviceArray> in, out;
  LoopArgs args{};
  for (size_t s = 0; s < sources.size(); ++s) {
    in.emplace_back(sources[s], sourceShifts[s % sourceShifts.size()]);
    args.sources[s] = in.back().device();
  }
  for (size_t d = 0; d < destinationShifts.size(); ++d) {
    out.emplace_back(Bytes(call.count * elementBytes(call.type), 0x5a), destinationShifts[d]);
    args.destinations[d] = out.back().device();
  }
  args.sourceCount = static_cast<int>(in.size());
  args.destinationCount = static_cast<int>(out.size());
  args.op = call.op.kind;
  args.rawSource = call.op.rawSource;
  args.divideBy = call.op.divideBy;
  args.scalarBits = call.scalarBits;
  args.count = call.count;
  launch(reduceKernelFor(call.type), args, shape);
  const Bytes expected = onHost(call, sources);
  for (size_t d = 0; d < out.size(); ++d) {
    EXPECT_EQ(firstDifference(call, sources, expected, out[d].contents()), "")
        << fmt::format("{}, {}, {} sources at +{}, destination {} at +{}", typeName(call.type), call.op.name,
                       sources.size(), fmt::join(sourceShifts, " +"), d, destinationShifts[d]);
    EXPECT_TRUE(out[d].guardIsWhole()) << "destination " << d;
  }
  for (size_t s = 0; s < in.size(); ++s) {
    EXPECT_EQ(in[s].contents(), sources[s]) << "source " << s;
  }
}

std::vector<Bytes> randomSources(const Call& call, int sourceCount, Random& random) {
  std::vector<Bytes> sources;
  for (int s = 0; s < sourceCount; ++s) {
    sources.push_back(randomArray(call.type, call.count, random));
  }
  return sources;
}

// Long enough for rounds of all threads, single vectors, and ends on both sides.
TEST(Loops, EveryTypeOperationAndNumberOfSources) {
  Random random(1);
  for (const pealDataType_t type : kTypes) {
    const size_t size = elementBytes(type);
    for (const int sourceCount : {1, 2, 3, 4, 5, 8}) {
      for (const Operation& op : operations(sourceCount)) {
        const Call call{type, op, (size_t{4} * 32 * 16 + 7 * 16) / size + 5,
                        reference::randomElement(type, random)};
        expectSame(call, randomSources(call, sourceCount, random), {16 - size}, {16 - size}, {});
        if (HasFailure()) {
          return;
        }
      }
    }
  }
}

// Around the sizes of an element, a vector and a round, at every alignment that makes a difference: all the
// same; a destination apart; sources apart; not aligned to the element.
TEST(Loops, EveryAlignmentAndLength) {
  Random random(2);
  for (const pealDataType_t type : {pealUint8, pealBfloat16, pealInt32, pealFloat64}) {
    const size_t size = elementBytes(type);
    for (const size_t bytes : {size_t{0}, size, 2 * size, 16 - size, size_t{16}, 16 + size, size_t{48},
                               512 - size, size_t{512}, 2048 + size, size_t{2 * 2048 + 16 + 8}}) {
      const Call call{type, bytes % 3 == 0 ? Operation{"sum", pealSum} : Operation{"max", pealMax},
                      bytes / size};
      const std::vector<Bytes> sources = randomSources(call, 3, random);
      for (const Shifts& shifts :
           {Shifts{0, 0}, Shifts{size, size}, Shifts{16 - size, 16 - size}, Shifts{0, size}, Shifts{size, 0},
            Shifts{1, 1}, Shifts{5, 8}, Shifts{0, 16 - 3}}) {
        expectSame(call, sources, {shifts[0]}, {shifts[1]}, {});
        expectSame(call, sources, {shifts[0], shifts[0], shifts[1]}, {shifts[0], shifts[1]}, {});
        if (HasFailure()) {
          return;
        }
      }
    }
  }
}

TEST(Loops, BlocksDivideTheWork) {
  Random random(3);
  for (const size_t count : {size_t{1}, size_t{31}, size_t{1000}, size_t{5003}}) {
    const Call call{pealFloat16, {"avg", pealAvg, -1, 2}, count};
    for (const Shape shape : {Shape{3, 64}, Shape{8, 32}, Shape{2, 512}}) {
      expectSame(call, randomSources(call, 2, random), {2}, {2}, shape);
    }
  }
}

TEST(Loops, AsManySourcesAsRanks) {
  Random random(4);
  for (const pealDataType_t type : {pealBfloat16, pealFloat8e4m3, pealInt64}) {
    const Call call{type,
                    {"avg, last raw", pealAvg, kMostLoopSources - 1, kMostLoopSources},
                    67,
                    reference::randomElement(type, random)};
    expectSame(call, randomSources(call, kMostLoopSources, random), {0}, {0}, {1, 64});
  }
}

TEST(Loops, ManyDestinations) {
  Random random(5);
  const Call call{pealBfloat16, {"sum", pealSum}, 1031};
  expectSame(call, randomSources(call, 2, random), {4}, {4, 20, 36, 4}, {});
  expectSame(call, randomSources(call, 1, random), {4}, {4, 20, 36, 6}, {});
}

TEST(Loops, InPlace) {
  Random random(6);
  for (const pealDataType_t type : kTypes) {
    for (const size_t shift : {size_t{0}, size_t{8}, size_t{1}}) {
      const Call call{type, {"sum", pealSum}, 700};
      const std::vector<Bytes> sources = randomSources(call, 2, random);
      DeviceArray both(sources[0], shift), other(sources[1], 2 * shift);
      LoopArgs args{.sources = {both.device(), other.device()},
                    .destinations = {both.device()},
                    .sourceCount = 2,
                    .destinationCount = 1,
                    .op = pealSum,
                    .rawSource = -1,
                    .divideBy = 0,
                    .scalarBits = 0,
                    .count = call.count};
      launch(reduceKernelFor(type), args, {2, 32});
      EXPECT_EQ(firstDifference(call, sources, onHost(call, sources), both.contents()), "") << typeName(type);
    }
  }
}

// ---- every value ----

// Every pair of codes of the 8-bit types.
TEST(Loops, EveryPairOf8Bits) {
  constexpr size_t kPairs = 65536;
  Bytes high(kPairs), low(kPairs);
  for (size_t i = 0; i < kPairs; ++i) {
    high[i] = static_cast<uint8_t>(i >> 8);
    low[i] = static_cast<uint8_t>(i);
  }
  for (const pealDataType_t type : {pealInt8, pealUint8, pealFloat8e4m3, pealFloat8e5m2}) {
    for (const Operation& op :
         {Operation{"sum", pealSum}, Operation{"prod", pealProd}, Operation{"max", pealMax},
          Operation{"min", pealMin}, Operation{"avg", pealAvg, -1, 3}}) {
      expectSame({type, op, kPairs}, {high, low}, {0}, {0}, {2, 128});
    }
  }
}

// Every code of the 16-bit types is widened, and rounded again after each of several things was done to it.
TEST(Loops, EveryCodeOf16Bits) {
  constexpr size_t kCodes = 65536;
  Random random(7);
  Bytes codes(2 * kCodes);
  for (size_t i = 0; i < kCodes; ++i) {
    const auto code = static_cast<uint16_t>(i);
    std::memcpy(codes.data() + 2 * i, &code, sizeof code);
  }
  for (const pealDataType_t type : {pealFloat16, pealBfloat16}) {
    const Bytes zeros(2 * kCodes), others = randomArray(type, kCodes, random);
    for (const Operation& op : {Operation{"sum", pealSum}, Operation{"prod", pealProd},
                                Operation{"max", pealMax}, Operation{"avg", pealAvg, -1, 7}}) {
      expectSame({type, op, kCodes}, {codes, others}, {0}, {0}, {2, 128});
    }
    expectSame({type, {"sum", pealSum}, kCodes}, {codes, zeros}, {0}, {0}, {2, 128});
    for (const uint64_t scalar :
         {0x3555U, 0x0400U, 0x3eabU}) {  // thirds, and numbers that lead to subnormals
      expectSame({type, {"scaled", pealSum, 0}, kCodes, scalar}, {codes}, {0}, {0}, {2, 128});
    }
  }
}

// ---- copies ----

TEST(Loops, CopiesAtEveryAlignment) {
  Random random(8);
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{17}, size_t{130}, size_t{8 * 32 * 16 + 16 * 3 + 5}}) {
    const Bytes source = randomArray(pealUint8, bytes, random);
    for (const size_t from : {0, 1, 2, 4, 8, 15}) {
      for (const size_t to : {0, 1, 2, 4, 8, 15}) {
        const DeviceArray in(source, from), out(Bytes(bytes), to), also(Bytes(bytes), from);
        LoopArgs args{};
        args.sources[0] = in.device();
        args.destinations[0] = out.device();
        args.destinations[1] = also.device();
        args.sourceCount = 1;
        args.destinationCount = from % 2 == 0 ? 2 : 1;
        args.count = bytes;
        launch(copyKernel(), args, {1 + static_cast<unsigned>(to) % 2, 32});
        EXPECT_TRUE(out.contents() == source) << bytes << " bytes from +" << from << " to +" << to;
        EXPECT_TRUE(args.destinationCount == 1 || also.contents() == source);
        EXPECT_TRUE(out.guardIsWhole() && also.guardIsWhole());
      }
    }
  }
}

// A reduction of one source keeps its bytes, also a NaN that no reduction would make.
TEST(Loops, OneSourceIsCopied) {
  Bytes source(64, 0xff);
  for (const pealDataType_t type : kTypes) {
    expectSame({type, {"sum", pealSum}, 64 / elementBytes(type)}, {source}, {0}, {8}, {});
  }
}

}  // namespace
}  // namespace peal::cuda
