// What goes wrong over UCX: every function that can fail, failed in turn; peers that die; strangers.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/processes.h"
#include "tests/support/scarce_memory.h"
#include "tests/transports/ucx/ucx_pair.h"
#include "transports/ucx/settings.h"
#include "transports/ucx/wire.h"

namespace peal::test {
namespace {

// Lets the n-th call of one function fail; the tables' functions take no context, hence globals. Only rank
// 0's table is made of these.
const ucx::Table* real = nullptr;
std::string failing;
int callsUntilFailure = 0;
ucp_am_handler_param_t handler{};  // as it was last set

bool fails(const char* name) { return failing == name && callsUntilFailure-- == 0; }

ucs_status_t configRead(const char* prefix, const char* file, ucp_config_t** config) {
  return fails("ucp_config_read") ? UCS_ERR_NO_MEMORY : real->configRead(prefix, file, config);
}
ucs_status_t configModify(ucp_config_t* config, const char* name, const char* value) {
  return fails("ucp_config_modify") ? UCS_ERR_NO_ELEM : real->configModify(config, name, value);
}
ucs_status_t init(unsigned major, unsigned minor, const ucp_params_t* params, const ucp_config_t* config,
                  ucp_context_h* context) {
  return fails("ucp_init") ? UCS_ERR_NO_DEVICE : real->init(major, minor, params, config, context);
}
ucs_status_t workerCreate(ucp_context_h context, const ucp_worker_params_t* params, ucp_worker_h* worker) {
  return fails("ucp_worker_create") ? UCS_ERR_NO_MEMORY : real->workerCreate(context, params, worker);
}
ucs_status_t workerAddress(ucp_worker_h worker, ucp_address_t** address, size_t* bytes) {
  return fails("ucp_worker_get_address") ? UCS_ERR_NO_MEMORY : real->workerAddress(worker, address, bytes);
}
ucs_status_t workerDescriptor(ucp_worker_h worker, int* descriptor) {
  return fails("ucp_worker_get_efd") ? UCS_ERR_UNSUPPORTED : real->workerDescriptor(worker, descriptor);
}
ucs_status_t workerArm(ucp_worker_h worker) {
  return fails("ucp_worker_arm") ? UCS_ERR_IO_ERROR : real->workerArm(worker);
}
ucs_status_t setHandler(ucp_worker_h worker, const ucp_am_handler_param_t* param) {
  handler = *param;
  return fails("ucp_worker_set_am_recv_handler") ? UCS_ERR_INVALID_PARAM : real->setHandler(worker, param);
}
ucs_status_t endpointCreate(ucp_worker_h worker, const ucp_ep_params_t* params, ucp_ep_h* endpoint) {
  return fails("ucp_ep_create") ? UCS_ERR_UNREACHABLE : real->endpointCreate(worker, params, endpoint);
}
ucs_status_ptr_t endpointClose(ucp_ep_h endpoint, const ucp_request_param_t* param) {
  if (fails("ucp_ep_close_nbx")) {
    real->endpointClose(endpoint, param);
    return UCS_STATUS_PTR(UCS_ERR_NO_MEMORY);
  }
  return real->endpointClose(endpoint, param);
}
ucs_status_ptr_t send(ucp_ep_h endpoint, unsigned id, const void* header, size_t headerBytes,
                      const void* data, size_t bytes, const ucp_request_param_t* param) {
  return fails("ucp_am_send_nbx") ? UCS_STATUS_PTR(UCS_ERR_NO_MEMORY)
                                  : real->send(endpoint, id, header, headerBytes, data, bytes, param);
}

class UcxFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    const Result<ucx::Library>& library = ucx::library();
    ASSERT_TRUE(library) << library.error().message;
    real = &library->table;
    faulty_ = *library;
    ucx::Table& table = faulty_.table;
    table.configRead = &configRead;
    table.configModify = &configModify;
    table.init = &init;
    table.workerCreate = &workerCreate;
    table.workerAddress = &workerAddress;
    table.workerDescriptor = &workerDescriptor;
    table.workerArm = &workerArm;
    table.setHandler = &setHandler;
    table.endpointCreate = &endpointCreate;
    table.endpointClose = &endpointClose;
    table.send = &send;
    failing.clear();
  }
  void failAt(const char* name, int calls = 0) {
    failing = name;
    callsUntilFailure = calls;
  }
  // Rank 0 has the faulty table, the others UCX itself.
  std::vector<const ucx::Library*> libraries(int size = 2) const {
    std::vector<const ucx::Library*> all(static_cast<size_t>(size), nullptr);
    all[0] = &faulty_;
    return all;
  }
  ucx::Library faulty_;
};

// Opening: an error of rank 0 alone, before anything is exchanged.
TEST_F(UcxFaults, OpeningSaysWhichCallFailed) {
  for (const char* name :
       {"ucp_config_read", "ucp_init", "ucp_worker_create", "ucp_worker_set_am_recv_handler"}) {
    failAt(name);
    const Result<std::unique_ptr<Fabric>> fabric = ucx::UcxFabric::open(faulty_, {}, kLoopback);
    ASSERT_FALSE(fabric) << name;
    EXPECT_EQ(fabric.error().code, pealSystemError);
    EXPECT_NE(fabric.error().message.find(name), std::string::npos) << fabric.error().message;
    EXPECT_NE(fabric.error().message.find("UCX 1."), std::string::npos) << fabric.error().message;
  }
}

// The first settings are needed; the later ones only make it faster.
TEST_F(UcxFaults, ASettingThatUcxRefuses) {
  failAt("ucp_config_modify");
  const Result<std::unique_ptr<Fabric>> refused = ucx::UcxFabric::open(faulty_, {}, kLoopback);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("UCX_TLS=tcp"), std::string::npos) << refused.error().message;
  failAt("ucp_config_modify", 4);
  EXPECT_TRUE(ucx::UcxFabric::open(faulty_, {}, kLoopback));
}

// Connecting: all ranks fail, and each sentence names rank 0 or what it did to the others.
TEST_F(UcxFaults, ConnectingFailsOnAllRanks) {
  struct Row {
    const char* name;
    int calls;
    const char* expected;
  };
  for (const Row& row :
       {Row{"ucp_worker_get_address", 0, "ucp_worker_get_address"},
        Row{"ucp_ep_create", 0, "finds no way to rank 1"}, Row{"ucp_ep_create", 1, "finds no way to rank 2"},
        Row{"ucp_am_send_nbx", 0, "lost rank"}, Row{"ucp_am_send_nbx", 1, "lost rank"},
        Row{"ucp_am_send_nbx", 3, "lost rank"}}) {
    failAt(row.name, row.calls);
    const auto begin = Clock::now();
    const UcxRanks ranks(libraries(3), {4096, 3}, 1500);  // those that hear nothing wait so long
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_NE(ranks.error(rank), "") << row.name << " " << row.calls;
    }
    EXPECT_NE(ranks.error(0).find(row.expected), std::string::npos) << ranks.error(0);
    EXPECT_LT(Clock::now() - begin, kAtOnce) << row.name << " " << row.calls;
  }
}

TEST_F(UcxFaults, ASendThatFailsIsAFaultThatNamesThePeer) {
  for (int calls = 0; calls < 5; ++calls) {
    UcxRanks ranks(libraries(), {4096, 3});
    ASSERT_TRUE(ranks.good());
    failAt("ucp_am_send_nbx", calls);
    const std::vector<std::byte> data = bytesOf(1, 4096);
    Link& out = ranks.link(0, 1);
    ranks.until([&] {
      if (ranks[0].fault()) {
        return true;
      }
      Arrival arrival;
      if (ranks.link(1, 0).tryReceive(arrival)) {
        ranks.link(1, 0).release();
      }
      if (calls % 2 == 0) {
        out.tryPostReference(data.data(), data.size(), digestOf(1));
      } else if (out.tryStage(100) != nullptr) {
        out.post(100, digestOf(1));
      }
      return false;
    });
    ASSERT_TRUE(ranks[0].fault());
    EXPECT_EQ(ranks[0].fault()->peerRank, 1);
    EXPECT_EQ(ranks[0].fault()->error.code, pealRemoteError);
    EXPECT_NE(ranks[0].fault()->error.message.find("Out of memory"), std::string::npos)
        << ranks[0].fault()->error.message;
    EXPECT_EQ(out.tryStage(1), nullptr);
    EXPECT_TRUE(out.drained());
    EXPECT_TRUE(ranks[0].settled());
    failing.clear();
  }
}

TEST_F(UcxFaults, WithoutADescriptorOrArmingItStillWorks) {
  failAt("ucp_worker_get_efd");
  UcxRanks ranks(libraries(), {4096, 3});
  ASSERT_TRUE(ranks.good());
  EXPECT_EQ(ranks[0].eventDescriptor(), -1);
  failAt("ucp_worker_arm");
  EXPECT_FALSE(ranks[0].arm());
  failAt("ucp_ep_close_nbx");
}

TEST_F(UcxFaults, SlotsThatDifferAreNamed) {
  ExchangeBoard board(2);
  NoControl control;
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      BoardExchange exchange(board, rank);
      Result<std::unique_ptr<Fabric>> fabric =
          openUcx({rank == 0 ? size_t{4096} : size_t{8192}, 3}, kLoopback);
      ASSERT_TRUE(fabric) << fabric.error().message;
      const Result<void> done =
          (*fabric)->connect(exchange, {1 - rank}, control, Deadline::afterMs(kUcxLimitMs));
      errors[static_cast<size_t>(rank)] = done ? "" : done.error().message;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_NE(errors[0].find("PEAL_SLOT_BYTES"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("PEAL_SLOT_BYTES"), std::string::npos) << errors[1];
}

TEST_F(UcxFaults, WithoutMemoryForSlotsBothSayHowMuchItWas) {
  ExchangeBoard board(2);
  NoControl control;
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      BoardExchange exchange(board, rank);
      Result<std::unique_ptr<Fabric>> fabric = openUcx({4096, 3}, kLoopback);
      ASSERT_TRUE(fabric) << fabric.error().message;
      refusedBytes = rank == 1 ? 3 * 4096 : SIZE_MAX;
      const Result<void> done =
          (*fabric)->connect(exchange, {1 - rank}, control, Deadline::afterMs(kUcxLimitMs));
      errors[static_cast<size_t>(rank)] = done ? "" : done.error().message;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& text : errors) {
    EXPECT_NE(
        text.find("no memory for 12288 bytes of a link to one peer, 3 slots of 4096 bytes. Use smaller or "
                  "fewer slots (PEAL_SLOT_BYTES, PEAL_SLOTS)."),
        std::string::npos)
        << text;
  }
}

// A rank is killed while messages of all sizes go both ways: the other has a fault that names it, within
// seconds, and ends in order.
TEST(UcxKill, AKilledPeerIsAFaultWithinSeconds) {
  for (const int messages : {1, 37, 500, 2000}) {
    ExchangeBoard board(2);
    const std::vector<ChildResult> results =
        runProcesses(2, std::chrono::milliseconds(kUcxLimitMs), [&](const Child& child) {
          const int rank = child.index();
          BoardExchange exchange(board, rank);
          NoControl control;
          Result<std::unique_ptr<Fabric>> fabric = openUcx({65536, 4}, kLoopback);
          if (!fabric || !(*fabric)->connect(exchange, {1 - rank}, control, Deadline::afterMs(kUcxLimitMs))) {
            child.say("cannot connect");
            return 1;
          }
          Link& link = (*fabric)->link(1 - rank);
          const std::vector<std::byte> data(65536);
          for (int number = 0; !(*fabric)->fault(); ++number) {
            const size_t bytes = static_cast<size_t>(number) * 7919 % 65537;
            if (number % 3 == 0) {
              link.tryPostReference(data.data(), bytes, {});
            } else if (link.tryStage(bytes) != nullptr) {
              link.post(bytes, {});
            }
            Arrival arrival;
            // Rank 0 is slow to read, so that messages and sockets are full when it finds out.
            if ((rank == 1 || number % 5 == 0) && link.tryReceive(arrival)) {
              link.release();
            }
            if (rank == 1 && number == messages) {
              raise(SIGKILL);
            }
          }
          child.say((*fabric)->fault()->error.message);
          const auto begin = Clock::now();
          const bool names = (*fabric)->fault()->peerRank == 1;
          fabric->reset();
          return names && Clock::now() - begin < kAtOnce ? 0 : 2;
        });
    EXPECT_EQ(results[0].exitCode, 0) << results[0].message << " signal " << results[0].signal;
    EXPECT_NE(results[0].message.find("lost rank 1"), std::string::npos) << results[0].message;
    EXPECT_EQ(results[1].signal, SIGKILL) << results[1].message;
  }
}

// A rank that sends nothing has no send that fails: UCX's error handler alone tells it.
TEST(UcxKill, ARankThatOnlyWaitsLearnsOfItToo) {
  ExchangeBoard board(2);
  const std::vector<ChildResult> results =
      runProcesses(2, std::chrono::milliseconds(2 * kUcxLimitMs), [&](const Child& child) {
        const int rank = child.index();
        BoardExchange exchange(board, rank);
        NoControl control;
        Result<std::unique_ptr<Fabric>> fabric = openUcx({65536, 4}, kLoopback);
        if (!fabric || !(*fabric)->connect(exchange, {1 - rank}, control, Deadline::afterMs(kUcxLimitMs)) ||
            !exchange.allGather({})) {
          child.say("cannot connect");
          return 1;
        }
        if (rank == 1) {
          raise(SIGKILL);
        }
        const Deadline deadline = Deadline::afterMs(kUcxLimitMs);
        while (!(*fabric)->fault() && !deadline.passed()) {
          (*fabric)->poll();
        }
        child.say((*fabric)->fault() ? (*fabric)->fault()->error.message : "a silence");
        return 0;
      });
  EXPECT_EQ(results[0].exitCode, 0) << results[0].message << " signal " << results[0].signal;
  EXPECT_NE(results[0].message.find("rank 0 lost rank 1: the connection over UCX ended"), std::string::npos)
      << results[0].message;
  EXPECT_EQ(results[1].signal, SIGKILL) << results[1].message;
}

TEST_F(UcxFaults, StrangersAreWarnedOfOnce) {
  failing.clear();
  UcxRanks ranks({&faulty_, nullptr}, {4096, 3});
  ASSERT_TRUE(ranks.good());
  ucx::Header header;
  header.token = 1;
  header.srcRank = 1;
  const ucp_am_recv_param_t plain{};
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(handler.cb(handler.arg, &header, sizeof header, nullptr, 0, &plain), UCS_OK);
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  const size_t first = said.find("rank 0 ignores messages over UCX");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("ignores messages", first + 20), std::string::npos) << said;
  EXPECT_FALSE(ranks[0].fault());
}

// Where the system does not tell what a socket may ask for, it counts on no more than the usual.
TEST(UcxSettings, ASocketsMemoryIsNotGuessedTooLarge) {
  const FabricOptions options{1 << 20, 8};
  EXPECT_EQ(ucx::socketBytes(options, "212992"), ucx::socketBytes(options, ""));
  EXPECT_GT(ucx::socketBytes(options, "4194304"), ucx::socketBytes(options, ""));
  EXPECT_LT(ucx::socketBytes(options, "65536"), ucx::socketBytes(options, ""));
  const FabricOptions small{4096, 2};
  EXPECT_EQ(ucx::socketBytes(small, ""), ucx::socketBytes(small, "4194304"));
}

}  // namespace
}  // namespace peal::test
