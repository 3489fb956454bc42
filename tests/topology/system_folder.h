// A copy of the parts of /sys that discovery reads, in a temporary folder: devices, network interfaces, RDMA
// ports.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lib/topology/placement.h"

namespace peal::test {

// "10.1.0.7/24" and its interface, as liveInterfaces() would list them.
class SystemFolder {
 public:
  SystemFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "peal-sys-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  SystemFolder(const SystemFolder&) = delete;
  SystemFolder& operator=(const SystemFolder&) = delete;
  ~SystemFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  SystemRoots roots() const { return {root_ + "/sys", root_ + "/proc"}; }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << '\n';
  }
  void link(const std::string& path, const std::string& target) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::filesystem::create_directories(root_ + target);
    std::filesystem::create_directory_symlink(root_ + target, file);
  }

  // A PCI device below /sys/devices, such as "pci0000:00/0000:00:01.0/0000:01:00.0"; gives its folder.
  std::string pci(const std::string& path, int numaNode, const std::string& driver = "") const {
    const std::string folder = "/sys/devices/" + path;
    write(folder + "/numa_node", std::to_string(numaNode));
    link("/sys/bus/pci/devices/" + path.substr(path.rfind('/') + 1), folder);
    if (!driver.empty()) {
      link(folder + "/driver", "/sys/bus/pci/drivers/" + driver);
    }
    return folder;
  }

  // An interface; device: the folder of its device, empty for a virtual one.
  void interface(const std::string& name, int index, const std::string& device, const std::string& state,
                 const std::string& speed) const {
    const std::string folder = "/sys/class/net/" + name;
    write(folder + "/ifindex", std::to_string(index));
    write(folder + "/operstate", state);
    write(folder + "/carrier", state == "up" ? "1" : "0");
    write(folder + "/speed", speed);
    write(folder + "/type", "1");
    if (!device.empty()) {
      link(folder + "/device", device);
      write(device + "/net/" + name + "/dev_port", "0");
    }
  }

  // A port of an RDMA device.
  void rdma(const std::string& name, const std::string& device, const std::string& state,
            const std::string& rate, const std::string& layer, int port = 1) const {
    const std::string folder = "/sys/class/infiniband/" + name + "/ports/" + std::to_string(port);
    write(folder + "/state", state);
    write(folder + "/phys_state", state == "4: ACTIVE" ? "5: LinkUp" : "3: Disabled");
    write(folder + "/rate", rate);
    write(folder + "/link_layer", layer);
    if (port == 1 && !device.empty()) {
      link("/sys/class/infiniband/" + name + "/device", device);
    }
  }

 private:
  std::string root_;
};

}  // namespace peal::test
