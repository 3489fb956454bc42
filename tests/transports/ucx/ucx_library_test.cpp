// Finding libucp: absent, not UCX, too old, without a function; and settings: what peal asks of UCX.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "transports/ucx/settings.h"
#include "transports/ucx/table.h"
#include "transports/ucx/ucx.h"

namespace peal::test {
namespace {

// A library of the tests: some of UCX's functions, and a version of its own.
unsigned fakeMajor;
unsigned fakeMinor;
const char* fakeLacks;
bool fakeIsThere;
bool signalsLeft;

void fakeVersion(unsigned* major, unsigned* minor, unsigned* release) {
  *major = fakeMajor;
  *minor = fakeMinor;
  *release = 2;
}

const ucx::Loader kFake{
    [](const char* /*name*/, int /*flags*/) -> void* { return fakeIsThere ? &fakeMajor : nullptr; },
    [](void* /*library*/, const char* name) -> void* {
      if (fakeLacks != nullptr && std::strcmp(name, fakeLacks) == 0) {
        return nullptr;
      }
      if (std::strcmp(name, "ucs_debug_disable_signals") == 0) {
        return reinterpret_cast<void*>(+[] { signalsLeft = true; });
      }
      return reinterpret_cast<void*>(&fakeVersion);  // the others are not called
    },
    []() -> const char* { return "no such file"; }};

class UcxLibrary : public ::testing::Test {
 protected:
  void SetUp() override {
    fakeMajor = 1;
    fakeMinor = 13;
    fakeLacks = nullptr;
    fakeIsThere = true;
    signalsLeft = false;
  }
  static std::string errorOf(const Result<ucx::Library>& library) {
    return library ? "" : library.error().message;
  }
};

TEST_F(UcxLibrary, TakesWhatIsNewEnough) {
  for (const unsigned minor : {13U, 14U, 22U}) {
    fakeMinor = minor;
    const Result<ucx::Library> library = ucx::loadLibrary(kFake);
    ASSERT_TRUE(library) << errorOf(library);
    EXPECT_EQ(library->version, "1." + std::to_string(minor) + ".2");
    EXPECT_TRUE(signalsLeft);
  }
}

TEST_F(UcxLibrary, SaysWhatWasFoundAndWhatIsNeeded) {
  fakeMinor = 12;
  EXPECT_NE(errorOf(ucx::loadLibrary(kFake)).find("is UCX 1.12.2, which peal cannot use. UCX 1.13 or newer"),
            std::string::npos);
  fakeMajor = 2;
  fakeMinor = 20;
  EXPECT_NE(errorOf(ucx::loadLibrary(kFake)).find("is UCX 2.20.2"), std::string::npos);
}

TEST_F(UcxLibrary, SaysThatThereIsNone) {
  fakeIsThere = false;
  const std::string error = errorOf(ucx::loadLibrary(kFake));
  EXPECT_NE(error.find("libucp.so.0 cannot be opened: no such file"), std::string::npos) << error;
  EXPECT_NE(error.find("libucx0"), std::string::npos) << error;
}

TEST_F(UcxLibrary, NamesAFunctionThatIsMissing) {
  for (const char* name : {"ucp_am_send_nbx", "ucp_worker_arm", "ucs_status_string", "ucp_get_version"}) {
    fakeLacks = name;
    const std::string error = errorOf(ucx::loadLibrary(kFake));
    EXPECT_NE(error.find(std::string("has no function ") + name), std::string::npos) << error;
  }
  fakeLacks = "ucs_debug_disable_signals";  // not part of the API: done without
  EXPECT_TRUE(ucx::loadLibrary(kFake));
}

TEST(UcxProbe, SaysWhatThisMachineHas) {
  const UcxSupport support = probeUcx();
  ASSERT_TRUE(support.available) << support.reason;
  EXPECT_NE(support.reason.find("UCX 1."), std::string::npos) << support.reason;
  EXPECT_NE(support.reason.find("libucp"), std::string::npos) << support.reason;
  EXPECT_NE(support.reason.find("tcp on "), std::string::npos) << support.reason;
}

const ucx::Setting* find(const std::vector<ucx::Setting>& settings, const std::string& name) {
  for (const ucx::Setting& setting : settings) {
    if (setting.name == name) {
      return &setting;
    }
  }
  return nullptr;
}

TEST(UcxSettings, OnlyNetworksAndOnlyTheChosenInterfaces) {
  const std::vector<ucx::Setting> settings = ucx::settingsFor({65536, 4}, {{"eth0", "eth1"}});
  ASSERT_NE(find(settings, "TLS"), nullptr);
  EXPECT_EQ(find(settings, "TLS")->value, "tcp,rc,ud,dc");
  ASSERT_NE(find(settings, "NET_DEVICES"), nullptr);
  EXPECT_EQ(find(settings, "NET_DEVICES")->value, "eth0,eth1");
  EXPECT_EQ(find(ucx::settingsFor({65536, 4}, {}), "NET_DEVICES"), nullptr);
}

TEST(UcxSettings, TheEnvironmentGoesFirst) {
  setenv("UCX_TLS", "tcp", 1);
  setenv("UCX_NET_DEVICES", "eth5", 1);
  const std::vector<ucx::Setting> settings = ucx::settingsFor({65536, 4}, {{"eth0"}});
  unsetenv("UCX_TLS");
  unsetenv("UCX_NET_DEVICES");
  EXPECT_EQ(find(settings, "TLS"), nullptr);
  EXPECT_EQ(find(settings, "NET_DEVICES"), nullptr);
}

TEST(UcxSettings, RdmaDevicesComeWithTheirInterfaces) {
  namespace fs = std::filesystem;
  const fs::path root = fs::temp_directory_path() / ("peal-ucx-" + std::to_string(getpid()));
  const auto port = [&](const char* device, const char* number, const char* interface) {
    const fs::path folder = root / device / "ports" / number / "gid_attrs" / "ndevs";
    fs::create_directories(folder);
    std::ofstream(folder / "0") << interface << "\n";
    std::ofstream(folder / "1") << interface << "\n";
  };
  port("mlx5_1", "1", "eth1");
  port("mlx5_0", "1", "eth0");
  port("mlx5_0", "2", "eth2");
  // InfiniBand with an IP interface is chosen by that, without one it comes along if it is active; RoCE never
  // does.
  const auto alone = [&](const char* device, const char* layer, const char* state = "4: ACTIVE") {
    fs::create_directories(root / device / "ports" / "1");
    std::ofstream(root / device / "ports" / "1" / "link_layer") << layer << "\n";
    std::ofstream(root / device / "ports" / "1" / "state") << state << "\n";
  };
  port("mlx5_2", "1", "ib0");
  alone("mlx5_2", "InfiniBand");
  alone("mlx5_3", "InfiniBand");
  alone("mlx5_4", "Ethernet");
  alone("mlx5_5", "InfiniBand", "1: DOWN");
  alone("mlx5_6", "InfiniBand", "2: INIT");
  EXPECT_EQ(ucx::rdmaDevicesOf({"eth2", "eth1"}, root),
            (std::vector<std::string>{"mlx5_0:2", "mlx5_1:1", "mlx5_3:1"}));
  EXPECT_EQ(ucx::rdmaDevicesOf({"eth9"}, root), std::vector<std::string>{"mlx5_3:1"});
  EXPECT_EQ(ucx::rdmaDevicesOf({"ib0"}, root), (std::vector<std::string>{"mlx5_2:1", "mlx5_3:1"}));
  EXPECT_TRUE(ucx::rdmaDevicesOf({"eth0"}, root / "none").empty());
  fs::remove_all(root);
}

}  // namespace
}  // namespace peal::test
