// What counting characters achieves on the same text: the yardstick for the model's loss.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace peal::train {

// Nats per symbol of an n-gram model of the given order (symbols of history: 1 is a bigram, 3 a four-gram)
// on heldOut, counted on training, smoothed by interpolation after Witten and Bell (1991): with N
// occurrences of a history and T different symbols after it,
//   p(x | history) = (count(history x) + T p(x | shorter history)) / (N + T).
// The recursion ends at 1/vocabulary. The first `order` symbols of heldOut see the end of training.
double ngramLoss(const std::vector<uint32_t>& training, const std::vector<uint32_t>& heldOut,
                 size_t vocabulary, size_t order);

}  // namespace peal::train
