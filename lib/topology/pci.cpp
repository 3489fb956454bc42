#include "lib/topology/pci.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "lib/topology/files.h"

namespace peal {
namespace {

// Whether text looks like the pattern, in which x is a hexadecimal digit.
bool looksLike(std::string_view text, std::string_view pattern) {
  return text.size() == pattern.size() &&
         std::equal(text.begin(), text.end(), pattern.begin(), [](char have, char want) {
           return want == 'x' ? std::isxdigit(static_cast<unsigned char>(have)) != 0 : have == want;
         });
}

}  // namespace

bool isPciAddress(std::string_view text) {
  // Some machines have domains of five digits and more.
  return text.size() >= 12 &&
         std::all_of(text.begin(), text.end() - 12,
                     [](char digit) { return std::isxdigit(static_cast<unsigned char>(digit)) != 0; }) &&
         looksLike(text.substr(text.size() - 12), "xxxx:xx:xx.x");
}

bool isPciHostBridge(std::string_view text) {
  return text.size() >= 10 && text.substr(0, 3) == "pci" &&
         looksLike(text.substr(text.size() - 7), "xxxx:xx");
}

PciPlace pciPlaceOfPath(const std::string& devicePath) {
  PciPlace place;
  std::string upTo;
  std::string folder;
  for (size_t at = 0; at < devicePath.size();) {
    const size_t slash = std::min(devicePath.find('/', at + 1), devicePath.size());
    const std::string part = devicePath.substr(at + 1, slash - at - 1);
    upTo += devicePath.substr(at, slash - at);
    at = slash;
    if (isPciHostBridge(part)) {
      place.bridges.assign(1, part);
    } else if (isPciAddress(part)) {
      if (!place.address.empty()) {
        place.bridges.push_back(place.address);
      }
      place.address = part;
      folder = upTo;
    }
  }
  if (place.address.empty()) {
    return {};
  }
  const std::string numa = readLine(folder + "/numa_node");
  int node = -1;
  if (std::from_chars(numa.data(), numa.data() + numa.size(), node).ec == std::errc()) {
    place.numaNode = node;
  }
  return place;
}

PciPlace pciPlaceOfAddress(const std::string& address, const SystemRoots& roots) {
  std::string lower = address;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  PciPlace place = pciPlaceOfPath(resolved(roots.sys + "/bus/pci/devices/" + lower));
  place.address = lower;
  return place;
}

Distance distance(const PciPlace& a, const PciPlace& b) {
  if (!a.bridges.empty() && !b.bridges.empty() && a.bridges.front() == b.bridges.front()) {
    const size_t shorter = std::min(a.bridges.size(), b.bridges.size());
    size_t common = 1;
    while (common < shorter && a.bridges[common] == b.bridges[common]) {
      ++common;
    }
    const auto between = static_cast<int>(a.bridges.size() + b.bridges.size() - 2 * common);
    return {common > 1 ? Nearness::SamePciBridge : Nearness::SameHostBridge, between};
  }
  if (a.numaNode < 0 || b.numaNode < 0) {
    return {Nearness::Unknown, 0};
  }
  return {a.numaNode == b.numaNode ? Nearness::SameNumaNode : Nearness::OtherNumaNode, 0};
}

}  // namespace peal
