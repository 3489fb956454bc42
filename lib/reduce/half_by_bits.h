// fp16 conversions for processors without an instruction for them. Only for kernels_*.cpp, after vectors.h.
#pragma once

namespace peal {
namespace {

// first has the even elements, second the odd ones.
struct HalfConversion {
  // 65520 is halfway between the largest half and the power of two above it.
  using Format = SmallFloat<5, 10, 0x477ff000u, 0x7e00u, true>;

  static Pair widen(Words halves) { return {Format::widen(halves & 0xffffu), Format::widen(halves >> 16)}; }
  static Words narrow(Pair values) {
    return Format::narrow(values.first) | Format::narrow(values.second) << 16;
  }
};

}  // namespace
}  // namespace peal
