// The loops for one instruction set; its compiler flags stand in this folder's CMakeLists.txt.
#include "lib/zero/loops_text.inc"
#include "lib/zero/loops_variants.h"

namespace peal::zero {

const Loops& loopsAvx2() { return kLoops; }

}  // namespace peal::zero
