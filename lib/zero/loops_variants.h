// The loops as compiled for each instruction set. Only loops.cpp chooses between them.
#pragma once
#include "lib/zero/loops.h"

namespace peal::zero {

const Loops& loopsBaseline();
const Loops& loopsAvx2();    // x86-64 only
const Loops& loopsAvx512();  // x86-64 only

}  // namespace peal::zero
