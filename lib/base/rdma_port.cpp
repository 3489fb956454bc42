#include "lib/base/rdma_port.h"

#include <fmt/format.h>
#include <string.h>  // NOLINT(modernize-deprecated-headers): strverscmp

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace peal {
namespace {

std::string firstWord(const std::string& file) {
  std::ifstream stream(file);
  std::string word;
  stream >> word;
  return word;
}

// Ascending, numbers by value: entry 2 of a table before entry 10.
std::vector<std::string> namesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder, none)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end(),
            [](const std::string& a, const std::string& b) { return strverscmp(a.c_str(), b.c_str()) < 0; });
  return names;
}

}  // namespace

std::vector<std::string> interfacesOfRdmaPort(const std::string& root, const std::string& device, int port) {
  const std::string folder = fmt::format("{}/{}", root, device);
  std::vector<std::string> found;
  const auto add = [&](const std::string& name) {
    if (!name.empty() && std::find(found.begin(), found.end(), name) == found.end()) {
      found.push_back(name);
    }
  };
  const std::string gids = fmt::format("{}/ports/{}/gid_attrs/ndevs/", folder, port);
  for (const std::string& index : namesIn(gids)) {
    add(firstWord(gids + index));
  }
  const std::string interfaces = folder + "/device/net/";
  for (const std::string& name : namesIn(interfaces)) {
    const std::string number = firstWord(interfaces + name + "/dev_port");
    if ((number.empty() ? "0" : number) == std::to_string(port - 1)) {
      add(name);
    }
  }
  add(firstWord(folder + "/parent"));  // soft-RoCE
  return found;
}

}  // namespace peal
