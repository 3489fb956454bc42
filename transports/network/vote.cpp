#include "transports/network/vote.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/bootstrap/bytes.h"
#include "lib/bootstrap/roster.h"

namespace peal {
namespace {

constexpr size_t kReasonMostBytes = 8192;
constexpr size_t kReasonsListed = 8;

Bytes encode(const Result<void>& verdict) {
  Bytes blob;
  if (!verdict) {
    const std::string& text = verdict.error().message;
    appendInteger(blob, static_cast<uint32_t>(verdict.error().code));
    append(blob, viewOf(std::string_view(text).substr(0, kReasonMostBytes)));
  }
  return blob;
}

}  // namespace

Result<void> agree(Exchange& exchange, const Result<void>& mine) {
  const Result<std::vector<Bytes>> verdicts = exchange.allGather(encode(mine));
  if (!verdicts) {
    return verdicts.error();
  }
  struct Reason {
    std::string text;
    std::vector<int> ranks;
  };
  std::vector<Reason> reasons;
  pealResult_t code = pealRemoteError;
  for (size_t rank = 0; rank < verdicts->size(); ++rank) {
    const ByteView verdict((*verdicts)[rank]);
    if (verdict.size() < sizeof(uint32_t)) {
      continue;
    }
    if (reasons.empty()) {
      code = static_cast<pealResult_t>(readInteger<uint32_t>(verdict));
    }
    const std::string text(textOf(verdict.subspan(sizeof(uint32_t))));
    auto known =
        std::find_if(reasons.begin(), reasons.end(), [&](const Reason& one) { return one.text == text; });
    if (known == reasons.end()) {
      known = reasons.insert(reasons.end(), Reason{text, {}});
    }
    known->ranks.push_back(static_cast<int>(rank));
  }
  if (reasons.empty()) {
    return {};
  }
  std::string message;
  for (size_t i = 0; i < std::min(reasons.size(), kReasonsListed); ++i) {
    message += fmt::format("{}on {}: {}", i == 0 ? "" : " ", rankList(reasons[i].ranks), reasons[i].text);
  }
  if (reasons.size() > kReasonsListed) {
    message += fmt::format(" And {} more reasons on other ranks.", reasons.size() - kReasonsListed);
  }
  return Error{code, message};
}

}  // namespace peal
