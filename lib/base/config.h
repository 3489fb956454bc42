// The configuration table: every knob with name, type, default, range and help, read from the environment
// once. The only place in the project that calls getenv for peal's own variables.
//
// A value that does not parse or is out of range is an error that configuration() reports at the first
// communicator, never a silent default.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/base/result.h"

namespace peal {

enum class Knob {
  TimeoutMs,      // PEAL_TIMEOUT_MS
  InitTimeoutMs,  // PEAL_INIT_TIMEOUT_MS
  Deterministic,  // PEAL_DETERMINISTIC
  Algorithm,      // PEAL_ALGO
  TunerFile,      // PEAL_TUNER_FILE
  SlotBytes,      // PEAL_SLOT_BYTES
  Slots,          // PEAL_SLOTS
  SpinUs,         // PEAL_SPIN_US
  LogLevel,       // PEAL_LOG
  Interface,      // PEAL_INTERFACE
  Port,           // PEAL_PORT
  Isa,            // PEAL_ISA
  LaunchSecret,   // PEAL_SECRET
  DirectRead,     // PEAL_DIRECT_READ
  // Said by whoever starts the ranks; lib/bootstrap/launch.cpp reads them together with other launchers'.
  LaunchRank,       // PEAL_RANK
  LaunchSize,       // PEAL_SIZE
  LaunchLocalRank,  // PEAL_LOCAL_RANK
  LaunchLocalSize,  // PEAL_LOCAL_SIZE
  LaunchRoot,       // PEAL_ROOT
  // Communicators on GPUs.
  Device,             // PEAL_DEVICE
  Channels,           // PEAL_CHANNELS
  Threads,            // PEAL_THREADS
  Protocol,           // PEAL_PROTOCOL
  DeviceBufferBytes,  // PEAL_DEVICE_BUFFER_BYTES
  GpuDirect,          // PEAL_GPU_DIRECT
  Transport,          // PEAL_TRANSPORT
  TcpCongestion,      // PEAL_TCP_CONGESTION
  HostId,             // PEAL_HOST_ID
  TopologyFile,       // PEAL_TOPOLOGY_FILE
  // InfiniBand and RoCE.
  IbDevices,       // PEAL_IB_DEVICES
  IbGidType,       // PEAL_IB_GID_TYPE
  IbGidSubnet,     // PEAL_IB_GID_SUBNET
  IbQueuePairs,    // PEAL_IB_QUEUE_PAIRS
  IbServiceLevel,  // PEAL_IB_SERVICE_LEVEL
  IbTrafficClass,  // PEAL_IB_TRAFFIC_CLASS
  IbTimeout,       // PEAL_IB_TIMEOUT
  IbRetries,       // PEAL_IB_RETRIES
  Count
};

enum class KnobType { Integer, Text, Choice };

struct KnobInfo {
  Knob knob;
  const char* name;  // the environment variable
  KnobType type;
  const char* defaultText;
  int64_t least, most;  // Integer only
  const char* choices;  // of Choice, separated by '|'; of Integer, names for numbers: "name=number|..."
  const char* help;     // one sentence, with the unit
  bool secret;          // the value is never printed
};

std::span<const KnobInfo> knobTable();

// The table with the values of this process.
class Configuration {
 public:
  int64_t integer(Knob knob) const;
  const std::string& text(Knob knob) const;
  bool isDefault(Knob knob) const;
  // Reads values through `lookup(name)`: nullptr when unset. Tests pass their own; all others use
  // configuration().
  static Result<Configuration> read(const char* (*lookup)(const char*));

 private:
  struct Value {
    std::string text;
    int64_t integer = 0;
    bool isDefault = true;
  };
  Value values_[static_cast<size_t>(Knob::Count)];
};

// Read once, at the first call. An error stays an error.
const Result<Configuration>& configuration();

// A sentence for each variable of `environment` ("NAME=value", ended by nullptr) that begins with PEAL_ and
// that peal does not know, with the name that was meant if one is near. Values are not told: a secret may be
// among them. Those that begin with PEAL_TEST are the tests' and benches' own.
std::vector<std::string> unknownVariables(const char* const* environment);
// Those of this process.
std::vector<std::string> unknownVariables();

// Reads a variable that belongs to somebody else: a launcher's. Empty optional when unset.
std::optional<std::string> foreignVariable(const char* name);

}  // namespace peal
