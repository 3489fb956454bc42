// Which machine this process runs on, in a form that ranks can exchange and compare.
//
// Used by comm: ranks on one node talk through shared memory, others through the network; and by the
// transports of one node, which refuse others. Reads /proc and PEAL_HOST_ID.
#pragma once
#include <array>
#include <cstdint>
#include <string>

namespace peal {

// Plain bytes, to be sent as they are between ranks of one build.
struct NodeIdentity {
  std::array<char, 40> bootId{};    // of the running kernel; text, ended by a zero; empty if unreadable
  std::array<char, 64> hostName{};  // for messages, and the stand-in for an unreadable bootId
  std::array<char, 64> hostId{};  // PEAL_HOST_ID, or a digest of it if it is long; if given it decides alone
  uint64_t networkNamespace = 0;  // abstract Unix sockets reach only inside one; 0 if unreadable

  bool operator==(const NodeIdentity&) const = default;
};

// Of this process. Cheap enough to be asked each time; namespaces may change between calls.
NodeIdentity nodeIdentity();

// Whether the two run on one kernel, or say so by their host id.
bool sameMachine(const NodeIdentity& a, const NodeIdentity& b);
// Whether the two can pass descriptors over an abstract Unix socket: same kernel, same network namespace.
// Containers of one machine that have networks of their own are different nodes. A host id that either has
// decides alone.
bool sameNode(const NodeIdentity& a, const NodeIdentity& b);

std::string nodeName(const NodeIdentity& node);  // the host name, "?" if there is none

}  // namespace peal
