// How file descriptors of cuMem handles get from one rank's process to another's: by datagrams of a Unix
// socket that each rank has. A packet is sent before the note that it belongs to (notes.h), so it is there
// when the note is read.
//
// Owns a socket with a random name in the abstract namespace, and packets that nobody has asked for yet.
// Nothing here blocks. send() and receive() may be called by one thread each.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/result.h"
#include "lib/memory/descriptor.h"
#include "transports/cuda_ipc/identity.h"

namespace peal::cuda {

// Where a rank's packets go. It travels with the cards, over the exchange.
struct PostAddress {
  Nonce name{};    // all zeros: it has none
  Nonce secret{};  // packets without it are none of this communicator's
};

class HandlePost {
 public:
  static constexpr size_t kMostFiles = 64;  // of a packet

  static Result<HandlePost> open();
  const PostAddress& address() const { return address_; }

  enum class Sent { Yes, Later };
  // Later: the receiver has not read enough.
  Result<Sent> send(const PostAddress& to, int srcRank, uint64_t id, const std::vector<OwnedFd>& files) const;
  // The packet of that rank and number, which has been sent.
  Result<std::vector<OwnedFd>> receive(int srcRank, uint64_t id);

 private:
  bool readOne();

  PostAddress address_;
  OwnedFd socket_;
  std::map<std::pair<int, uint64_t>, std::vector<OwnedFd>> arrived_;
};

}  // namespace peal::cuda
