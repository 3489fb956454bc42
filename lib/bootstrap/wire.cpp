#include "lib/bootstrap/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace peal {
namespace {

constexpr std::string_view kOpenTag = "pealOpn1";
constexpr std::string_view kChallengeTag = "pealChl1";
constexpr std::string_view kJoinTag = "pealJoi1";

// `tag`, then what `fields` holds, then the proof over both and `context`.
Bytes sealed(const Key& key, std::string_view tag, ByteView fields, ByteView context) {
  Bytes message;
  append(message, viewOf(tag));
  append(message, fields);
  Bytes proven = message;
  append(proven, context);
  append(message, viewOf(prove(key, proven)));
  return message;
}

// The fields of a message made by sealed(), if its proof holds.
std::optional<ByteView> unsealed(const Key& key, std::string_view tag, size_t fieldBytes, ByteView message,
                                 ByteView context) {
  const size_t provenBytes = tag.size() + fieldBytes;
  if (message.size() != provenBytes + sizeof(Proof) || textOf(message.first(tag.size())) != tag) {
    return std::nullopt;
  }
  Bytes proven(message.begin(), message.begin() + static_cast<std::ptrdiff_t>(provenBytes));
  append(proven, context);
  if (!proves(key, proven, message.subspan(provenBytes))) {
    return std::nullopt;
  }
  return message.subspan(tag.size(), fieldBytes);
}

Nonce nonceOf(ByteView fields) {
  Nonce nonce;
  std::memcpy(nonce.data(), fields.data(), nonce.size());
  return nonce;
}

Bytes contextOf(const Nonces& nonces) {
  Bytes context;
  append(context, viewOf(nonces.rank));
  append(context, viewOf(nonces.root));
  return context;
}

// What a frame's proof covers.
Bytes provenPart(uint64_t count, ByteView header, const std::array<uint8_t, 32>& bodyDigest) {
  Bytes proven;
  appendInteger(proven, count);
  append(proven, header);
  append(proven, viewOf(bodyDigest));
  return proven;
}

}  // namespace

Bytes makeOpen(const Key& key, const Nonce& rankNonce) {
  return sealed(key, kOpenTag, viewOf(rankNonce), {});
}

std::optional<Nonce> readOpen(const Key& key, ByteView message) {
  const auto fields = unsealed(key, kOpenTag, sizeof(Nonce), message, {});
  return fields ? std::optional(nonceOf(*fields)) : std::nullopt;
}

Bytes makeChallenge(const Key& key, const Nonces& nonces) {
  return sealed(key, kChallengeTag, viewOf(nonces.root), viewOf(nonces.rank));
}

std::optional<Nonce> readChallenge(const Key& key, const Nonce& rankNonce, ByteView message) {
  const auto fields = unsealed(key, kChallengeTag, sizeof(Nonce), message, viewOf(rankNonce));
  return fields ? std::optional(nonceOf(*fields)) : std::nullopt;
}

Bytes makeJoin(const Key& key, const Nonces& nonces, const JoinRequest& request) {
  Bytes fields;
  appendInteger(fields, request.rank);
  appendInteger(fields, request.size);
  appendInteger(fields, request.leftMs);
  return sealed(key, kJoinTag, fields, contextOf(nonces));
}

std::optional<JoinRequest> readJoin(const Key& key, const Nonces& nonces, ByteView message) {
  const auto fields = unsealed(key, kJoinTag, 12, message, contextOf(nonces));
  if (!fields) {
    return std::nullopt;
  }
  return JoinRequest{readInteger<uint32_t>(*fields), readInteger<uint32_t>(fields->subspan(4)),
                     readInteger<uint32_t>(fields->subspan(8))};
}

Key directionKey(const Key& key, const Nonces& nonces, Direction direction) {
  return deriveKey(key, direction == Direction::RankToRoot ? "rank to root" : "root to rank",
                   contextOf(nonces));
}

FrameEnds FrameWriter::seal(FrameType type, size_t bodyBytes, const std::array<uint8_t, 32>& bodyDigest) {
  FrameEnds ends;
  appendInteger(ends.header, static_cast<uint32_t>(bodyBytes));
  appendInteger(ends.header, static_cast<uint32_t>(type));
  ends.proof = prove(key_, provenPart(count_++, ends.header, bodyDigest));
  return ends;
}

Bytes FrameWriter::frame(FrameType type, ByteView body) {
  FrameEnds ends = seal(type, body.size(), digestOf(body));
  Bytes whole = std::move(ends.header);
  append(whole, body);
  append(whole, viewOf(ends.proof));
  return whole;
}

Result<std::optional<Frame>> FrameReader::next() {
  if (pending_.size() < kFrameHeaderBytes) {
    return std::optional<Frame>();
  }
  const ByteView header = ByteView(pending_).first(kFrameHeaderBytes);
  const size_t bodyBytes = readInteger<uint32_t>(header);
  if (bodyBytes > bodyMostBytes_) {
    return Error{pealRemoteError, fmt::format("a frame announces {} bytes; the most that can be meant is {}",
                                              bodyBytes, bodyMostBytes_)};
  }
  const size_t wholeBytes = kFrameHeaderBytes + bodyBytes + sizeof(Proof);
  if (pending_.size() < wholeBytes) {
    return std::optional<Frame>();
  }
  const ByteView body = ByteView(pending_).subspan(kFrameHeaderBytes, bodyBytes);
  if (!proves(key_, provenPart(count_, header, digestOf(body)),
              ByteView(pending_).subspan(kFrameHeaderBytes + bodyBytes, sizeof(Proof)))) {
    return Error{pealRemoteError, "a frame was changed on its way, repeated, or sent by somebody else"};
  }
  ++count_;
  Frame frame{static_cast<FrameType>(readInteger<uint32_t>(header.subspan(4))),
              Bytes(body.begin(), body.end())};
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(wholeBytes));
  return std::optional<Frame>(std::move(frame));
}

}  // namespace peal
