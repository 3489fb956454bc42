// The C++ face over the real library: what it owns, how it refuses, and that every call does what its C
// counterpart says. Ranks are threads of this process.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "peal/peal.hpp"

namespace {

using peal::Buffer;
using peal::Communicator;

static_assert(!std::is_copy_constructible_v<Communicator> &&
              std::is_nothrow_move_constructible_v<Communicator>);
static_assert(!std::is_copy_constructible_v<peal::Stream> &&
              std::is_nothrow_move_constructible_v<peal::Stream>);
static_assert(!std::is_copy_constructible_v<peal::Event> &&
              std::is_nothrow_move_constructible_v<peal::Event>);
static_assert(!std::is_copy_constructible_v<peal::Registration>);
static_assert(!std::is_copy_constructible_v<peal::PreMulSum<float>>);
static_assert(!std::is_constructible_v<peal::On, peal::Stream&&>, "a temporary stream");

// Runs body(comm) on `size` ranks, one thread each. What a rank throws fails the test.
void onRanks(int size, const std::function<void(Communicator&)>& body) {
  std::vector<Communicator> comms = Communicator::all(size);
  ASSERT_EQ(comms.size(), static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (Communicator& comm : comms) {
    threads.emplace_back([&comm, &body] {
      try {
        body(comm);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << comm.rank() << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// What fn() throws as a peal::Error.
peal::Error errorOf(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const peal::Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {pealSuccess, ""};
}

bool holds(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

// ---- collectives ------------------------------------------------------------------------------------

TEST(CollectivesOfTheFace, AllReduceInAndOutOfPlace) {
  onRanks(3, [](Communicator& comm) {
    const std::vector<int> from(101, comm.rank() + 1);
    std::vector<int> to(101, -1);
    comm.allReduce(from, to);
    EXPECT_EQ(to, std::vector<int>(101, 6));
    comm.allReduce(from, std::span(to), pealMax);
    EXPECT_EQ(to, std::vector<int>(101, 3));
    Buffer<double> data(7, comm.rank());
    comm.allReduce(data, pealAvg);
    EXPECT_EQ(data, Buffer<double>(7, 1.0));
  });
}

TEST(CollectivesOfTheFace, Bfloat16IsReducedAsSuch) {
  onRanks(2, [](Communicator& comm) {
    std::vector<peal::Bfloat16> data(5, peal::Bfloat16(1.5f));
    comm.allReduce(data);
    EXPECT_EQ(data, std::vector<peal::Bfloat16>(5, peal::Bfloat16(3.0f)));
  });
}

TEST(CollectivesOfTheFace, ReduceScatterAndAllGather) {
  onRanks(3, [](Communicator& comm) {
    std::vector<int64_t> all(12);
    std::iota(all.begin(), all.end(), 0);
    std::vector<int64_t> mine(4);
    comm.reduceScatter(all, mine);
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(mine[static_cast<size_t>(i)], 3 * (comm.rank() * 4 + i));
    }
    std::vector<int64_t> back(12, -1);
    comm.allGather(mine, back);
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(back[static_cast<size_t>(i)], 3 * i);
    }
  });
}

TEST(CollectivesOfTheFace, VariableCounts) {
  onRanks(3, [](Communicator& comm) {
    const std::array<size_t, 3> counts{5, 0, 2};
    const size_t mine = counts[static_cast<size_t>(comm.rank())];
    const std::vector<float> all{0, 1, 2, 3, 4, 5, 6};
    std::vector<float> part(mine, -1.0f);
    comm.reduceScatterV(all, part, counts);
    std::vector<float> back(7, -1.0f);
    comm.allGatherV(part, back, counts);
    EXPECT_EQ(back, (std::vector<float>{0, 3, 6, 9, 12, 15, 18}));
  });
}

TEST(CollectivesOfTheFace, BroadcastAndReduce) {
  onRanks(3, [](Communicator& comm) {
    std::vector<uint8_t> data(33, static_cast<uint8_t>(comm.rank()));
    comm.broadcast(data, 2);
    EXPECT_EQ(data, std::vector<uint8_t>(33, 2));

    const std::vector<float> from(9, 2.0f);
    std::vector<float> to(comm.rank() == 1 ? 9 : 0);
    comm.reduce(from, to, 1);
    EXPECT_EQ(to, std::vector<float>(to.size(), 6.0f));

    std::vector<float> inPlace(9, 3.0f);
    comm.reduce(inPlace, 0, pealProd);
    if (comm.rank() == 0) {
      EXPECT_EQ(inPlace, std::vector<float>(9, 27.0f));
    }
  });
}

TEST(CollectivesOfTheFace, SendReceiveInAGroupAndBarrier) {
  onRanks(3, [](Communicator& comm) {
    const int next = (comm.rank() + 1) % 3;
    const int previous = (comm.rank() + 2) % 3;
    const std::vector<int> mine(50, comm.rank());
    std::vector<int> theirs(50, -1);
    peal::group([&] {
      comm.send(mine, next);
      comm.recv(theirs, previous);
    });
    EXPECT_EQ(theirs, std::vector<int>(50, previous));
    comm.barrier();
    EXPECT_EQ(comm.stats().calls[pealStatSend], 1u);
    EXPECT_EQ(comm.stats().calls[pealStatBarrier], 1u);
  });
}

TEST(CollectivesOfTheFace, PreMultipliedSum) {
  onRanks(2, [](Communicator& comm) {
    const peal::PreMulSum<float> op = comm.preMulSum(comm.rank() == 0 ? 10.0f : 1.0f);
    std::vector<float> data(3, 2.0f);
    comm.allReduce(data, op);
    EXPECT_EQ(data, std::vector<float>(3, 22.0f));
  });
}

TEST(CollectivesOfTheFace, RegisteredMemoryGivesTheSameSum) {
  onRanks(2, [](Communicator& comm) {
    std::vector<int> data(4096, comm.rank() + 1);
    const peal::Registration registration = comm.registerMemory(data);
    comm.allReduce(data);
    EXPECT_EQ(data, std::vector<int>(4096, 3));
  });
}

TEST(CollectivesOfTheFace, EmptyRangesAreLegal) {
  onRanks(2, [](Communicator& comm) {
    std::vector<float> none;
    comm.allReduce(none);
    comm.allGather(none, none);
    comm.broadcast(none, 0);
  });
}

// ---- sizes ---------------------------------------------------------------------------------------------

TEST(SizesOfTheFace, AreCheckedBeforeAnythingIsSent) {
  onRanks(2, [](Communicator& comm) {
    std::vector<float> three(3);
    std::vector<float> four(4);
    const std::array<size_t, 2> counts{1, 2};
    const std::array<size_t, 1> tooFew{3};
    const std::vector<std::pair<std::function<void()>, std::string>> cases{
        {[&] { comm.allReduce(three, four); }, "allReduce: the output has 4 elements, and 3 are needed"},
        {[&] { comm.reduceScatter(three, four); },
         "reduceScatter: the input has 3 elements, and 8 are needed"},
        {[&] { comm.allGather(three, four); }, "allGather: the output has 4 elements, and 6 are needed"},
        {[&] { comm.reduce(three, four, comm.rank()); }, "reduce: the output has 4"},
        {[&] { comm.reduceScatterV(four, three, counts); },
         "reduceScatterV: the input has 4 elements, and 3"},
        {[&] { comm.reduceScatterV(three, four, counts); }, "reduceScatterV: the output has 4 elements, and"},
        {[&] { comm.allGatherV(three, four, counts); }, "allGatherV: the output has 4 elements, and 3"},
        {[&] { comm.allGatherV(three, three, tooFew); },
         "allGatherV: the list of counts has 1 elements, and 2"},
    };
    for (const auto& [call, words] : cases) {
      const peal::Error error = errorOf(call);
      EXPECT_EQ(error.code(), pealInvalidArgument);
      EXPECT_TRUE(holds(error.what(), words)) << error.what();
    }
    comm.barrier();  // the communicator is none the worse
    EXPECT_EQ(comm.stats().bytesSent[pealStatAllReduce], 0u);
  });
}

// ---- errors --------------------------------------------------------------------------------------------

TEST(ErrorsOfTheFace, CarryCodeAndSentence) {
  onRanks(1, [](Communicator& comm) {
    std::vector<float> data(3);
    const peal::Error error = errorOf([&] { comm.broadcast(data, 5); });
    EXPECT_EQ(error.code(), pealInvalidArgument);
    EXPECT_TRUE(holds(error.what(), "5")) << error.what();
    EXPECT_GT(std::string(error.what()).size(), 20u) << "a sentence, not a code";
  });
}

TEST(ErrorsOfTheFace, BadOptionsAreRefused) {
  for (const int64_t ms : {int64_t{0}, int64_t{-1}, int64_t{INT32_MAX} + 1}) {
    const peal::Error error =
        errorOf([ms] { (void)Communicator::fromLaunch({.deadline = std::chrono::milliseconds(ms)}); });
    EXPECT_EQ(error.code(), pealInvalidArgument);
    EXPECT_TRUE(holds(error.what(), std::to_string(ms))) << error.what();
  }
  EXPECT_EQ(errorOf([] { (void)Communicator::all(0); }).code(), pealInvalidArgument);
  EXPECT_EQ(errorOf([] { (void)Communicator::all(-1); }).code(), pealInvalidArgument);
}

TEST(ErrorsOfTheFace, AMovedFromCommunicatorIsRefused) {
  onRanks(1, [](Communicator& comm) {
    const Communicator taken = std::move(comm);
    EXPECT_EQ(taken.size(), 1);
    EXPECT_EQ(errorOf([&] { comm.barrier(); }).code(),
              pealInvalidArgument);  // NOLINT(bugprone-use-after-move)
    comm = Communicator(nullptr);
  });
}

TEST(ErrorsOfTheFace, AbortEndsWhatRunsOnAStream) {
  std::vector<Communicator> comms = Communicator::all(2);
  const peal::Stream stream;
  std::vector<float> data(1000);
  comms[0].allReduce(data, pealSum, stream);  // rank 1 never comes
  comms[0].abort();
  EXPECT_EQ(comms[0].handle(), nullptr);
  EXPECT_EQ(errorOf([&] { stream.synchronize(); }).code(), pealRemoteError);
  stream.synchronize();  // the error is told once
  std::vector<float> other(1000);
  // Rank 0 may have sent its part of the first before it was aborted.
  const auto twice = [&] {
    comms[1].allReduce(other);
    comms[1].allReduce(other);
  };
  EXPECT_EQ(errorOf(twice).code(), pealRemoteError);
}

// ---- communicators ---------------------------------------------------------------------------------------

TEST(CommunicatorOfTheFace, JoinsByUniqueId) {
  const pealUniqueId id = peal::makeUniqueId();
  std::vector<std::thread> threads;
  std::atomic<int> sum{0};
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Communicator comm = Communicator::join(rank, 2, id, {.deterministic = true, .name = "pair"});
        std::vector<int> data{comm.rank() + 1};
        comm.allReduce(data);
        sum += data[0];
        comm.finalize();
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(sum, 6);
}

TEST(CommunicatorOfTheFace, AloneWithoutALauncher) {
  if (peal::launch().size != 1) {
    GTEST_SKIP() << "this test runs under a launcher, so it is not alone";
  }
  Communicator comm = Communicator::fromLaunch();
  EXPECT_EQ(comm.rank(), 0);
  EXPECT_EQ(comm.size(), 1);
  EXPECT_EQ(comm.device(), PEAL_DEVICE_HOST);
  std::vector<float> data(10, 4.0f);
  comm.allReduce(data);
  EXPECT_EQ(data, std::vector<float>(10, 4.0f));
  EXPECT_EQ(comm.asyncError(), pealSuccess);
}

TEST(CommunicatorOfTheFace, Splits) {
  onRanks(4, [](Communicator& comm) {
    const bool odd = comm.rank() % 2 == 1;
    std::optional<Communicator> half = comm.split(odd ? std::optional<int>(7) : std::nullopt, -comm.rank());
    ASSERT_EQ(half.has_value(), odd);
    if (half) {
      EXPECT_EQ(half->size(), 2);
      EXPECT_EQ(half->rank(), comm.rank() == 3 ? 0 : 1) << "ordered by key";
      std::vector<int> data{comm.rank()};
      half->allReduce(data);
      EXPECT_EQ(data[0], 4);
    }
  });
}

// ---- memory, streams, information
// --------------------------------------------------------------------------

TEST(BufferOfTheFace, IsAVectorOnPages) {
  Buffer<float> data(1000, 1.0f);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data.data()) % 4096, 0u);
  data.resize(100000, 2.0f);
  EXPECT_EQ(data[999], 1.0f);
  EXPECT_EQ(data[99999], 2.0f);
  const Buffer<float> copy = data;
  EXPECT_EQ(copy, data);
  EXPECT_THROW((void)peal::Allocator<double>().allocate(SIZE_MAX / 4), std::bad_array_new_length);
}

TEST(StreamOfTheFace, RunsInOrderBehindEvents) {
  onRanks(2, [](Communicator& comm) {
    const peal::Stream first;
    const peal::Stream second;
    const peal::Event done;
    std::vector<float> data(5000, 1.0f);
    std::vector<float> seen;
    comm.allReduce(data, pealSum, first);
    first.record(done);
    second.waitFor(done);
    second.launch([&] { seen = data; });
    second.synchronize();
    EXPECT_TRUE(done.isComplete());
    EXPECT_TRUE(second.isIdle());
    EXPECT_EQ(seen, std::vector<float>(5000, 2.0f));
    first.synchronize();
  });
}

TEST(StreamOfTheFace, KnowsWhatIsNotDoneYet) {
  const peal::Stream stream;
  const peal::Event before;
  const peal::Event after;
  std::atomic<bool> go{false};
  stream.record(before);
  stream.launch([&] {
    while (!go) {
      std::this_thread::yield();
    }
  });
  stream.record(after);
  EXPECT_FALSE(stream.isIdle());
  EXPECT_FALSE(after.isComplete());
  go = true;
  after.synchronize();
  stream.synchronize();
  EXPECT_TRUE(stream.isIdle());
  EXPECT_GE(after.millisecondsSince(before), 0.0f);
}

TEST(CommunicatorOfTheFace, ExchangesCheckSizes) {
  const pealUniqueId id = peal::makeUniqueId();
  const auto body = [&](int rank) {
    peal::Communicator comm = peal::Communicator::join(rank, 2, id);
    const std::vector<float> mine{static_cast<float>(rank), static_cast<float>(rank + 10)};
    std::vector<float> got(2), gathered(rank == 0 ? 2 : 0), one(1);
    comm.allToAll(mine, got);
    EXPECT_EQ(got, (std::vector<float>{static_cast<float>(10 * rank), static_cast<float>(10 * rank + 1)}));
    comm.gather(std::span(mine).first(1), gathered, 0);
    EXPECT_EQ(gathered, rank == 0 ? (std::vector<float>{0, 1}) : std::vector<float>());
    comm.scatter(gathered, one, 0);
    EXPECT_EQ(one[0], static_cast<float>(rank));
    std::vector<float> three(3);
    EXPECT_THROW(comm.allToAll(three, three), peal::Error);
    if (rank == 0) {
      EXPECT_THROW(comm.gather(mine, one, 0), peal::Error);
      EXPECT_THROW(comm.scatter(three, one, 0), peal::Error);
    }
  };
  std::thread other(body, 1);
  body(0);
  other.join();
}

// A cudaStream_t is a pointer to one of these, whatever it points to here.
TEST(StreamOfTheFace, TakesCudaStreamsWithoutACast) {
  auto* const stream = reinterpret_cast<CUstream_st*>(64);
  EXPECT_EQ(peal::On(stream).handle(), reinterpret_cast<pealStream_t>(64));
  EXPECT_EQ(peal::On().handle(), nullptr);
}

TEST(StreamOfTheFace, MovesWithWhatItOwns) {
  peal::Stream one;
  const pealStream_t handle = one.handle();
  const peal::Stream two = std::move(one);
  EXPECT_EQ(two.handle(), handle);
  EXPECT_EQ(one.handle(), nullptr);  // NOLINT(bugprone-use-after-move): that is the question
}

TEST(InformationOfTheFace, IsJson) {
  EXPECT_EQ(nlohmann::json::parse(peal::systemInfo()).at("versionCode"), PEAL_VERSION_CODE);
}

}  // namespace
