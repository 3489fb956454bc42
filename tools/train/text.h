// Text to train on: its symbols (characters, or the tokens of a byte-pair encoding), a training part and a
// held-out end, and which piece of it each sequence of a step is. Every rank holds the same text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/train/bpe.h"

namespace peal::train {

// What --text takes when it is not given: Debian's bible-kjv, one verse a line, without references.
inline constexpr const char* kDefaultTextName = "bible-kjv";

// The bytes of a file, or of the default text if path is empty. Throws UsageError with the file's name and
// the reason.
std::string readText(const std::string& path);

// Code points of UTF-8. Throws UsageError naming the byte offset of the first malformed sequence.
std::u32string decodeUtf8(std::string_view bytes, std::string_view name);
std::string encodeUtf8(std::u32string_view characters);

class Text {
 public:
  // The last heldOutShare of the characters is held out. Throws UsageError if the text is empty or if
  // either part cannot hold context + 1 characters.
  // bpeVocabulary > 0: symbols are the tokens of a byte-pair encoding of so many, trained on the training
  // part.
  Text(std::string name, std::u32string_view characters, size_t context, size_t bpeVocabulary = 0,
       double heldOutShare = 0.05);

  // Of what a checkpoint keeps: no text to train on or to evaluate with, but samples can be decoded.
  // characters: the alphabet, ascending, if there is no bpe.
  Text(std::string name, std::u32string characters, std::optional<Bpe> bpe, uint32_t sampleStart);

  const std::string& name() const { return name_; }
  size_t vocabulary() const { return bpe_ ? bpe_->vocabulary() : alphabet_.size(); }
  const std::optional<Bpe>& bpe() const { return bpe_; }
  const std::vector<uint32_t>& training() const { return training_; }
  const std::vector<uint32_t>& heldOut() const { return heldOut_; }

  // The same as characters, places in an alphabet of alphabetSize(): what the n-grams count.
  size_t alphabetSize() const { return alphabet_.size(); }
  const std::vector<uint32_t>& trainingCharacters() const { return bpe_ ? trainingCharacters_ : training_; }
  const std::vector<uint32_t>& heldOutCharacters() const { return bpe_ ? heldOutCharacters_ : heldOut_; }
  // How many characters begin in the symbols: losses are told per character.
  uint64_t characterCount(const uint32_t* symbols, size_t count) const;

  std::vector<uint32_t> encode(
      std::u32string_view characters) const;  // without bpe all must be in the alphabet
  std::string decode(const std::vector<uint32_t>& symbols) const;
  const std::u32string& alphabet() const { return alphabet_; }
  uint32_t sampleStart() const { return sampleStart_; }  // a newline if the text has any, else its beginning

  // Where in training() the sequence `slot` of `step` starts: a pure function of (seed, step, slot) and of
  // the lengths, so that it does not depend on how slots are spread over ranks and micro-batches.
  size_t sequenceStart(uint64_t seed, uint64_t step, uint64_t slot, size_t context) const;

  // Writes that sequence's inputs, and its targets: the inputs one character on.
  void sequence(uint64_t seed, uint64_t step, uint64_t slot, size_t context, uint32_t* inputs,
                uint32_t* targets) const;

 private:
  std::string name_;
  std::u32string alphabet_;  // ascending
  std::optional<Bpe> bpe_;
  uint32_t sampleStart_ = 0;
  std::vector<uint32_t> beginnings_;  // characters that begin in each token; bpe only
  std::vector<uint32_t> training_, heldOut_;
  std::vector<uint32_t> trainingCharacters_, heldOutCharacters_;  // bpe only

  std::vector<uint32_t> encodeCharacters(std::u32string_view characters) const;
};

}  // namespace peal::train
