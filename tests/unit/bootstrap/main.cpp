// The tests of lib/bootstrap: all their traffic stays on the loopback interface.
#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // Before anything reads the configuration table.
  setenv("PEAL_INTERFACE", "lo", 1);
  setenv("PEAL_LOG", "error", 0);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
