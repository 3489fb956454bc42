#include "lib/bootstrap/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "lib/base/config.h"
#include "lib/bootstrap/nodelist.h"
#include "lib/bootstrap/process_tree.h"
#include "lib/bootstrap/wire.h"

namespace peal {
namespace {

// Slurm numbers the steps that are no srun's (batch script, external, interactive) from here.
constexpr uint32_t kFirstSpecialStep = 0xfffffff0u;

struct LauncherVariables {
  const char* name;
  const char* rank;
  const char* size;
  const char* localRank;
  const char* localSize;
};

constexpr std::array<LauncherVariables, 5> kLaunchers{{
    {"peal", "PEAL_RANK", "PEAL_SIZE", "PEAL_LOCAL_RANK", "PEAL_LOCAL_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"pmi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
}};

// A launcher of which at least one of rank and size is set.
struct Word {
  const LauncherVariables* launcher = nullptr;
  const char* sizeVariable = nullptr;
  std::optional<int> rank;
  std::optional<int> size;

  bool whole() const { return rank.has_value() && size.has_value(); }
  bool isSlurm() const { return std::string_view(launcher->name) == "slurm"; }
};

bool insideSlurmStep(const Surroundings& surroundings) {
  const std::optional<std::string> step = surroundings.variable("SLURM_STEP_ID");
  if (!step) {
    return false;
  }
  uint32_t number = 0;
  const auto [end, fault] = std::from_chars(step->data(), step->data() + step->size(), number);
  return fault == std::errc() && end == step->data() + step->size() && number < kFirstSpecialStep;
}

Result<std::optional<int>> readNumber(const Surroundings& surroundings, const char* variable, int least) {
  const std::optional<std::string> text = surroundings.variable(variable);
  if (!text) {
    return std::optional<int>();
  }
  const Result<int> number = launchNumber(variable, *text, least, kRanksMost);
  if (!number) {
    return number.error();
  }
  return std::optional(*number);
}

// What one launcher says; no word if it is absent.
Result<std::optional<Word>> listen(const LauncherVariables& launcher, const Surroundings& surroundings) {
  Word word{&launcher, launcher.size, {}, {}};
  if (word.isSlurm()) {
    if (!insideSlurmStep(surroundings)) {
      return std::optional<Word>();
    }
    // The step's own count where Slurm gives it; older ones have only SLURM_NTASKS.
    if (surroundings.variable("SLURM_STEP_NUM_TASKS")) {
      word.sizeVariable = "SLURM_STEP_NUM_TASKS";
    }
  }
  const Result<std::optional<int>> rank = readNumber(surroundings, launcher.rank, 0);
  if (!rank) {
    return rank.error();
  }
  const Result<std::optional<int>> size = readNumber(surroundings, word.sizeVariable, 1);
  if (!size) {
    return size.error();
  }
  word.rank = *rank;
  word.size = *size;
  if (!word.rank && !word.size) {
    return std::optional<Word>();
  }
  if (word.whole() && *word.rank >= *word.size) {
    return Error{pealInvalidUsage, fmt::format("{}={} is not below {}={}: ranks go from 0 to size - 1.",
                                               launcher.rank, *word.rank, word.sizeVariable, *word.size)};
  }
  return std::optional(word);
}

bool agree(const Word& a, const Word& b) {
  return (!a.rank || !b.rank || *a.rank == *b.rank) && (!a.size || !b.size || *a.size == *b.size);
}

std::string quote(const Word& word) {
  std::string text;
  if (word.rank) {
    text = fmt::format("{}={}", word.launcher->rank, *word.rank);
  }
  if (word.size) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", word.sizeVariable, *word.size);
  }
  return text;
}

// Whether Slurm's task is the launcher that spoke `inner`, and not this process.
bool slurmStarted(const Word& inner, const Surroundings& surroundings) {
  const std::optional<std::string> task = surroundings.variable("SLURM_TASK_PID");
  const Result<int> processId =
      task ? launchNumber("SLURM_TASK_PID", *task, 1, INT32_MAX) : Result<int>(Error{});
  return processId && surroundings.setBelow(*processId, inner.launcher->rank);
}

Error halfSet(const Word& word) {
  const bool rankMissing = !word.rank.has_value();
  return Error{pealInvalidUsage, fmt::format("{} is set but {} is not: set both, or neither.", quote(word),
                                             rankMissing ? word.launcher->rank : word.sizeVariable)};
}

// The word to go by, from all that are present, in order; nullptr if there is none.
Result<const Word*> choose(const std::vector<Word>& words, const Surroundings& surroundings) {
  const auto nested = [&](const Word& slurm) {
    return std::any_of(words.begin(), words.end(), [&](const Word& other) {
      return !other.isSlurm() && other.whole() && !agree(other, slurm) && slurmStarted(other, surroundings);
    });
  };
  const Word* chosen = nullptr;
  for (const Word& word : words) {
    if (word.isSlurm() && nested(word)) {
      continue;
    }
    if (chosen == nullptr && word.whole()) {
      chosen = &word;
    }
  }
  for (const Word& word : words) {
    if (chosen == nullptr) {
      return halfSet(word);
    }
    if (agree(*chosen, word) || (word.isSlurm() && nested(word))) {
      continue;
    }
    return Error{
        pealInvalidUsage,
        fmt::format("two launchers disagree: {} ({}), but {} ({}). Unset the variables of the one that "
                    "did not start this process.",
                    quote(*chosen), chosen->launcher->name, quote(word), word.launcher->name)};
  }
  return chosen;
}

// Slurm has no variable for it that holds in every case: SLURM_NTASKS_PER_NODE is only a wish.
std::optional<int> slurmLocalSize(const Surroundings& surroundings, const Launch& launch) {
  const auto perNode = surroundings.variable("SLURM_STEP_TASKS_PER_NODE");
  const Result<std::optional<int>> node = readNumber(surroundings, "SLURM_NODEID", 0);
  std::optional<int> localSize;
  if (perNode && node && node->has_value()) {
    localSize = tasksOnNode(*perNode, **node);
  } else if (const auto wish = surroundings.variable("SLURM_NTASKS_PER_NODE")) {
    localSize = tasksOnNode(*wish, 0);
  }
  const bool fits = localSize && *localSize > launch.localRank && *localSize <= launch.size;
  return fits ? localSize : std::nullopt;
}

Result<void> readLocal(const Word& word, const Surroundings& surroundings, Launch& launch) {
  const Result<std::optional<int>> localRank = readNumber(surroundings, word.launcher->localRank, 0);
  if (!localRank) {
    return localRank.error();
  }
  launch.localRank = localRank->value_or(-1);
  if (word.isSlurm()) {
    launch.localSize = slurmLocalSize(surroundings, launch).value_or(-1);
    return {};
  }
  const Result<std::optional<int>> localSize = readNumber(surroundings, word.launcher->localSize, 1);
  if (!localSize) {
    return localSize.error();
  }
  launch.localSize = localSize->value_or(-1);
  if (launch.localSize > launch.size || (launch.localSize >= 0 && launch.localRank >= launch.localSize)) {
    return Error{pealInvalidUsage,
                 fmt::format("{}={} and {}={} do not fit {} ranks: local ranks go from 0 to local size - 1.",
                             word.launcher->localRank, launch.localRank, word.launcher->localSize,
                             launch.localSize, launch.size)};
  }
  return {};
}

}  // namespace

Surroundings realSurroundings() {
  return {foreignVariable, [](int processId, const std::string& variable) {
            const std::vector<Ancestor> above = ancestors();
            const bool isAncestor = std::any_of(above.begin(), above.end(), [&](const Ancestor& ancestor) {
              return ancestor.processId == processId;
            });
            return isAncestor && !startedWith(processId, variable);
          }};
}

Result<int> launchNumber(const char* variable, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return Error{pealInvalidUsage,
                 fmt::format("{}=\"{}\" is not a whole number from {} to {}.", variable, text, least, most)};
  }
  return value;
}

Result<Launch> detectLaunchFrom(const Surroundings& surroundings) {
  std::vector<Word> words;
  for (const LauncherVariables& launcher : kLaunchers) {
    const Result<std::optional<Word>> word = listen(launcher, surroundings);
    if (!word) {
      return word.error();
    }
    if (word->has_value()) {
      words.push_back(**word);
    }
  }
  const Result<const Word*> chosen = choose(words, surroundings);
  if (!chosen) {
    return chosen.error();
  }
  Launch launch;
  if (*chosen == nullptr) {
    return launch;
  }
  launch.rank = *(*chosen)->rank;
  launch.size = *(*chosen)->size;
  launch.launcher = (*chosen)->launcher->name;
  PEAL_TRY(readLocal(**chosen, surroundings, launch));
  const bool alone = launch.launcher == "peal" && launch.localSize < 0 && launch.localRank < 0 &&
                     !surroundings.variable("PEAL_ROOT");
  if (alone) {
    // Without PEAL_ROOT they can only meet on one machine.
    launch.localRank = launch.rank;
    launch.localSize = launch.size;
  }
  return launch;
}

std::string launcherRankVariable(const std::string& launcher) {
  for (const LauncherVariables& variables : kLaunchers) {
    if (launcher == variables.name) {
      return variables.rank;
    }
  }
  return "";
}

Result<Launch> detectLaunch() { return detectLaunchFrom(realSurroundings()); }

}  // namespace peal
