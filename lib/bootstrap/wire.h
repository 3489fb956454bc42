// The bootstrap's messages as bytes: the three of the handshake, and the authenticated frames after it.
//
// Handshake, both sides holding the rendezvous key K and neither sending it:
//   rank -> root  Open       nonce R, proof under K
//   root -> rank  Challenge  nonce S, proof over R and S: the root knows K
//   rank -> root  Join       rank, size, time left, proof over R, S and these: the rank knows K, now
// After it each direction has its own key, made of K, R and S, and counts its frames, so that a frame that is
// changed, moved, repeated or left out is refused.
//
// Pure: no sockets, no clock. Used by the root service, by the joining side, and by hostile tests.
#pragma once
#include <optional>

#include "lib/bootstrap/auth.h"

namespace peal {

inline constexpr size_t kOpenBytes = 8 + sizeof(Nonce) + sizeof(Proof);
inline constexpr size_t kChallengeBytes = 8 + sizeof(Nonce) + sizeof(Proof);
inline constexpr size_t kJoinBytes = 8 + 12 + sizeof(Proof);
inline constexpr size_t kFrameHeaderBytes = 8;
inline constexpr size_t kBlobMostBytes = 64 * 1024;
inline constexpr int kRanksMost = 32768;  // so that a table's length fits 32 bits

struct Nonces {
  Nonce rank{};
  Nonce root{};
};

struct JoinRequest {
  uint32_t rank = 0;
  uint32_t size = 0;
  uint32_t leftMs = 0;  // how long this rank will wait
};

Bytes makeOpen(const Key& key, const Nonce& rankNonce);
std::optional<Nonce> readOpen(const Key& key, ByteView message);
Bytes makeChallenge(const Key& key, const Nonces& nonces);
std::optional<Nonce> readChallenge(const Key& key, const Nonce& rankNonce, ByteView message);
Bytes makeJoin(const Key& key, const Nonces& nonces, const JoinRequest& request);
std::optional<JoinRequest> readJoin(const Key& key, const Nonces& nonces, ByteView message);

enum class FrameType : uint32_t {
  Blob = 1,     // rank -> root: time left in ms (4 bytes), then this rank's blob
  Leave = 2,    // rank -> root: nothing; the rank ends its membership in good order
  Welcome = 3,  // root -> rank: 32 fresh bytes, the same for all; everybody has joined
  Table = 4,    // root -> rank: a length (4 bytes) for each rank, then the blobs
  Failure = 5,  // root -> rank: pealResult_t (4 bytes), then the sentence
};

struct Frame {
  FrameType type = FrameType::Leave;
  Bytes body;
};

enum class Direction { RankToRoot, RootToRank };
Key directionKey(const Key& key, const Nonces& nonces, Direction direction);

// The two ends of a frame; what goes between is the body itself, so that one body serves many receivers.
struct FrameEnds {
  Bytes header;
  Proof proof;
};

class FrameWriter {
 public:
  explicit FrameWriter(const Key& key) : key_(key) {}
  FrameEnds seal(FrameType type, size_t bodyBytes, const std::array<uint8_t, 32>& bodyDigest);
  Bytes frame(FrameType type, ByteView body);

 private:
  Key key_;
  uint64_t count_ = 0;
};

class FrameReader {
 public:
  // bodyMostBytes: a frame that announces more is refused before any of it is kept.
  FrameReader(const Key& key, size_t bodyMostBytes) : key_(key), bodyMostBytes_(bodyMostBytes) {}
  void feed(ByteView bytes) { append(pending_, bytes); }
  // The next whole frame; nothing: more bytes are needed; error: the stream is not what its key's holder
  // sent, and nothing after it can be believed.
  Result<std::optional<Frame>> next();

 private:
  Key key_;
  size_t bodyMostBytes_;
  uint64_t count_ = 0;
  Bytes pending_;
};

}  // namespace peal
