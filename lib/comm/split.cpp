// Splitting: the parent's own links carry the child's exchange, so no new rendezvous is needed.
#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lib/comm/communicator.h"

namespace peal {
namespace {

constexpr size_t kBlobMostBytes = size_t{64} << 10;

// Blobs between the ranks of one child, by sends and receives on the parent. Ranks of other children are not
// involved, so one child's failure does not stall another.
class ChildExchange : public Exchange {
 public:
  ChildExchange(Communicator& parent, std::vector<int> parentRanks, int rank, Deadline deadline)
      : parent_(parent), parentRanks_(std::move(parentRanks)), rank_(rank), deadline_(deadline) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(parentRanks_.size()); }

  Result<std::vector<std::vector<std::byte>>> allGather(const std::vector<std::byte>& mine) override {
    std::vector<uint64_t> lengths(parentRanks_.size());
    const uint64_t length = mine.size();
    PEAL_TRY(exchange(
        [&](size_t) {
          return std::pair{reinterpret_cast<const std::byte*>(&length), sizeof length};
        },
        [&](size_t i) {
          return std::pair{reinterpret_cast<std::byte*>(&lengths[i]), sizeof length};
        }));
    std::vector<std::vector<std::byte>> blobs(parentRanks_.size());
    for (size_t i = 0; i < blobs.size(); ++i) {
      if (lengths[i] > kBlobMostBytes) {
        return Error{pealInternalError,
                     fmt::format("rank {} announces a blob of {} bytes; at most {} are legal.", i, lengths[i],
                                 kBlobMostBytes)};
      }
      blobs[i].resize(lengths[i]);
    }
    PEAL_TRY(exchange(
        [&](size_t) {
          return std::pair{mine.data(), mine.size()};
        },
        [&](size_t i) {
          return std::pair{blobs[i].data(), blobs[i].size()};
        }));
    blobs[static_cast<size_t>(rank_)] = mine;
    return blobs;
  }

 private:
  template <class Outgoing, class Incoming>
  Result<void> exchange(const Outgoing& outgoing, const Incoming& incoming) {
    std::vector<PointToPoint> calls;
    for (size_t i = 0; i < parentRanks_.size(); ++i) {
      if (static_cast<int>(i) == rank_) {
        continue;
      }
      const auto [out, outBytes] = outgoing(i);
      calls.push_back(
          {.isSend = true, .send = out, .count = outBytes, .type = pealUint8, .peer = parentRanks_[i]});
      const auto [in, inBytes] = incoming(i);
      calls.push_back({.recv = in, .count = inBytes, .type = pealUint8, .peer = parentRanks_[i]});
    }
    return parent_.runNow(calls, deadline_.leftMs());
  }

  Communicator& parent_;
  std::vector<int> parentRanks_;
  int rank_;
  Deadline deadline_;
};

// Known to the ranks of the parent only, and different for every split and color.
Secret childSecret(const Communicator& parent, uint32_t splitIndex, int color) {
  std::array<uint32_t, 2> which{splitIndex, static_cast<uint32_t>(color)};
  Secret secret{};
  crypto_generichash(secret.data(), secret.size(), reinterpret_cast<const unsigned char*>(which.data()),
                     sizeof which, parent.secret().data(), parent.secret().size());
  return secret;
}

}  // namespace

Result<std::shared_ptr<Communicator>> split(Communicator& parent, int color, int key,
                                            const CommOptions& options, Deadline deadline) {
  const std::array<int32_t, 2> mine{color, key};
  std::vector<std::array<int32_t, 2>> all(static_cast<size_t>(parent.size()));
  const uint32_t splitIndex = parent.nextSplit();
  CollectiveCall gather;
  gather.kind = pealStatAllGather;
  gather.send = mine.data();
  gather.recv = all.data();
  gather.count = mine.size();
  gather.type = pealInt32;
  PEAL_TRY(parent.runNow(gather, deadline.leftMs()));
  if (color == PEAL_SPLIT_NOCOLOR) {
    return std::shared_ptr<Communicator>();
  }
  std::vector<int> members;
  for (int rank = 0; rank < parent.size(); ++rank) {
    if (all[static_cast<size_t>(rank)][0] == color) {
      members.push_back(rank);
    }
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return all[static_cast<size_t>(a)][1] < all[static_cast<size_t>(b)][1];
  });
  const auto self = std::find(members.begin(), members.end(), parent.rank());
  ChildExchange exchange(parent, members, static_cast<int>(self - members.begin()), deadline);
  return Communicator::create(exchange, childSecret(parent, splitIndex, color), options, deadline);
}

}  // namespace peal
