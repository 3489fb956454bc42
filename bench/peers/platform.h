// What differs between processors. kernels_x86.cpp and kernels_portable.cpp have the rest.
#pragma once

namespace peers {

// A hint that this is a spin loop.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace peers
