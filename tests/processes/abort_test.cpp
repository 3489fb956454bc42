// pealCommAbort: calls under way end, the others learn of it, and what it frees nobody uses.
#include <algorithm>
#include <array>
#include <atomic>
#include <sstream>

#include "lib/api/api.h"
#include "peal/adamw.h"
#include "tests/processes/ranks.h"

namespace peal::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Abort, EndsACallInAnotherThreadAndOnOtherRanks) {
  SharedValue<Meeting> meeting;
  expectAllSucceeded(runProcesses(2, kHangs, [&](const Child& child) {
    pealComm_t comm = nullptr;
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    EXPECT_EQ(meeting->join(&comm, child.index(), 2, &config), pealSuccess);
    float value = 1;
    const auto start = steady_clock::now();
    if (child.index() == 0) {  // waits for rank 1 in a call that only abort can end
      std::thread aborter([&] {
        std::this_thread::sleep_for(milliseconds(50));
        EXPECT_EQ(pealCommAbort(comm), pealSuccess);
      });
      EXPECT_EQ(pealRecv(&value, 1, pealFloat32, 1, comm, nullptr), pealRemoteError);
      aborter.join();
      EXPECT_TRUE(says(pealGetLastError(nullptr), "abort")) << pealGetLastError(nullptr);
    } else {
      EXPECT_EQ(pealRecv(&value, 1, pealFloat32, 0, comm, nullptr), pealRemoteError);
      EXPECT_TRUE(says(pealGetLastError(comm), "rank 0")) << pealGetLastError(comm);
      EXPECT_EQ(pealCommAbort(comm), pealSuccess);
    }
    EXPECT_LT(steady_clock::now() - start, kAtOnce);
    return 0;
  }));
}

// What a rank asked for itself is no error there; its peers are told.
TEST(Abort, IsNoErrorOnTheErrorOutputOfWhoAsked) {
  SharedValue<Meeting> meeting;
  expectAllSucceeded(runProcesses(2, kHangs, [&](const Child& child) {
    pealComm_t comm = nullptr;
    pealConfig_t config = PEAL_CONFIG_INITIALIZER;
    EXPECT_EQ(meeting->join(&comm, child.index(), 2, &config), pealSuccess);
    testing::internal::CaptureStderr();
    float value = 1;
    if (child.index() == 0) {
      std::thread aborter([&] {
        std::this_thread::sleep_for(milliseconds(50));
        EXPECT_EQ(pealCommAbort(comm), pealSuccess);
      });
      EXPECT_EQ(pealRecv(&value, 1, pealFloat32, 1, comm, nullptr), pealRemoteError);
      aborter.join();
      EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    } else {
      EXPECT_EQ(pealRecv(&value, 1, pealFloat32, 0, comm, nullptr), pealRemoteError);
      EXPECT_EQ(pealCommAbort(comm), pealSuccess);
      const std::string said = testing::internal::GetCapturedStderr();
      EXPECT_TRUE(says(said, " error: ") && says(said, "rank 0")) << said;
    }
    return 0;
  }));
}

// Ranks of one process read each other's buffers in place. A call that fails returns only when nobody does
// any more, since its caller may free them then: rank 0 is at rank 1's while it applies its update.
TEST(Abort, ReturnsWhenNoRankOfTheProcessReadsTheBuffers) {
  constexpr size_t kBlock = 20'000;
  std::array<pealComm_t, 2> comms{};
  ASSERT_EQ(pealCommInitAll(comms.data(), 2, nullptr), pealSuccess) << pealGetLastError(nullptr);
  static std::atomic<int> reading;
  reading.store(0);
  const std::array<size_t, 2> counts{kBlock, kBlock};
  const auto slow = [](void* user, void*, size_t, size_t) {
    if (*static_cast<int*>(user) == 0) {
      reading.store(1);
      std::this_thread::sleep_for(milliseconds(30));
      reading.store(2);
    }
  };
  const auto call = [&](int rank) {
    std::vector<float> inputs(2 * kBlock, 1), results(2 * kBlock);
    return pealReduceApplyGather(inputs.data(), results.data(), counts.data(), pealFloat32, slow, &rank,
                                 comms[static_cast<size_t>(rank)], nullptr);
  };
  std::thread reader([&] { EXPECT_EQ(call(0), pealRemoteError); });
  std::thread aborter([&] {
    while (reading.load() != 1) {
      std::this_thread::yield();
    }
    EXPECT_EQ(pealCommAbort(comms[1]), pealSuccess);
  });
  EXPECT_EQ(call(1), pealRemoteError);
  EXPECT_NE(reading.load(), 1) << "rank 0 still reads rank 1's input, which is freed now";
  aborter.join();
  reader.join();
  EXPECT_EQ(pealCommAbort(comms[0]), pealSuccess);
}

// An abort that comes when an operation runs leaves it to that to tell the others, and it may end well all
// the same, if it has nothing more to wait for: which of both it does here is a matter of moments.
TEST(Abort, OthersHearOfItWhetherTheOperationEndsWellOrNot) {
  for (int round = 0; round < 10; ++round) {
    std::array<pealComm_t, 2> comms{};
    ASSERT_EQ(pealCommInitAll(comms.data(), 2, nullptr), pealSuccess) << pealGetLastError(nullptr);
    const std::array<size_t, 2> counts{8, 0};
    const auto asked = [](void* user, void*, size_t, size_t) {
      if (user != nullptr) {
        static_cast<pealComm_t>(user)->comm->abort();
      }
    };
    const auto call = [&](int rank) {
      std::array<float, 8> inputs{}, results{};
      return pealReduceApplyGather(inputs.data(), results.data(), counts.data(), pealFloat32, asked,
                                   rank == 0 ? comms[0] : nullptr, comms[static_cast<size_t>(rank)], nullptr);
    };
    std::thread other([&] {
      const pealResult_t first = call(1);
      EXPECT_EQ(first == pealSuccess ? pealBarrier(comms[1], nullptr) : first, pealRemoteError);
      EXPECT_TRUE(says(pealGetLastError(comms[1]), "aborted by pealCommAbort")) << pealGetLastError(comms[1]);
      EXPECT_EQ(pealCommAbort(comms[1]), pealSuccess);
    });
    const pealResult_t ended = call(0);
    EXPECT_TRUE(ended == pealSuccess || ended == pealRemoteError) << pealGetLastError(comms[0]);
    // As pealCommAbort does when the operation is done.
    comms[0]->magic = 0;
    delete comms[0];
    other.join();
  }
}

}  // namespace
}  // namespace peal::test
