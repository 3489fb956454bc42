// Data types and reductions by the names that nccl-tests prints. Knows nothing of values or communicators.
#pragma once
#include <string>
#include <vector>

#include "peal/peal.h"

namespace peal::bench {

enum class TypeClass { Signed, Unsigned, Float };

struct TypeInfo {
  pealDataType_t type;
  const char* name;
  size_t bytes;
  TypeClass typeClass;
  int exponentBits, mantissaBits;  // Float only; mantissa without the hidden bit
};

const TypeInfo& typeInfo(pealDataType_t type);

// "float", "bf16", "all" ... in nccl-tests' order. Throws UsageError, which lists the names.
std::vector<pealDataType_t> parseTypes(const std::string& text);

// What a bench does with the ranks' elements. Copy: moves them without looking.
enum class Combine { Copy, Sum, Prod, Max, Min, Avg, MulSum };

const char* combineName(Combine combine);  // redop column: "none" for Copy

// "sum", "mulsum", "all" ... Throws UsageError, which lists the names.
std::vector<Combine> parseCombines(const std::string& text);

}  // namespace peal::bench
