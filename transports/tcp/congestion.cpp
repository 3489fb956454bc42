#include "transports/tcp/congestion.h"

#include <linux/tcp.h>  // its tcp_info has the least round trip, unlike that of netinet/tcp.h
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>

namespace peal::tcp {
namespace {

// Of a round trip between machines of one building.
constexpr uint32_t kNearUs = 1000;

std::string usedBy(int descriptor) {
  std::array<char, 16> name{};
  auto bytes = static_cast<socklen_t>(name.size() - 1);
  const bool known = getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name.data(), &bytes) == 0;
  return known ? name.data() : "";
}

bool isNear(int descriptor) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  constexpr socklen_t kNeeded = offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt;
  return getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && bytes >= kNeeded &&
         info.tcpi_min_rtt <= kNearUs;
}

}  // namespace

std::string congestionFor(int descriptor, const std::string& asked) {
  if (asked != kAutoCongestion) {
    return asked == kSystemCongestion ? "" : asked;
  }
  return usedBy(descriptor).starts_with("bbr") && isNear(descriptor) ? "reno" : "";
}

}  // namespace peal::tcp
