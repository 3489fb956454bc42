// pealSystemInfo: valid JSON that agrees with the configuration table, hides secrets, and says of what is not
// built in that it is not.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lib/base/config.h"
#include "lib/base/cpu.h"
#include "lib/topology/processors.h"
#include "peal/peal.h"

namespace {

using nlohmann::json;

// What give() returns in a process of its own: the configuration is read once per process, so the test's own
// must never read it.
std::string inChild(const std::function<std::string()>& give) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = give();
    std::string_view left = text;
    while (!left.empty()) {
      const ssize_t written = write(ends[1], left.data(), left.size());
      left.remove_prefix(written > 0 ? static_cast<size_t>(written) : left.size());
    }
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = read(ends[0], buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return text;
}

// The information as a process with this environment gives it.
json infoWith(const std::map<std::string, std::string>& variables) {
  const std::string text = inChild([&]() -> std::string {
    for (const peal::KnobInfo& info : peal::knobTable()) {
      unsetenv(info.name);
    }
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    const char* given = nullptr;
    return pealSystemInfo(&given) == pealSuccess ? given : "it failed";
  });
  const json parsed = json::parse(text, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << text;
  return parsed;
}

json knob(const json& info, const std::string& name) {
  for (const json& candidate : info["configuration"]["knobs"]) {
    if (candidate["name"] == name) {
      return candidate;
    }
  }
  ADD_FAILURE() << "no knob " << name;
  return {};
}

json part(const json& list, const std::string& name) {
  for (const json& candidate : list) {
    if (candidate["name"] == name) {
      return candidate;
    }
  }
  ADD_FAILURE() << "no part " << name;
  return {};
}

TEST(SystemInfo, RefusesANullPointer) {
  const std::string told = inChild([]() -> std::string {
    return pealSystemInfo(nullptr) == pealInvalidArgument ? pealGetLastError(nullptr) : "it was accepted";
  });
  EXPECT_EQ(told, "pealSystemInfo: json is NULL.");
}

TEST(SystemInfo, SaysWhatThisLibraryAndMachineAre) {
  const json info = infoWith({});
  EXPECT_EQ(info["versionCode"], PEAL_VERSION_CODE);
  EXPECT_EQ(info["version"],
            std::to_string(PEAL_MAJOR) + "." + std::to_string(PEAL_MINOR) + "." + std::to_string(PEAL_PATCH));
  EXPECT_EQ(info["cpu"]["allowedCpus"], peal::allowedCpus());
  EXPECT_EQ(infoWith({{"PEAL_ISA", "baseline"}})["cpu"]["isa"], "baseline");
}

TEST(SystemInfo, NamesDevicesAndTransportsWithReasons) {
  const json info = infoWith({});
  EXPECT_EQ(part(info["devices"], "host")["found"], true);
  EXPECT_EQ(part(info["transports"], "shm")["found"], true);
  // What there is depends on the machine and the build; that a reason is given does not.
  EXPECT_EQ(part(info["devices"], "cuda")["found"], part(info["transports"], "cuda_ipc")["found"]);
  EXPECT_GE(part(info["devices"], "cuda")["why"].get<std::string>().size(), 20u);
  EXPECT_GE(part(info["transports"], "verbs")["why"].get<std::string>().size(), 20u);
  EXPECT_EQ(part(info["transports"], "tcp")["found"], true);
  EXPECT_GE(part(info["transports"], "ucx")["why"].get<std::string>().size(), 20u);
  const peal::HwlocSupport hwloc = peal::probeHwloc();
  EXPECT_EQ(part(info["discovery"], "hwloc")["found"], hwloc.available);
  EXPECT_EQ(part(info["discovery"], "hwloc")["why"], hwloc.reason);
}

TEST(SystemInfo, HasEveryKnobWithItsDefault) {
  const json info = infoWith({});
  EXPECT_TRUE(info["configuration"]["error"].is_null());
  ASSERT_EQ(info["configuration"]["knobs"].size(), peal::knobTable().size());
  for (const peal::KnobInfo& row : peal::knobTable()) {
    const json found = knob(info, row.name);
    EXPECT_EQ(found["default"], row.defaultText);
    EXPECT_EQ(found["help"], row.help);
    EXPECT_EQ(found["origin"], "default");
    EXPECT_EQ(found["secret"], row.secret);
    if (!row.secret) {
      EXPECT_EQ(found["value"], row.defaultText) << row.name;
    }
  }
  EXPECT_EQ(knob(info, "PEAL_PORT")["range"], "0..65535");
  EXPECT_EQ(knob(info, "PEAL_LOG")["range"], "none|error|warn|info|debug");
}

TEST(SystemInfo, SaysWhereAValueCameFrom) {
  const json info = infoWith({{"PEAL_SLOTS", "7"}});
  EXPECT_EQ(knob(info, "PEAL_SLOTS")["value"], "7");
  EXPECT_EQ(knob(info, "PEAL_SLOTS")["origin"], "environment");
  EXPECT_EQ(knob(info, "PEAL_TIMEOUT_MS")["origin"], "default");
}

TEST(SystemInfo, HidesSecretsButNotThatTheyAreSet) {
  const json info = infoWith({{"PEAL_SECRET", "correct horse"}});
  EXPECT_EQ(info.dump().find("correct horse"), std::string::npos);
  EXPECT_TRUE(knob(info, "PEAL_SECRET")["value"].is_null());
  EXPECT_EQ(knob(info, "PEAL_SECRET")["origin"], "environment");
}

TEST(SystemInfo, AConfigurationInErrorIsReportedNotHidden) {
  const json info = infoWith({{"PEAL_SLOTS", "many"}});
  const std::string error = info["configuration"]["error"];
  EXPECT_NE(error.find("PEAL_SLOTS=\"many\""), std::string::npos) << error;
  EXPECT_EQ(info["configuration"]["knobs"].size(), peal::knobTable().size());
  EXPECT_TRUE(knob(info, "PEAL_SLOTS")["value"].is_null());
}

TEST(SystemInfo, AnyValueMakesValidJson) {
  const json odd = infoWith({{"PEAL_INTERFACE", "a\"b\\c\n\x01,\xc3\xa4"}});
  EXPECT_EQ(knob(odd, "PEAL_INTERFACE")["value"], "a\"b\\c\n\x01,\xc3\xa4");
  // Not UTF-8: a stray byte, a cut sequence, an overlong form, a surrogate, beyond U+10FFFF.
  const std::string lost = "\xef\xbf\xbd";
  EXPECT_EQ(knob(infoWith({{"PEAL_INTERFACE", "x\xff"}}), "PEAL_INTERFACE")["value"], "x" + lost);
  EXPECT_EQ(knob(infoWith({{"PEAL_INTERFACE", "\xe2\x82"}}), "PEAL_INTERFACE")["value"], lost + lost);
  EXPECT_EQ(knob(infoWith({{"PEAL_INTERFACE", "\xc0\x80"}}), "PEAL_INTERFACE")["value"], lost + lost);
  EXPECT_EQ(knob(infoWith({{"PEAL_INTERFACE", "\xed\xa0\x80"}}), "PEAL_INTERFACE")["value"],
            lost + lost + lost);
  EXPECT_EQ(knob(infoWith({{"PEAL_INTERFACE", "\xf4\x90\x80\x80y"}}), "PEAL_INTERFACE")["value"],
            lost + lost + lost + lost + "y");
}

}  // namespace
