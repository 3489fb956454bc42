#include "bench/peers/case.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace peers {
namespace {

constexpr std::array<std::string_view, 7> kCollectives = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_recv"};
constexpr std::array<std::string_view, 3> kTypes = {"float", "fp16", "bf16"};
constexpr size_t kPeriod = 7;  // no power of two: an exchanged or shifted block shows

template <size_t N>
std::optional<size_t> indexOf(const std::array<std::string_view, N>& names, std::string_view name) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) {
      return i;
    }
  }
  return std::nullopt;
}

float valueOf(int rank, size_t index) {
  return static_cast<float>((rank + 1) * (1 + static_cast<int>(index % kPeriod)));
}

float sumAt(int ranks, size_t index) {
  const int rankSum = ranks * (ranks + 1) / 2;
  return static_cast<float>(rankSum * (1 + static_cast<int>(index % kPeriod)));
}

float expectedAt(const Case& what, size_t index) {
  const auto share = static_cast<size_t>(what.rank) * what.count;
  switch (what.collective) {
    case Collective::AllReduce:
    case Collective::Reduce:
      return sumAt(what.ranks, index);
    case Collective::ReduceScatter:
      return sumAt(what.ranks, share + index);
    case Collective::AllGather:
      return valueOf(static_cast<int>(index / what.count), index % what.count);
    case Collective::Broadcast:
      return valueOf(kRoot, index);
    case Collective::AllToAll:
      return valueOf(static_cast<int>(index / what.count), share + index % what.count);
    case Collective::SendRecv:
      return valueOf((what.rank + what.ranks - 1) % what.ranks, index);
  }
  return 0;
}

void store(Type type, void* buffer, size_t index, float value) {
  if (type == Type::Float) {
    static_cast<float*>(buffer)[index] = value;
  } else {
    static_cast<unsigned short*>(buffer)[index] = toBits(type, value);
  }
}

}  // namespace

std::optional<Case> makeCase(const std::string& collective, const std::string& type, size_t bytes, int rank,
                             int ranks) {
  const auto collectiveAt = indexOf(kCollectives, collective), typeAt = indexOf(kTypes, type);
  if (!collectiveAt || !typeAt) {
    return std::nullopt;
  }
  Case made;
  made.collective = static_cast<Collective>(*collectiveAt);
  made.type = static_cast<Type>(*typeAt);
  made.rank = rank;
  made.ranks = ranks;
  made.elementBytes = made.type == Type::Float ? 4 : 2;
  const size_t elements = bytes / made.elementBytes, all = static_cast<size_t>(ranks);
  const bool isShared = made.collective == Collective::ReduceScatter ||
                        made.collective == Collective::AllGather || made.collective == Collective::AllToAll;
  made.count = isShared ? elements / all : elements;
  made.count = made.count == 0 ? 1 : made.count;
  made.sendCount = isShared && made.collective != Collective::AllGather ? made.count * all : made.count;
  made.recvCount = isShared && made.collective != Collective::ReduceScatter ? made.count * all : made.count;
  return made;
}

void fillInputs(const Case& what, void* send, void* recv) {
  for (size_t i = 0; i < what.sendCount; ++i) {
    store(what.type, send, i, valueOf(what.rank, i));
  }
  std::memset(recv, 0xff, what.bufferBytes());  // not a number in any of the types
  if (what.collective == Collective::Broadcast && what.rank == kRoot) {
    std::memcpy(recv, send, what.sendBytes());
  }
}

size_t countWrong(const Case& what, const void* recv) {
  if (what.collective == Collective::Reduce && what.rank != kRoot) {
    return 0;
  }
  size_t wrong = 0;
  for (size_t i = 0; i < what.recvCount; ++i) {
    const float seen = what.type == Type::Float
                           ? static_cast<const float*>(recv)[i]
                           : fromBits(what.type, static_cast<const unsigned short*>(recv)[i]);
    wrong += seen == expectedAt(what, i) ? 0 : 1;
  }
  return wrong;
}

float fromBits(Type type, unsigned short bits) {
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  if (type == Type::Half) {
    // The exponent's bias goes from 15 to 127 by a multiplication, which is right for small numbers too.
    wide = (bits & 0x8000U) << 16 | (bits & 0x7fffU) << 13;
    if ((bits & 0x7c00U) == 0x7c00U) {
      wide |= 0x7f800000U;
    }
  }
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return type == Type::Half && (bits & 0x7c00U) != 0x7c00U ? value * 0x1p112F : value;
}

unsigned short toBits(Type type, float value) {
  if (type == Type::Half) {
    value *= 0x1p-112F;  // the other way; what is rounded below has 13 bits to spare
  }
  uint32_t wide = 0;
  std::memcpy(&wide, &value, sizeof wide);
  const uint32_t sign = wide & 0x80000000U, spare = type == Type::Half ? 13 : 16;
  const uint32_t magnitude = wide & 0x7fffffffU;
  const uint32_t rounded = (magnitude + (1U << (spare - 1)) - 1 + (magnitude >> spare & 1U)) >> spare;
  return static_cast<unsigned short>(sign >> 16 | rounded);
}

}  // namespace peers
