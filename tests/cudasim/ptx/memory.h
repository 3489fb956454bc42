// Memory as translated PTX sees it. Called by the code that ptx2cpp.py writes, on threads of a running grid;
// passes every access of global memory on to the simulator's core, which checks it.
//
// Addresses are 64-bit numbers, one kind for each state space:
//   global, const      device addresses (tagged; core/memory.h) or those of pinned host memory
//   shared             offsets from the start of the block's shared memory, as on the device
//   local, param       of the host: variables of the thread's own stack
//   generic            global, local and param addresses as they are; shared ones as host addresses
// So a generic address tells its space: by the tag, by the bounds of the block's shared memory, by the
// thread's stack; all else is global memory, pinned or wrong, and the core decides.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "tests/cudasim/core/access.h"
#include "tests/cudasim/core/threads.h"
#include "tests/cudasim/ptx/arithmetic.h"

namespace peal::cudasim::ptx {

using cudasim::Order;
using cudasim::Scope;

enum class Space { Generic, Global, Shared, Local, Const, Param };

// A .param variable: a struct, or a number on its way between functions.
template <size_t kBytes, size_t kAlign>
struct Bytes {
  alignas(kAlign) unsigned char byte[kBytes];
};

template <class T>
u64 addressOf(T& variable) {
  return reinterpret_cast<uintptr_t>(&variable);
}
template <class Function>
Function* functionAt(u64 address) {
  return reinterpret_cast<Function*>(address);
}

// ---- where things are (ptx.cpp) ----
// Storage of a .global or .const variable of a module, with its initial bytes, zeros behind them. One for all
// devices of the process, and as long-lived as it.
u64 moduleVariable(size_t sizeBytes, std::initializer_list<unsigned char> initial);
// Writes an address into one.
void putAddress(u64 variable, size_t offset, u64 address);
// Reserves the static shared memory of a kernel, at offset 0. First call of every kernel; `maxThreads` as
// .maxntid has it, 0: any.
void enterKernel(size_t staticSharedBytes, u32 maxThreads);
u64 dynamicSharedOffset();
bool isInLocal(u64 generic);
// Host address of an access to the block's shared memory, which must lie inside it.
std::byte* sharedAt(u64 offset, size_t bytes);

inline bool isInShared(u64 generic) {
  return generic - reinterpret_cast<uintptr_t>(sharedBase()) < sharedBytes();
}
inline bool isInGlobal(u64 generic) { return !isInShared(generic) && !isInLocal(generic); }
inline u64 sharedToGeneric(u64 offset) { return reinterpret_cast<uintptr_t>(sharedBase()) + offset; }
inline u64 genericToShared(u64 generic) { return generic - reinterpret_cast<uintptr_t>(sharedBase()); }

// The space of a generic address; the offset or address that goes with it is left in `address`.
inline Space resolve(u64& address) {
  if ((address & kTag) != 0) {
    return Space::Global;
  }
  if (isInShared(address)) {
    address = genericToShared(address);
    return Space::Shared;
  }
  return isInLocal(address) ? Space::Local : Space::Global;
}

template <class T = void>
T* pointer(u64 address) {
  return reinterpret_cast<T*>(address);
}

// What one access moves at once: a word, or 16 bytes.
template <size_t kBytes>
struct Chunk {
  alignas(kBytes) unsigned char byte[kBytes];
};

// ---- weak accesses ----
template <Space kSpace, size_t kBytes>
Chunk<kBytes> loadChunk(u64 address) {
  Chunk<kBytes> chunk;
  if constexpr (kSpace == Space::Generic) {
    switch (resolve(address)) {
      case Space::Shared:
        return loadChunk<Space::Shared, kBytes>(address);
      case Space::Local:
        return loadChunk<Space::Local, kBytes>(address);
      default:
        return loadChunk<Space::Global, kBytes>(address);
    }
  } else if constexpr (kSpace == Space::Global) {
    chunk = weakLoad<Chunk<kBytes>>(pointer(address));
  } else if constexpr (kSpace == Space::Shared) {
    step();
    copyPlain<kBytes>(&chunk, sharedAt(address, kBytes));
  } else if constexpr (kSpace == Space::Const) {
    std::memcpy(&chunk, toHost(pointer(address)), kBytes);
  } else {
    std::memcpy(&chunk, pointer(address), kBytes);
  }
  return chunk;
}
template <Space kSpace, size_t kBytes>
void storeChunk(u64 address, const Chunk<kBytes>& chunk) {
  static_assert(kSpace != Space::Const);
  if constexpr (kSpace == Space::Generic) {
    switch (resolve(address)) {
      case Space::Shared:
        return storeChunk<Space::Shared, kBytes>(address, chunk);
      case Space::Local:
        return storeChunk<Space::Local, kBytes>(address, chunk);
      default:
        return storeChunk<Space::Global, kBytes>(address, chunk);
    }
  } else if constexpr (kSpace == Space::Global) {
    weakStore(pointer(address), chunk);
  } else if constexpr (kSpace == Space::Shared) {
    step();
    copyPlain<kBytes>(sharedAt(address, kBytes), &chunk);
    countChange();
  } else {
    std::memcpy(pointer(address), &chunk, kBytes);
  }
}

template <class T, size_t kCount>
using Words = std::array<Bits<T>, kCount>;

template <Space kSpace, class T, size_t kCount>
Words<T, kCount> load(u64 address) {
  return std::bit_cast<Words<T, kCount>>(loadChunk<kSpace, sizeof(T) * kCount>(address));
}
template <Space kSpace, class T, size_t kCount>
void store(u64 address, Words<T, kCount> words) {
  storeChunk<kSpace>(address, std::bit_cast<Chunk<sizeof(T) * kCount>>(words));
}
template <class T, size_t kCount>
Words<T, kCount> loadNonCoherent(u64 address) {
  return std::bit_cast<Words<T, kCount>>(nonCoherentLoad<Chunk<sizeof(T) * kCount>>(pointer(address)));
}

// ---- LL pairs, and a lane's part of an LL128 line ----
inline Words<u32, 4> loadFlagged(u64 address) {
  return std::bit_cast<Words<u32, 4>>(flaggedLoad(pointer(address)));
}
inline void storeFlagged(u64 address, Words<u32, 4> words) {
  flaggedStore(pointer(address), std::bit_cast<Halves>(words));
}
inline Words<u64, 2> loadLinePart(u64 address) {
  return std::bit_cast<Words<u64, 2>>(lineLoad(pointer(address)));
}
inline void storeLinePart(u64 address, Words<u64, 2> words) {
  lineStore(pointer(address), std::bit_cast<Halves>(words));
}

// ---- strong accesses ----
template <class Word>
using AliasedWord = typename Aliased<Word>::Type;

template <Space kSpace, class T, Order kOrder, Scope kScope>
Bits<T> loadStrong(u64 address) {
  if constexpr (kSpace == Space::Generic) {
    switch (resolve(address)) {
      case Space::Shared:
        return loadStrong<Space::Shared, T, kOrder, kScope>(address);
      case Space::Local:
        return load<Space::Local, T, 1>(address)[0];
      default:
        return loadStrong<Space::Global, T, kOrder, kScope>(address);
    }
  } else if constexpr (kSpace == Space::Global) {
    return strongLoad<Bits<T>>(pointer(address), kOrder, kScope);
  } else {
    const auto* word = reinterpret_cast<const AliasedWord<Bits<T>>*>(sharedAt(address, sizeof(T)));
    const Bits<T> value =
        acquires(kOrder) ? __atomic_load_n(word, __ATOMIC_ACQUIRE) : __atomic_load_n(word, __ATOMIC_RELAXED);
    polled(word, value);
    return value;
  }
}
template <Space kSpace, class T, Order kOrder, Scope kScope>
void storeStrong(u64 address, Bits<T> value) {
  if constexpr (kSpace == Space::Generic) {
    switch (resolve(address)) {
      case Space::Shared:
        return storeStrong<Space::Shared, T, kOrder, kScope>(address, value);
      case Space::Local:
        return store<Space::Local, T, 1>(address, {value});
      default:
        return storeStrong<Space::Global, T, kOrder, kScope>(address, value);
    }
  } else if constexpr (kSpace == Space::Global) {
    strongStore<Bits<T>>(pointer(address), value, kOrder, kScope);
  } else {
    step();
    auto* word = reinterpret_cast<AliasedWord<Bits<T>>*>(sharedAt(address, sizeof(T)));
    releases(kOrder) ? __atomic_store_n(word, value, __ATOMIC_RELEASE)
                     : __atomic_store_n(word, value, __ATOMIC_RELAXED);
    countChange();
  }
}

// ---- atomics ----
enum class Atomic { Add, And, Or, Xor, Min, Max, Inc, Dec, Exchange, Cas };

// What the word becomes.
template <class T, Atomic kOperation>
Bits<T> next(Bits<T> before, Bits<T> b, Bits<T> c) {
  switch (kOperation) {
    case Atomic::Add:
      return add<T>(before, b);
    case Atomic::And:
      return before & b;
    case Atomic::Or:
      return before | b;
    case Atomic::Xor:
      return before ^ b;
    case Atomic::Min:
      return min<T>(before, b);
    case Atomic::Max:
      return max<T>(before, b);
    case Atomic::Inc:
      return before >= b ? 0 : before + 1;
    case Atomic::Dec:
      return before == 0 || before > b ? b : before - 1;
    case Atomic::Exchange:
      return b;
    case Atomic::Cas:
      break;
  }
  return before == b ? c : before;
}

template <Space kSpace, class T, Atomic kOperation, Order kOrder, Scope kScope>
Bits<T> atomic(u64 address, Bits<T> b, Bits<T> c = 0) {
  const auto following = [b, c](Bits<T> before) { return next<T, kOperation>(before, b, c); };
  if constexpr (kSpace == Space::Generic) {
    if (resolve(address) == Space::Shared) {
      return atomic<Space::Shared, T, kOperation, kOrder, kScope>(address, b, c);
    }
    return atomic<Space::Global, T, kOperation, kOrder, kScope>(address, b, c);
  } else if constexpr (kSpace == Space::Global) {
    return readModifyWrite<Bits<T>>(pointer(address), following, kOrder, kScope);
  } else {
    step();
    auto* word = reinterpret_cast<AliasedWord<Bits<T>>*>(sharedAt(address, sizeof(T)));
    Bits<T> before = __atomic_load_n(word, __ATOMIC_RELAXED), after;
    do {
      after = following(before);
    } while (!__atomic_compare_exchange_n(word, &before, after, false,
                                          kOrder == Order::Relaxed ? __ATOMIC_RELAXED : __ATOMIC_ACQ_REL,
                                          __ATOMIC_RELAXED));
    if (after == before) {
      polled(word, before);
    } else {
      countChange();
    }
    return before;
  }
}

template <Scope kScope>
void fence() {
  cudasim::fence(kScope);
}

}  // namespace peal::cudasim::ptx
