// An Exchange over memory that the ranks of a test share: threads of one process, or children made after
// it. For tests of transports, which must not need the bootstrap.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include "tests/support/limits.h"
#include "transports/transport.h"

namespace peal::test {

// The shared part. Make it before the ranks.
class ExchangeBoard {
 public:
  static constexpr size_t kBlobBytes = 65536;

  explicit ExchangeBoard(int size) : size_(size), bytes_(sizeof(Shared) + size * sizeof(Blob)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = memory == MAP_FAILED ? nullptr : new (memory) Shared;
  }
  ExchangeBoard(const ExchangeBoard&) = delete;
  ExchangeBoard& operator=(const ExchangeBoard&) = delete;
  ~ExchangeBoard() { munmap(shared_, bytes_); }

  int size() const { return size_; }

  Result<std::vector<std::vector<std::byte>>> allGather(int rank, const std::vector<std::byte>& mine) {
    if (shared_ == nullptr || mine.size() > kBlobBytes) {
      return Error{pealInternalError, "the test's exchange cannot hold this blob"};
    }
    blob(rank).bytes = mine.size();
    std::copy(mine.begin(), mine.end(), blob(rank).data);
    PEAL_TRY(meet());
    std::vector<std::vector<std::byte>> all;
    for (int i = 0; i < size_; ++i) {
      all.emplace_back(blob(i).data, blob(i).data + blob(i).bytes);
    }
    PEAL_TRY(meet());
    return all;
  }

 private:
  struct Shared {
    std::atomic<uint64_t> arrived{0};
  };
  struct Blob {
    size_t bytes;
    std::byte data[kBlobBytes];
  };
  Blob& blob(int rank) { return reinterpret_cast<Blob*>(shared_ + 1)[rank]; }

  // Barrier: the count of arrivals only rises, so it can be used again at once.
  Result<void> meet() {
    const uint64_t ranks = static_cast<uint64_t>(size_);
    const uint64_t target = (shared_->arrived.fetch_add(1) / ranks + 1) * ranks;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kFarMs);
    while (shared_->arrived.load() < target) {
      if (std::chrono::steady_clock::now() > end) {
        return Error{pealTimeout, "a rank of the test did not come to the exchange"};
      }
      std::this_thread::yield();
    }
    return {};
  }

  int size_;
  size_t bytes_;
  Shared* shared_;
};

class BoardExchange : public Exchange {
 public:
  BoardExchange(ExchangeBoard& board, int rank) : board_(board), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return board_.size(); }
  Result<std::vector<std::vector<std::byte>>> allGather(const std::vector<std::byte>& mine) override {
    return board_.allGather(rank_, mine);
  }

 private:
  ExchangeBoard& board_;
  int rank_;
};

}  // namespace peal::test
