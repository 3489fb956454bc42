// Which seeded defect is switched on. Asked by the mutated copies, set by program.cpp and host/chosen.cpp.
#pragma once
#include <type_traits>

namespace peal::cuda::test {

inline int chosenMutant = 0;  // 0: the sources as they are

// Layouts that are computed at compile time have no defect.
constexpr bool isMutant(int number) { return std::is_constant_evaluated() ? false : chosenMutant == number; }

}  // namespace peal::cuda::test
