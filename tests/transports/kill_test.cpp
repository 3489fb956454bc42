// Ranks that are killed at random moments: every other rank gets an error that names the dead one at
// once, and nothing is left behind. How long that took at most is a property in the report
// (--gtest_output=json).
#include <dirent.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <set>

#include "lib/memory/registry.h"
#include "tests/transports/transports.h"

namespace peal::test {
namespace {

std::vector<std::string> linesOf(const std::string& path) {
  std::vector<std::string> lines;
  FILE* file = fopen(path.c_str(), "r");
  char line[8192];
  while (file != nullptr && fgets(line, sizeof line, file) != nullptr) {
    lines.emplace_back(line);
  }
  if (file != nullptr) {
    fclose(file);
  }
  return lines;
}

// What a process has open, as /proc names it: "socket:[123]", "/memfd:name (deleted)", "/path".
std::vector<std::string> openFilesOf(pid_t pid) {
  std::vector<std::string> names;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* entries = opendir(folder.c_str());
  for (const dirent* entry = entries != nullptr ? readdir(entries) : nullptr; entry != nullptr;
       entry = readdir(entries)) {
    char target[PATH_MAX];
    const ssize_t length = readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target);
    if (length > 0) {
      names.emplace_back(target, static_cast<size_t>(length));
    }
  }
  if (entries != nullptr) {
    closedir(entries);
  }
  return names;
}

// Names of abstract sockets that this process holds.
std::set<std::string> abstractNamesOf(pid_t pid) {
  std::set<std::string> inodes;
  for (const std::string& name : openFilesOf(pid)) {
    if (name.rfind("socket:[", 0) == 0) {
      inodes.insert(name.substr(8, name.size() - 9));
    }
  }
  std::set<std::string> names;
  for (const std::string& line : linesOf("/proc/net/unix")) {
    const size_t at = line.find(" @peal-");
    for (const std::string& inode : inodes) {
      if (at != std::string::npos && line.find(" " + inode + " ") != std::string::npos) {
        names.insert(line.substr(at + 1));
      }
    }
  }
  return names;
}

bool isNamedFile(const std::string& text) {
  return text.find("/dev/shm/") != std::string::npos || text.find("/tmp/") != std::string::npos ||
         text.find("/var/tmp/") != std::string::npos;
}

// Files that would stay after a kill: what the process holds under the places for such files, but for what
// it inherited from this one (an output that goes to a file, a program that lies there).
void expectNoNamedFiles(pid_t pid) {
  const std::vector<std::string> inherited = openFilesOf(getpid());
  for (const std::string& name : openFilesOf(pid)) {
    if (std::find(inherited.begin(), inherited.end(), name) == inherited.end()) {
      EXPECT_FALSE(isNamedFile(name)) << name;
    }
  }
  const auto pathOf = [](const std::string& line) {
    return line.substr(std::min(line.find('/'), line.size()));
  };
  std::set<std::string> mapped;
  for (const std::string& line : linesOf("/proc/self/maps")) {
    mapped.insert(pathOf(line));
  }
  for (const std::string& line : linesOf("/proc/" + std::to_string(pid) + "/maps")) {
    if (mapped.count(pathOf(line)) == 0) {
      EXPECT_FALSE(isNamedFile(line)) << line;
    }
  }
}

// Messages of all kinds to and from everybody, until a fault. Returns the fault's sentence.
std::string workUntilFault(const Rank& self, const std::byte* shared) {
  std::string error;
  for (int number = 0;; ++number) {
    for (int peer = 0; peer < self.size; ++peer) {
      Link* link = peer != self.rank ? &self.link(peer) : nullptr;
      if (link == nullptr) {
        continue;
      }
      const size_t bytes = static_cast<size_t>(number * 131) % 2048;
      const bool byReference = number % 4 == 3;
      const bool sent = waitUntil(
          self.endpoint, peer,
          [&] {
            if (byReference) {
              return link->tryPostReference(shared, 3000, digestOf(number));
            }
            if (link->tryStage(bytes) == nullptr) {
              return false;
            }
            link->post(bytes, digestOf(number));
            return true;
          },
          &error);
      if (!sent) {
        return error;
      }
    }
    for (int peer = 0; peer < self.size; ++peer) {
      Arrival arrival;
      if (peer == self.rank) {
        continue;
      }
      if (!waitUntil(
              self.endpoint, peer, [&] { return self.link(peer).tryReceive(arrival); }, &error)) {
        return error;
      }
      EXPECT_EQ(arrival.digest, digestOf(number));
      self.link(peer).release();
    }
  }
}

class Kill : public TransportTest {};

std::vector<Transport> transportsOfProcesses() {
  std::vector<Transport> rows = allTransports();
  std::erase_if(rows, [](const Transport& row) { return row.ranksAre != RanksAre::Processes; });
  return rows;
}
INSTANTIATE_TEST_SUITE_P(Transports, Kill, ::testing::ValuesIn(transportsOfProcesses()), transportName);

int workAsRank(const Child& child, ExchangeBoard& board, const Transport& transport) {
  BoardExchange exchange(board, child.index());
  Result<std::unique_ptr<Endpoint>> endpoint =
      transport.connect(exchange, {.slotBytes = 2048, .slots = 2, .directRead = true});
  EXPECT_TRUE(endpoint) << endpoint.error().message;
  const Result<void*> memory = allocateShared(8192);
  EXPECT_TRUE(memory);
  if (!endpoint || !memory) {
    return 1;
  }
  child.say("R");  // ready
  const Rank self{child.index(), board.size(), **endpoint, exchange, transport.travels};
  child.say(workUntilFault(self, static_cast<const std::byte*>(*memory)));
  EXPECT_TRUE(freeShared(*memory));
  return 0;
}

TEST_P(Kill, TheOthersNameTheDeadAtOnce) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const bool isSlow = GetParam().isEmulated;
  std::chrono::milliseconds quickest = std::chrono::milliseconds::max(), slowest{0};
  for (int turn = 0; turn < (isSlow ? 2 : 12); ++turn) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " turn " + std::to_string(turn));
    const int ranks = 2 + static_cast<int>(random() % (isSlow ? 2 : 4));
    const int victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    ExchangeBoard board(ranks);
    Processes processes(ranks, [&](const Child& child) { return workAsRank(child, board, GetParam()); });
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(processes.waitForMessage(rank, std::chrono::milliseconds(kTestLimitMs)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    std::set<std::string> names;
    for (int rank = 0; rank < ranks; ++rank) {
      expectNoNamedFiles(processes.pid(rank));
      names.merge(abstractNamesOf(processes.pid(rank)));
    }
    EXPECT_TRUE(GetParam().travels || !names.empty())
        << "this test cannot see the sockets that it looks for afterwards";
    const auto killed = Clock::now();
    processes.kill(victim);
    const std::vector<ChildResult> results = processes.wait(std::chrono::milliseconds(kTestLimitMs));
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - killed);
    EXPECT_LT(passed, kAtOnce);
    quickest = std::min(quickest, passed);
    slowest = std::max(slowest, passed);
    for (int rank = 0; rank < ranks; ++rank) {
      const ChildResult& result = results[static_cast<size_t>(rank)];
      if (rank == victim) {
        EXPECT_EQ(result.signal, SIGKILL);
        continue;
      }
      EXPECT_EQ(result.exitCode, 0) << result.message;
      EXPECT_NE(result.message.find("rank " + std::to_string(victim)), std::string::npos) << result.message;
    }
    for (const std::string& line : linesOf("/proc/net/unix")) {
      for (const std::string& name : names) {
        EXPECT_EQ(line.find(name), std::string::npos) << "left behind: " << line;
      }
    }
  }
  // What the README promises. Other programs may keep the processors for longer, but not in every turn.
  EXPECT_TRUE(isSlow || quickest < std::chrono::seconds(2)) << quickest.count() << " ms";
  RecordProperty("slowestMs", static_cast<int>(slowest.count()));
}

// A stopped rank is not a dead one: nobody may say so.
TEST_P(Kill, AStoppedRankIsNotDead) {
  ExchangeBoard board(2);
  Processes processes(2, [&](const Child& child) {
    BoardExchange exchange(board, child.index());
    Result<std::unique_ptr<Endpoint>> endpoint = GetParam().connect(exchange, {});
    EXPECT_TRUE(endpoint);
    child.say("R");
    const Rank self{child.index(), 2, **endpoint, exchange, GetParam().travels};
    for (int number = 0; number < (self.travels ? 2000 : 20000); ++number) {
      sendMessage(self, 1 - self.rank, pattern(self.rank, 0, 16), digestOf(number));
      expectMessage(self, 1 - self.rank, pattern(1 - self.rank, 0, 16), digestOf(number));
      if (::testing::Test::HasFailure()) {
        return 1;
      }
    }
    return 0;
  });
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(processes.waitForMessage(rank, std::chrono::milliseconds(kTestLimitMs)));
  }
  processes.kill(1, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  processes.kill(1, SIGCONT);
  expectAllSucceeded(processes.wait(std::chrono::milliseconds(kTestLimitMs)));
}

}  // namespace
}  // namespace peal::test
