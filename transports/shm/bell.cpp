#include "transports/shm/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace peal::shm {

void ringBell(Bell& bell) {
  bell.doorbell.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &bell.doorbell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void sleepOnBell(Bell& bell, uint32_t token, int64_t us) {
  const timespec limit{us / 1000000, us % 1000000 * 1000};
  syscall(SYS_futex, &bell.doorbell, FUTEX_WAIT, token, &limit, nullptr, 0);
}

}  // namespace peal::shm
