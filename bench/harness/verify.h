// Prepares the buffers of one call and judges what the call left in them.
//
// Wrong: an element of the receive buffer that is not the reference's. Stray: a byte outside of it that
// changed: in the guard zones, in the send buffer, or elsewhere in the buffer of an in-place call.
#pragma once
#include <cstdint>
#include <string>

#include "bench/harness/arena.h"
#include "bench/harness/collective.h"
#include "bench/harness/values.h"

namespace peal::bench {

enum class Place { Out, In };

struct Findings {
  uint64_t wrongElements = 0;
  uint64_t strayBytes = 0;
  std::string first;  // a sentence about the first fault; empty if there is none
};

class Verifier {
 public:
  // send and receive live as long as this. In place only receive is used.
  Verifier(const Collective& collective, Arena& send, Arena& receive, Place place);

  // Fills the buffers for `call`; values must be the ones that check() gets.
  void prepare(const Call& call, const Extents& extents, const Values& values);
  Findings check(const Call& call, const Extents& extents, const Values& values) const;

  const void* sendPointer(const Call& call, const Extents& extents) const;
  void* receivePointer(const Call& call, const Extents& extents) const;

 private:
  // Where the call's send and receive pointers lie, in bytes from the start of the buffer that holds them.
  size_t sendAt(const Call& call, const Extents& extents) const;
  size_t receiveAt(const Call& call, const Extents& extents) const;
  // Of the buffer that receives, in elements.
  size_t usedElements(const Extents& extents) const;

  const Collective& collective_;
  Arena& send_;
  Arena& receive_;
  Place place_;
};

}  // namespace peal::bench
