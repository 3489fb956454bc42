// Encodings of the floating-point formats narrower than fp32, straight from their definitions. Written
// apart from the library's own conversions, so that the reference does not share a fault with them.
#pragma once
#include <cstdint>

#include "bench/harness/types.h"

namespace peal::bench {

// Bits of `value` in a format of at most 16 bits, rounded to nearest even. Finite values within range only.
uint32_t encodeSmallFloat(float value, const TypeInfo& info);

// The value of an element of any type, for messages. Exact but for int64 and uint64 above 2^53.
double decodeElement(pealDataType_t type, const void* element);

}  // namespace peal::bench
