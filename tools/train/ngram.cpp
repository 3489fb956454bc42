#include "tools/train/ngram.h"

#include <cmath>
#include <unordered_map>

namespace peal::train {
namespace {

struct Continuations {
  uint32_t occurrences = 0;
  uint32_t kinds = 0;
};

// Histories and history-symbol pairs of one length, keyed by their symbols as digits. Keys of up to three
// symbols of history fit: vocabulary^4 < 2^64 for every vocabulary up to 65535.
struct Counts {
  std::unordered_map<uint64_t, Continuations> histories;
  std::unordered_map<uint64_t, uint32_t> pairs;
};

class Ngram {
 public:
  Ngram(const std::vector<uint32_t>& training, size_t vocabulary, size_t order)
      : vocabulary_(vocabulary), counts_(order + 1) {
    for (size_t length = 0; length <= order; ++length) {
      Counts& counts = counts_[length];
      for (size_t i = length; i < training.size(); ++i) {
        const uint64_t history = key(training.data() + i, length);
        Continuations& seen = counts.histories[history];
        ++seen.occurrences;
        if (++counts.pairs[history * vocabulary_ + training[i]] == 1)
          ++seen.kinds;
      }
    }
  }

  // Of *next, given `order` symbols before it.
  double probability(const uint32_t* next) const {
    double p = 1.0 / static_cast<double>(vocabulary_);
    for (size_t length = 0; length < counts_.size(); ++length) {
      const uint64_t history = key(next, length);
      const auto seen = counts_[length].histories.find(history);
      if (seen == counts_[length].histories.end())
        break;
      const auto pair = counts_[length].pairs.find(history * vocabulary_ + *next);
      const double count = pair == counts_[length].pairs.end() ? 0 : pair->second;
      p = (count + seen->second.kinds * p) /
          (static_cast<double>(seen->second.occurrences) + seen->second.kinds);
    }
    return p;
  }

 private:
  uint64_t key(const uint32_t* next, size_t length) const {
    uint64_t value = 0;
    for (size_t i = 1; i <= length; ++i)
      value = value * vocabulary_ + *(next - i);
    return value;
  }

  uint64_t vocabulary_;
  std::vector<Counts> counts_;
};

}  // namespace

double ngramLoss(const std::vector<uint32_t>& training, const std::vector<uint32_t>& heldOut,
                 size_t vocabulary, size_t order) {
  const Ngram model(training, vocabulary, order);
  std::vector<uint32_t> text(training.end() - static_cast<std::ptrdiff_t>(order), training.end());
  text.insert(text.end(), heldOut.begin(), heldOut.end());
  double loss = 0;
  for (size_t i = order; i < text.size(); ++i)
    loss -= std::log(model.probability(text.data() + i));
  return loss / static_cast<double>(heldOut.size());
}

}  // namespace peal::train
