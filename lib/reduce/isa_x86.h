// What the three x86-64 instruction sets share. Only for kernels_*.cpp: everything has internal linkage.
#pragma once
#include <immintrin.h>

namespace peal {
namespace {

// Non-temporal stores are weakly ordered: this makes them visible before any later store, such as the one
// that posts a slot.
inline void fenceStreams() { _mm_sfence(); }

// Results must not depend on what the caller did to its thread's floating-point state: flushing of
// denormals (PyTorch's set_flush_denormal, -ffast-math's start-up code) and other rounding modes are put
// aside while a loop runs.
class DefaultFloatState {
 public:
  DefaultFloatState() : saved_(_mm_getcsr()) {
    if ((saved_ & kControlBits) != kDefaultControl) {
      _mm_setcsr((saved_ & ~kControlBits) | kDefaultControl);
    }
  }
  ~DefaultFloatState() {
    if ((saved_ & kControlBits) != kDefaultControl) {
      _mm_setcsr(saved_);
    }
  }
  DefaultFloatState(const DefaultFloatState&) = delete;
  DefaultFloatState& operator=(const DefaultFloatState&) = delete;

 private:
  static constexpr unsigned kControlBits = 0xffc0;     // flush to zero, rounding, masks, denormals are zero
  static constexpr unsigned kDefaultControl = 0x1f80;  // all exceptions masked, round to nearest even
  unsigned saved_;
};

}  // namespace
}  // namespace peal
