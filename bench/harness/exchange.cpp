#include "bench/harness/exchange.h"

#include <fmt/format.h>

namespace peal::bench {

void throwDamagedRecord(int rank) {
  throw tools::ToolError(
      fmt::format("the report of rank {} came back damaged: pealAllGather delivers wrong bytes.", rank));
}

}  // namespace peal::bench
