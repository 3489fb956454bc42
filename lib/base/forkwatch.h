// Tells objects that this process is now a forked child.
//
// A child that lives on without exec (a data loader) inherits the sockets by which peers notice a death, and
// would keep them open after the parent is gone. So they are closed in the child at once.
#pragma once

namespace peal {

class ForkListener {
 public:
  // Runs in the child, before fork() returns there. May only close descriptors and store to atomics.
  virtual void inForkedChild() noexcept = 0;

 protected:
  ~ForkListener() = default;
};

// Both from the listener's own constructor (its last act) and destructor (its first).
void watchForks(ForkListener& listener);
void unwatchForks(ForkListener& listener);

}  // namespace peal
