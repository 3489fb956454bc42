#include "lib/zero/checkpoint/manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <optional>
#include <string_view>

#include "lib/zero/checkpoint/crc32c.h"

namespace peal::zero::checkpoint {
namespace {

constexpr std::string_view kFirstLine = "peal-checkpoint 1\n";
constexpr std::string_view kChecksumWord = "checksum ";
constexpr size_t kChecksumLine = kChecksumWord.size() + 8 + 1;

constexpr std::array<const char*, 3> kKindNames{"trained", "frozen", "tied"};
constexpr std::array<const char*, 3> kWeightNames{"unknown", "bf16", "fp32"};
constexpr std::string_view kMixed = "mixed";
constexpr std::string_view kWideMark = "-fp32";  // of a trained parameter where types are mixed

bool isPlain(unsigned char character) { return character > ' ' && character < 0x7f && character != '%'; }

// Names are one word: what could end it becomes %XX.
std::string escapeName(const std::string& name) {
  std::string word;
  for (const char character : name) {
    const auto byte = static_cast<unsigned char>(character);
    if (isPlain(byte)) {
      word += character;
    } else {
      word += fmt::format("%{:02X}", byte);
    }
  }
  return word;
}

// Reads words and line ends. After the first surprise everything fails, and the place is remembered.
class LineReader {
 public:
  LineReader(std::string_view text, size_t begin) : text_(text), at_(begin) {}

  void expect(std::string_view literal) {
    if (text_.substr(at_, literal.size()) != literal) {
      fail(fmt::format("\"{}\"", literal == "\n" ? "end of line" : literal));
      return;
    }
    at_ += literal.size();
  }
  uint64_t number() { return read<uint64_t>(10, "a number"); }
  uint64_t hex() { return read<uint64_t>(16, "a hexadecimal number"); }
  uint32_t hex32() { return read<uint32_t>(16, "a hexadecimal number of 32 bits"); }
  double real() { return std::bit_cast<double>(hex()); }
  // A count of things that take at least two bytes each: never more than the text has room for.
  uint64_t count() {
    const uint64_t value = number();
    if (value > text_.size()) {
      fail("a smaller number of lines");
      return 0;
    }
    return value;
  }
  std::string name() {
    std::string name;
    while (!failed_ && at_ < text_.size()) {
      const auto byte = static_cast<unsigned char>(text_[at_]);
      if (byte == '%') {
        ++at_;
        const std::string_view digits = text_.substr(at_, 2);
        unsigned value = 0;
        const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
        if (digits.size() != 2 || done.ptr != digits.data() + 2) {
          fail("two hexadecimal digits");
          break;
        }
        name += static_cast<char>(value);
        at_ += 2;
      } else if (isPlain(byte)) {
        name += text_[at_++];
      } else {
        break;
      }
    }
    if (name.empty()) {
      fail("a name");
    }
    return name;
  }
  bool next(std::string_view literal) {
    if (failed_ || text_.substr(at_, literal.size()) != literal) {
      return false;
    }
    at_ += literal.size();
    return true;
  }
  bool atEnd() const { return at_ == text_.size(); }
  void fail(const std::string& expected) {
    if (!failed_) {
      failed_ = fmt::format("at offset {} {} is expected", at_, expected);
    }
  }
  const std::optional<std::string>& failed() const { return failed_; }

 private:
  template <class T>
  T read(int base, const char* what) {
    T value = 0;
    const auto done = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value, base);
    if (failed_ || done.ec != std::errc{}) {
      fail(what);
      return 0;
    }
    at_ = static_cast<size_t>(done.ptr - text_.data());
    return value;
  }
  std::string_view text_;
  size_t at_;
  std::optional<std::string> failed_;
};

// The checksum first: after that, what does not parse was written so.
Result<void> checkText(const std::string& text, const std::string& file) {
  const auto refuse = [&](const std::string& why) {
    return Error{pealInvalidArgument, fmt::format("{}: {}", file, why)};
  };
  if (!std::string_view(text).starts_with(kFirstLine.substr(0, kFirstLine.find(' ')))) {
    return refuse("it does not begin with \"peal-checkpoint\" at offset 0: it is no checkpoint's manifest");
  }
  if (!std::string_view(text).starts_with(kFirstLine)) {
    return refuse("it has another version at offset 16 than 1, which this peal reads, or is damaged there");
  }
  const size_t covered = text.size() - std::min(text.size(), kChecksumLine);
  LineReader last(text, covered);
  last.expect(kChecksumWord);
  const uint32_t checksum = last.hex32();
  last.expect("\n");
  if (last.failed() || !last.atEnd()) {
    return refuse(
        fmt::format("the last line, at offset {}, is not its checksum: it is truncated or damaged", covered));
  }
  if (const uint32_t found = crc32c(0, text.data(), covered); found != checksum) {
    return refuse(
        fmt::format("the checksum at offset {} is {:08x} but the text from offset 0 has {:08x}: it "
                    "is damaged",
                    covered, checksum, found));
  }
  return {};
}

AdamwNumbers readGroup(LineReader& in) {
  AdamwNumbers group{};
  in.expect("group ");
  group.beta1 = in.real();
  in.expect(" ");
  group.beta2 = in.real();
  in.expect(" ");
  group.epsilon = in.real();
  in.expect(" ");
  group.weightDecay = in.real();
  in.expect("\n");
  return group;
}

// all: the type of all trained ones; nothing: each says its own.
ParameterShape readParameter(LineReader& in, std::optional<WeightType> all) {
  ParameterShape parameter;
  if (in.next(kKindNames[1])) {
    parameter.kind = Kind::Frozen;
  } else if (in.next(kKindNames[2])) {
    parameter.kind = Kind::Tied;
  } else {
    in.expect(kKindNames[0]);
    parameter.weights = all ? *all : in.next(kWideMark) ? WeightType::Fp32 : WeightType::Bf16;
  }
  in.expect(" ");
  parameter.link = in.number();
  in.expect(" ");
  parameter.elements = in.number();
  in.expect(" ");
  if (!in.next("-")) {
    do {
      parameter.shape.push_back(in.number());
    } while (in.next("x"));
  }
  in.expect(" ");
  parameter.name = in.name();
  in.expect("\n");
  return parameter;
}

PartEntry readPart(LineReader& in) {
  PartEntry part;
  in.expect("part ");
  part.bytes = in.number();
  in.expect(" ");
  part.elements = in.number();
  in.expect(" ");
  part.headChecksum = in.hex32();
  in.expect(" ");
  part.name = in.name();
  if (part.name.find('/') != std::string::npos) {
    in.fail("a file's name without '/'");
  }
  in.expect("\n");
  return part;
}

// Their type is all that a line may say that this peal does not know: then it says so.
std::optional<WeightType> readWeights(LineReader& in) {
  for (const WeightType type : {WeightType::Bf16, WeightType::Fp32}) {
    if (in.next(weightTypeName(type))) {
      return type;
    }
  }
  if (in.next(kMixed)) {
    return std::nullopt;
  }
  in.fail("bf16, fp32 or mixed, the types of weights that this peal knows,");
  return WeightType::Unknown;
}

}  // namespace

const char* weightTypeName(WeightType type) { return kWeightNames[static_cast<size_t>(type)]; }

std::optional<WeightType> weightTypeOf(const Manifest& manifest) {
  std::optional<WeightType> type;
  for (const ParameterShape& parameter : manifest.parameters) {
    if (parameter.kind != Kind::Trained) {
      continue;
    }
    if (type && *type != parameter.weights) {
      return std::nullopt;
    }
    type = parameter.weights;
  }
  return type.value_or(WeightType::Bf16);
}

std::string partName(uint64_t rank) { return fmt::format("part-{:05}.bin", rank); }

std::string encodeManifest(const Manifest& m) {
  std::string text(kFirstLine);
  auto out = std::back_inserter(text);
  fmt::format_to(out, "id {:016x}\nstep {}\n", m.id, m.step);
  fmt::format_to(out, "streams {}\n", m.streams);
  const std::optional<WeightType> weights = weightTypeOf(m);
  if (weights != WeightType::Unknown) {
    fmt::format_to(out, "weights {}\n", weights ? weightTypeName(*weights) : kMixed);
  }
  fmt::format_to(out, "groups {}\n", m.groups.size());
  for (const AdamwNumbers& group : m.groups) {
    fmt::format_to(out, "group {:016x} {:016x} {:016x} {:016x}\n", std::bit_cast<uint64_t>(group.beta1),
                   std::bit_cast<uint64_t>(group.beta2), std::bit_cast<uint64_t>(group.epsilon),
                   std::bit_cast<uint64_t>(group.weightDecay));
  }
  fmt::format_to(out, "parameters {}\n", m.parameters.size());
  for (const ParameterShape& parameter : m.parameters) {
    const bool isMarked =
        !weights && parameter.kind == Kind::Trained && parameter.weights == WeightType::Fp32;
    fmt::format_to(out, "{}{} {} {} {} {}\n", kKindNames[static_cast<size_t>(parameter.kind)],
                   isMarked ? kWideMark : "", parameter.link, parameter.elements,
                   parameter.shape.empty() ? "-" : fmt::format("{}", fmt::join(parameter.shape, "x")),
                   escapeName(parameter.name));
  }
  fmt::format_to(out, "parts {}\n", m.parts.size());
  for (const PartEntry& part : m.parts) {
    fmt::format_to(out, "part {} {} {:08x} {}\n", part.bytes, part.elements, part.headChecksum,
                   escapeName(part.name));
  }
  fmt::format_to(out, "user {} {:08x}\n", m.userBytes, m.userChecksum);
  fmt::format_to(out, "{}{:08x}\n", kChecksumWord, crc32c(0, text.data(), text.size()));
  return text;
}

Result<Manifest> parseManifest(const std::string& text, const std::string& file) {
  PEAL_TRY(checkText(text, file));
  Manifest m;
  LineReader in(text, kFirstLine.size());
  in.expect("id ");
  m.id = in.hex();
  in.expect("\nstep ");
  m.step = in.number();
  in.expect("\nstreams ");
  m.streams = static_cast<uint32_t>(std::min<uint64_t>(in.number(), kMostStreams + 1));
  in.expect("\n");
  std::optional<WeightType> weights = WeightType::Unknown;
  if (in.next("weights ")) {
    weights = readWeights(in);
    in.expect("\n");
  }
  in.expect("groups ");
  const uint64_t groups = in.count();
  in.expect("\n");
  for (uint64_t i = 0; i < groups && !in.failed(); ++i) {
    m.groups.push_back(readGroup(in));
  }
  in.expect("parameters ");
  const uint64_t parameters = in.count();
  in.expect("\n");
  for (uint64_t i = 0; i < parameters && !in.failed(); ++i) {
    m.parameters.push_back(readParameter(in, weights));
  }
  in.expect("parts ");
  const uint64_t parts = in.count();
  in.expect("\n");
  for (uint64_t i = 0; i < parts && !in.failed(); ++i) {
    m.parts.push_back(readPart(in));
  }
  in.expect("user ");
  m.userBytes = in.number();
  in.expect(" ");
  m.userChecksum = in.hex32();
  in.expect("\n");
  in.expect(kChecksumWord);
  if (m.groups.empty()) {
    in.fail("at least one group");
  }
  if (m.streams < kFewestStreams || m.streams > kMostStreams) {
    in.fail(fmt::format("{} or {} streams", kFewestStreams, kMostStreams));
  }
  if (weights == WeightType::Fp32 && m.streams != kFewestStreams) {
    in.fail(fmt::format("{} streams, since fp32 weights are their masters,", kFewestStreams));
  }
  for (const ParameterShape& parameter : m.parameters) {
    const bool isTied = parameter.kind == Kind::Tied;
    if (parameter.link >= (isTied ? m.parameters.size() : m.groups.size()) ||
        (isTied && (m.parameters[parameter.link].kind == Kind::Tied ||
                    m.parameters[parameter.link].elements != parameter.elements))) {
      in.fail(
          fmt::format("another group or tied parameter than {} for \"{}\"", parameter.link, parameter.name));
    }
  }
  if (in.failed()) {
    return Error{pealInvalidArgument, fmt::format("{}: {}", file, *in.failed())};
  }
  return m;
}

}  // namespace peal::zero::checkpoint
