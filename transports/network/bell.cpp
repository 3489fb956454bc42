#include "transports/network/bell.h"

#include <sys/eventfd.h>

namespace peal::network {

Bell::Bell() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Bell::ring() {
  count_.fetch_add(1, std::memory_order_release);
  // Fails only when the count is full, and then the descriptor is readable.
  static_cast<void>(eventfd_write(event_.fd(), 1));
  if (haveOther_.load(std::memory_order_acquire)) {  // pairs with alsoCall()
    other_();
  }
}

void Bell::quiet() {
  eventfd_t value = 0;
  static_cast<void>(eventfd_read(event_.fd(), &value));
}

void Bell::alsoCall(std::function<void()> other) {
  other_ = std::move(other);
  haveOther_.store(true, std::memory_order_release);
}

}  // namespace peal::network
