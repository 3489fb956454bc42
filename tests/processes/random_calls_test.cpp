// Random collective calls against a plain loop: data type, operation, count, root, number of ranks, in place
// or not, registered memory or not, grouped or not, on a stream or not, any algorithm.
#include <cstring>
#include <random>

#include "lib/reduce/reduce.h"
#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

#ifdef PEAL_SANITIZED
constexpr int kCallsPerSize = 12;  // the sanitizers look at each memory access: many times slower
#else
constexpr int kCallsPerSize = 60;  // times sizes 1 to 9: 540 calls
#endif
constexpr std::byte kGuard{0xa5};
constexpr size_t kGuardBytes = 64;

// One call, the same on every rank.
struct Call {
  int kind = 0;  // pealStat... ; pealStatSend means: every rank sends to the next and receives from the last
  pealDataType_t type = pealInt8;
  int op = 0;  // pealNumOps: a pre-multiplied sum
  size_t count = 0;
  int root = 0;
  bool inPlace = false;
  bool registered = false;
  bool vForm = false;
  std::vector<size_t> counts;
};

uint64_t mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15;
  x ^= x >> 29;
  return x * 0xbf58476d1ce4e5b9 ^ x >> 32;
}

// Rank `rank`'s input of call `index` at element i, small enough that every partial sum is exact in fp32 and
// that a product of nine cannot overflow.
double inputValue(const Call& call, int index, int rank, size_t i) {
  const uint64_t h = mix(static_cast<uint64_t>(index) << 40 ^ static_cast<uint64_t>(rank) << 32 ^ i);
  if (call.op == pealProd) {
    return rank < 5 && h % 4 == 0 ? 2 : 1;
  }
  const bool isUnsigned = call.type == pealUint8 || call.type == pealUint32 || call.type == pealUint64;
  return isUnsigned ? static_cast<double>(h % 6) : static_cast<double>(h % 7) - 3;
}

double scalarOf(int rank) { return rank % 2 == 0 ? 2 : 1; }

bool isInteger(pealDataType_t type) { return type <= pealUint64; }

void store(pealDataType_t type, double value, std::byte* to) {
  const auto put = [&](auto typed) { std::memcpy(to, &typed, sizeof typed); };
  switch (type) {
    case pealInt8:
      return put(static_cast<int8_t>(value));
    case pealUint8:
      return put(static_cast<uint8_t>(value));
    case pealInt32:
      return put(static_cast<int32_t>(value));
    case pealUint32:
      return put(static_cast<uint32_t>(value));
    case pealInt64:
      return put(static_cast<int64_t>(value));
    case pealUint64:
      return put(static_cast<uint64_t>(value));
    case pealFloat64:
      return put(value);
    default:
      return fromFloat(type, static_cast<float>(value), to);
  }
}

// The result at element i of the reduced array, as bytes.
void reference(const Call& call, int index, int size, size_t i, std::byte* to) {
  double value = 0;
  for (int rank = 0; rank < size; ++rank) {
    const double x = inputValue(call, index, rank, i);
    switch (call.op) {
      case pealProd:
        value = rank == 0 ? x : value * x;
        break;
      case pealMax:
        value = rank == 0 ? x : std::max(value, x);
        break;
      case pealMin:
        value = rank == 0 ? x : std::min(value, x);
        break;
      case pealNumOps:
        value += x * scalarOf(rank);
        break;
      default:
        value += x;
        break;
    }
  }
  if (call.op == pealAvg) {
    if (isInteger(call.type)) {
      value = std::trunc(value / size);
    } else if (call.type == pealFloat64) {
      value = value / size;
    } else {
      value = static_cast<float>(value) / static_cast<float>(size);
    }
  }
  store(call.type, value, to);
}

// Half of the calls leave the choice to the tuner.
const char* anyAlgorithm(std::mt19937_64& random) {
  constexpr const char* kNames[]{"ring", "one_shot", "two_shot", "hierarchical", "tree", "hierarchical_ring"};
  const uint64_t which = random() % (2 * std::size(kNames));
  return which < std::size(kNames) ? kNames[which] : nullptr;
}

// roundsOften: partial sums are rounded on their way.
Call makeCall(std::mt19937_64& random, int size, bool roundsOften) {
  constexpr int kKinds[]{pealStatAllReduce, pealStatReduceScatter, pealStatAllGather, pealStatBroadcast,
                         pealStatReduce,    pealStatSend,          pealStatBarrier};
  constexpr size_t kCounts[]{0, 1, 2, 3, 7, 31, 64, 1021, 4096, 16385, 40009};
  Call call;
  call.kind = kKinds[random() % std::size(kKinds)];
  call.type = static_cast<pealDataType_t>(random() % pealNumTypes);
  call.op = static_cast<int>(random() % (pealNumOps + 1));
  if (elementBytes(call.type) == 1 && !isInteger(call.type) && roundsOften) {
    call.type = pealFloat16;  // partial sums need more digits
  }
  call.count = kCounts[random() % std::size(kCounts)];
  call.root = static_cast<int>(random() % static_cast<uint64_t>(size));
  call.inPlace = random() % 2 == 0;
  call.registered = random() % 2 == 0;
  const bool scattered = call.kind == pealStatReduceScatter || call.kind == pealStatAllGather;
  call.vForm = scattered && random() % 2 == 0;
  for (int rank = 0; scattered && rank < size; ++rank) {
    call.counts.push_back(call.vForm ? kCounts[random() % 10] : call.count);
  }
  return call;
}

// Memory with guard zones on both sides, ordinary or from pealMemAlloc.
class GuardedBuffer {
 public:
  GuardedBuffer(size_t sizeBytes, bool shared) : sizeBytes_(sizeBytes), shared_(shared) {
    const size_t all = sizeBytes + 2 * kGuardBytes;
    if (shared) {
      void* memory = nullptr;
      PEAL_EXPECT_OK(pealMemAlloc(&memory, all));
      base_ = static_cast<std::byte*>(memory);
    } else {
      base_ = new std::byte[all];
    }
    std::memset(base_, static_cast<int>(kGuard), all);
  }
  ~GuardedBuffer() {
    if (shared_) {
      PEAL_EXPECT_OK(pealMemFree(base_));
    } else {
      delete[] base_;
    }
  }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  std::byte* data() const { return base_ + kGuardBytes; }
  bool guardsIntact() const {
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (base_[i] != kGuard || base_[kGuardBytes + sizeBytes_ + i] != kGuard) {
        return false;
      }
    }
    return true;
  }

 private:
  size_t sizeBytes_;
  bool shared_;
  std::byte* base_;
};

// A call with its buffers on one rank.
class Running {
 public:
  Running(const Call& call, int index, int rank, int size)
      : call_(call), index_(index), rank_(rank), size_(size), element_(elementBytes(call.type)) {
    extents();
    const size_t recvBytes = recvCount_ * element_;
    const size_t sendBytes = sendCount_ * element_;
    if (call.inPlace && call.kind != pealStatSend) {
      buffer_ = std::make_unique<GuardedBuffer>(std::max(recvBytes, sendBytes), call.registered);
      const bool gather = call.kind == pealStatAllGather;
      const bool scatter = call.kind == pealStatReduceScatter;
      send_ = buffer_->data() + (gather ? sendStart_ * element_ : 0);
      recv_ = buffer_->data() + (scatter ? recvStart_ * element_ : 0);
    } else {
      buffer_ = std::make_unique<GuardedBuffer>(recvBytes, call.registered);
      input_ = std::make_unique<GuardedBuffer>(sendBytes, call.registered);
      send_ = input_->data();
      recv_ = buffer_->data();
    }
    for (size_t i = 0; i < sendCount_; ++i) {
      store(call.type, inputValue(call, index, rank, sendStart_ + i), send_ + i * element_);
    }
  }

  void issue(pealComm_t comm, pealStream_t stream, pealRedOp_t preMulSum) {
    const auto op = call_.op == pealNumOps ? preMulSum : static_cast<pealRedOp_t>(call_.op);
    const auto type = call_.type;
    switch (call_.kind) {
      case pealStatAllReduce:
        return expectOk(pealAllReduce(send_, recv_, call_.count, type, op, comm, stream));
      case pealStatReduceScatter:
        return expectOk(call_.vForm
                            ? pealReduceScatterV(send_, recv_, call_.counts.data(), type, op, comm, stream)
                            : pealReduceScatter(send_, recv_, call_.count, type, op, comm, stream));
      case pealStatAllGather:
        return expectOk(call_.vForm ? pealAllGatherV(send_, recv_, call_.counts.data(), type, comm, stream)
                                    : pealAllGather(send_, recv_, call_.count, type, comm, stream));
      case pealStatBroadcast:
        return expectOk(pealBroadcast(send_, recv_, call_.count, type, call_.root, comm, stream));
      case pealStatReduce:
        return expectOk(pealReduce(send_, recv_, call_.count, type, op, call_.root, comm, stream));
      case pealStatBarrier:
        return expectOk(pealBarrier(comm, stream));
      default:
        expectOk(pealGroupStart());
        expectOk(pealSend(send_, call_.count, type, (rank_ + 1) % size_, comm, stream));
        expectOk(pealRecv(recv_, call_.count, type, (rank_ + size_ - 1) % size_, comm, stream));
        return expectOk(pealGroupEnd());
    }
  }

  void verify() const {
    EXPECT_TRUE(buffer_->guardsIntact()) << describe();
    size_t wrong = 0;
    std::byte expected[8];
    for (size_t i = 0; i < recvCount_; ++i) {
      expectedAt(i, expected);
      wrong += std::memcmp(expected, recv_ + i * element_, element_) != 0 ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0u) << describe();
  }

 private:
  void expectOk(pealResult_t result) const {
    EXPECT_EQ(result, pealSuccess) << describe() << ": " << pealGetLastError(nullptr);
  }

  void extents() {
    sendCount_ = recvCount_ = call_.kind == pealStatBarrier ? 0 : call_.count;
    const size_t own = static_cast<size_t>(rank_);
    if (!call_.counts.empty()) {
      size_t total = 0;
      size_t before = 0;
      for (size_t i = 0; i < call_.counts.size(); ++i) {
        before += i < own ? call_.counts[i] : 0;
        total += call_.counts[i];
      }
      const bool scatter = call_.kind == pealStatReduceScatter;
      (scatter ? sendCount_ : recvCount_) = total;
      (scatter ? recvCount_ : sendCount_) = call_.counts[own];
      (scatter ? recvStart_ : sendStart_) = before;
    }
    if (call_.kind == pealStatBroadcast && rank_ != call_.root) {
      sendCount_ = 0;
    }
    if (call_.kind == pealStatReduce && rank_ != call_.root) {
      recvCount_ = 0;
    }
  }

  void expectedAt(size_t i, std::byte* to) const {
    switch (call_.kind) {
      case pealStatAllReduce:
      case pealStatReduce:
        return reference(call_, index_, size_, i, to);
      case pealStatReduceScatter:
        return reference(call_, index_, size_, recvStart_ + i, to);
      case pealStatAllGather: {
        size_t owner = 0;
        for (size_t left = i; left >= call_.counts[owner]; ++owner) {
          left -= call_.counts[owner];
        }
        return store(call_.type, inputValue(call_, index_, static_cast<int>(owner), i), to);
      }
      case pealStatBroadcast:
        return store(call_.type, inputValue(call_, index_, call_.root, i), to);
      default:
        return store(call_.type, inputValue(call_, index_, (rank_ + size_ - 1) % size_, i), to);
    }
  }

  std::string describe() const {
    return "call " + std::to_string(index_) + ", kind " + std::to_string(call_.kind) + ", type " +
           typeName(call_.type) + ", op " + std::to_string(call_.op) + ", count " +
           std::to_string(call_.count) + ", root " + std::to_string(call_.root) +
           (call_.inPlace ? ", in place" : "") + (call_.registered ? ", registered" : "") +
           (call_.vForm ? ", v-form" : "") + ", rank " + std::to_string(rank_) + " of " +
           std::to_string(size_);
  }

  const Call& call_;
  int index_, rank_, size_;
  size_t element_;
  size_t sendCount_ = 0, recvCount_ = 0, sendStart_ = 0, recvStart_ = 0;
  std::unique_ptr<GuardedBuffer> buffer_, input_;
  std::byte* send_ = nullptr;
  std::byte* recv_ = nullptr;
};

void playRandomCalls(pealComm_t comm, int rank, int size, uint64_t seed) {
  std::mt19937_64 random(seed);  // the same on every rank
  pealStream_t stream = nullptr;
  PEAL_ASSERT_OK(pealStreamCreate(&stream));
  for (int index = 0; index < kCallsPerSize;) {
    const bool grouped = random() % 2 == 0;
    const bool onStream = random() % 2 == 0;
    const char* const algorithm = anyAlgorithm(random);
    std::vector<Call> calls(grouped ? 1 + random() % 4 : 1);
    for (Call& call : calls) {
      call = makeCall(random, size, algorithm != nullptr || pretendedNodes() > 1);
    }
    PEAL_EXPECT_OK(pealCommForceAlgorithm(comm, algorithm));
    std::vector<std::unique_ptr<Running>> running;
    std::vector<pealRedOp_t> ops;
    for (const Call& call : calls) {
      running.push_back(std::make_unique<Running>(call, index++, rank, size));
      std::byte scalar[8];
      store(call.type, scalarOf(rank), scalar);
      PEAL_EXPECT_OK(
          pealRedOpCreatePreMulSum(&ops.emplace_back(), scalar, call.type, pealScalarHostImmediate, comm));
    }
    if (grouped) {
      PEAL_EXPECT_OK(pealGroupStart());
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      running[i]->issue(comm, onStream ? stream : nullptr, ops[i]);
    }
    if (grouped) {
      PEAL_EXPECT_OK(pealGroupEnd());
    }
    PEAL_EXPECT_OK(pealStreamSynchronize(stream));
    for (size_t i = 0; i < calls.size(); ++i) {
      running[i]->verify();
      PEAL_EXPECT_OK(pealRedOpDestroy(ops[i], comm));
    }
    if (::testing::Test::HasFailure()) {
      break;
    }
  }
  PEAL_EXPECT_OK(pealStreamDestroy(stream));
}

class RandomCalls : public ::testing::TestWithParam<int> {};

TEST_P(RandomCalls, AsProcessesEqualAPlainLoop) {
  const int size = GetParam();
  runAsProcesses(size, [&](pealComm_t comm, int rank) {
    playRandomCalls(comm, rank, size, 1000 + static_cast<uint64_t>(size));
  });
}

TEST_P(RandomCalls, AsThreadsEqualAPlainLoop) {
  const int size = GetParam();
  runAsThreads(size, [&](pealComm_t comm, int rank) {
    playRandomCalls(comm, rank, size, 2000 + static_cast<uint64_t>(size));
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, RandomCalls, ::testing::Range(1, 10));

}  // namespace
}  // namespace peal::test
