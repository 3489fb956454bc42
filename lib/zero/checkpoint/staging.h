// Where a checkpoint is before it is one: a directory beside the target with a name of its own, and the
// rename that publishes it. Only rank 0 makes, publishes and removes; the others write their parts into it.
//
// A lock on the parent directory tells the living from the dead: every save holds it shared, and who can have
// it alone knows that all staging directories there are leftovers of killed saves, and removes them.
#pragma once
#include <cstdint>
#include <string>

#include "lib/zero/checkpoint/file.h"

namespace peal::zero::checkpoint {

// TARGET.saving-<id>, beside the target.
std::string stagingPath(const std::string& target, uint64_t id);
bool isStagingName(const std::string& name);

class Staging {
 public:
  // Checks that the target may be replaced, locks, removes leftovers, makes the directory.
  static Result<Staging> make(const std::string& target, uint64_t id);

  // The directory, complete and synced, becomes the target, at once; what was there before is removed after.
  // If it is in its place and that cannot be brought to the disk, both stay, and the error says so.
  Result<void> publish();
  // Removes the directory, unless what it held is published: then an older checkpoint may be there.
  void discard() const;

 private:
  std::string target_, path_, parent_;
  bool isPublished_ = false;
  File lock_;
};

// A path without slashes at its end.
std::string withoutSlashes(std::string path);

}  // namespace peal::zero::checkpoint
