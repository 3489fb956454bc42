#include "transports/ucx/wire.h"

#include <algorithm>

namespace peal::ucx {
namespace {

// Changes with every change of Header or Card; written in the byte order of the machine.
constexpr uint64_t kMagic = 0x31'78'63'75'6c'61'65'70;  // "pealucx1"

void put(std::vector<std::byte>& to, const void* data, size_t bytes) {
  const size_t end = to.size();
  to.resize(end + bytes);
  if (bytes > 0) {
    std::memcpy(to.data() + end, data, bytes);
  }
}

void putNumber(std::vector<std::byte>& to, uint64_t number) { put(to, &number, sizeof number); }

void putBlock(std::vector<std::byte>& to, const void* data, size_t bytes) {
  putNumber(to, bytes);
  put(to, data, bytes);
}

// Reads from the front of what is left; after the end everything fails.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  uint64_t number() {
    uint64_t value = 0;
    if (take(sizeof value)) {
      std::memcpy(&value, taken_.data(), sizeof value);
    }
    return value;
  }
  std::span<const std::byte> block() {
    const uint64_t count = number();
    return take(count) ? taken_ : std::span<const std::byte>();
  }
  std::string text() {
    const std::span<const std::byte> bytes = block();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool whole() const { return good_ && left_.empty(); }

 private:
  bool take(uint64_t bytes) {
    good_ = good_ && bytes <= left_.size();
    if (good_) {
      taken_ = left_.first(bytes);
      left_ = left_.subspan(bytes);
    }
    return good_;
  }

  std::span<const std::byte> left_;
  std::span<const std::byte> taken_;
  bool good_ = true;
};

}  // namespace

std::vector<std::byte> packCard(const Card& card) {
  std::vector<std::byte> bytes;
  for (const uint64_t number : {kMagic, card.slotBytes, card.slots, card.token, card.socketBytes}) {
    putNumber(bytes, number);
  }
  putBlock(bytes, card.ucxVersion.data(), card.ucxVersion.size());
  putBlock(bytes, card.error.data(), card.error.size());
  putBlock(bytes, card.address.data(), card.address.size());
  return bytes;
}

bool unpackCard(std::span<const std::byte> bytes, Card& card) {
  Reader reader(bytes);
  if (reader.number() != kMagic) {
    return false;
  }
  card.slotBytes = reader.number();
  card.slots = reader.number();
  card.token = reader.number();
  card.socketBytes = reader.number();
  card.ucxVersion = reader.text();
  card.error = reader.text();
  const std::span<const std::byte> address = reader.block();
  card.address.assign(address.begin(), address.end());
  return reader.whole();
}

}  // namespace peal::ucx
