// Where the bytes of short messages lie that are on their way: one after the other in a ring of memory, so
// that few pages and lines are touched, and none longer than the message. The sender's books; it writes
// nothing.
//
// Used by links, whose messages it numbers.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace peal::shm {

inline constexpr size_t kLine = 64;

// Messages that a link has room for, of all kinds together. Others than short ones are only posted while
// fewer than `slots`, which is no more, are on their way.
inline constexpr uint32_t kRingEntries = 64;

class ByteRing {
 public:
  static constexpr size_t kBytes = 32768;
  static constexpr size_t kMostBytes = 4096;  // of a message

  // An offset for so many bytes of message `number`, if those below `released` need theirs no more. Asking
  // again before take() gives the same one.
  std::optional<uint32_t> room(uint64_t number, uint64_t released, size_t bytes) {
    uint64_t begin = end_;
    if (begin % kBytes + bytes > kBytes) {
      begin += kBytes - begin % kBytes;
    }
    const uint64_t freeUpTo = released == number ? begin : begins_[released % kRingEntries];
    if (begin + bytes - freeUpTo > kBytes) {
      return std::nullopt;
    }
    next_ = begin;
    return static_cast<uint32_t>(begin % kBytes);
  }
  // The message that comes next lies, so many bytes of it, where room() said last.
  void take(size_t bytes) {
    begin_ = next_;
    end_ = next_ + (bytes + kLine - 1) / kLine * kLine;
  }
  // Message `number` is complete, with bytes here or without.
  void close(uint64_t number) {
    begins_[number % kRingEntries] = begin_;
    begin_ = end_;
  }

 private:
  uint64_t end_ = 0;                             // counted on and on
  uint64_t next_ = 0;                            // where room() found some
  uint64_t begin_ = 0;                           // of the message that comes next
  std::array<uint64_t, kRingEntries> begins_{};  // of messages on their way
};

}  // namespace peal::shm
