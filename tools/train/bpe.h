// Byte-level byte-pair encoding (Sennrich et al. 2016; bytes as in GPT-2): tokens 0 to 255 are the bytes,
// each further one joins two earlier ones. So every string of bytes can be encoded and comes back exactly.
//
// Strings are cut into pieces first, and no token reaches over a cut: a run of letters, digits or other
// marks, with the one space before it, or a run of white space. Bytes from 0x80 count as letters. Called by
// Text; deterministic, knows no files.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace peal::train {

inline constexpr size_t kBpeBytes = 256;
inline constexpr size_t kBpeLargestVocabulary = 65535;

class Bpe {
 public:
  // Joins the most frequent pair of tokens, of equally frequent ones the one of the smallest numbers, until
  // there are `vocabulary` tokens or no pair occurs twice.
  static Bpe train(std::string_view bytes, size_t vocabulary);

  // A text of a header and one line for each join; parse() throws ToolError naming the line that is wrong.
  std::string serialize() const;
  static Bpe parse(std::string_view blob);

  size_t vocabulary() const { return bytes_.size(); }
  const std::string& bytesOf(uint32_t token) const { return bytes_[token]; }
  std::vector<uint32_t> encode(std::string_view bytes) const;
  std::string decode(std::span<const uint32_t> tokens) const;

 private:
  Bpe();
  void join(uint32_t left, uint32_t right);
  void encodePiece(std::string_view piece, std::vector<uint32_t>& tokens) const;

  std::vector<std::string> bytes_;                    // of each token
  std::vector<std::pair<uint32_t, uint32_t>> joins_;  // of token kBpeBytes + i
  std::unordered_map<uint64_t, uint32_t> joined_;     // by pairKey
};

}  // namespace peal::train
