#include "tools/common/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace peal::tools {

void check(pealResult_t result, const char* call, pealComm_t comm) {
  if (result == pealSuccess) {
    return;
  }
  std::string sentence = pealGetLastError(nullptr);
  if (sentence.empty() && comm != nullptr) {
    sentence = pealGetLastError(comm);
  }
  if (sentence.empty()) {
    sentence = pealGetErrorString(result);
  }
  throw PealError(result, fmt::format("{} failed with {}: {}", call, pealGetErrorString(result), sentence));
}

std::string asSentence(std::string text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) {
    text.pop_back();
  }
  if (!text.empty() && std::string_view(".?!").find(text.back()) == std::string_view::npos) {
    text += '.';
  }
  return text;
}

int guard(const std::string& program, const std::function<int()>& body) {
  try {
    const int code = body();
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
      throw ToolError(fmt::format("cannot write the output: {}. Is the disk full, or the output closed?",
                                  std::strerror(errno)));
    }
    return code;
  } catch (const UsageError& error) {
    fmt::print(stderr, "{}: {}\n", program, asSentence(error.what()));
    return kExitUsage;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "{}: out of memory. Ask for smaller sizes or fewer ranks.\n", program);
    return kExitFailure;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", program, asSentence(error.what()));
    return kExitFailure;
  }
}

}  // namespace peal::tools
