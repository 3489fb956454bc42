// System information: says what is known, and of what is not built in exactly that. Tries what shared memory
// needs, asks the CUDA runtime for devices, UCX for its transports and libibverbs for ports; nothing else is
// probed.
#include "lib/api/system_info.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

#include "lib/api/api.h"
#include "lib/base/config.h"
#include "lib/base/cpu.h"
#include "lib/executor/device_executor.h"
#include "lib/topology/processors.h"
#include "peal/peal.h"
#include "transports/shm/shm.h"
#include "transports/ucx/ucx.h"
#include "transports/verbs/verbs.h"

namespace peal {
namespace {

std::string jsonText(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      json += c;
    }
  }
  return json + '"';
}

// The environment may hold any bytes, JSON only UTF-8: each byte that is not part of a well-formed sequence
// becomes U+FFFD.
std::string utf8(std::string_view text) {
  std::string clean;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t length = first < 0x80                    ? 1
                          : first >= 0xc2 && first < 0xe0 ? 2
                          : first >= 0xe0 && first < 0xf0 ? 3
                          : first >= 0xf0 && first < 0xf5 ? 4
                                                          : 0;
    bool whole = length != 0 && i + length <= text.size();
    for (size_t k = 1; whole && k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      // The second byte also rules out overlong forms, surrogates and what lies above U+10FFFF.
      const unsigned char least = k == 1 && first == 0xe0 ? 0xa0 : k == 1 && first == 0xf0 ? 0x90 : 0x80;
      const unsigned char most = k == 1 && first == 0xed ? 0x9f : k == 1 && first == 0xf4 ? 0x8f : 0xbf;
      whole = next >= least && next <= most;
    }
    clean += whole ? std::string(text.substr(i, length)) : "\xef\xbf\xbd";
    i += whole ? length : 1;
  }
  return clean;
}

const char* knobTypeName(KnobType type) {
  switch (type) {
    case KnobType::Integer:
      return "integer";
    case KnobType::Choice:
      return "choice";
    case KnobType::Text:
      break;
  }
  return "text";
}

std::string rangeText(const KnobInfo& info) {
  if (info.type != KnobType::Integer) {
    return info.choices;
  }
  return fmt::format("{}..{}{}{}", info.least, info.most, *info.choices != 0 ? ", " : "", info.choices);
}

std::string knobJson(const KnobInfo& info, const Result<Configuration>& table) {
  const bool given = table && !table->isDefault(info.knob);
  const std::string value = table && !info.secret ? jsonText(utf8(table->text(info.knob))) : "null";
  return fmt::format(
      R"({{"name": {}, "type": {}, "value": {}, "default": {}, "origin": {}, "range": {}, "help": {}, "secret": {}}})",
      jsonText(info.name), jsonText(knobTypeName(info.type)), value, jsonText(info.defaultText),
      table ? jsonText(given ? "environment" : "default") : "null", jsonText(rangeText(info)),
      jsonText(info.help), info.secret);
}

std::string partJson(std::string_view name, bool found, std::string_view why) {
  return fmt::format(R"({{"name": {}, "found": {}, "why": {}}})", jsonText(name), found, jsonText(why));
}

std::string cudaText(const DeviceSupport& devices) {
  return devices.built ? fmt::format("{}; kernels for {}", devices.reason, devices.architectures)
                       : devices.reason;
}

// Each port with its address, or why it is not used.
std::string verbsJson() {
  const Result<std::vector<VerbsPort>> ports = probeVerbs();
  if (!ports) {
    return partJson("verbs", false, utf8(ports.error().message));
  }
  bool any = false;
  std::string text;
  for (const VerbsPort& port : *ports) {
    const std::string use = port.unused.empty()
                                ? fmt::format("{}, {}, MTU {}", port.link, port.address, port.mtuBytes)
                                : "not used: " + port.unused;
    text += fmt::format("{}{}:{} {}", text.empty() ? "" : "; ", port.device, port.port, use);
    any = any || port.unused.empty();
  }
  return partJson("verbs", any, utf8(text));
}

}  // namespace

std::string systemInfoJson() {
  const Result<Configuration>& table = configuration();
  std::string knobs;
  for (const KnobInfo& info : knobTable()) {
    knobs += (knobs.empty() ? "" : ",\n    ") + knobJson(info, table);
  }
  std::string unknown;
  for (const std::string& sentence : unknownVariables()) {
    unknown += (unknown.empty() ? "" : ", ") + jsonText(utf8(sentence));
  }
  const ShmSupport shm = probeShm();
  const UcxSupport ucx = probeUcx();
  const DeviceSupport devices = probeDevices();
  const HwlocSupport hwloc = probeHwloc();
  std::string json;
  const auto out = std::back_inserter(json);
  fmt::format_to(out, "{{\n  \"version\": \"{}.{}.{}\",\n  \"versionCode\": {},\n", PEAL_MAJOR, PEAL_MINOR,
                 PEAL_PATCH, PEAL_VERSION_CODE);
  fmt::format_to(out, "  \"cpu\": {{\"isa\": {}, \"allowedCpus\": {}}},\n", jsonText(isaName(bestIsa())),
                 allowedCpus());
  fmt::format_to(out, "  \"devices\": [\n    {},\n    {}\n  ],\n", partJson("host", true, "host memory"),
                 partJson("cuda", devices.count > 0, utf8(cudaText(devices))));
  fmt::format_to(out, "  \"transports\": [\n    {},\n    {},\n    {},\n    {},\n    {}\n  ],\n",
                 partJson("shm", shm.available, utf8(shm.reason + "; " + shm.crossReadReason)),
                 partJson("cuda_ipc", devices.count > 0, utf8(cudaText(devices))), verbsJson(),
                 partJson("tcp", true, "the system's sockets, between nodes"),
                 partJson("ucx", ucx.available, utf8(ucx.reason)));
  fmt::format_to(out, "  \"discovery\": [\n    {}\n  ],\n",
                 partJson("hwloc", hwloc.available, utf8(hwloc.reason)));
  fmt::format_to(out,
                 "  \"configuration\": {{\"error\": {}, \"unknown\": [{}], \"knobs\": [\n    {}\n  ]}}\n}}\n",
                 table ? "null" : jsonText(utf8(table.error().message)), unknown, knobs);
  return json;
}

}  // namespace peal

pealResult_t pealSystemInfo(const char** json) {
  return peal::api::guarded([&]() -> peal::Result<void> {
    if (json == nullptr) {
      return peal::api::nullArgument("pealSystemInfo", "json");
    }
    thread_local std::string text;
    text = peal::systemInfoJson();
    *json = text.c_str();
    return {};
  });
}
