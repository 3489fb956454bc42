#include "tools/train/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <queue>

#include "tools/common/error.h"

namespace peal::train {
namespace {

constexpr std::string_view kBpeHeader = "peal-bpe 1\n";
// Of a saved tokenizer's tokens together: joins of joins grow as powers of two.
constexpr size_t kMostSavedBytes = size_t{1} << 28;
// Longer pieces are cut: an encoding's time grows with the square of this, not of the text's length.
constexpr size_t kLongestPiece = 64;

uint64_t pairKey(uint32_t left, uint32_t right) { return static_cast<uint64_t>(left) << 32 | right; }

enum class ByteClass { Letter, Digit, Space, Mark };

ByteClass classOf(char character) {
  const auto byte = static_cast<unsigned char>(character);
  if (byte >= 0x80 || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z')) {
    return ByteClass::Letter;
  }
  if (byte >= '0' && byte <= '9') {
    return ByteClass::Digit;
  }
  return byte == ' ' || (byte >= '\t' && byte <= '\r') ? ByteClass::Space : ByteClass::Mark;
}

// Calls body with each piece of bytes in turn.
template <class Body>
void eachPiece(std::string_view bytes, Body body) {
  for (size_t begin = 0; begin < bytes.size();) {
    size_t at = begin;
    if (bytes[at] == ' ' && at + 1 < bytes.size() && classOf(bytes[at + 1]) != ByteClass::Space) {
      ++at;
    }
    const ByteClass kind = classOf(bytes[at]);
    while (at < bytes.size() && at - begin < kLongestPiece && classOf(bytes[at]) == kind) {
      ++at;
    }
    body(bytes.substr(begin, at - begin));
    begin = at;
  }
}

// The pieces of the text to train on, each once, and where each pair of neighbours occurs.
class PairCounts {
 public:
  explicit PairCounts(std::string_view text) {
    std::unordered_map<std::string_view, uint64_t> counts;
    eachPiece(text, [&](std::string_view piece) { ++counts[piece]; });
    for (const auto& [piece, count] : counts) {
      pieces_.push_back({{}, count});
      for (const char byte : piece) {
        pieces_.back().tokens.push_back(static_cast<unsigned char>(byte));
      }
    }
    for (size_t i = 0; i < pieces_.size(); ++i) {
      addPairs(i);
    }
  }

  // The most frequent pair; false if none occurs twice.
  bool best(uint64_t& key) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const uint64_t count = pairs_[top.key].count;
      if (count == top.count && count >= 2) {
        key = top.key;
        return true;
      }
      if (count >= 2 && count < top.count) {  // since it was queued it became rarer
        queue_.push({count, top.key});
      }
    }
    return false;
  }

  void join(uint64_t key, uint32_t token) {
    std::vector<size_t> where = std::move(pairs_[key].where);
    std::sort(where.begin(), where.end());
    where.erase(std::unique(where.begin(), where.end()), where.end());
    for (const size_t piece : where) {
      removePairs(piece);
      std::vector<uint32_t>& tokens = pieces_[piece].tokens;
      size_t to = 0;
      for (size_t from = 0; from < tokens.size(); ++to) {
        const bool joins = from + 1 < tokens.size() && pairKey(tokens[from], tokens[from + 1]) == key;
        tokens[to] = joins ? token : tokens[from];
        from += joins ? 2 : 1;
      }
      tokens.resize(to);
      addPairs(piece);
    }
  }

 private:
  struct Piece {
    std::vector<uint32_t> tokens;
    uint64_t count;
  };
  struct Pair {
    uint64_t count = 0;
    std::vector<size_t> where;  // pieces, some of them more than once or no longer
  };
  struct Candidate {
    uint64_t count, key;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  void addPairs(size_t index) {
    const Piece& piece = pieces_[index];
    for (size_t i = 0; i + 1 < piece.tokens.size(); ++i) {
      const uint64_t key = pairKey(piece.tokens[i], piece.tokens[i + 1]);
      Pair& pair = pairs_[key];
      pair.count += piece.count;
      if (pair.where.empty() || pair.where.back() != index) {
        pair.where.push_back(index);
      }
      queue_.push({pair.count, key});
    }
  }
  void removePairs(size_t index) {
    const Piece& piece = pieces_[index];
    for (size_t i = 0; i + 1 < piece.tokens.size(); ++i) {
      pairs_[pairKey(piece.tokens[i], piece.tokens[i + 1])].count -= piece.count;
    }
  }

  std::vector<Piece> pieces_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::priority_queue<Candidate> queue_;  // every pair with its count or a larger one
};

}  // namespace

Bpe::Bpe() {
  for (size_t byte = 0; byte < kBpeBytes; ++byte) {
    bytes_.emplace_back(1, static_cast<char>(byte));
  }
}

void Bpe::join(uint32_t left, uint32_t right) {
  joined_[pairKey(left, right)] = static_cast<uint32_t>(bytes_.size());
  joins_.emplace_back(left, right);
  bytes_.push_back(bytes_[left] + bytes_[right]);
}

Bpe Bpe::train(std::string_view bytes, size_t vocabulary) {
  Bpe bpe;
  PairCounts pairs(bytes);
  uint64_t key = 0;
  while (bpe.vocabulary() < vocabulary && pairs.best(key)) {
    pairs.join(key, static_cast<uint32_t>(bpe.vocabulary()));
    bpe.join(static_cast<uint32_t>(key >> 32), static_cast<uint32_t>(key));
  }
  return bpe;
}

void Bpe::encodePiece(std::string_view piece, std::vector<uint32_t>& tokens) const {
  tokens.clear();
  for (const char byte : piece) {
    tokens.push_back(static_cast<unsigned char>(byte));
  }
  // The earliest join first, as in training.
  for (;;) {
    uint32_t first = UINT32_MAX;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto found = joined_.find(pairKey(tokens[i], tokens[i + 1]));
      first = found == joined_.end() ? first : std::min(first, found->second);
    }
    if (first == UINT32_MAX) {
      return;
    }
    const auto [left, right] = joins_[first - kBpeBytes];
    size_t to = 0;
    for (size_t from = 0; from < tokens.size(); ++to) {
      const bool joins = from + 1 < tokens.size() && tokens[from] == left && tokens[from + 1] == right;
      tokens[to] = joins ? first : tokens[from];
      from += joins ? 2 : 1;
    }
    tokens.resize(to);
  }
}

std::vector<uint32_t> Bpe::encode(std::string_view bytes) const {
  std::unordered_map<std::string_view, std::vector<uint32_t>> known;
  std::vector<uint32_t> all;
  eachPiece(bytes, [&](std::string_view piece) {
    const auto [entry, isNew] = known.try_emplace(piece);
    if (isNew) {
      encodePiece(piece, entry->second);
    }
    all.insert(all.end(), entry->second.begin(), entry->second.end());
  });
  return all;
}

std::string Bpe::decode(std::span<const uint32_t> tokens) const {
  std::string bytes;
  for (const uint32_t token : tokens) {
    bytes += bytes_[token];
  }
  return bytes;
}

std::string Bpe::serialize() const {
  std::string blob(kBpeHeader);
  for (const auto& [left, right] : joins_) {
    blob += fmt::format("{} {}\n", left, right);
  }
  return blob;
}

Bpe Bpe::parse(std::string_view blob) {
  const auto refuse = [](size_t line, const std::string& why) {
    throw tools::ToolError(fmt::format("the tokenizer is damaged: line {} {}", line, why));
  };
  if (!blob.starts_with(kBpeHeader)) {
    refuse(1, "is not 'peal-bpe 1'");
  }
  Bpe bpe;
  size_t line = 2, bytes = 0;
  for (size_t at = kBpeHeader.size(); at < blob.size(); ++line) {
    const size_t end = blob.find('\n', at);
    if (end == blob.npos) {
      refuse(line, "has no end");
    }
    const std::string text(blob.substr(at, end - at));
    unsigned left = 0, right = 0;
    int length = -1;
    if (std::sscanf(text.c_str(), "%6u %6u%n", &left, &right, &length) != 2 ||
        length != static_cast<int>(text.size()) || left >= bpe.vocabulary() || right >= bpe.vocabulary() ||
        bpe.joined_.contains(pairKey(left, right)) || bpe.vocabulary() >= kBpeLargestVocabulary) {
      refuse(line, fmt::format("is '{}', not two of the {} tokens before it that were not joined yet", text,
                               bpe.vocabulary()));
    }
    bytes += bpe.bytes_[left].size() + bpe.bytes_[right].size();
    if (bytes > kMostSavedBytes) {
      refuse(line, fmt::format("makes its tokens longer than {} bytes together", kMostSavedBytes));
    }
    bpe.join(left, right);
    at = end + 1;
  }
  return bpe;
}

}  // namespace peal::train
