#include "lib/tuner/links_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "lib/base/log.h"

namespace peal {

Result<std::optional<LinkTable>> readLinksFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    if (errno == ENOENT) {
      return std::optional<LinkTable>();
    }
    return Error{pealInvalidArgument,
                 fmt::format("PEAL_TUNER_FILE={}: cannot be read: {}.", path, std::strerror(errno))};
  }
  std::ostringstream text;
  text << file.rdbuf();
  const Result<LinkTable> links = parseLinks(text.str(), "PEAL_TUNER_FILE=" + path);
  if (!links) {
    return links.error();
  }
  return std::optional<LinkTable>(*links);
}

void writeLinksFile(const std::string& path, const LinkTable& links) {
  const std::string part = path + ".part";
  std::ofstream file(part);
  file << formatLinks(links);
  file.close();
  if (!file || std::rename(part.c_str(), path.c_str()) != 0) {
    log(LogLevel::Warn, fmt::format("PEAL_TUNER_FILE={}: what was measured could not be written there: {}.",
                                    path, std::strerror(errno)));
  }
}

}  // namespace peal
