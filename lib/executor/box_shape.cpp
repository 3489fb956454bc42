#include "lib/executor/box_shape.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/config.h"

namespace peal::cuda {
namespace {

constexpr size_t kSlotMostBytes = size_t{256} << 10;
constexpr size_t kSlotLeastBytes = size_t{4} << 10;
// What a slot has besides its payload.
constexpr size_t kSlotRoomBytes =
    kLineBytes - BoxShape{1, 1, kLineBytes, kLineBytes}.payloadBytes(Protocol::Simple);
constexpr size_t kLowSlotMostBytes = size_t{16} << 10;
constexpr size_t kLowSlotLeastBytes = size_t{2} << 10;
// With less than that in a slot more channels do not pay.
constexpr size_t kSlotComfortBytes = size_t{16} << 10;

}  // namespace

Result<BoxShape> shapeFor(int ranks, int channels, int slots, size_t slotBytes, size_t bufferBytes) {
  BoxShape shape;
  shape.slots = slots;
  for (shape.channels = channels;; --shape.channels) {
    // Slots of all three kinds for one message in flight.
    const size_t each = (bufferBytes - std::min(bufferBytes, WindowShape::kInboxesAt)) /
                        static_cast<size_t>(ranks) / static_cast<size_t>(shape.channels) /
                        static_cast<size_t>(slots);
    const auto round = [](size_t bytes) { return static_cast<uint32_t>(bytes / kLineBytes * kLineBytes); };
    shape.lowSlotBytes = round(std::clamp(each / 4, kLowSlotLeastBytes, kLowSlotMostBytes));
    const size_t others = 2 * size_t{shape.lowSlotBytes} + 2 * kLineBytes;
    const size_t left = std::max(each > others ? each - others : 0, kSlotLeastBytes);
    const size_t wanted = slotBytes != 0 ? slotBytes + kSlotRoomBytes : kSlotMostBytes;
    shape.slotBytes = round(std::min(left, wanted + kLineBytes - 1));
    const size_t least = slotBytes != 0 ? wanted : kSlotComfortBytes;
    const size_t bytes = WindowShape{shape, ranks}.bytes();
    if (bytes <= bufferBytes && (left >= least || shape.channels == 1)) {
      return shape;
    }
    if (shape.channels == 1) {
      return Error{
          pealInvalidUsage,
          fmt::format("PEAL_DEVICE_BUFFER_BYTES={} does not hold the smallest slots for {} ranks, {} for "
                      "each: those take {} bytes. Raise it, or lower PEAL_SLOTS.",
                      bufferBytes, ranks, slots, bytes)};
    }
  }
}

Result<BoxShape> configuredShape(int ranks, int channels) {
  const Result<Configuration>& table = configuration();
  const int slots = static_cast<int>(std::min<int64_t>(table->integer(Knob::Slots), kMostSlots));
  const size_t slotBytes =
      table->isDefault(Knob::SlotBytes) ? 0 : static_cast<size_t>(table->integer(Knob::SlotBytes));
  return shapeFor(ranks, channels, slots, slotBytes,
                  static_cast<size_t>(table->integer(Knob::DeviceBufferBytes)));
}

}  // namespace peal::cuda
