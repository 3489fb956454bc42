// Fabrics over UCX for tests: connected over the loopback interface, all in one process, each on the
// functions of its own table. One thread uses them all; connecting needs one each.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/exchange.h"
#include "tests/support/limits.h"
#include "transports/ucx/fabric.h"

namespace peal::test {

class NoControl : public ControlPlane {
 public:
  void send(int /*peerRank*/, std::span<const std::byte> /*message*/) override {}
};

inline const UcxOptions kLoopback{{"lo"}};
inline constexpr int kUcxLimitMs = kFarMs;

// The fabrics of ranks 0 .. size-1, or what went wrong on each.
class UcxRanks {
 public:
  explicit UcxRanks(int size, const FabricOptions& options = {4096, 3})
      : UcxRanks(std::vector<const ucx::Library*>(static_cast<size_t>(size), nullptr), options) {}

  // nullptr: UCX itself.
  UcxRanks(const std::vector<const ucx::Library*>& libraries, const FabricOptions& options,
           int connectMs = kUcxLimitMs)
      : connectMs_(connectMs),
        board_(static_cast<int>(libraries.size())),
        fabrics_(libraries.size()),
        errors_(libraries.size()) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < libraries.size(); ++rank) {
      threads.emplace_back([this, rank, &libraries, &options] { connect(rank, libraries[rank], options); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  // A fabric that ends waits for its peers: all at once.
  ~UcxRanks() {
    std::vector<std::thread> threads;
    for (std::unique_ptr<Fabric>& fabric : fabrics_) {
      threads.emplace_back([&fabric] { fabric.reset(); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  UcxRanks(const UcxRanks&) = delete;
  UcxRanks& operator=(const UcxRanks&) = delete;

  Fabric& operator[](int rank) { return *fabrics_[static_cast<size_t>(rank)]; }
  Link& link(int rank, int peer) { return (*this)[rank].link(peer); }
  void end(int rank) { fabrics_[static_cast<size_t>(rank)].reset(); }
  const std::string& error(int rank) const { return errors_[static_cast<size_t>(rank)]; }
  bool good() const {
    for (const std::string& error : errors_) {
      EXPECT_EQ(error, "");
      if (!error.empty()) {
        return false;
      }
    }
    return true;
  }
  void pollAll() {
    for (const std::unique_ptr<Fabric>& fabric : fabrics_) {
      if (fabric != nullptr) {
        fabric->poll();
      }
    }
  }
  // Polls all ranks until `condition`; false: it took too long.
  bool until(const std::function<bool()>& condition, int limitMs = kUcxLimitMs) {
    const Deadline deadline = Deadline::afterMs(limitMs);
    while (!condition()) {
      if (deadline.passed()) {
        return false;
      }
      pollAll();
    }
    return true;
  }

 private:
  void connect(size_t rank, const ucx::Library* library, const FabricOptions& options) {
    BoardExchange exchange(board_, static_cast<int>(rank));
    Result<std::unique_ptr<Fabric>> fabric =
        library == nullptr ? openUcx(options, kLoopback) : ucx::UcxFabric::open(*library, options, kLoopback);
    if (!fabric) {
      errors_[rank] = fabric.error().message;
      return;
    }
    std::vector<int> peers;
    for (int peer = 0; peer < board_.size(); ++peer) {
      if (peer != static_cast<int>(rank)) {
        peers.push_back(peer);
      }
    }
    const Result<void> connected =
        (*fabric)->connect(exchange, peers, control_, Deadline::afterMs(connectMs_));
    if (!connected) {
      errors_[rank] = connected.error().message;
      return;
    }
    fabrics_[rank] = std::move(*fabric);
  }

  const int connectMs_;
  ExchangeBoard board_;
  NoControl control_;
  std::vector<std::unique_ptr<Fabric>> fabrics_;
  std::vector<std::string> errors_;
};

inline Digest digestOf(uint32_t sequence) {
  Digest digest;
  digest.sequence = sequence;
  digest.count = 1000 + sequence;
  return digest;
}

inline std::vector<std::byte> bytesOf(int seed, size_t bytes) {
  std::vector<std::byte> data(bytes);
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761U + 12345;
  for (std::byte& byte : data) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  return data;
}

}  // namespace peal::test
