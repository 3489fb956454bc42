// One end of a connection is the fabric's, the other the test's: what goes over the wire, where data land,
// and what the fabric makes of a peer that sends nonsense, hangs up or does not read.
#include "transports/tcp/tcp.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "tests/support/limits.h"
#include "transports/tcp/fabric.h"

namespace {

// A system that takes only a part: the next sends from `descriptor` take `most` bytes in all.
struct Scarce {
  int descriptor = -1;
  size_t most = 0;
} scarce;

}  // namespace

// In the C library's place, for the fabric as well.
extern "C" ssize_t send(int descriptor, const void* data, size_t bytes, int flags) {
  if (descriptor == scarce.descriptor) {
    if (scarce.most == 0) {
      errno = EAGAIN;
      return -1;
    }
    bytes = std::min(bytes, scarce.most);
    scarce.most -= bytes;
  }
  return sendto(descriptor, data, bytes, flags, nullptr, 0);
}

namespace peal::test {
namespace {

using tcp::Header;
using tcp::kHeaderBytes;
using tcp::Kind;

constexpr size_t kSlotBytes = 8192;
constexpr int kSlots = 4;

std::vector<std::byte> dataOf(unsigned seed, size_t bytes) {
  std::mt19937 random(seed);
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) {
    byte = static_cast<std::byte>(random());
  }
  return data;
}

class GivesSocket final : public ControlPlane {
 public:
  explicit GivesSocket(int socket) : socket_(socket) {}
  void send(int /*peerRank*/, std::span<const std::byte> /*message*/) override {}
  Result<std::vector<PeerSocket>> connections(Exchange& /*exchange*/, const std::vector<int>& /*peers*/,
                                              Deadline /*deadline*/) override {
    std::vector<PeerSocket> sockets;
    sockets.push_back({1, OwnedFd(socket_)});
    return sockets;
  }

 private:
  int socket_;
};

// Rank 0 of two; rank 1 says what it says, but for what is changed of it.
class Cards final : public Exchange {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Result<std::vector<std::vector<std::byte>>> allGather(const std::vector<std::byte>& mine) override {
    std::vector<std::byte> theirs = mine;
    theirs.at(8) ^= change;
    theirs.resize(mine.size() - shorten);
    return std::vector<std::vector<std::byte>>{mine, theirs};
  }
  std::byte change{0};
  size_t shorten = 0;
};

class TcpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    peer_ = OwnedFd(ends[1]);
    GivesSocket control(ends[0]);
    Cards cards;
    fabric_ = std::make_unique<tcp::TcpFabric>(FabricOptions{kSlotBytes, kSlots, true}, "");
    ASSERT_TRUE(fabric_->connect(cards, {1}, control, Deadline::afterMs(kFarMs)));
  }
  // A peer that is there would be waited for.
  void TearDown() override { peer_.reset(); }
  Link& link() { return fabric_->link(1); }

  void write(const void* data, size_t bytes) const {
    ASSERT_EQ(::send(peer_.get(), data, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
  }
  static Header headerOf(Kind kind, size_t bytes, uint64_t released, uint32_t sequence = 0) {
    Header header;
    header.kind = kind;
    header.bytes = static_cast<uint32_t>(bytes);
    header.released = released;
    header.digest.sequence = sequence;
    return header;
  }
  void say(const Header& header) const { write(&header, sizeof header); }
  void sendData(uint32_t sequence, const std::vector<std::byte>& data, uint64_t released = 0) const {
    say(headerOf(Kind::Data, data.size(), released, sequence));
    write(data.data(), data.size());
  }
  // What has come at the test's end, without waiting.
  std::vector<std::byte> read() const {
    std::vector<std::byte> all(1 << 20);
    size_t got = 0;
    for (ssize_t more = 0; (more = recv(peer_.get(), all.data() + got, all.size() - got, 0)) > 0;) {
      got += static_cast<size_t>(more);
    }
    all.resize(got);
    return all;
  }
  Header readHeader(const std::vector<std::byte>& stream, size_t at = 0) const {
    Header header;
    EXPECT_GE(stream.size(), at + sizeof header);
    if (stream.size() >= at + sizeof header) {
      std::memcpy(&header, stream.data() + at, sizeof header);
    }
    return header;
  }
  bool comes(Arrival& arrival) {
    for (int look = 0; look < 4; ++look) {
      fabric_->poll();
      if (link().tryReceive(arrival)) {
        return true;
      }
    }
    return false;
  }
  void expectMessage(uint32_t sequence, const std::vector<std::byte>& data) {
    Arrival arrival;
    ASSERT_TRUE(comes(arrival));
    EXPECT_EQ(arrival.digest.sequence, sequence);
    EXPECT_EQ(std::vector<std::byte>(arrival.data, arrival.data + arrival.bytes), data);
    link().release();
  }
  void expectFault(const std::string& part) {
    Arrival arrival;
    EXPECT_FALSE(comes(arrival));
    ASSERT_TRUE(fabric_->fault());
    EXPECT_EQ(fabric_->fault()->peerRank, 1);
    EXPECT_NE(fabric_->fault()->error.message.find(part), std::string::npos)
        << fabric_->fault()->error.message;
    EXPECT_EQ(link().tryStage(1), nullptr);
  }
  bool readable(short events = POLLIN) const {
    pollfd entry{fabric_->eventDescriptor(), events, 0};
    return poll(&entry, 1, 0) == 1;
  }

  OwnedFd peer_;
  std::unique_ptr<tcp::TcpFabric> fabric_;
};

TEST_F(TcpTest, WhatIsPostedGoesWhenTheRankLooksForAMessage) {
  const std::vector<std::byte> data = dataOf(1, 5000);
  std::memcpy(link().tryStage(5000), data.data(), 5000);
  link().post(5000, Digest{.sequence = 7});
  EXPECT_TRUE(read().empty());
  Arrival arrival;
  EXPECT_FALSE(link().tryReceive(arrival));
  const std::vector<std::byte> stream = read();
  ASSERT_EQ(stream.size(), kHeaderBytes + 5000);
  EXPECT_EQ(readHeader(stream).kind, Kind::Data);
  EXPECT_EQ(readHeader(stream).digest.sequence, 7U);
  EXPECT_EQ(std::memcmp(stream.data() + kHeaderBytes, data.data(), 5000), 0);
  EXPECT_TRUE(fabric_->settled());
}

TEST_F(TcpTest, AReferenceIsFreeWhenTheSystemHasIt) {
  std::vector<std::byte> data = dataOf(1, kSlotBytes);
  const std::vector<std::byte> before = data;
  EXPECT_FALSE(link().canReference(data.data(), kSlotBytes + 1));
  EXPECT_FALSE(link().tryPostReference(data.data(), kSlotBytes + 1, {}));
  ASSERT_TRUE(link().tryPostReference(data.data(), kSlotBytes, {}));
  EXPECT_TRUE(link().drained());
  EXPECT_TRUE(link().released(1));
  std::fill(data.begin(), data.end(), std::byte{0});
  const std::vector<std::byte> stream = read();
  ASSERT_EQ(stream.size(), kHeaderBytes + kSlotBytes);
  EXPECT_EQ(std::memcmp(stream.data() + kHeaderBytes, before.data(), kSlotBytes), 0);
}

// A system with little memory takes a part: the rest goes when it takes more, and none of it twice.
TEST_F(TcpTest, WhatTheSystemDoesNotTakeWaits) {
  const int little = 4096;
  const std::vector<std::byte> data = dataOf(1, kSlotBytes);
  ASSERT_EQ(setsockopt(dynamic_cast<tcp::TcpLink&>(link()).descriptor(), SOL_SOCKET, SO_SNDBUF, &little,
                       sizeof little),
            0);
  for (int number = 0; number < kSlots; ++number) {
    ASSERT_TRUE(link().tryPostReference(data.data(), kSlotBytes, {}));
  }
  EXPECT_EQ(link().tryStage(1), nullptr) << "no credit";
  EXPECT_FALSE(fabric_->settled());
  EXPECT_FALSE(link().drained());
  EXPECT_TRUE(fabric_->arm());
  EXPECT_FALSE(readable()) << "nothing has come, and there is no room";
  std::vector<std::byte> stream;
  for (int turn = 0; turn < 100 && stream.size() < kSlots * (kHeaderBytes + kSlotBytes); ++turn) {
    const std::vector<std::byte> more = read();
    stream.insert(stream.end(), more.begin(), more.end());
    if (turn == 0) {
      EXPECT_TRUE(readable()) << "there is room";
    }
    fabric_->poll();
  }
  EXPECT_TRUE(fabric_->settled());
  EXPECT_TRUE(link().drained());
  ASSERT_EQ(stream.size(), kSlots * (kHeaderBytes + kSlotBytes));
  for (size_t number = 0; number < kSlots; ++number) {
    const std::byte* message = stream.data() + number * (kHeaderBytes + kSlotBytes);
    EXPECT_EQ(std::memcmp(message + kHeaderBytes, data.data(), kSlotBytes), 0) << number;
  }
}

TEST_F(TcpTest, ARankThatGivesUpSendsNoMoreFromItsMemory) {
  const int little = 4096;
  std::vector<std::byte> data = dataOf(1, kSlotBytes);
  ASSERT_EQ(setsockopt(dynamic_cast<tcp::TcpLink&>(link()).descriptor(), SOL_SOCKET, SO_SNDBUF, &little,
                       sizeof little),
            0);
  for (int number = 0; number < kSlots; ++number) {
    ASSERT_TRUE(link().tryPostReference(data.data(), kSlotBytes, {}));
  }
  EXPECT_FALSE(link().drained());
  fabric_->withdraw();
  EXPECT_TRUE(link().drained());
  EXPECT_TRUE(fabric_->settled());
  const std::vector<std::byte> stream = read();
  EXPECT_GT(stream.size(), kHeaderBytes);
  EXPECT_LT(stream.size(), kSlots * (kHeaderBytes + kSlotBytes));
}

TEST_F(TcpTest, MessagesComeWholeHoweverTheyAreCut) {
  std::mt19937 random(5);
  for (uint32_t number = 0; number < 60; ++number) {
    const std::vector<std::byte> data = dataOf(number, random() % 4 == 0 ? kSlotBytes : random() % 5000);
    std::vector<std::byte> stream(kHeaderBytes + data.size());
    const Header header = headerOf(Kind::Data, data.size(), 0, number);
    std::memcpy(stream.data(), &header, sizeof header);
    std::copy(data.begin(), data.end(), stream.begin() + kHeaderBytes);
    Arrival arrival;
    for (size_t done = 0; done < stream.size();) {
      EXPECT_FALSE(link().tryReceive(arrival)) << number;
      const size_t piece = std::min<size_t>(1 + random() % 3000, stream.size() - done);
      write(stream.data() + done, piece);
      done += piece;
    }
    expectMessage(number, data);
    EXPECT_TRUE(fabric_->settled());
    read();  // credits
  }
}

// A header comes in two parts, cut anywhere, behind data that are long (only a header is read along with
// them) or short (whatever is there is).
TEST_F(TcpTest, HeadersComeInParts) {
  const std::vector<std::byte> behind = dataOf(7, 20);
  uint32_t sequence = 0;
  for (const size_t before : {kSlotBytes, size_t{30}}) {
    for (size_t part = 1; part < kHeaderBytes; ++part) {
      SCOPED_TRACE(part);
      const std::vector<std::byte> data = dataOf(sequence, before);
      const Header header = headerOf(Kind::Data, behind.size(), 0, sequence + 1);
      std::array<std::byte, kHeaderBytes> bytes;
      std::memcpy(bytes.data(), &header, kHeaderBytes);
      sendData(sequence, data);
      write(bytes.data(), part);
      expectMessage(sequence, data);
      Arrival arrival;
      EXPECT_FALSE(comes(arrival));
      write(bytes.data() + part, kHeaderBytes - part);
      EXPECT_FALSE(comes(arrival));
      write(behind.data(), behind.size());
      expectMessage(sequence + 1, behind);
      EXPECT_TRUE(fabric_->settled());
      read();  // credits
      sequence += 2;
    }
  }
}

TEST_F(TcpTest, DataLandWhereTheyAreExpected) {
  std::vector<std::byte> memory(kSlotBytes);
  const std::vector<std::byte> data = dataOf(1, kSlotBytes), shorter = dataOf(2, 100);
  Arrival arrival;
  link().expect(memory.data(), kSlotBytes);
  EXPECT_FALSE(link().tryReceive(arrival));
  sendData(0, data);
  sendData(1, data);
  sendData(2, shorter);
  ASSERT_TRUE(comes(arrival));
  EXPECT_EQ(arrival.data, memory.data());
  EXPECT_EQ(memory, data);
  link().release();
  // The next was not looked at yet, so it can still be expected.
  std::fill(memory.begin(), memory.end(), std::byte{0});
  link().expect(memory.data(), kSlotBytes);
  ASSERT_TRUE(comes(arrival));
  EXPECT_EQ(arrival.data, memory.data());
  EXPECT_EQ(memory, data);
  link().release();
  // Of another length than expected.
  link().expect(memory.data(), kSlotBytes);
  ASSERT_TRUE(comes(arrival));
  EXPECT_NE(arrival.data, memory.data());
  expectMessage(2, shorter);
  EXPECT_EQ(memory, data);
}

TEST_F(TcpTest, ARankThatGivesUpHasItsMemoryBack) {
  std::vector<std::byte> memory(kSlotBytes);
  const std::vector<std::byte> data = dataOf(1, kSlotBytes);
  Arrival arrival;
  link().expect(memory.data(), kSlotBytes);
  fabric_->withdraw();
  sendData(0, data);
  expectMessage(0, data);
  EXPECT_EQ(memory, std::vector<std::byte>(kSlotBytes));
  link().expect(memory.data(), kSlotBytes);
  say(headerOf(Kind::Data, kSlotBytes, 0, 1));
  write(data.data(), 1000);
  EXPECT_FALSE(comes(arrival));
  fabric_->withdraw();  // a part of it is there: the link ends
  const std::vector<std::byte> then = memory;
  EXPECT_FALSE(comes(arrival));
  EXPECT_EQ(memory, then);
  EXPECT_EQ(link().tryStage(1), nullptr);
}

TEST_F(TcpTest, CreditsGoAloneWhenNoMessageTakesThemAlong) {
  for (uint32_t number = 0; number < 2; ++number) {
    sendData(number, dataOf(number, 10));
    expectMessage(number, dataOf(number, 10));
  }
  EXPECT_TRUE(fabric_->settled());
  std::vector<std::byte> stream = read();
  ASSERT_EQ(stream.size(), kHeaderBytes) << "half of the slots are free again";
  EXPECT_EQ(readHeader(stream).kind, Kind::Credit);
  EXPECT_EQ(readHeader(stream).released, 2U);
  for (uint32_t number = 2; number < 4; ++number) {
    sendData(number, dataOf(number, 10));
    expectMessage(number, dataOf(number, 10));
  }
  ASSERT_NE(link().tryStage(0), nullptr);
  link().post(0, {});
  EXPECT_TRUE(fabric_->settled());
  stream = read();
  ASSERT_EQ(stream.size(), kHeaderBytes);
  EXPECT_EQ(readHeader(stream).kind, Kind::Data);
  EXPECT_EQ(readHeader(stream).released, 4U);
}

// A peer that waits for credits waits for ever if they are written, refused by the system and forgotten.
TEST_F(TcpTest, CreditsThatTheSystemDoesNotTakeGoLater) {
  const int descriptor = dynamic_cast<tcp::TcpLink&>(link()).descriptor();
  const std::vector<std::byte> filler(4096);
  while (::send(descriptor, filler.data(), filler.size(), MSG_NOSIGNAL) > 0) {
  }
  for (uint32_t number = 0; number < kSlots; ++number) {
    sendData(number, dataOf(number, 10));
    expectMessage(number, dataOf(number, 10));
    EXPECT_EQ(fabric_->settled(), number == 0) << "nothing of the other direction takes them along";
  }
  read();
  fabric_->poll();
  EXPECT_TRUE(fabric_->settled());
  const std::vector<std::byte> stream = read();
  ASSERT_EQ(stream.size(), kHeaderBytes);
  EXPECT_EQ(readHeader(stream).kind, Kind::Credit);
  EXPECT_EQ(readHeader(stream).released, 4U);
}

// The system may take a part of a header. What is released meanwhile is said after it, and the last word is
// the farewell.
TEST_F(TcpTest, AControlMessageThatIsHalfThereIsFinished) {
  for (size_t part = 1; part < kHeaderBytes; ++part) {
    SCOPED_TRACE(part);
    TearDown();
    fabric_.reset();
    SetUp();
    scarce = {dynamic_cast<tcp::TcpLink&>(link()).descriptor(), part};
    uint32_t number = 0;
    for (; number < kSlots; ++number) {
      sendData(number, dataOf(number, 10));
    }
    for (number = 0; number < kSlots; ++number) {
      expectMessage(number, dataOf(number, 10));
    }
    EXPECT_FALSE(fabric_->settled());
    EXPECT_EQ(read().size(), part);
    dynamic_cast<tcp::TcpLink&>(link()).sayLeaving();
    EXPECT_TRUE(read().empty());
    scarce = {};
    EXPECT_TRUE(fabric_->settled());
    // The first part was read above: what is left of the credit, and the farewell with all that was released.
    const std::vector<std::byte> stream = read();
    ASSERT_EQ(stream.size(), 2 * kHeaderBytes - part);
    const Header last = readHeader(stream, kHeaderBytes - part);
    EXPECT_EQ(last.kind, Kind::Leaving);
    EXPECT_EQ(last.released, static_cast<uint64_t>(kSlots));
    say(headerOf(Kind::Leaving, 0, 0));  // so that it is not waited for
  }
}

TEST_F(TcpTest, CreditsThatComeDueWhileOneIsHalfThereAreSaid) {
  scarce = {dynamic_cast<tcp::TcpLink&>(link()).descriptor(), 7};
  for (uint32_t number = 0; number < kSlots; ++number) {
    sendData(number, dataOf(number, 10));
    expectMessage(number, dataOf(number, 10));
  }
  scarce = {};
  EXPECT_TRUE(fabric_->settled());
  const std::vector<std::byte> stream = read();
  ASSERT_EQ(stream.size(), 2 * kHeaderBytes);
  EXPECT_EQ(readHeader(stream).released, 2U) << "half of the slots";
  EXPECT_EQ(readHeader(stream, kHeaderBytes).kind, Kind::Credit);
  EXPECT_EQ(readHeader(stream, kHeaderBytes).released, 4U);
}

// A message is sent in parts, header and data, at every cut: none of it twice.
TEST_F(TcpTest, AMessageThatIsHalfThereIsFinished) {
  const std::vector<std::byte> data = dataOf(1, 30);
  for (size_t part = 1; part < kHeaderBytes + data.size(); ++part) {
    SCOPED_TRACE(part);
    scarce = {dynamic_cast<tcp::TcpLink&>(link()).descriptor(), part};
    std::memcpy(link().tryStage(data.size()), data.data(), data.size());
    link().post(data.size(), Digest{.sequence = static_cast<uint32_t>(part)});
    EXPECT_FALSE(fabric_->settled());
    std::vector<std::byte> stream = read();
    ASSERT_EQ(stream.size(), part);
    scarce = {};
    EXPECT_TRUE(fabric_->settled());
    const std::vector<std::byte> rest = read();
    stream.insert(stream.end(), rest.begin(), rest.end());
    ASSERT_EQ(stream.size(), kHeaderBytes + data.size());
    EXPECT_EQ(readHeader(stream).digest.sequence, part);
    EXPECT_EQ(std::memcmp(stream.data() + kHeaderBytes, data.data(), data.size()), 0);
    say(headerOf(Kind::Credit, 0, part));
    fabric_->poll();
  }
}

// Credits that overtake a message at its sender make the count in its header an old one.
TEST_F(TcpTest, AnOldCountAfterANewOneIsNothing) {
  for (int number = 0; number < kSlots; ++number) {
    ASSERT_NE(link().tryStage(1), nullptr);
    link().post(1, {});
  }
  EXPECT_EQ(link().tryStage(1), nullptr);
  say(headerOf(Kind::Credit, 0, 2));
  sendData(0, dataOf(0, 10), 1);
  expectMessage(0, dataOf(0, 10));
  EXPECT_FALSE(fabric_->fault());
  EXPECT_TRUE(link().released(2));
  EXPECT_FALSE(link().released(3));
  EXPECT_NE(link().tryStage(1), nullptr);
}

TEST_F(TcpTest, TheDescriptorTellsASleeper) {
  for (uint32_t number = 0; number < 3; ++number) {
    EXPECT_TRUE(fabric_->arm());
    EXPECT_FALSE(readable());
    sendData(number, dataOf(number, 100));
    EXPECT_TRUE(readable());
    expectMessage(number, dataOf(number, 100));
  }
}

TEST_F(TcpTest, AnUnknownKindIsAFault) {
  say(headerOf(static_cast<Kind>(9), 0, 0));
  expectFault("kind 9");
}
TEST_F(TcpTest, DataThatNoSlotHoldsAreAFault) {
  say(headerOf(Kind::Data, kSlotBytes + 1, 0));
  expectFault("8193 bytes in a slot of 8192");
}
TEST_F(TcpTest, MoreMessagesThanSlotsAreAFault) {
  for (uint32_t number = 0; number <= kSlots; ++number) {
    sendData(number, {});
  }
  EXPECT_TRUE(fabric_->arm());  // reads all
  ASSERT_TRUE(fabric_->fault());
  EXPECT_NE(fabric_->fault()->error.message.find("with 4 slots"), std::string::npos);
  expectMessage(0, {});  // what came before is shown
}
TEST_F(TcpTest, ReleasesOfWhatWasNeverPostedAreAFault) {
  say(headerOf(Kind::Credit, 0, 1));
  expectFault("it released 1 messages of 0");
}
TEST_F(TcpTest, AnEndWithoutFarewellIsAFault) {
  say(headerOf(Kind::Data, 100, 0));  // whose data never come
  peer_.reset();
  expectFault("rank 0 lost rank 1: the connection over TCP ended");
}

TEST_F(TcpTest, AnEndAfterAFarewellIsNone) {
  sendData(0, dataOf(0, 10));
  say(headerOf(Kind::Leaving, 0, 0));
  peer_.reset();
  expectMessage(0, dataOf(0, 10));
  Arrival arrival;
  EXPECT_FALSE(comes(arrival));
  EXPECT_FALSE(fabric_->fault());
  EXPECT_TRUE(fabric_->isOver(1));
  ASSERT_NE(link().tryStage(5), nullptr) << "what is sent there goes nowhere";
  link().post(5, {});
  EXPECT_TRUE(fabric_->settled());
}

TEST_F(TcpTest, WhoLeavesSaysSoAfterItsLastMessage) {
  ASSERT_NE(link().tryStage(5), nullptr);
  link().post(5, {});
  say(headerOf(Kind::Leaving, 0, 0));  // so that it is not waited for
  fabric_.reset();
  const std::vector<std::byte> stream = read();
  ASSERT_EQ(stream.size(), 2 * kHeaderBytes + 5);
  EXPECT_EQ(readHeader(stream, kHeaderBytes + 5).kind, Kind::Leaving);
}

TEST(TcpConnect, RanksWithOtherSlotsAreRefused) {
  GivesSocket control(-1);
  for (const bool isShort : {false, true}) {
    Cards cards;
    cards.change = std::byte{0x40};
    cards.shorten = isShort ? 1 : 0;
    tcp::TcpFabric fabric({kSlotBytes, kSlots}, "");
    const Result<void> refused = fabric.connect(cards, {1}, control, Deadline::afterMs(kFarMs));
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find(isShort ? "same version" : "PEAL_SLOT_BYTES"), std::string::npos)
        << refused.error().message;
  }
}

// Larger slots are the library's wish, what was asked for is the user's.
TEST(TcpConnect, LargerSlotsStayWithinTwoMiBOfADirection) {
  struct Row {
    size_t askedBytes;
    int asked;
    size_t bytes;
    int slots;
  };
  for (const Row& row :
       {Row{65536, 4, 262144, 8}, Row{32768, 4, 131072, 8}, Row{64, 2, 256, 4}, Row{65536, 16, 65536, 32},
        Row{98304, 4, 262144, 8}, Row{65536, 64, 65536, 64}, Row{size_t{1} << 20, 4, size_t{1} << 20, 4},
        Row{size_t{16} << 20, 32, size_t{16} << 20, 32}, Row{192, 40, 768, 64}}) {
    const FabricOptions larger = enlarged({row.askedBytes, row.asked, true}, 2, 4);
    EXPECT_EQ(larger.slotBytes, row.bytes) << row.askedBytes << " " << row.asked;
    EXPECT_EQ(larger.slots, row.slots) << row.askedBytes << " " << row.asked;
    EXPECT_TRUE(larger.ranksApart);
    const FabricOptions same = enlarged({row.askedBytes, row.asked, false}, 2, 4);
    EXPECT_EQ(same.slotBytes, row.askedBytes);
    EXPECT_EQ(same.slots, row.asked);
  }
  const FabricOptions ofUcx = enlarged({65536, 4, true}, 1, 2);
  EXPECT_EQ(ofUcx.slotBytes, 131072U);
  EXPECT_EQ(ofUcx.slots, 4);
}

// Both ends of a connection over lo.
std::pair<OwnedFd, OwnedFd> loopbackPair() {
  const OwnedFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const pointer = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(listener.get(), pointer, length), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), pointer, &length), 0);
  OwnedFd caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(caller.get(), pointer, length), 0);
  return {std::move(caller), OwnedFd(accept(listener.get(), nullptr, nullptr))};
}

std::string congestionOf(int socket) {
  char used[16] = "";
  socklen_t bytes = sizeof used;
  EXPECT_EQ(getsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, used, &bytes), 0);
  return used;
}

// Reno is in every kernel, and everybody may choose it.
TEST(TcpConnect, CongestionControlIsWhatIsAskedForIfThereIsSuch) {
  const auto usedFor = [](const char* wanted, const std::string& before) {
    auto [socket, peer] = loopbackPair();
    if (!before.empty() && setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, before.data(),
                                      static_cast<socklen_t>(before.size())) != 0) {
      return std::string("refused");
    }
    const int descriptor = socket.get();
    GivesSocket control(socket.release());
    Cards cards;
    tcp::TcpFabric fabric({kSlotBytes, kSlots}, wanted);
    EXPECT_TRUE(fabric.connect(cards, {1}, control, Deadline::afterMs(kFarMs)));
    return congestionOf(descriptor);
  };
  const std::string systems = congestionOf(loopbackPair().first.get());
  EXPECT_EQ(usedFor("reno", ""), "reno");
  EXPECT_EQ(usedFor("system", ""), systems);
  EXPECT_EQ(usedFor("no-such", ""), systems);
  EXPECT_EQ(usedFor("auto", "reno"), "reno");
  // bbr paces, and the peer is near.
  EXPECT_EQ(usedFor("auto", ""), systems == "bbr" ? "reno" : systems);
  if (const std::string used = usedFor("auto", "bbr"); used != "refused") {
    EXPECT_EQ(used, "reno");
    EXPECT_EQ(usedFor("system", "bbr"), "bbr");
  }
}

}  // namespace
}  // namespace peal::test
