#include "tests/cudasim/runtime/calls.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/cudasim/include/cudasim/runtime.h"

namespace peal::cudasim {
namespace {

struct Failure {
  uint64_t callsLeft;  // until the one that fails
  cudaError_t error;   // cudaSuccess: the usual one
};

void writeNames();  // to CUDASIM_CALLS_FILE

// A lock of its own: calls are counted before the runtime is locked, and tests ask while others call.
struct Calls {
  std::mutex mutex;
  std::vector<const char*> names;  // in order
  std::multimap<std::string, Failure> failures;
};

[[noreturn]] void refuse(const std::string& text, const char* why) {
  std::fprintf(stderr, "cudasim: CUDASIM_FAIL=%s: %s; expected function:n[:error]\n", text.c_str(), why);
  std::_Exit(2);
}

cudaError_t errorNamed(const std::string& text) {
  for (int code = 1; code <= cudaErrorApiFailureBase; code++) {
    const auto error = static_cast<cudaError_t>(code);
    if (text == cudaGetErrorName(error) || text == std::to_string(code)) {
      return error;
    }
  }
  refuse(text, "there is no such error");
}

void addFromEnvironment(std::multimap<std::string, Failure>& failures) {
  const char* text = std::getenv("CUDASIM_FAIL");
  if (text == nullptr) {
    return;
  }
  const std::string all = text;
  const size_t first = all.find(':');
  if (first == std::string::npos) {
    refuse(all, "there is no number");
  }
  const uint64_t n = std::strtoull(all.c_str() + first + 1, nullptr, 10);
  if (n == 0) {
    refuse(all, "calls are counted from 1");
  }
  const size_t second = all.find(':', first + 1);
  const cudaError_t error = second == std::string::npos ? cudaSuccess : errorNamed(all.substr(second + 1));
  failures.insert({all.substr(0, first), {n, error}});
}

// Not a static object: calls may come from threads that outlive main.
Calls& calls() {
  static Calls* const instance = [] {
    auto* made = new Calls;
    addFromEnvironment(made->failures);
    if (std::getenv("CUDASIM_CALLS_FILE") != nullptr) {
      std::atexit(writeNames);
    }
    return made;
  }();
  return *instance;
}

void writeNames() {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  if (std::FILE* file = std::fopen(std::getenv("CUDASIM_CALLS_FILE"), "a")) {
    for (const char* name : all.names) {
      std::fprintf(file, "%s\n", name);
    }
    std::fclose(file);
  }
}

}  // namespace

void restartCalls() {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  all.names.clear();
  all.failures.clear();
  addFromEnvironment(all.failures);
}

cudaError_t countCall(const char* function, cudaError_t usualError) {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  all.names.push_back(function);
  cudaError_t error = cudaSuccess;
  for (auto it = all.failures.begin(); it != all.failures.end();) {
    auto& [name, failure] = *it;
    if ((name != "*" && name != function) || --failure.callsLeft > 0) {
      ++it;
      continue;
    }
    error = failure.error != cudaSuccess ? failure.error : usualError;
    it = all.failures.erase(it);
  }
  return error;
}

void failCall(const std::string& function, uint64_t n, cudaError_t error) {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  all.failures.insert({function, {n, error}});
}

void failNothing() {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  all.failures.clear();
}

uint64_t callCount() {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  return all.names.size();
}

uint64_t callCount(const std::string& function) {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  uint64_t count = 0;
  for (const char* name : all.names) {
    count += name == function;
  }
  return count;
}

std::string callName(uint64_t n) {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  return n >= 1 && n <= all.names.size() ? all.names[n - 1] : "";
}

void countCalls() {
  Calls& all = calls();
  const std::lock_guard lock(all.mutex);
  all.names.clear();
}

}  // namespace peal::cudasim
