// Which congestion control a data connection uses (PEAL_TCP_CONGESTION).
//
// Called by TcpFabric, once for each connection.
#pragma once
#include <string>

namespace peal::tcp {

// Lets peal choose: reno instead of a control that paces (bbr), if the peer is near and the system allows it;
// else the system's. A control that paces sends at the rate that it saw before, and between the bursts of
// collectives it sees little: all-reduces of 1 MiB took 12 % longer (docs/NETWORKS.md). Far away, where
// packets get lost that no queue dropped, it stays.
inline constexpr const char* kAutoCongestion = "auto";

inline constexpr const char* kSystemCongestion = "system";

// What to set for `asked`: one of these, or the system's name of another; "": nothing, the system's stays.
std::string congestionFor(int descriptor, const std::string& asked);

}  // namespace peal::tcp
