#include "transports/cuda_ipc/verify.h"

#include <algorithm>

namespace peal::cuda {
namespace {

// Differs for every writer and every window, so that what an earlier test left behind never passes.
std::array<std::byte, kPatternBytes> pattern(int srcRank, const Nonce& window) {
  std::array<std::byte, kPatternBytes> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(window[i % window.size()] ^
                                      ((static_cast<size_t>(srcRank) + 1) * 37 + i * 11));
  }
  return bytes;
}

std::string hex(const std::byte* data, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    text += fmt::format("{:02x}", static_cast<unsigned>(data[i]));
  }
  return text;
}

}  // namespace

Result<TimedCopies> TimedCopies::make(int device, size_t bytes) {
  Result<StreamHolder> stream = StreamHolder::make(device);
  if (!stream) {
    return stream.error();
  }
  Result<PinnedBuffer> page = PinnedBuffer::make(device, bytes);
  if (!page) {
    return page.error();
  }
  TimedCopies copies;
  copies.stream_ = std::move(*stream);
  copies.page_ = std::move(*page);
  return copies;
}

Result<void> TimedCopies::copy(void* to, const void* from, size_t bytes, Deadline deadline) {
  PEAL_TRY(cudaResult(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()), "copy of {} bytes",
                      bytes));
  return finish(deadline);
}

Result<void> TimedCopies::zero(void* to, size_t bytes, Deadline deadline) {
  PEAL_TRY(cudaResult(cudaMemsetAsync(to, 0, bytes, stream_.get()), "zeroing {} bytes", bytes));
  return finish(deadline);
}

// A call that fails says nothing of the copy, which may still be under way: it is waited for until the same
// call has failed twice. What the caller frees after an error must not be in use.
Result<void> TimedCopies::finish(Deadline deadline) {
  const char* const what = "waiting for a copy";
  Result<void> outcome = awaitStream(stream_.get(), deadline, what);
  const bool ended =
      outcome || (outcome.error().code != pealTimeout && awaitStream(stream_.get(), deadline, what));
  if (!ended) {
    // The copy may still happen: its memory must stay, and freeing it would wait for the device.
    page_.release();
  }
  return outcome;
}

Result<void> writePatterns(int device, int rank, const std::vector<Card>& cards,
                           const std::vector<PeerWindow>& peers, TimedCopies& copies, Deadline deadline) {
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  for (size_t peer = 0; peer < peers.size(); ++peer) {
    if (static_cast<int>(peer) == rank || peers[peer].reach == Reach::OtherNode) {
      continue;
    }
    const auto wanted = pattern(rank, cards[peer].window);
    std::byte* const place = peers[peer].address + static_cast<size_t>(rank) * kPatternBytes;
    std::copy(wanted.begin(), wanted.end(), copies.page());
    if (const Result<void> written = copies.copy(place, copies.page(), kPatternBytes, deadline); !written) {
      return Error{written.error().code,
                   fmt::format("writing into the window of rank {}: {}", peer, written.error().message)};
    }
    std::fill_n(copies.page(), kPatternBytes, std::byte{0});
    if (const Result<void> read = copies.copy(copies.page(), place, kPatternBytes, deadline); !read) {
      return Error{read.error().code,
                   fmt::format("reading from the window of rank {}: {}", peer, read.error().message)};
    }
    if (!std::equal(wanted.begin(), wanted.end(), copies.page())) {
      return Error{pealSystemError,
                   fmt::format("what was written into the window of rank {} reads back as {}.., not {}..",
                               peer, hex(copies.page(), 8), hex(wanted.data(), 8))};
    }
  }
  return {};
}

Result<void> checkPatterns(int device, int rank, const std::vector<PeerWindow>& peers, const Window& window,
                           TimedCopies& copies, Deadline deadline) {
  const CurrentDevice current(device);
  PEAL_TRY(current.status());
  const size_t bytes = patternsBytes(static_cast<int>(peers.size()));
  PEAL_TRY(copies.copy(copies.page(), window.data(), bytes, deadline));
  for (size_t peer = 0; peer < peers.size(); ++peer) {
    if (static_cast<int>(peer) == rank || peers[peer].reach == Reach::OtherNode) {
      continue;
    }
    const auto wanted = pattern(static_cast<int>(peer), window.token());
    const std::byte* const place = copies.page() + peer * kPatternBytes;
    if (!std::equal(wanted.begin(), wanted.end(), place)) {
      return Error{pealSystemError,
                   fmt::format("what rank {} wrote into this window arrived as {}.., not {}..", peer,
                               hex(place, 8), hex(wanted.data(), 8))};
    }
  }
  return copies.zero(window.data(), bytes, deadline);
}

}  // namespace peal::cuda
