#include "lib/base/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "lib/base/nearest.h"

extern char** environ;

namespace peal {
namespace {

constexpr std::array<KnobInfo, static_cast<size_t>(Knob::Count)> kTable{{
    {Knob::TimeoutMs, "PEAL_TIMEOUT_MS", KnobType::Integer, "300000", 1, 1 << 30, "",
     "Deadline of every wait of an operation, in milliseconds.", false},
    {Knob::InitTimeoutMs, "PEAL_INIT_TIMEOUT_MS", KnobType::Integer, "60000", 1, 1 << 30, "",
     "How long ranks wait for each other when a communicator is made, in milliseconds.", false},
    {Knob::Deterministic, "PEAL_DETERMINISTIC", KnobType::Integer, "0", 0, 1, "",
     "1: sums are taken in rank order, bit for bit a plain loop over ranks.", false},
    {Knob::Algorithm, "PEAL_ALGO", KnobType::Choice, "auto", 0, 0,
     "auto|ring|one_shot|two_shot|hierarchical|tree|hierarchical_ring",
     "Forces an algorithm where it is legal for the operation; auto lets the tuner choose.", false},
    {Knob::TunerFile, "PEAL_TUNER_FILE", KnobType::Text, "", 0, 0, "",
     "File with what messages cost inside a node and between nodes, and between GPUs, read by rank 0 of a "
     "communicator over several nodes or on GPUs; if it is not there, it is written with what was measured "
     "between nodes. Empty: measure every time.",
     false},
    {Knob::SlotBytes, "PEAL_SLOT_BYTES", KnobType::Integer, "65536", 64, 1 << 24, "",
     "Size of one staging slot of a link, in bytes; a multiple of 64. On GPUs the default is what fits into "
     "PEAL_DEVICE_BUFFER_BYTES, 256 KiB at most.",
     false},
    {Knob::Slots, "PEAL_SLOTS", KnobType::Integer, "4", 2, 64, "",
     "Staging slots of a link: how far a sender may run ahead of its receiver, short messages inside a node "
     "apart. On GPUs 8 at most.",
     false},
    {Knob::SpinUs, "PEAL_SPIN_US", KnobType::Integer, "20", 0, 1000000, "",
     "How long a wait spins before it yields and then sleeps, in microseconds.", false},
    {Knob::LogLevel, "PEAL_LOG", KnobType::Choice, "warn", 0, 0, "none|error|warn|info|debug",
     "What goes to the error output.", false},
    {Knob::Interface, "PEAL_INTERFACE", KnobType::Text, "", 0, 0, "",
     "Network interfaces to offer to other nodes: names, prefixes or subnets (10.0.0.0/8) separated by "
     "commas; ^ excludes, = asks for the whole name. RDMA devices come along with their interfaces. Empty: "
     "all that are up.",
     false},
    {Knob::Port, "PEAL_PORT", KnobType::Integer, "0", 0, 65535, "",
     "TCP port at which the first rank listens; 0: one that follows from the job's identity under a "
     "launcher, "
     "else the system chooses.",
     false},
    {Knob::Isa, "PEAL_ISA", KnobType::Choice, "auto", 0, 0, "auto|baseline|avx2|avx512",
     "Caps the instruction set of the reduction loops; never more than the processor has.", false},
    {Knob::LaunchSecret, "PEAL_SECRET", KnobType::Text, "", 0, 0, "",
     "Password that ranks started by a launcher prove to each other; the same on every rank.", true},
    {Knob::DirectRead, "PEAL_DIRECT_READ", KnobType::Integer, "1", 0, 1, "",
     "1: read buffers of peers where they lie; 0: always through slots, which also takes memory that no "
     "other process may read.",
     false},
    {Knob::LaunchRank, "PEAL_RANK", KnobType::Text, "", 0, 0, "",
     "This process's rank, from 0, when no launcher says it; together with PEAL_SIZE.", false},
    {Knob::LaunchSize, "PEAL_SIZE", KnobType::Text, "", 0, 0, "",
     "The number of ranks; together with PEAL_RANK.", false},
    {Knob::LaunchLocalRank, "PEAL_LOCAL_RANK", KnobType::Text, "", 0, 0, "",
     "This process's index on its machine, from 0; together with PEAL_LOCAL_SIZE.", false},
    {Knob::LaunchLocalSize, "PEAL_LOCAL_SIZE", KnobType::Text, "", 0, 0, "",
     "The number of ranks on this machine; together with PEAL_LOCAL_RANK.", false},
    {Knob::LaunchRoot, "PEAL_ROOT", KnobType::Text, "", 0, 0, "",
     "host:port at which rank 0 listens, the same on every rank (IPv6 in brackets). Unset: the launcher's "
     "word, or a local socket when all ranks are on one machine.",
     false},
    {Knob::Device, "PEAL_DEVICE", KnobType::Integer, "-1", -3, 1023, "host=-1|current=-2|auto=-3",
     "Device of a communicator whose options do not name one: host memory, a GPU's number, current for the "
     "calling thread's current CUDA device, auto for GPU k modulo their number on the k-th rank of a "
     "machine.",
     false},
    {Knob::Channels, "PEAL_CHANNELS", KnobType::Integer, "0", 0, 32, "",
     "The most blocks of a GPU that one operation uses; 0 lets peal choose.", false},
    {Knob::Threads, "PEAL_THREADS", KnobType::Integer, "512", 64, 512, "",
     "Threads of a block on the GPU, a multiple of 32.", false},
    {Knob::Protocol, "PEAL_PROTOCOL", KnobType::Choice, "auto", 0, 0, "auto|simple|ll|ll128",
     "Forces how GPU kernels hand messages over; auto lets the tuner choose by predicted time.", false},
    {Knob::DeviceBufferBytes, "PEAL_DEVICE_BUFFER_BYTES", KnobType::Integer, "33554432", 65536,
     int64_t{1} << 34, "", "The most GPU memory of a communicator's slots on one rank, in bytes.", false},
    {Knob::GpuDirect, "PEAL_GPU_DIRECT", KnobType::Choice, "off", 0, 0, "auto|on|off",
     "Whether network devices read and write memory of GPUs (GPUDirect RDMA, over verbs): auto where every "
     "rank's can, on or an error, off; the same on every rank. Takes two more boxes of GPU memory for each "
     "peer on another node. No hardware has run it yet.",
     false},
    {Knob::Transport, "PEAL_TRANSPORT", KnobType::Choice, "auto", 0, 0, "auto|tcp|ucx|verbs",
     "What carries messages between nodes; auto takes the first that every rank can use: verbs, tcp, ucx.",
     false},
    {Knob::TcpCongestion, "PEAL_TCP_CONGESTION", KnobType::Text, "auto", 0, 0, "",
     "Congestion control of the TCP connections that carry data between nodes: a name of the system's "
     "(cubic, "
     "reno), system for the system's choice; auto is that, too, but reno to near peers where it is bbr.",
     false},
    {Knob::HostId, "PEAL_HOST_ID", KnobType::Text, "", 0, 0, "",
     "Ranks with the same text are on one node, ranks with another text are not, whatever the machine says. "
     "Empty: peal finds out.",
     false},
    {Knob::TopologyFile, "PEAL_TOPOLOGY_FILE", KnobType::Text, "", 0, 0, "",
     "JSON file that describes machines (docs/TOPOLOGY.md), to be shown and planned with instead of this "
     "one. Empty: peal finds out.",
     false},
    {Knob::IbDevices, "PEAL_IB_DEVICES", KnobType::Text, "", 0, 0, "",
     "InfiniBand and RoCE devices to use: names or prefixes separated by commas, each may end in :port; ^ "
     "excludes, = asks for the whole name. Empty: every port that is active.",
     false},
    {Knob::IbGidType, "PEAL_IB_GID_TYPE", KnobType::Choice, "auto", 0, 0, "auto|v1|v2",
     "The version of RoCE to speak; auto prefers 2.", false},
    {Knob::IbGidSubnet, "PEAL_IB_GID_SUBNET", KnobType::Text, "", 0, 0, "",
     "The subnet that a port's address (GID) must be in, as 10.1.0.0/16 or fd00::/8. Empty: any.", false},
    {Knob::IbQueuePairs, "PEAL_IB_QUEUE_PAIRS", KnobType::Integer, "2", 1, 16, "",
     "Queue pairs of a link on each pair of ports: messages take turns over them.", false},
    {Knob::IbServiceLevel, "PEAL_IB_SERVICE_LEVEL", KnobType::Integer, "0", 0, 15, "",
     "InfiniBand service level of all messages.", false},
    {Knob::IbTrafficClass, "PEAL_IB_TRAFFIC_CLASS", KnobType::Integer, "0", 0, 255, "",
     "Traffic class in the global header: with RoCE the DSCP times 4.", false},
    {Knob::IbTimeout, "PEAL_IB_TIMEOUT", KnobType::Integer, "14", 1, 31, "",
     "How long a device waits for an acknowledgement before it sends again: 4.096 microseconds times 2 to "
     "this power.",
     false},
    {Knob::IbRetries, "PEAL_IB_RETRIES", KnobType::Integer, "7", 0, 7, "",
     "How often a device sends again before the queue pair fails and is rebuilt.", false},
}};

size_t indexOf(Knob knob) { return static_cast<size_t>(knob); }

bool isChoice(std::string_view choices, std::string_view text) {
  while (!choices.empty()) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, bar) == text) {
      return true;
    }
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return false;
}

// The number that `text` names, or `text`.
std::string_view numberOf(std::string_view names, std::string_view text) {
  while (!names.empty()) {
    const size_t bar = std::min(names.find('|'), names.size());
    const std::string_view entry = names.substr(0, bar);
    const size_t equals = entry.find('=');
    if (entry.substr(0, equals) == text) {
      return entry.substr(equals + 1);
    }
    names.remove_prefix(std::min(bar + 1, names.size()));
  }
  return text;
}

Result<int64_t> parseInteger(const KnobInfo& info, std::string_view text) {
  int64_t value = 0;
  const std::string_view number = numberOf(info.choices, text);
  const auto [end, fault] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (fault != std::errc() || end != number.data() + number.size() || value < info.least ||
      value > info.most) {
    const std::string names = *info.choices != 0 ? fmt::format(" and none of {}", info.choices) : "";
    return Error{pealInvalidArgument,
                 fmt::format("{}=\"{}\" is not a whole number from {} to {}{}. {} Default: {}.", info.name,
                             text, info.least, info.most, names, info.help, info.defaultText)};
  }
  return value;
}

constexpr std::string_view kPrefix = "PEAL_";
constexpr std::string_view kForTests = "PEAL_TEST";

}  // namespace

std::span<const KnobInfo> knobTable() { return kTable; }

int64_t Configuration::integer(Knob knob) const { return values_[indexOf(knob)].integer; }
const std::string& Configuration::text(Knob knob) const { return values_[indexOf(knob)].text; }
bool Configuration::isDefault(Knob knob) const { return values_[indexOf(knob)].isDefault; }

Result<Configuration> Configuration::read(const char* (*lookup)(const char*)) {
  Configuration configuration;
  for (const KnobInfo& info : kTable) {
    Value& value = configuration.values_[indexOf(info.knob)];
    const char* given = lookup(info.name);
    value.isDefault = given == nullptr;
    value.text = given != nullptr ? given : info.defaultText;
    if (info.type == KnobType::Integer) {
      const Result<int64_t> parsed = parseInteger(info, value.text);
      if (!parsed) {
        return parsed.error();
      }
      value.integer = *parsed;
    } else if (info.type == KnobType::Choice && !isChoice(info.choices, value.text)) {
      return Error{pealInvalidArgument, fmt::format("{}=\"{}\" is not one of {}. {}", info.name, value.text,
                                                    info.choices, info.help)};
    }
  }
  if (configuration.integer(Knob::SlotBytes) % 64 != 0) {
    return Error{pealInvalidArgument, fmt::format("PEAL_SLOT_BYTES={} is not a multiple of 64.",
                                                  configuration.integer(Knob::SlotBytes))};
  }
  if (configuration.integer(Knob::Threads) % 32 != 0) {
    return Error{pealInvalidArgument, fmt::format("PEAL_THREADS={} is not a multiple of 32, a GPU's warp.",
                                                  configuration.integer(Knob::Threads))};
  }
  return configuration;
}

const Result<Configuration>& configuration() {
  static const Result<Configuration> read =
      Configuration::read([](const char* name) -> const char* { return std::getenv(name); });
  return read;
}

std::vector<std::string> unknownVariables(const char* const* environment) {
  std::vector<std::string_view> shortNames;
  for (const KnobInfo& info : kTable) {
    shortNames.push_back(std::string_view(info.name).substr(kPrefix.size()));
  }
  std::vector<std::string> sentences;
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    const std::string_view name = entry.substr(0, entry.find('='));
    const bool known =
        std::any_of(kTable.begin(), kTable.end(), [&](const KnobInfo& info) { return name == info.name; });
    if (!name.starts_with(kPrefix) || name.starts_with(kForTests) || known) {
      continue;
    }
    const std::optional<std::string_view> nearest = nearestName(name.substr(kPrefix.size()), shortNames);
    sentences.push_back(fmt::format("the environment sets {}, which peal does not know: it has no effect. {}",
                                    name,
                                    nearest ? fmt::format("Was {}{} meant?", kPrefix, *nearest)
                                            : std::string("peal-info --config shows all that it knows.")));
  }
  std::sort(sentences.begin(), sentences.end());
  return sentences;
}

std::vector<std::string> unknownVariables() { return unknownVariables(environ); }

std::optional<std::string> foreignVariable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

}  // namespace peal
