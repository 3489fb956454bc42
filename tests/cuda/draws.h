// How many random cases of each kind a program tries, of which there are several with the same tests
// (CMakeLists.txt).
#pragma once

namespace peal::cuda::test {

extern const int kTestDraws;

}  // namespace peal::cuda::test
