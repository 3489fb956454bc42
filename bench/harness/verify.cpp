#include "bench/harness/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "bench/harness/small_float.h"

namespace peal::bench {
namespace {

constexpr size_t kChunk = 1024;  // elements compared at a time

enum class Region { Result, Elsewhere };

// The value, and its bits for those that print alike.
std::string elementText(const TypeInfo& info, const std::byte* element) {
  uint64_t bits = 0;
  std::memcpy(&bits, element, info.bytes);
  return fmt::format("{} (0x{:0{}x})", decodeElement(info.type, element), bits, 2 * info.bytes);
}

// Part of a buffer that is compared, and what it is called in a sentence.
struct Stretch {
  const std::byte* memory;
  size_t count;  // elements
  Region region;
  const char* name;
  size_t firstIndex;  // of its first element, in what the name names
};

// Compares a stretch with what `expect(first, count, out)` gives, and counts.
template <class Expect>
void compare(const Stretch& stretch, const Values& values, const Expect& expect, Findings& findings) {
  const auto& [memory, count, region, name, firstIndex] = stretch;
  const size_t elementBytes = values.type().bytes;
  std::array<std::byte, kChunk * 8> expected;
  for (size_t done = 0; done < count; done += kChunk) {
    const size_t part = std::min(kChunk, count - done);
    const std::byte* got = memory + done * elementBytes;
    expect(done, part, expected.data());
    if (std::memcmp(got, expected.data(), part * elementBytes) == 0) {
      continue;
    }
    for (size_t i = 0; i < part; ++i) {
      const std::byte* have = got + i * elementBytes;
      const std::byte* want = expected.data() + i * elementBytes;
      if (std::memcmp(have, want, elementBytes) == 0) {
        continue;
      }
      if (findings.first.empty()) {
        findings.first = fmt::format("element {} of {} is {}, not {}", firstIndex + done + i, name,
                                     elementText(values.type(), have), elementText(values.type(), want));
      }
      if (region == Region::Result) {
        ++findings.wrongElements;
      } else {
        findings.strayBytes += elementBytes;
      }
    }
  }
}

void checkGuards(const Arena& arena, size_t usedBytes, const char* name, Findings& findings) {
  int64_t firstAt = 0;
  const uint64_t damaged = arena.damagedGuardBytes(usedBytes, &firstAt);
  if (damaged != 0 && findings.first.empty()) {
    findings.first =
        fmt::format("around the {} buffer of {} bytes {} were overwritten, the first at offset {}", name,
                    usedBytes, damaged, firstAt);
  }
  findings.strayBytes += damaged;
}

}  // namespace

Verifier::Verifier(const Collective& collective, Arena& send, Arena& receive, Place place)
    : collective_(collective), send_(send), receive_(receive), place_(place) {}

size_t Verifier::usedElements(const Extents& extents) const {
  return place_ == Place::In ? std::max(extents.send, extents.receive) : extents.receive;
}

size_t Verifier::sendAt(const Call& call, const Extents& extents) const {
  return place_ == Place::In ? call.rank * extents.sendInPlaceAt * typeInfo(call.type).bytes : 0;
}

size_t Verifier::receiveAt(const Call& call, const Extents& extents) const {
  return place_ == Place::In ? call.rank * extents.receiveInPlaceAt * typeInfo(call.type).bytes : 0;
}

const void* Verifier::sendPointer(const Call& call, const Extents& extents) const {
  return (place_ == Place::Out ? send_ : receive_).data() + sendAt(call, extents);
}

void* Verifier::receivePointer(const Call& call, const Extents& extents) const {
  return receive_.data() + receiveAt(call, extents);
}

void Verifier::prepare(const Call& call, const Extents& extents, const Values& values) {
  const size_t elementBytes = values.type().bytes;
  const size_t used = usedElements(extents);
  receive_.fillGuards(used * elementBytes);
  values.garbage(call.rank, 0, used, receive_.host());
  Arena& source = place_ == Place::Out ? send_ : receive_;
  if (place_ == Place::Out) {
    send_.fillGuards(extents.send * elementBytes);
  }
  values.input(call.rank, 0, extents.send, source.host() + sendAt(call, extents));
  receive_.upload(used * elementBytes);
  if (place_ == Place::Out) {
    send_.upload(extents.send * elementBytes);
  }
}

Findings Verifier::check(const Call& call, const Extents& extents, const Values& values) const {
  const size_t elementBytes = values.type().bytes;
  Findings findings;
  receive_.download(usedElements(extents) * elementBytes);
  if (place_ == Place::Out) {
    send_.download(extents.send * elementBytes);
  }
  const std::byte* received = receive_.host() + receiveAt(call, extents);

  size_t at = 0;
  for (const Piece& piece : collective_.result(call)) {
    const auto expect = [&](size_t first, size_t count, void* out) {
      if (piece.source == Piece::Source::Reduction) {
        values.reduced(piece.sourceAt + first, count, out);
      } else if (piece.source == Piece::Source::Rank) {
        values.input(piece.rank, piece.sourceAt + first, count, out);
      } else if (place_ == Place::In) {
        values.input(call.rank, at + first, count, out);
      } else {
        values.garbage(call.rank, at + first, count, out);
      }
    };
    compare({received + at * elementBytes, piece.count, Region::Result, "the result", at}, values, expect,
            findings);
    at += piece.count;
  }

  checkGuards(receive_, usedElements(extents) * elementBytes, "receive", findings);
  const char* const readOnly = "the send buffer, which is only read,";
  const auto ownInput = [&](size_t from) {
    return [&, from](size_t first, size_t count, void* out) {
      values.input(call.rank, from + first, count, out);
    };
  };
  if (place_ == Place::Out) {
    compare({send_.host(), extents.send, Region::Elsewhere, readOnly, 0}, values, ownInput(0), findings);
    checkGuards(send_, extents.send * elementBytes, "send", findings);
  } else if (extents.send > extents.receive) {
    // Reduce-scatter: the other ranks' shares of the one buffer are only read.
    const size_t before = call.rank * extents.receiveInPlaceAt;
    const size_t after = before + extents.receive;
    compare({receive_.host(), before, Region::Elsewhere, readOnly, 0}, values, ownInput(0), findings);
    compare(
        {receive_.host() + after * elementBytes, extents.send - after, Region::Elsewhere, readOnly, after},
        values, ownInput(after), findings);
  }
  return findings;
}

}  // namespace peal::bench
