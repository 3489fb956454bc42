// Everything measured, as JSON lines: {"event": "start" | "step" | "heldOut" | "sample" | "end", ...}; or, if
// the file's name ends in .csv, a row for each "step" and "heldOut" under a header of the columns.
// Written by rank 0; a run that is killed leaves whole lines. A run that goes on from a checkpoint adds to
// the file: the steps that another made after that checkpoint are then in it twice, and the later ones hold.
#pragma once
#include <sys/types.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace peal::train {

enum class Earlier { Dropped, Kept };

class MetricsFile {
 public:
  // path empty: writes nothing. earlier: what becomes of lines that the file has. Throws UsageError if the
  // file cannot be made.
  MetricsFile(const std::string& path, Earlier earlier);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Throws ToolError if the line cannot be written.
  void write(const nlohmann::json& line);

 private:
  void writeText(const std::string& text);
  off_t dropHalfLine() const;

  std::string path_;
  bool isCsv_ = false;
  int fd_ = -1;
};

}  // namespace peal::train
