// The file of PEAL_TUNER_FILE: link costs that one communicator measured and others read.
#pragma once
#include <optional>
#include <string>

#include "lib/tuner/links.h"

namespace peal {

// The file's numbers; none if there is no such file.
Result<std::optional<LinkTable>> readLinksFile(const std::string& path);
// Others may read it at the same time: it appears whole. A failure is logged, nothing more.
void writeLinksFile(const std::string& path, const LinkTable& links);

}  // namespace peal
