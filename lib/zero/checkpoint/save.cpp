#include "lib/zero/checkpoint/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <random>
#include <system_error>

#include "lib/zero/checkpoint/crc32c.h"

namespace peal::zero::checkpoint {
namespace {

constexpr uint64_t kMostUserBytesSaved = uint64_t{1} << 30;

uint64_t randomId() {
  std::random_device random;
  return (uint64_t{random()} << 32) ^ random();
}

uint64_t digestOfPath(const std::string& path) { return crc32c(0, path.data(), path.size()); }

Result<void> writeSmallFile(const std::string& path, const std::string& bytes) {
  Result<File> file = File::create(path);
  if (!file) {
    return file.error();
  }
  PEAL_TRY(file->write(bytes.data(), bytes.size()));
  return file->sync();
}

}  // namespace

Result<std::unique_ptr<Save>> Save::begin(Collectives& collectives, const State& state,
                                          const std::string& path, std::span<const std::byte> user,
                                          SaveMode mode, const Result<void>& usable) {
  std::unique_ptr<Save> save(new Save(collectives, state));
  Result<void> prepared = usable;
  if (prepared) {
    try {
      prepared = save->prepare(path, user);
    } catch (const std::bad_alloc&) {
      prepared = Error{pealSystemError, "out of memory for a checkpoint's tables"};
    } catch (const std::exception& exception) {
      prepared = Error{pealSystemError, fmt::format("the checkpoint cannot begin: {}", exception.what())};
    }
  }
  if (Result<void> agreed = save->agreeOnPlace(prepared); !agreed) {
    save->giveUp();
    save->finished_ = true;
    return agreed.error();
  }
  if (mode == SaveMode::Asynchronous) {
    save->startSnapshot();
  }
  return save;
}

Result<void> Save::prepare(const std::string& path, std::span<const std::byte> user) {
  target_ = withoutSlashes(path);
  if (target_.empty() || isStagingName(target_)) {
    return Error{
        pealInvalidArgument,
        fmt::format("\"{}\" is no name for a checkpoint: it is empty, or one of an unfinished save", path)};
  }
  stretches_ = state_.saved();
  manifest_.parameters = state_.parameters();
  head_.stretches = stretches_.size();
  size_t trained = 0;
  for (const Stretch& stretch : stretches_) {
    const bool isTrained = manifest_.parameters[stretch.parameter].kind == Kind::Trained;
    (isTrained ? head_.elements : head_.frozenElements) += stretch.elements;
    trained += isTrained ? 1 : 0;
  }
  source_ = std::make_unique<LivePart>(state_, stretches_, trained);
  manifest_.step = state_.step();
  const Result<bool> isRounding = weightsFollowMaster(*source_, head_.elements);
  if (!isRounding) {
    return isRounding.error();
  }
  manifest_.streams = *isRounding ? kFewestStreams : kMostStreams;
  if (collectives_.rank() != 0) {
    return {};
  }
  if (user.data() == nullptr && !user.empty()) {
    return Error{pealInvalidArgument, fmt::format("userData is NULL, but has {} bytes", user.size())};
  }
  if (user.size() > kMostUserBytesSaved) {
    return Error{pealInvalidArgument, fmt::format("{} bytes of user data are more than the {} that fit",
                                                  user.size(), kMostUserBytesSaved)};
  }
  if (!user.empty()) {
    user_.assign(reinterpret_cast<const char*>(user.data()), user.size());
  }
  manifest_.id = randomId();
  manifest_.groups = state_.groups();
  Result<Staging> staging = Staging::make(target_, manifest_.id);
  if (!staging) {
    return staging.error();
  }
  staging_ = std::move(*staging);
  return {};
}

Result<void> Save::agreeOnPlace(const Result<void>& prepared) {
  const Result<std::vector<VoteValues>> votes = vote(
      collectives_, prepared, {manifest_.id, digestOfPath(target_), manifest_.streams, manifest_.step, 0, 0});
  if (!votes) {
    return votes.error();
  }
  const VoteValues& first = votes->front();
  uint32_t streams = kFewestStreams;
  for (size_t rank = 0; rank < votes->size(); ++rank) {
    const VoteValues& values = (*votes)[rank];
    if (values[1] != first[1] || values[3] != first[3]) {
      return Error{pealInvalidUsage,
                   fmt::format("rank {} saves to another path or after another step ({}) than rank 0 ({}); "
                               "all ranks pass the same",
                               rank, values[3], first[3])};
    }
    streams = std::max(streams, static_cast<uint32_t>(values[2]));
  }
  manifest_.id = first[0];
  manifest_.streams = streams;
  head_.id = manifest_.id;
  head_.streams = streams;
  staged_ = stagingPath(target_, manifest_.id);
  return {};
}

// What fails here is told by the vote in finish().
void Save::startSnapshot() {
  try {
    Result<std::unique_ptr<PartSource>> snapshot = SnapshotPart::make(*source_, head_);
    if (!snapshot) {
      written_ = snapshot.error();
      return;
    }
    source_ = std::move(*snapshot);
    thread_ = std::thread([this] {
      try {
        written_ = write(*source_);
      } catch (const std::exception& exception) {
        written_ = Error{pealSystemError, fmt::format("writing {} failed: {}", staged_, exception.what())};
      }
    });
  } catch (const std::bad_alloc&) {
    written_ = Error{pealSystemError,
                     fmt::format("out of memory for a snapshot of {} elements, {} bytes each; pealZeroSave "
                                 "needs none",
                                 head_.elements, manifest_.streams == kMostStreams ? 14 : 12)};
  } catch (const std::system_error& error) {
    written_ = Error{pealSystemError, fmt::format("no thread for the save: {}", error.what())};
  }
}

// A rank without elements has no file.
Result<PartEntry> Save::write(const PartSource& source) const {
  const std::string name = partName(static_cast<uint64_t>(collectives_.rank()));
  if (stretches_.empty()) {
    return PartEntry{name, 0, 0, 0};
  }
  return writePart(staged_ + "/" + name, name, head_, stretches_, source, cancelled_);
}

Result<void> Save::finish() {
  if (thread_.joinable()) {
    thread_.join();
  }
  if (!written_) {
    try {
      written_ = write(*source_);
    } catch (const std::bad_alloc&) {
      written_ = Error{pealSystemError, "out of memory for a checkpoint's buffer"};
    }
  }
  source_.reset();
  const Result<void> own = *written_ ? Result<void>() : Result<void>(written_->error());
  const PartEntry part = *written_ ? **written_ : PartEntry{};
  const Result<std::vector<VoteValues>> votes =
      vote(collectives_, own, {part.bytes, part.elements, part.headChecksum, 0, 0, 0});
  if (!votes) {
    return votes.error();  // the destructor gives up
  }
  Result<void> published;
  if (staging_) {
    try {
      published = publish(*votes);
    } catch (const std::exception& exception) {
      published = Error{pealSystemError, fmt::format("publishing {} failed: {}", target_, exception.what())};
    }
  }
  const Result<std::vector<VoteValues>> done = vote(collectives_, published, {});
  finished_ = true;
  if (!done) {
    if (staging_) {
      staging_->discard();
    }
    return done.error();
  }
  return {};
}

Result<void> Save::publish(const std::vector<VoteValues>& parts) {
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const auto& [bytes, elements, headChecksum, a, b, c] = parts[rank];
    if (elements > 0) {
      manifest_.parts.push_back({partName(rank), bytes, elements, static_cast<uint32_t>(headChecksum)});
    }
  }
  manifest_.userBytes = user_.size();
  manifest_.userChecksum = crc32c(0, user_.data(), user_.size());
  if (!user_.empty()) {
    PEAL_TRY(writeSmallFile(staged_ + "/" + kUserName, user_));
  }
  PEAL_TRY(writeSmallFile(staged_ + "/" + kManifestName, encodeManifest(manifest_)));
  return staging_->publish();
}

// Each rank removes its own part, since others may still be writing theirs; the last one's rmdir succeeds.
void Save::giveUp() {
  if (staged_.empty()) {
    if (staging_) {
      staging_->discard();  // nobody else has learned of it
    }
    return;
  }
  std::error_code ignored;  // what stays is removed by the next save
  std::filesystem::remove(staged_ + "/" + partName(static_cast<uint64_t>(collectives_.rank())), ignored);
  std::filesystem::remove(staged_, ignored);
}

Save::~Save() {
  cancelled_.store(true, std::memory_order_relaxed);  // pairs with the load in writePart
  if (thread_.joinable()) {
    thread_.join();
  }
  if (!finished_) {
    giveUp();
  }
}

}  // namespace peal::zero::checkpoint
