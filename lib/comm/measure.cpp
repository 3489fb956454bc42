#include "lib/comm/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/base/clock.h"
#include "lib/base/config.h"
#include "lib/base/log.h"
#include "lib/tuner/links_file.h"

namespace peal {
namespace {

constexpr int kPings = 9;
constexpr int kBurst = 24;
constexpr size_t kBulkBytes = size_t{512} << 10;
constexpr int kBulkRepeats = 3;

double sinceUs(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Times messages to one peer, which answers. Both sides go through the same steps.
class Meter {
 public:
  Meter(HostContext& context, std::vector<uint32_t>& sendSequence, std::vector<uint32_t>& recvSequence)
      : context_(context), sendSequence_(sendSequence), recvSequence_(recvSequence), memory_(kBulkBytes) {}

  Result<void> send(int peer, size_t bytes, int count = 1) { return transfer(peer, true, bytes, count); }
  Result<void> receive(int peer, size_t bytes, int count = 1) { return transfer(peer, false, bytes, count); }

  // Until `count` messages of so many bytes have arrived and the peer's answer came back.
  Result<double> timeUs(int peer, size_t bytes, int count) {
    const auto start = Clock::now();
    PEAL_TRY(send(peer, bytes, count));
    PEAL_TRY(receive(peer, 1));
    return sinceUs(start);
  }
  Result<void> answer(int peer, size_t bytes, int count) {
    PEAL_TRY(receive(peer, bytes, count));
    return send(peer, 1);
  }

  // The quickest of several, in which nobody was held up.
  Result<double> quickestUs(int peer, size_t bytes, int count, int repeats) {
    double least = 0;
    for (int i = 0; i < repeats; ++i) {
      const Result<double> us = timeUs(peer, bytes, count);
      if (!us) {
        return us.error();
      }
      least = i == 0 ? *us : std::min(least, *us);
    }
    return least;
  }
  Result<void> answerAll(int peer, size_t bytes, int count, int repeats) {
    for (int i = 0; i < repeats; ++i) {
      PEAL_TRY(answer(peer, bytes, count));
    }
    return {};
  }

  // A link's three numbers; `pairs` pairs share the wire while the bulk is sent.
  Result<LinkCost> measure(int peer, int pairs) {
    const Result<double> bulkUs = quickestUs(peer, kBulkBytes, 1, kBulkRepeats);
    const Result<double> pingUs = bulkUs ? quickestUs(peer, 1, 1, kPings) : bulkUs;
    const Result<double> burstUs = pingUs ? quickestUs(peer, 1, kBurst, kBulkRepeats) : pingUs;
    if (!burstUs) {
      return burstUs.error();
    }
    // On a busy machine a burst also measures how long the ranks wait for a processor: a message more never
    // costs more than one by itself.
    const double gapUs = std::max(0.0, *burstUs - *pingUs) / (kBurst - 1);
    return LinkCost{.latencyUs = *pingUs / 2,
                    .gapUs = std::min(gapUs, *pingUs / 2),
                    .usPerByte = bytesUs(*bulkUs, *pingUs) / static_cast<double>(kBulkBytes) / pairs};
  }
  Result<void> answerMeasure(int peer) {
    PEAL_TRY(answerAll(peer, kBulkBytes, 1, kBulkRepeats));
    PEAL_TRY(answerAll(peer, 1, 1, kPings));
    return answerAll(peer, 1, kBurst, kBulkRepeats);
  }

 private:
  Result<void> transfer(int peer, bool sends, size_t bytes, int count) {
    std::vector<PointToPoint> calls;
    for (int i = 0; i < count; ++i) {
      PointToPoint call{.isSend = sends, .count = bytes, .type = pealUint8, .peer = peer};
      call.send = sends ? memory_.data() : nullptr;
      call.recv = sends ? nullptr : memory_.data();
      std::vector<uint32_t>& sequence = sends ? sendSequence_ : recvSequence_;
      call.sequence = ++sequence[static_cast<size_t>(peer)];
      calls.push_back(call);
    }
    if (std::optional<Fault> fault = runPointToPoint(context_, calls)) {
      return fault->error;
    }
    return {};
  }

  HostContext& context_;
  std::vector<uint32_t>& sendSequence_;
  std::vector<uint32_t>& recvSequence_;
  std::vector<std::byte> memory_;
};

// The ranks of the first two nodes send to each other at once, as many pairs as there are: so what a node's
// ranks share of the network is counted. Then ranks 0 and 1 of the first node. Only rank 0's numbers are
// used.
Result<LinkTable> measureLinks(HostContext& context, Meter& meter) {
  const Grouping& nodes = *context.grouping;
  const int node = nodes.node(context.rank), local = nodes.local(context.rank);
  const int pairs = std::min(nodes.nodeSize(0), nodes.nodeSize(1));
  LinkTable links;
  if (node <= 1 && local < pairs) {
    const int partner = nodes.rank(1 - node, local);
    if (node == 1) {
      PEAL_TRY(meter.answerAll(partner, kBulkBytes, 1, kBulkRepeats));
      if (local == 0) {
        PEAL_TRY(meter.answerMeasure(partner));
      }
    } else {
      for (int other = 1; local == 0 && other < pairs; ++other) {  // all begin when rank 0 says so
        PEAL_TRY(meter.send(nodes.rank(0, other), 1));
      }
      if (local != 0) {
        PEAL_TRY(meter.receive(0, 1));
      }
      const Result<double> sharedUs = meter.quickestUs(partner, kBulkBytes, 1, kBulkRepeats);
      if (!sharedUs) {
        return sharedUs.error();
      }
      if (local == 0) {
        const Result<LinkCost> alone = meter.measure(partner, 1);
        if (!alone) {
          return alone.error();
        }
        links.between = *alone;
        links.between.usPerByte =
            bytesUs(*sharedUs, 2 * alone->latencyUs) / static_cast<double>(kBulkBytes) / pairs;
      }
    }
  }
  if (node == 0 && nodes.nodeSize(0) > 1 && local <= 1) {
    const int peer = nodes.rank(0, 1 - local);
    if (local == 1) {
      PEAL_TRY(meter.answerMeasure(peer));
    } else {
      const Result<LinkCost> inside = meter.measure(peer, 1);
      if (!inside) {
        return inside.error();
      }
      links.inside = *inside;
    }
  }
  return links;
}

// ---- agreement --------------------------------------------------------------------------------------------

// What a rank says: whether it has numbers, needs them, or failed. A sentence of an error follows it.
struct Report {
  enum class State : int32_t { Measure, Have, Failed };
  State state = State::Measure;
  int32_t error = pealSuccess;
  LinkTable links{};
};

std::vector<std::byte> packed(const Report& report, const std::string& sentence) {
  std::vector<std::byte> blob(sizeof report + sentence.size());
  std::memcpy(blob.data(), &report, sizeof report);
  std::memcpy(blob.data() + sizeof report, sentence.data(), sentence.size());
  return blob;
}

std::vector<std::byte> packed(const Result<LinkTable>& links) {
  if (links) {
    return packed(Report{Report::State::Have, pealSuccess, *links}, "");
  }
  return packed(Report{Report::State::Failed, links.error().code, {}}, links.error().message);
}

// Rank 0's report; the first error of any rank instead.
Result<Report> exchanged(Exchange& exchange, const std::vector<std::byte>& mine) {
  const Result<std::vector<std::vector<std::byte>>> blobs = exchange.allGather(mine);
  if (!blobs) {
    return blobs.error();
  }
  Report first;
  for (size_t rank = blobs->size(); rank-- > 0;) {
    const std::vector<std::byte>& blob = (*blobs)[rank];
    if (blob.size() < sizeof first) {
      return Error{pealInternalError, fmt::format("rank {} reports {} bytes about its links, not {} or more.",
                                                  rank, blob.size(), sizeof first)};
    }
    std::memcpy(&first, blob.data(), sizeof first);
    if (first.state == Report::State::Failed) {
      const std::string sentence(reinterpret_cast<const char*>(blob.data()) + sizeof first,
                                 blob.size() - sizeof first);
      return Error{static_cast<pealResult_t>(first.error),
                   fmt::format("what links cost could not be learnt: rank {}: {}", rank, sentence)};
    }
  }
  return first;
}

Result<void> compareHashes(Exchange& exchange, const LinkTable& links) {
  const uint64_t mine = hashOf(links);
  std::vector<std::byte> blob(sizeof mine);
  std::memcpy(blob.data(), &mine, sizeof mine);
  const Result<std::vector<std::vector<std::byte>>> blobs = exchange.allGather(blob);
  if (!blobs) {
    return blobs.error();
  }
  for (size_t rank = 0; rank < blobs->size(); ++rank) {
    if ((*blobs)[rank] != blob) {
      return Error{pealInternalError,
                   fmt::format("ranks {} and {} would choose algorithms by different link costs.",
                               exchange.rank(), rank)};
    }
  }
  return {};
}

}  // namespace

Result<LinkTable> agreeOnLinks(Exchange& exchange, HostContext& context, std::vector<uint32_t>& sendSequence,
                               std::vector<uint32_t>& recvSequence) {
  const auto start = Clock::now();
  const std::string& path = configuration()->text(Knob::TunerFile);
  std::vector<std::byte> mine = packed(Report{}, "");
  if (context.rank == 0) {
    Result<std::optional<LinkTable>> known = std::optional<LinkTable>();
    if (!path.empty()) {
      known = readLinksFile(path);
    }
    if (known && !*known && context.grouping == nullptr) {
      *known = assumedLinks();
    }
    if (!known) {
      mine = packed(Result<LinkTable>(known.error()));
    } else if (*known) {
      mine = packed(Result<LinkTable>(**known));
    }
  }
  Result<Report> report = exchanged(exchange, mine);
  if (report && report->state == Report::State::Measure) {
    const int64_t timeoutMs = context.timeoutMs;
    context.timeoutMs = std::min(timeoutMs, configuration()->integer(Knob::InitTimeoutMs));
    Meter meter(context, sendSequence, recvSequence);
    const Result<LinkTable> measured = measureLinks(context, meter);
    context.timeoutMs = timeoutMs;
    context.stats = {};  // not the application's
    if (measured && context.rank == 0 && !path.empty()) {
      writeLinksFile(path, *measured);
    }
    report = exchanged(exchange, packed(measured));
  }
  if (!report) {
    return report.error();
  }
  PEAL_TRY(compareHashes(exchange, report->links));
  if (context.rank == 0) {
    log(LogLevel::Info, fmt::format("{}: all ranks have the costs of links after {:.1f} ms:\n{}",
                                    context.name, sinceUs(start) / 1000, formatLinks(report->links)));
  }
  return report->links;
}

}  // namespace peal
