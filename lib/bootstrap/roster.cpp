#include "lib/bootstrap/roster.h"

#include <fmt/format.h>

#include "lib/bootstrap/wire.h"

namespace peal {

std::string rankList(const std::vector<int>& ranks) {
  constexpr size_t kShown = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const bool cut = ranks.size() > kShown;
  const size_t shown = cut ? kShown : ranks.size();
  for (size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == ranks.size();
    text += fmt::format("{}{}", i == 0 ? "" : (last ? " and " : ", "), ranks[i]);
  }
  return cut ? text + fmt::format(" and {} more", ranks.size() - shown) : text;
}

Result<void> Roster::join(uint32_t rank, uint32_t size, const std::string& from) {
  if (size == 0 || size > static_cast<uint32_t>(kRanksMost) || rank >= size) {
    return Error{
        pealInvalidArgument,
        fmt::format("rank {} of {} joined from {}: ranks go from 0 to size - 1, and a communicator has "
                    "1 to {} of them.",
                    rank, size, from, kRanksMost)};
  }
  if (size_ == 0) {
    size_ = static_cast<int>(size);
    firstRank_ = static_cast<int>(rank);
    seats_.resize(size);
  }
  if (static_cast<int>(size) != size_) {
    return Error{
        pealInvalidUsage,
        fmt::format("rank {} (from {}) joined with {} ranks, but rank {} (from {}) with {}. All ranks "
                    "must give the same number.",
                    rank, from, size, firstRank_, seats_[static_cast<size_t>(firstRank_)].from, size_)};
  }
  Seat& seat = seats_[rank];
  if (seat.joined) {
    return Error{
        pealInvalidUsage,
        fmt::format("rank {} joined twice: first from {}, then from {}. Give each process its own rank, "
                    "and each communicator its own unique id.",
                    rank, seat.from, from)};
  }
  seat.joined = true;
  seat.from = from;
  ++joined_;
  return {};
}

Result<void> Roster::contribute(int rank, Bytes blob) {
  Seat& seat = seats_[static_cast<size_t>(rank)];
  if (!complete() || seat.blob.has_value()) {
    return Error{pealInternalError, fmt::format("rank {} (from {}) sent a blob {}", rank, seat.from,
                                                complete() ? "before it had the answer to its last one."
                                                           : "before all had joined.")};
  }
  seat.blob = std::move(blob);
  ++given_;
  return {};
}

Bytes Roster::takeTable() {
  Bytes table;
  for (const Seat& seat : seats_) {
    appendInteger(table, static_cast<uint32_t>(seat.blob->size()));
  }
  for (Seat& seat : seats_) {
    append(table, *seat.blob);
    seat.blob.reset();
  }
  given_ = 0;
  ++exchange_;
  return table;
}

void Roster::leave(int rank) { seats_[static_cast<size_t>(rank)].left = true; }

std::optional<Error> Roster::departure() const {
  if (given_ == 0) {
    return std::nullopt;
  }
  const std::vector<int> gone = ranksWhere([](const Seat& seat) { return seat.left && !seat.blob; });
  if (gone.empty()) {
    return std::nullopt;
  }
  return Error{
      pealRemoteError,
      fmt::format("{} of {} (from {}) left while {} {} in exchange {}. Look at that rank's own output "
                  "for the cause.",
                  rankList(gone), size_, seats_[static_cast<size_t>(gone.front())].from,
                  rankList(ranksWhere([](const Seat& seat) { return seat.blob.has_value(); })),
                  given_ == 1 ? "was" : "were", exchange_)};
}

Error Roster::joinTimeout(int64_t waitedMs) const {
  return Error{
      pealTimeout,
      fmt::format("{} of {} did not join within {} ms; {} did. Is every process running, with the same "
                  "unique id, and can it reach the first rank's machine? PEAL_INIT_TIMEOUT_MS sets how "
                  "long to wait.",
                  rankList(ranksWhere([](const Seat& seat) { return !seat.joined; })), size_, waitedMs,
                  rankList(ranksWhere([](const Seat& seat) { return seat.joined; })))};
}

Error Roster::exchangeTimeout(int64_t waitedMs) const {
  return Error{pealTimeout,
               fmt::format("{} of {} did not take part in exchange {} within {} ms; {} did.",
                           rankList(ranksWhere([](const Seat& seat) { return !seat.blob.has_value(); })),
                           size_, exchange_, waitedMs,
                           rankList(ranksWhere([](const Seat& seat) { return seat.blob.has_value(); })))};
}

Error Roster::diedJoining(int rank) const {
  return Error{
      pealRemoteError,
      fmt::format("rank {} of {} (from {}) left before all ranks had joined. Look at that rank's own "
                  "output for the cause.",
                  rank, size_, seats_[static_cast<size_t>(rank)].from)};
}

std::vector<int> Roster::ranksWhere(bool (*wanted)(const Seat&)) const {
  std::vector<int> ranks;
  for (size_t i = 0; i < seats_.size(); ++i) {
    if (wanted(seats_[i])) {
      ranks.push_back(static_cast<int>(i));
    }
  }
  return ranks;
}

}  // namespace peal
