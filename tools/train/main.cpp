// peal-train: see options.cpp for the command line and docs/TRAIN.md for the story.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "tools/common/error.h"
#include "tools/train/memory.h"
#include "tools/train/resume.h"
#include "tools/train/run.h"
#include "tools/train/termination.h"
#include "tools/train/trace.h"
#include "tools/train/trainer.h"

namespace peal::train {
namespace {

// Ranks that are asked to end have a moment to find out why; a death is noticed within milliseconds. Rank 0
// has the longest one, so that nobody takes it for dead.
int momentMs(const TrainOptions& options, int rank) {
  return static_cast<int>(options.lastWordsSeconds * (rank == 0 ? 1000 : 700));
}

constexpr int kSignalCode = 128;  // exit codes of ranks that a signal ended are above

// In the library's words (transports/shm/endpoint.cpp, transports/network/endpoint.cpp); a test holds them to
// it.
bool saysThatRankZeroDied(const std::string& sentence) {
  static const std::regex died("rank 0 (\\(pid [0-9]+\\) )?died:");
  return std::regex_search(sentence, died);
}

Text textToTrainOn(const TrainOptions& options) {
  const std::string name = options.textPath.empty() ? kDefaultTextName : options.textPath;
  return {name, decodeUtf8(readText(options.textPath), name), options.shape.context, options.bpeVocabulary()};
}

int trainMain(int argc, char** argv) {
  TrainOptions options;
  if (const std::optional<int> code = parseOptions(argc, argv, options)) {
    return *code;
  }
  // Before any rank starts: a bad text or an unwritable file is then told once, and nothing is left behind.
  pealLaunch_t launch{};
  if (pealGetLaunch(&launch) != pealSuccess) {
    throw tools::UsageError(fmt::format("what the launcher says cannot be followed: {}{}",
                                        pealGetLastError(nullptr),
                                        options.ranks.processes > 0 ? " --ranks needs none of it" : ""));
  }
  const Text text = options.onlySamples ? savedText(options.resumePath) : textToTrainOn(options);
  ModelShape shape = options.shape;
  shape.vocabulary = text.vocabulary();
  const bool isLaunched = launch.size > 1;
  const int size = isLaunched ? launch.size : std::max(options.ranks.processes, 1);
  checkShardGroup(options, size);
  std::vector<std::string> notes = notesOn(options);
  if (!options.resumePath.empty()) {
    const size_t asked = options.accumulate;
    continueRun(options, text, size);
    if (options.isGiven("--accumulate") && options.accumulate != asked) {
      notes.push_back(fmt::format("--accumulate {} is not followed: the checkpoint's steps have {} sequences",
                                  asked, options.sequences));
    }
  }
  const pealZeroOptions_t engine = engineOptions(options);
  if (pealZeroCheckOptions(&engine) != pealSuccess) {
    throw tools::UsageError(pealZeroGetLastError(nullptr));
  }
  checkMemory(options, shape, size, isLaunched ? std::max(launch.localSize, 1) : size);
  if (launch.rank == 0 && !options.savePath.empty()) {
    checkSavePath(options);
  }
  if (launch.rank == 0 && !options.tracePath.empty()) {
    Tracer::checkPath(options.tracePath);
  }
  for (const std::string& note : notes) {
    if (launch.rank == 0) {
      fmt::print(stderr, "peal-train: note: {}\n", note);
    }
  }
  MetricsFile metrics(launch.rank == 0 ? options.metricsPath : "",
                      options.resumePath.empty() ? Earlier::Dropped : Earlier::Kept);

  tools::RankSetup setup;
  setup.config.deterministic = 1;
  setup.config.commName = "peal-train";
  if (options.device == ComputeDevice::Cuda) {
    setup.device = [](const tools::RankContext& context) { return chooseCudaDevice(context.localRank); };
  }
  // A rank was lost, or could not go on. Once: from the parent of the ranks, or from a launcher's rank 0, or
  // from rank 1 if that is the lost one.
  std::atomic<bool> said{false};
  const auto hint = [&](const std::string& why) {
    const bool may = launch.rank == 0 || (launch.rank == 1 && saysThatRankZeroDied(why));
    const bool speaks = may && !said.exchange(true);
    const std::string sentence = speaks ? resumeHint(options, argc, argv) : "";
    if (!sentence.empty()) {
      fmt::print(stderr, "peal-train: {}\n", sentence);
    }
  };
  // Asked to end before it has found a reason, rank 0 speaks: the job may be preempted.
  std::optional<LastWords> lastWords;
  if (isLaunched) {
    lastWords.emplace(momentMs(options, launch.rank), [&] { hint(""); });
  }
  // A launcher's rank tells of its failure inside of runRanks.
  std::string failure;
  try {
    const int code = tools::runRanks(options.ranks, setup, [&](tools::RankContext& context) {
      try {
        return runRank(options, text, metrics, context);
      } catch (const std::exception& thrown) {
        failure = isLaunched ? thrown.what() : "";
        throw;
      }
    });
    if (code > kSignalCode || !failure.empty()) {
      hint(failure);
    }
    return code;
  } catch (const std::exception& thrown) {
    hint(thrown.what());
    throw;
  }
}

}  // namespace
}  // namespace peal::train

int main(int argc, char** argv) {
  return peal::tools::guard("peal-train", [&] { return peal::train::trainMain(argc, argv); });
}
