#include "lib/comm/together.h"

#include <fmt/format.h>

#include <future>
#include <system_error>
#include <thread>

namespace peal {
Result<void> runTogether(const std::vector<std::function<Result<void>()>>& tasks) {
  if (tasks.size() == 1) {
    return tasks.front()();
  }
  // Started threads wait here until it is known whether all could be started.
  std::promise<bool> decision;
  const std::shared_future<bool> decided = decision.get_future().share();
  std::vector<Result<void>> results(tasks.size());
  std::vector<std::thread> threads;
  threads.reserve(tasks.size());
  std::string refusal;
  try {
    for (size_t i = 0; i < tasks.size(); ++i) {
      threads.emplace_back([&results, &tasks, decided, i] {
        if (decided.get()) {
          results[i] = tasks[i]();
        }
      });
    }
  } catch (const std::system_error& failure) {
    refusal = failure.what();
  }
  decision.set_value(refusal.empty());
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (!refusal.empty()) {
    return Error{
        pealSystemError,
        fmt::format("thread {} of the {} that a call needs did not start: {}. Raise the limit on processes "
                    "(ulimit -u) or on memory (ulimit -v).",
                    threads.size() + 1, tasks.size(), refusal)};
  }
  const Result<void>* worst = nullptr;
  for (const Result<void>& result : results) {
    if (!result && (worst == nullptr ||
                    (worst->error().code == pealRemoteError && result.error().code != pealRemoteError))) {
      worst = &result;
    }
  }
  return worst != nullptr ? *worst : Result<void>();
}

}  // namespace peal
