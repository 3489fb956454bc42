// Collectives of ranks that reach each other through proxies, and whether what they give is right.
#pragma once
#include <vector>

#include "tests/cuda/proxy_ranks.h"

namespace peal::cuda::test {

struct Kind {
  const char* name;
  int kind;
  Algorithm algorithm;
};
inline constexpr Kind kKinds[] = {
    {"ring all-reduce", pealStatAllReduce, Algorithm::Ring},
    {"one-shot all-reduce", pealStatAllReduce, Algorithm::OneShot},
    {"two-shot all-reduce", pealStatAllReduce, Algorithm::TwoShot},
    {"ring reduce-scatter", pealStatReduceScatter, Algorithm::Ring},
    {"direct all-gather", pealStatAllGather, Algorithm::OneShot},
    {"ring all-gather", pealStatAllGather, Algorithm::Ring},
    {"ring broadcast", pealStatBroadcast, Algorithm::Ring},
    {"direct reduce", pealStatReduce, Algorithm::OneShot},
};

inline int32_t input(int rank, size_t element, int call) {
  return static_cast<int32_t>(element * 3 + static_cast<size_t>(rank) * 1000003 +
                              static_cast<size_t>(call) * 7919);
}

// What rank `rank` of `size` has at `element` of its output.
inline int32_t output(int kind, int rank, int size, size_t count, size_t element, int root, int call) {
  const size_t first = kind == pealStatReduceScatter ? static_cast<size_t>(rank) * count : 0;
  if (kind == pealStatAllGather) {
    return input(static_cast<int>(element / count), element % count, call);
  }
  if (kind == pealStatBroadcast) {
    return input(root, element, call);
  }
  int32_t sum = 0;
  for (int peer = 0; peer < size; ++peer) {
    sum += input(peer, first + element, call);
  }
  return sum;
}

inline Collective collective(const Kind& kind, size_t count, int root) {
  Collective call;
  call.kind = kind.kind;
  call.count = count;
  call.type = pealInt32;
  call.hasOp =
      kind.kind == pealStatAllReduce || kind.kind == pealStatReduceScatter || kind.kind == pealStatReduce;
  call.root = kind.kind == pealStatBroadcast || kind.kind == pealStatReduce ? root : -1;
  call.choice.algorithm = kind.algorithm;
  call.choice.protocol = Protocol::Simple;
  call.choice.chunkBytes = SIZE_MAX;
  return call;
}

// One call on one rank, and whether the output is right.
inline void runCall(ProxyRank& self, const Kind& kind, size_t count, int number) {
  const int root = number % self.size();
  Collective call = collective(kind, count, root);
  const Extents extents = extentsOf(call, self.rank(), self.size());
  Result<DeviceBuffer> send = DeviceBuffer::make(self.rank(), std::max<size_t>(extents.send, 4));
  Result<DeviceBuffer> recv = DeviceBuffer::make(self.rank(), std::max<size_t>(extents.recv, 4));
  ASSERT_TRUE(send && recv);
  std::vector<int32_t> in(extents.send / 4);
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = input(self.rank(), i, number);
  }
  ASSERT_EQ(cudaMemcpy(send->data(), in.data(), extents.send, cudaMemcpyDefault), cudaSuccess);
  call.send = send->data();
  call.recv = recv->data();
  self.launch(call);
  ASSERT_TRUE(self.wait()) << (self.proxy().fault() ? self.proxy().fault()->error.message
                                                    : "the kernel hangs");
  ASSERT_EQ(self.fault().kind, 0U) << "the kernel reports a fault";
  std::vector<int32_t> out(extents.recv / 4);
  ASSERT_EQ(cudaMemcpy(out.data(), recv->data(), extents.recv, cudaMemcpyDefault), cudaSuccess);
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], output(kind.kind, self.rank(), self.size(), count, i, root, number))
        << kind.name << ", rank " << self.rank() << " of " << self.size() << ", element " << i << " of "
        << count;
  }
}

inline void runCollectives(ProxyRank& self, const std::vector<size_t>& counts) {
  int number = 0;
  for (const Kind& kind : kKinds) {
    for (const size_t count : counts) {
      runCall(self, kind, count, ++number);
      if (::testing::Test::HasFatalFailure()) {
        return;
      }
    }
  }
  const Result<void> closed = self.proxy().close(Deadline::afterMs(kLimitMs));
  EXPECT_TRUE(closed) << closed.error().message;
  EXPECT_FALSE(self.proxy().fault()) << self.proxy().fault()->error.message;
}

// Launches a ring all-reduce, and expects that the kernel leaves and that the proxy says why.
inline void expectFault(ProxyRank& self, const std::string& reason, int culpritRank) {
  Result<DeviceBuffer> data = DeviceBuffer::make(self.rank(), 1 << 16);
  ASSERT_TRUE(data);
  Collective call = collective(kKinds[0], 1 << 14, -1);
  call.send = call.recv = data->data();
  self.launch(call);
  ASSERT_TRUE(self.wait());
  const std::optional<Fault> fault = self.proxy().fault();
  ASSERT_TRUE(fault);
  EXPECT_NE(fault->error.message.find(reason), std::string::npos) << fault->error.message;
  EXPECT_EQ(fault->culpritRank, culpritRank);
  EXPECT_NE(self.fault().kind, 0U);
  const Result<void> closed = self.proxy().close(Deadline::afterMs(kLimitMs));
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().message, fault->error.message);
  self.meet();
}

}  // namespace peal::cuda::test
