// All that translated PTX needs at run time. Included by the files that ptx2cpp.py writes, and by nothing
// else.
#pragma once
#include "tests/cudasim/ptx/arithmetic.h"
#include "tests/cudasim/ptx/memory.h"
#include "tests/cudasim/ptx/threads.h"

namespace peal::cudasim::ptx {

template <class Word>
constexpr Word select(bool condition, Word a, Word b) {
  return condition ? a : b;
}
// A register wider than the result it gets: signed results bring their sign along.
template <class T, class Register>
constexpr Register extend(Bits<T> bits) {
  return static_cast<Register>(read<T>(bits));
}

}  // namespace peal::cudasim::ptx
