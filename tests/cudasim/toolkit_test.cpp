// The simulator's <cuda_runtime.h> says what the toolkit's says: otherwise host code would be tested against
// something else than what it is compiled against.
#include <gtest/gtest.h>

#include "tests/cudasim/toolkit_names.h"

namespace peal::cudasim {
namespace {

TEST(Toolkit, HeadersAgree) {
  const auto simulated = simulatedNames();
  const auto real = toolkitNames();
  EXPECT_GT(simulated.size(), 300u);
  for (const auto& [name, value] : simulated) {
    EXPECT_EQ(value, real.at(name)) << name;
  }
}

}  // namespace
}  // namespace peal::cudasim
