// How far away a peer is: whether what it has written comes from its cache more slowly than from memory. On a
// virtual machine that changes from second to second, as its cores move.
//
// Owned by a link, whose user says when to look.
#pragma once
#include <atomic>
#include <cstdint>

namespace peal::shm {

class Distance {
 public:
  // `line`: one that the peer writes in every call. It costs the way of that line, and reading the clock.
  bool look(const std::atomic<uint32_t>& line);
  bool isFar() const { return farLooks_ >= kFarFrom; }
  // A look had the line after so long; what came at once had not been written since the last.
  void note(int64_t ns);

 private:
  // Looks are to agree: one may have met an interrupt.
  static constexpr int kMostFarLooks = 3;
  static constexpr int kFarFrom = 2;

  int farLooks_ = 0;
};

}  // namespace peal::shm
