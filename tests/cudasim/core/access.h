// Accesses of global memory by kernels: what both front ends (include/cudasim/device.h, and translated PTX)
// call. Every access is checked: alignment, allocation, device, scope; then it goes to memory at once, or
// through the weak memory model where that is on. Called by threads of a running grid only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/cudasim/core/memory.h"
#include "tests/cudasim/core/state.h"

namespace peal::cudasim {

enum class Scope : uint8_t { Block, Device, System };
enum class Order : uint8_t { Relaxed, Acquire, Release, AcquireRelease };
constexpr bool acquires(Order order) { return order == Order::Acquire || order == Order::AcquireRelease; }
constexpr bool releases(Order order) { return order == Order::Release || order == Order::AcquireRelease; }

// Kinds of accesses; bits of CachedRange::refuses.
enum class Use : uint8_t { WeakLoad = 1, WeakStore = 2, NonCoherentLoad = 4, Strong = 8, NarrowStrong = 16 };
constexpr Use strongUse(Scope scope) { return scope == Scope::System ? Use::Strong : Use::NarrowStrong; }

// ---- in core/*.cpp ----
// The slow way of translate(): finds the allocation, or traps with a sentence.
std::byte* findMemory(uintptr_t at, size_t bytes, Use use);
void preempt();
// A strong load saw this value (or an atomic left it as it was): notices threads that only wait.
void polled(const void* address, uint64_t value);
bool coin();
// The weak memory model (weak_memory.h).
void modelLoad(const std::byte* from, void* value, size_t bytes);
void modelStore(std::byte* to, const void* value, size_t bytes);
uint64_t modelStrongLoad(const std::byte* from, size_t bytes, Order order);
void modelRelaxedStore(std::byte* to, uint64_t value, size_t bytes);
// Lets this thread's and block's delayed stores to this granule through.
void modelSettle(const std::byte* at);
void modelRelease(Scope scope);
void modelAcquire(Scope scope);

// ---- 16 bytes whose halves are seen as one each (LL), and parts of 128-byte lines (LL128) ----
struct Halves {
  uint64_t first, second;
};
// All lanes of the warp; eight neighbouring lanes access one aligned line. In lines.cpp.
Halves lineLoad(const void* address);
void lineStore(void* address, Halves value);

// Counters are relaxed atomics only so that the thread sanitizer, for which fibers are threads, stays quiet.
CUDASIM_INLINE void countChange() {
  __atomic_store_n(&hot.changes, __atomic_load_n(&hot.changes, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}
// Every access but polls: no loop keeps the others from running.
CUDASIM_INLINE void step() {
  const uint64_t left = __atomic_load_n(&hot.untilPreempt, __ATOMIC_RELAXED) - 1;
  __atomic_store_n(&hot.untilPreempt, left, __ATOMIC_RELAXED);
  if (left == 0) [[unlikely]] {
    preempt();
  }
}

CUDASIM_INLINE bool allows(const CachedRange& range, uintptr_t at, size_t bytes, Use use) {
  const uintptr_t offset = at - range.begin;
  return at % bytes == 0 && range.version == rangesVersion.load(std::memory_order_relaxed) &&
         offset < range.bytes && range.bytes - offset >= bytes &&
         (range.devices >> hot.thread->device & 1) != 0 && (range.refuses & static_cast<uint64_t>(use)) == 0;
}
// Where the bytes lie for the host; traps unless the access is allowed.
template <size_t kBytes>
CUDASIM_INLINE std::byte* translate(const void* address, Use use) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  if (!allows(hot.ranges[(at >> kCachedRangeBits) % kCachedRanges], at, kBytes, use)) [[unlikely]] {
    return findMemory(at, kBytes, use);
  }
  return reinterpret_cast<std::byte*>(at & ~kTag);
}

// Words that may alias anything: memory has no type. The sanitizers see one plain access.
template <class Word>
struct Aliased {
  using Type __attribute__((may_alias)) = Word;
};
template <size_t kBytes>
CUDASIM_INLINE void copyPlain(void* to, const void* from) {
  static_assert(kBytes == 1 || kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    using Word = Aliased<uint64_t>::Type;
    const Word first = static_cast<const Word*>(from)[0], second = static_cast<const Word*>(from)[1];
    static_cast<Word*>(to)[0] = first;
    static_cast<Word*>(to)[1] = second;
  } else {
    using Plain = std::conditional_t<
        kBytes == 1, uint8_t,
        std::conditional_t<kBytes == 2, uint16_t, std::conditional_t<kBytes == 4, uint32_t, uint64_t>>>;
    using Word = typename Aliased<Plain>::Type;
    *static_cast<Word*>(to) = *static_cast<const Word*>(from);
  }
}

// ---- weak accesses: ld, st; T of 1, 2, 4, 8 or 16 bytes ----
template <class T>
CUDASIM_INLINE T weakLoad(const void* address, Use use = Use::WeakLoad) {
  static_assert(std::is_trivially_copyable_v<T>);
  step();
  const std::byte* from = translate<sizeof(T)>(address, use);
  alignas(16) std::byte value[sizeof(T)];
  if (hot.weak) [[unlikely]] {
    modelLoad(from, value, sizeof(T));
  } else {
    copyPlain<sizeof(T)>(value, from);
  }
  T result;
  __builtin_memcpy(&result, value, sizeof(T));
  return result;
}
// ld.global.nc: only of memory that nobody else writes.
template <class T>
CUDASIM_INLINE T nonCoherentLoad(const void* address) {
  return weakLoad<T>(address, Use::NonCoherentLoad);
}
template <class T>
CUDASIM_INLINE void weakStore(void* address, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  step();
  std::byte* to = translate<sizeof(T)>(address, Use::WeakStore);
  alignas(16) std::byte bytes[sizeof(T)];
  __builtin_memcpy(bytes, &value, sizeof(T));
  if (hot.weak) [[unlikely]] {
    modelStore(to, bytes, sizeof(T));
  } else {
    copyPlain<sizeof(T)>(to, bytes);
  }
  countChange();
}

// ---- strong accesses: ld.acquire, st.release, .relaxed, .volatile, atom; T an unsigned integer ----
template <class T>
CUDASIM_INLINE T strongLoad(const void* address, Order order, Scope scope = Scope::System) {
  static_assert(std::is_unsigned_v<T>);
  const std::byte* from = translate<sizeof(T)>(address, strongUse(scope));
  using Word = typename Aliased<T>::Type;
  const Word* word = reinterpret_cast<const Word*>(from);
  T value;
  if (hot.weak) [[unlikely]] {
    value = static_cast<T>(modelStrongLoad(from, sizeof(T), order));
  } else if (acquires(order)) {
    value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
  } else {
    value = __atomic_load_n(word, __ATOMIC_RELAXED);
  }
  polled(address, value);
  return value;
}
template <class T>
CUDASIM_INLINE void strongStore(void* address, T value, Order order, Scope scope = Scope::System) {
  static_assert(std::is_unsigned_v<T>);
  step();
  std::byte* to = translate<sizeof(T)>(address, strongUse(scope));
  using Word = typename Aliased<T>::Type;
  Word* word = reinterpret_cast<Word*>(to);
  countChange();
  if (hot.weak) [[unlikely]] {
    if (!releases(order)) {
      modelRelaxedStore(to, value, sizeof(T));
      return;
    }
    modelRelease(scope);
    modelSettle(to);
  }
  if (releases(order) || hot.thread->fenced) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
  }
}
// `next(before)` is the value after. Returns the value before.
template <class T, class Next>
CUDASIM_INLINE T readModifyWrite(void* address, Next next, Order order, Scope scope = Scope::System) {
  static_assert(std::is_unsigned_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  step();
  std::byte* at = translate<sizeof(T)>(address, strongUse(scope));
  using Word = typename Aliased<T>::Type;
  Word* word = reinterpret_cast<Word*>(at);
  if (hot.weak) [[unlikely]] {
    if (releases(order)) {
      modelRelease(scope);
    }
    modelSettle(at);
  }
  T before = __atomic_load_n(word, __ATOMIC_RELAXED), after;
  do {
    after = next(before);
  } while (
      order == Order::Relaxed
          ? !__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)
          : !__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  if (hot.weak && acquires(order)) [[unlikely]] {
    modelAcquire(scope);
  }
  if (after == before) {
    polled(address, before);  // a compare-exchange that failed waits, too
  } else {
    countChange();
  }
  return before;
}
CUDASIM_INLINE void fence(Scope scope) {
  step();
  if (hot.weak) [[unlikely]] {
    modelRelease(scope);
    modelAcquire(scope);
  }
#ifdef CUDASIM_TSAN
  hot.thread->fenced = true;
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

// ---- LL: two halves of 8 bytes, each whole, in any order ----
CUDASIM_INLINE uint64_t loadHalf(const std::byte* from) {
  return hot.weak ? modelStrongLoad(from, 8, Order::Relaxed)
                  : __atomic_load_n(reinterpret_cast<const Aliased<uint64_t>::Type*>(from), __ATOMIC_RELAXED);
}
CUDASIM_INLINE void storeHalf(std::byte* to, uint64_t value) {
  if (hot.weak) [[unlikely]] {
    modelRelaxedStore(to, value, 8);
  } else {
    __atomic_store_n(reinterpret_cast<Aliased<uint64_t>::Type*>(to), value, __ATOMIC_RELAXED);
  }
  countChange();
}
CUDASIM_INLINE Halves flaggedLoad(const void* address) {
  const std::byte* from = translate<16>(address, Use::Strong);
  Halves value;
  if (coin()) {
    value.first = loadHalf(from);
    value.second = loadHalf(from + 8);
  } else {
    value.second = loadHalf(from + 8);
    value.first = loadHalf(from);
  }
  polled(address, value.first ^ (value.second << 1 | value.second >> 63));
  return value;
}
CUDASIM_INLINE void flaggedStore(void* address, Halves value) {
  step();
  std::byte* to = translate<16>(address, Use::Strong);
  const bool firstFirst = coin();
  storeHalf(firstFirst ? to : to + 8, firstFirst ? value.first : value.second);
  step();
  storeHalf(firstFirst ? to + 8 : to, firstFirst ? value.second : value.first);
}

}  // namespace peal::cudasim
