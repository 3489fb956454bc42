#include "tools/train/text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>

#include "tools/common/error.h"
#include "tools/train/parameters.h"

namespace peal::train {
namespace {

using tools::UsageError;

constexpr char32_t kCodePoints = 0x110000;  // of Unicode

// A file descriptor that closes itself.
struct File {
  explicit File(int fileFd) : fd(fileFd) {}
  File(const File&) = delete;
  ~File() {
    if (fd >= 0)
      close(fd);
  }
  int fd;
};

std::string readFile(const std::string& path) {
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd < 0)
    throw UsageError(fmt::format("cannot open the text '{}': {}", path, std::strerror(errno)));
  struct stat status {};
  if (fstat(file.fd, &status) == 0 && !S_ISREG(status.st_mode)) {  // a device or pipe may never end
    throw UsageError(fmt::format("cannot read the text '{}': it is {}", path,
                                 S_ISDIR(status.st_mode) ? "a directory" : "not a regular file"));
  }
  std::string bytes;
  for (char buffer[65536];;) {
    ssize_t got = read(file.fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      throw UsageError(fmt::format("cannot read the text '{}': {}", path, std::strerror(errno)));
    if (got == 0)
      return bytes;
    bytes.append(buffer, static_cast<size_t>(got));
  }
}

// `bible -f` prints one verse a line behind its reference ("Ge1:1 In the beginning"), which is cut off.
std::string readBible() {
  const char* command = "bible -f Gen1:1-Rev22:21 2>/dev/null";
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "re"), pclose);
  if (!pipe)
    throw UsageError(fmt::format("cannot run '{}': {}", command, std::strerror(errno)));
  std::string printed;
  char buffer[65536];
  for (size_t got; (got = fread(buffer, 1, sizeof buffer, pipe.get())) > 0;)
    printed.append(buffer, got);
  const int status = pclose(pipe.release());
  std::string verses;
  for (size_t line = 0; line < printed.size();) {
    const size_t end = std::min(printed.find('\n', line), printed.size());
    const size_t space = printed.find(' ', line);
    if (space < end)
      verses.append(printed, space + 1, end - space - 1).push_back('\n');
    line = end + 1;
  }
  if (status != 0 || verses.empty()) {
    throw UsageError(
        fmt::format("the default text is not there: '{}' printed {} bytes and ended with {} {}. Install "
                    "Debian's package bible-kjv, or name a text with --text FILE",
                    command, printed.size(), WIFEXITED(status) ? "exit code" : "wait status",
                    WIFEXITED(status) ? WEXITSTATUS(status) : status));
  }
  return verses;
}

// Length and value of the sequence that starts at `at`; length 0 if it is malformed.
struct Decoded {
  size_t length;
  char32_t character;
};

Decoded decodeOne(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[at + i]); };
  const unsigned first = byte(0);
  if (first < 0x80)
    return {1, first};
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  if (length == 0 || first > 0xf4 || at + length > bytes.size())
    return {0, 0};
  char32_t value = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80)
      return {0, 0};
    value = (value << 6) | (byte(i) & 0x3fu);
  }
  const char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  if (value < least[length] || value >= kCodePoints || surrogate)
    return {0, 0};
  return {length, value};
}

}  // namespace

std::string readText(const std::string& path) { return path.empty() ? readBible() : readFile(path); }

std::u32string decodeUtf8(std::string_view bytes, std::string_view name) {
  std::u32string characters;
  characters.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    Decoded decoded = decodeOne(bytes, at);
    if (decoded.length == 0) {
      throw UsageError(
          fmt::format("the text '{}' is not UTF-8: byte {:#04x} at offset {} starts no character. "
                      "Convert it first, for example with iconv",
                      name, static_cast<unsigned char>(bytes[at]), at));
    }
    characters.push_back(decoded.character);
    at += decoded.length;
  }
  return characters;
}

std::string encodeUtf8(std::u32string_view characters) {
  std::string bytes;
  for (char32_t c : characters) {
    const auto tail = [&](int shift) { bytes.push_back(static_cast<char>(0x80 | ((c >> shift) & 0x3f))); };
    if (c < 0x80) {
      bytes.push_back(static_cast<char>(c));
    } else if (c < 0x800) {
      bytes.push_back(static_cast<char>(0xc0 | (c >> 6)));
    } else if (c < 0x10000) {
      bytes.push_back(static_cast<char>(0xe0 | (c >> 12)));
      tail(6);
    } else {
      bytes.push_back(static_cast<char>(0xf0 | (c >> 18)));
      tail(12);
      tail(6);
    }
    if (c >= 0x80)
      tail(0);
  }
  return bytes;
}

Text::Text(std::string name, std::u32string_view characters, size_t context, size_t bpeVocabulary,
           double heldOutShare)
    : name_(std::move(name)) {
  if (characters.empty()) {
    throw UsageError(fmt::format("the text '{}' is empty", name_));
  }
  std::vector<bool> occurs(kCodePoints);
  for (char32_t c : characters) {
    occurs[c] = true;
  }
  for (char32_t c = 0; c < kCodePoints; ++c) {
    if (occurs[c]) {
      alphabet_.push_back(c);
    }
  }
  constexpr size_t kLargestVocabulary = 65535;  // so that the keys of the n-gram model fit 64 bits
  if (alphabet_.size() > kLargestVocabulary) {
    throw UsageError(fmt::format("the text '{}' has {} different characters: at most {} are possible", name_,
                                 alphabet_.size(), kLargestVocabulary));
  }
  const auto heldOut = static_cast<size_t>(static_cast<double>(characters.size()) * heldOutShare);
  const std::u32string_view first = characters.substr(0, characters.size() - heldOut);
  const std::u32string_view last = characters.substr(first.size());
  training_ = encodeCharacters(first);
  heldOut_ = encodeCharacters(last);
  if (bpeVocabulary > 0) {
    trainingCharacters_ = std::move(training_);
    heldOutCharacters_ = std::move(heldOut_);
    bpe_ = Bpe::train(encodeUtf8(first), bpeVocabulary);
    for (uint32_t token = 0; token < bpe_->vocabulary(); ++token) {
      const std::string& bytes = bpe_->bytesOf(token);
      const auto begins = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; };
      beginnings_.push_back(static_cast<uint32_t>(std::count_if(bytes.begin(), bytes.end(), begins)));
    }
    training_ = encode(first);
    heldOut_ = encode(last);
  }
  if (std::min(training_.size(), heldOut_.size()) < context + 1) {
    throw UsageError(
        fmt::format("the text '{}' has {} {}, {} to train on and {} held out; --context {} "
                    "needs at least {} in each. Use a shorter context or a longer text",
                    name_, training_.size() + heldOut_.size(), bpe_ ? "tokens" : "characters",
                    training_.size(), heldOut_.size(), context, context + 1));
  }
  const size_t newline = alphabet_.find(U'\n');
  sampleStart_ = newline == alphabet_.npos ? training_.front()
                 : bpe_                    ? '\n'  // the byte's token
                                           : static_cast<uint32_t>(newline);
}

Text::Text(std::string name, std::u32string characters, std::optional<Bpe> bpe, uint32_t sampleStart)
    : name_(std::move(name)),
      alphabet_(std::move(characters)),
      bpe_(std::move(bpe)),
      sampleStart_(sampleStart) {}

uint64_t Text::characterCount(const uint32_t* symbols, size_t count) const {
  if (!bpe_) {
    return count;
  }
  return std::accumulate(symbols, symbols + count, uint64_t{0},
                         [&](uint64_t sum, uint32_t symbol) { return sum + beginnings_[symbol]; });
}

std::vector<uint32_t> Text::encode(std::u32string_view characters) const {
  return bpe_ ? bpe_->encode(encodeUtf8(characters)) : encodeCharacters(characters);
}

std::vector<uint32_t> Text::encodeCharacters(std::u32string_view characters) const {
  std::vector<uint32_t> symbols;
  symbols.reserve(characters.size());
  for (char32_t c : characters) {
    const auto found = std::lower_bound(alphabet_.begin(), alphabet_.end(), c);
    if (found == alphabet_.end() || *found != c) {
      throw UsageError(
          fmt::format("character U+{:04X} does not occur in the text '{}'", static_cast<uint32_t>(c), name_));
    }
    symbols.push_back(static_cast<uint32_t>(found - alphabet_.begin()));
  }
  return symbols;
}

std::string Text::decode(const std::vector<uint32_t>& symbols) const {
  if (bpe_) {
    return bpe_->decode(symbols);
  }
  std::u32string characters;
  for (uint32_t symbol : symbols)
    characters.push_back(alphabet_[symbol]);
  return encodeUtf8(characters);
}

size_t Text::sequenceStart(uint64_t seed, uint64_t step, uint64_t slot, size_t context) const {
  const uint64_t starts = training_.size() - context;  // context + 1 characters are read
  // 'd': a stream of its own, apart from the first values of parameters.
  return mix(seed ^ (static_cast<uint64_t>('d') << 56), step, slot) % starts;
}

void Text::sequence(uint64_t seed, uint64_t step, uint64_t slot, size_t context, uint32_t* inputs,
                    uint32_t* targets) const {
  const uint32_t* from = training_.data() + sequenceStart(seed, step, slot, context);
  std::copy(from, from + context, inputs);
  std::copy(from + 1, from + 1 + context, targets);
}

}  // namespace peal::train
