// Contexts of execution on one OS thread, and their stacks. Knows nothing of CUDA. Used by the scheduler.
#pragma once
#include <cstddef>
#include <cstdint>

namespace peal::cudasim {

// Where a fiber was left. The first context of an OS thread is made by adopt(), others by prepare().
struct Context {
  void* stackPointer = nullptr;
  std::byte* stack = nullptr;  // lowest address
  size_t stackBytes = 0;
  void* sanitizerState = nullptr;  // thread sanitizer: its fiber; address sanitizer: its fake stack
};

void adopt(Context& context);
// `entry` runs on the stack at the first switch to the context, and must never return.
void prepare(Context& context, std::byte* stack, size_t stackBytes, void (*entry)());
// After the last switch away from it.
void destroy(Context& context);

enum class Leaving : uint8_t { ForNow, ForGood };
// Runs `to` until something switches back to `from`.
void switchContext(Context& from, Context& to, Leaving leaving);
// The first thing that an entry calls.
void arrived();

// Stacks of one block. Their distance is no power of two, or the same variable of all threads would fall into
// one set of the cache. A pattern lies below each stack, and a page that faults below all of them.
class Stacks {
 public:
  Stacks() = default;
  Stacks(size_t count, size_t stackBytes);  // empty() when there is no memory
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  Stacks(Stacks&& other) noexcept;
  Stacks& operator=(Stacks&& other) noexcept;

  bool empty() const { return memory_ == nullptr; }
  std::byte* stack(size_t index) const;
  size_t stackBytes() const { return stackBytes_; }
  // Whether the pattern below this stack is as it was.
  bool whole(size_t index) const;

 private:
  std::byte* memory_ = nullptr;
  size_t count_ = 0, stackBytes_ = 0;
};

}  // namespace peal::cudasim
