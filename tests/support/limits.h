// The limits of tests. A machine may be ten times slower than the one at hand: busy, virtual, under a
// sanitizer. So no test has a tight one: what must end at once, and not at a deadline, is given a deadline
// that is far away.
#pragma once
#include <chrono>

namespace peal::test {

// What ends at once has ended by then.
inline constexpr std::chrono::seconds kAtOnce{20};
// A deadline that kAtOnce cannot be taken for.
inline constexpr int kFarMs = 60000;
// What is there then hangs. ctest ends a whole test program later yet.
inline constexpr std::chrono::seconds kHangs{200};

}  // namespace peal::test
