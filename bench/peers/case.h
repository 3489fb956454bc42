// One thing to measure: a collective, a type and a size, with the values that show a wrong result. The same
// for every contender.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

namespace peers {

enum class Collective { AllReduce, ReduceScatter, AllGather, Broadcast, Reduce, AllToAll, SendRecv };
enum class Type { Float, Half, Bfloat16 };

struct Case {
  Collective collective = Collective::AllReduce;
  Type type = Type::Float;
  int rank = 0, ranks = 1;
  size_t elementBytes = 4;
  // Elements: the whole array; of reduce-scatter, all-gather and all-to-all one rank's share.
  size_t count = 0;
  size_t sendCount = 0, recvCount = 0;

  size_t sendBytes() const { return sendCount * elementBytes; }
  size_t recvBytes() const { return recvCount * elementBytes; }
  // Enough for a peer that can only work in place.
  size_t bufferBytes() const { return sendBytes() > recvBytes() ? sendBytes() : recvBytes(); }
};

constexpr int kRoot = 0;  // of broadcast and reduce

// Names as bench/peers/run writes them: "all_reduce", "float". `bytes`: of the larger of a rank's two
// buffers. A size too small for an element of every rank becomes one element each.
std::optional<Case> makeCase(const std::string& collective, const std::string& type, size_t bytes, int rank,
                             int ranks);

// Inputs: small whole numbers that differ by rank and index. Their sums are exact in every type, in any
// order, for up to eight ranks. The root of a broadcast sends what is in `recv`: it works in place, as
// MPI_Bcast does.
void fillInputs(const Case& what, void* send, void* recv);
// Wrong elements of this rank's result. Ranks that get none have none wrong.
size_t countWrong(const Case& what, const void* recv);

// A 16-bit float's value, and the nearest one to a value (ties to even).
float fromBits(Type type, unsigned short bits);
unsigned short toBits(Type type, float value);

}  // namespace peers
