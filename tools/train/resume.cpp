#include "tools/train/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "peal/zero.h"
#include "tools/common/error.h"
#include "tools/train/hash.h"

namespace peal::train {
namespace {

using nlohmann::json;
using tools::UsageError;

constexpr const char* kRunFormat = "peal-train 1";

uint64_t textHash(const Text& text) {
  Fnv1a hash;
  for (const auto* part : {&text.training(), &text.heldOut()}) {
    hash.add(part->data(), part->size() * sizeof(uint32_t));
  }
  return hash.value();
}

// What must be the same in the run that continues.
json identityOf(const TrainOptions& options, const Text& text) {
  return {{"seed", options.seed},
          {"layers", options.shape.layers},
          {"width", options.shape.width},
          {"heads", options.shape.heads},
          {"context", options.shape.context},
          {"beta1", options.beta1},
          {"beta2", options.beta2},
          {"epsilon", options.epsilon},
          {"weightDecay", options.weightDecay},
          {"embeddingDecay", options.embeddingDecay},
          {"vocabulary", text.vocabulary()},
          {"text", fmt::format("{:016x}", textHash(text))},
          {"tokenizer", text.bpe() ? text.bpe()->serialize() : "characters"},
          {"alphabet", text.bpe() ? "" : encodeUtf8(text.alphabet())},
          {"sampleStart", text.sampleStart()}};
}

// "" and a step of 0 if there is no checkpoint; throws UsageError if it cannot be read.
std::string readUserData(const std::string& path, uint64_t& updates) {
  pealZeroCheckpoint_t checkpoint = nullptr;
  pealZeroCheckpointInfo_t info{};
  std::string data;
  pealResult_t code = pealZeroCheckpointOpen(&checkpoint, path.c_str());
  if (code == pealSuccess) {
    code = pealZeroCheckpointInfo(checkpoint, &info);
  }
  if (code == pealSuccess) {
    data.resize(info.userBytes);
    code = pealZeroCheckpointUserData(checkpoint, data.data(), data.size());
  }
  const std::string sentence = code == pealSuccess ? "" : pealZeroGetLastError(nullptr);
  pealZeroCheckpointClose(checkpoint);
  if (code != pealSuccess) {
    throw UsageError(fmt::format("cannot resume from '{}': {}", path, sentence));
  }
  updates = info.step;
  return data;
}

struct SavedRun {
  json data;  // discarded, or anything: not all checkpoints are of peal-train
  uint64_t updates = 0;
  uint64_t steps = 0;  // the updates, if the data does not say
};

SavedRun readSavedRun(const std::string& path) {
  SavedRun run;
  run.data = json::parse(readUserData(path, run.updates), nullptr, false);
  run.steps = run.updates;
  if (run.data.is_object() && run.data.contains("steps") && run.data["steps"].is_number_unsigned()) {
    run.steps = run.data["steps"];
  }
  return run;
}

// The numbers that must be the same, and the options that set them.
struct Number {
  const char* key;
  const char* option;
};
constexpr Number kNumbers[] = {{"seed", "--seed"},
                               {"layers", "--layers"},
                               {"width", "--width"},
                               {"heads", "--heads"},
                               {"context", "--context"},
                               {"beta1", "--beta1"},
                               {"beta2", "--beta2"},
                               {"epsilon", "--epsilon"},
                               {"weightDecay", "--weight-decay"},
                               {"embeddingDecay", "--embedding-decay"}};

const char* kindOfTokenizer(const json& run) {
  return run.value("tokenizer", "") == "characters" ? "characters" : "bpe";
}

// All that keeps a run from going on. A text is compared as the tokens that it became: only where those are
// of one kind.
std::vector<std::string> differences(const json& theirs, const json& mine) {
  std::vector<std::string> found;
  const auto add = [&](const char* option, const std::string& saved, const std::string& own) {
    found.push_back(fmt::format("its {} is {}, this run's is {}", option, saved, own));
  };
  for (const Number& number : kNumbers) {
    const json saved = theirs.value(number.key, json());
    // A run saved before AdamW's numbers were noted here has none; the engine compares its own.
    const bool isUnknown = saved.is_null() && mine[number.key].is_number_float();
    if (saved != mine[number.key] && !isUnknown) {
      add(number.option, saved.dump(), mine[number.key].dump());
    }
  }
  const std::string saved = kindOfTokenizer(theirs), own = kindOfTokenizer(mine);
  const json vocabulary = theirs.value("vocabulary", json());
  if (saved != own) {
    add("--tokenizer", saved, own);
  } else if (own == "bpe" && vocabulary != mine["vocabulary"]) {
    add("--vocabulary", vocabulary.dump(), mine["vocabulary"].dump());
  } else if (theirs.value("text", json()) != mine["text"] ||
             theirs.value("tokenizer", json()) != mine["tokenizer"]) {
    found.emplace_back("its --text is another than this run's");
  }
  return found;
}

// What a run's notes have as numbers, from which to which, and as texts. Earlier versions noted less.
struct Noted {
  const char* key;
  uint64_t least, most;
};
constexpr uint64_t kMostExtent = uint64_t{1} << 20, kMostSteps = uint64_t{1} << 40;
constexpr Noted kNoted[] = {{"layers", 1, kMostExtent},
                            {"width", 1, kMostExtent},
                            {"heads", 1, kMostExtent},
                            {"context", 1, kMostExtent},
                            {"seed", 0, std::numeric_limits<uint64_t>::max()},
                            {"vocabulary", 1, std::numeric_limits<uint32_t>::max()},
                            {"sampleStart", 0, std::numeric_limits<uint32_t>::max()}};
constexpr Noted kNotedBeside[] = {{"steps", 0, kMostSteps}, {"sequences", 1, kMostSteps}};

// Notes that no run writes, so that nothing is made from them.
void checkNotes(const json& data, const std::string& path) {
  const auto refuse = [&](const std::string& key, const json& value) {
    throw UsageError(fmt::format("cannot resume from '{}': what it says of its run is damaged: {} is {}",
                                 path, key, value.dump(-1, ' ', false, json::error_handler_t::replace)));
  };
  const auto check = [&](const json& notes, const Noted& noted) {
    const json value = notes.value(noted.key, json());
    const bool isNumber = value.is_number_unsigned();
    if (isNumber ? value < noted.least || value > noted.most : notes.contains(noted.key)) {
      refuse(noted.key, value);
    }
  };
  const json& run = data["run"];
  for (const Noted& noted : kNoted) {
    check(run, noted);
  }
  for (const Noted& noted : kNotedBeside) {
    check(data, noted);
  }
  for (const char* text : {"text", "tokenizer", "alphabet"}) {
    if (run.contains(text) && !run[text].is_string()) {
      refuse(text, run[text]);
    }
  }
}

template <class T>
void takeNumber(const json& run, const char* key, T& value, bool isGiven) {
  if (!isGiven && run.contains(key) && run[key].is_number()) {
    value = run[key].get<T>();
  }
}

// Null if it is not of peal-train.
const json* runOf(const json& data) {
  const bool isRun = data.is_object() && data.value("format", json()) == kRunFormat && data.contains("run") &&
                     data["run"].is_object() && data.contains("steps") && data.contains("sequences");
  return isRun ? &data["run"] : nullptr;
}

std::string quoted(const std::string& argument) {
  const bool isPlain =
      argument.find_first_of(" \t\n'\"\\$&|;<>()*?#~`") == argument.npos && !argument.empty();
  if (isPlain) {
    return argument;
  }
  std::string text = "'";
  for (const char c : argument) {
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return text + "'";
}

}  // namespace

std::string describeRun(const TrainOptions& options, const Text& text, uint64_t sequences, uint64_t steps) {
  return json{
      {"format", kRunFormat}, {"steps", steps}, {"sequences", sequences}, {"run", identityOf(options, text)}}
      .dump();
}

void takeOver(TrainOptions& options) {
  const SavedRun saved = readSavedRun(options.resumePath);
  const json* run = runOf(saved.data);
  if (run == nullptr) {
    return;  // continueRun says so
  }
  checkNotes(saved.data, options.resumePath);
  const auto take = [&](const char* key, auto& value, const char* option) {
    takeNumber(*run, key, value, options.isGiven(option));
  };
  take("seed", options.seed, "--seed");
  take("layers", options.shape.layers, "--layers");
  take("width", options.shape.width, "--width");
  take("heads", options.shape.heads, "--heads");
  take("context", options.shape.context, "--context");
  take("beta1", options.beta1, "--beta1");
  take("beta2", options.beta2, "--beta2");
  take("epsilon", options.epsilon, "--epsilon");
  take("weightDecay", options.weightDecay, "--weight-decay");
  take("embeddingDecay", options.embeddingDecay, "--embedding-decay");
  if (!options.isGiven("--tokenizer") && run->contains("tokenizer")) {
    options.tokenizer = kindOfTokenizer(*run) == std::string("bpe") ? Tokenizer::Bpe : Tokenizer::Characters;
  }
  if (options.tokenizer == Tokenizer::Bpe && kindOfTokenizer(*run) == std::string("bpe")) {
    take("vocabulary", options.vocabulary, "--vocabulary");
  }
}

namespace {

SavedRun readOwnRun(const std::string& path) {
  SavedRun run = readSavedRun(path);
  if (runOf(run.data) == nullptr) {
    throw UsageError(
        fmt::format("cannot resume from '{}': that checkpoint, of {} updates, was not saved by peal-train",
                    path, run.updates));
  }
  checkNotes(run.data, path);
  return run;
}

}  // namespace

Text savedText(const std::string& path) {
  const json data = readOwnRun(path).data;
  const json& run = data["run"];
  const std::string tokenizer = run.value("tokenizer", "");
  const bool isBpe = tokenizer != "characters";
  Text text(path, decodeUtf8(run.value("alphabet", ""), path),
            isBpe ? std::optional(Bpe::parse(tokenizer)) : std::nullopt,
            run.value("sampleStart", std::numeric_limits<uint32_t>::max()));
  if (text.vocabulary() != run.value("vocabulary", json()) || text.sampleStart() >= text.vocabulary()) {
    throw UsageError(fmt::format(
        "cannot sample from '{}': its tokenizer is not kept whole; go on from it with the text of "
        "its run: --resume {} --text FILE --steps {}",
        path, quoted(path), data["steps"].dump()));
  }
  return text;
}

void continueRun(TrainOptions& options, const Text& text, int size) {
  const json saved = readOwnRun(options.resumePath).data;
  json mine = identityOf(options, text);
  if (options.onlySamples) {
    mine["text"] = saved["run"].value("text", json());  // it is not there, and not needed
    mine["seed"] = saved["run"].value("seed", json());  // another one gives another sample
  }
  const std::vector<std::string> different = differences(saved["run"], mine);
  if (!different.empty()) {
    throw UsageError(
        fmt::format("cannot resume from '{}': {}. Use the options and the text of the run that "
                    "saved it; options that are not given are taken from it. For samples alone "
                    "(--sample-only) no text is needed",
                    options.resumePath, fmt::join(different, "; ")));
  }
  options.firstStep = saved["steps"];
  options.sequences = saved["sequences"];
  if (options.firstStep > options.steps && !options.onlySamples) {
    throw UsageError(fmt::format("cannot resume from '{}': it is of step {}, and --steps is {}",
                                 options.resumePath, options.firstStep, options.steps));
  }
  const uint64_t atOnce = options.batch * static_cast<uint64_t>(size);
  options.accumulate = std::max<uint64_t>((options.sequences + atOnce - 1) / atOnce, 1);
}

namespace {

// Of another run than the one that goes on: a save would replace it.
void checkOthersCheckpoint(const TrainOptions& options) {
  std::error_code fault;
  if (options.overwrites || !std::filesystem::exists(options.savePath + "/manifest.txt", fault) ||
      (!options.resumePath.empty() &&
       std::filesystem::equivalent(options.savePath, options.resumePath, fault))) {
    return;
  }
  std::string what = "a checkpoint that cannot be read";
  try {
    what = fmt::format("a checkpoint of step {}", readSavedRun(options.savePath).steps);
  } catch (const UsageError&) {  // it is there all the same
  }
  throw UsageError(
      fmt::format("'{}' holds {}: go on from it with --resume {}, or give --overwrite to replace it",
                  options.savePath, what, quoted(options.savePath)));
}

}  // namespace

void checkSavePath(const TrainOptions& options) {
  namespace fs = std::filesystem;
  const std::string& path = options.savePath;
  std::error_code fault;
  const fs::path normal = fs::absolute(path, fault).lexically_normal();
  const fs::path target =
      normal.has_filename() ? normal : normal.parent_path();  // without a slash at its end
  const fs::path folder = target.parent_path();
  if (fs::is_symlink(target, fault)) {
    throw UsageError(
        fmt::format("'{}' is a symbolic link, which no save replaces: give --save the path that "
                    "it stands for, or another name",
                    path));
  }
  if (fs::exists(target, fault) && !fs::exists(target / "manifest.txt", fault) &&
      (!fs::is_directory(target, fault) || !fs::is_empty(target, fault))) {
    throw UsageError(fmt::format("'{}' exists and is no checkpoint: give --save another name", path));
  }
  checkOthersCheckpoint(options);
  fs::path existing = folder;
  while (!fs::exists(existing, fault) && existing.has_parent_path() && existing != existing.parent_path()) {
    existing = existing.parent_path();
  }
  if (!fs::is_directory(existing, fault)) {
    throw UsageError(
        fmt::format("cannot write the checkpoint '{}': '{}' is not a directory", path, existing.string()));
  }
  fs::create_directories(folder, fault);
  std::string probe = (folder / ".peal-train-XXXXXX").string();
  if (fault || mkdtemp(probe.data()) == nullptr) {
    throw UsageError(fmt::format("cannot write checkpoints into '{}': {}", folder.string(),
                                 fault ? fault.message() : std::strerror(errno)));
  }
  fs::remove(probe, fault);
}

std::string resumeHint(const TrainOptions& options, int argc, char** argv) {
  if (options.savePath.empty()) {
    return "";
  }
  uint64_t steps = 0;
  try {
    steps = readSavedRun(options.savePath).steps;
  } catch (const UsageError&) {
    return "";
  }
  std::string command;
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--resume") {
      ++i;
    } else if (argument != "--overwrite" && !argument.starts_with("--resume=")) {
      command += quoted(argument) + " ";
    }
  }
  return fmt::format(
      "the last checkpoint is of step {}; go on from it, on as many ranks as there are, with: {}--resume {}",
      steps, command, quoted(options.savePath));
}

}  // namespace peal::train
