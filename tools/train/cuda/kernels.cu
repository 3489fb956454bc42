// Kernels of kernels.h. The loops of the host add each row up in 16 lanes, element i in lane i modulo 16, and
// the lanes by halves (tools/train/kernels_vector.inc); here 16 threads are these lanes. So a warp works on
// two rows, and the sums are the host's to the bit.
#include "lib/executor/cuda/device.h"
#include "tools/train/cuda/kernels.h"

namespace peal::train {

using namespace peal::cuda;  // NOLINT(google-build-using-namespace): device.h, a kernel's only vocabulary

constexpr uint32_t kRowsOfWarp = 32 / kTrainRowLanes;

PEAL_DEVICE uint64_t thisThread() { return uint64_t{blockIndex()} * blockThreads() + threadIndex(); }
PEAL_DEVICE uint64_t allThreads() { return uint64_t{gridBlocks()} * blockThreads(); }

// body(i) for each of `count` elements.
template <class Body>
PEAL_DEVICE void eachElement(uint64_t count, Body body) {
  PEAL_KEEP_LOOP
  for (uint64_t i = thisThread(); i < count; i += allThreads()) {
    body(i);
  }
}

// body(row, isRow) for each of `rows` on the row's lanes. All lanes of a warp call it as often as each other,
// so that it may shuffle: some with isRow false, where there are no rows left.
template <class Body>
PEAL_DEVICE void eachRow(uint64_t rows, Body body) {
  const uint64_t half = threadIndex() % 32 / kTrainRowLanes;
  PEAL_KEEP_LOOP
  for (uint64_t first = thisThread() / 32 * kRowsOfWarp; first < rows;
       first += allThreads() / kTrainRowLanes) {
    body(first + half, first + half < rows);
  }
}

// body(i) for the lane's elements of a row.
template <class Body>
PEAL_DEVICE void eachOfLane(uint64_t width, Body body) {
  PEAL_KEEP_LOOP
  for (uint64_t i = threadIndex() % kTrainRowLanes; i < width; i += kTrainRowLanes) {
    body(i);
  }
}

PEAL_DEVICE float sumOfRow(float value) {
  PEAL_UNROLL
  for (int by = kTrainRowLanes / 2; by > 0; by /= 2) {
    value = value + shuffleXor(value, by);
  }
  return value;
}

PEAL_DEVICE float largestOfRow(float value) {
  PEAL_UNROLL
  for (int by = kTrainRowLanes / 2; by > 0; by /= 2) {
    const float other = shuffleXor(value, by);
    value = other > value ? other : value;
  }
  return value;
}

// expVec of tools/train/kernels_vector.inc.
PEAL_DEVICE float exponential(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  constexpr float kMagic = 12582912.0f;
  const float shifted = x * 1.44269504088896341f + kMagic;
  const float n = shifted - kMagic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  const uint32_t power = (__builtin_bit_cast(uint32_t, shifted) - 0x4B400000u + 127u) << 23;
  return p * __builtin_bit_cast(float, power);
}

// ---- elements ---------------------------------------------------------------------------------------------

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128) trainWiden(PEAL_GRID_CONSTANT WidenArgs args) {
  eachElement(args.count, [&](uint64_t i) {
    const uint32_t bits = uint32_t{loadGlobal(args.from + i)} << 16;
    storeGlobal(args.to + i, __builtin_bit_cast(float, bits));
  });
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128) trainNarrow(PEAL_GRID_CONSTANT NarrowArgs args) {
  eachElement(args.count, [&](uint64_t i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, loadGlobal(args.from + i));
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const bool isNan = (bits & 0x7fffffffu) > 0x7f800000u;
    storeGlobal(args.to + i, static_cast<uint16_t>((isNan ? (bits | 0x400000u) : rounded) >> 16));
  });
}

constexpr float kGeluScale = 2.0f * 0.7978845608028654f;  // 2 sqrt(2/pi)
constexpr float kGeluCube = 0.044715f;

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128) trainGelu(PEAL_GRID_CONSTANT GeluArgs args) {
  if (args.isBackward == 0) {
    eachElement(args.count, [&](uint64_t i) {
      const float value = loadGlobal(args.x + i);
      const float twiceU = kGeluScale * (value + kGeluCube * value * value * value);
      storeGlobal(args.y + i, value / (1.0f + exponential(-twiceU)));
    });
    return;
  }
  eachElement(args.count, [&](uint64_t i) {
    const float value = loadGlobal(args.x + i);
    const float square = value * value;
    const float sigmoid = 1.0f / (1.0f + exponential(-(kGeluScale * (value + kGeluCube * value * square))));
    const float slope = kGeluScale * (1.0f + (3.0f * kGeluCube) * square);
    const float derivative = sigmoid + value * sigmoid * (1.0f - sigmoid) * slope;
    storeGlobal(args.y + i, loadGlobal(args.y + i) * derivative);
  });
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128) trainPositionGradient(PEAL_GRID_CONSTANT PositionGradientArgs args) {
  const uint64_t count = args.length * args.width;
  eachElement(count, [&](uint64_t i) {
    float sum = loadGlobal(args.gradient + i);
    for (uint64_t sequence = 0; sequence < args.sequences; ++sequence) {
      sum = sum + loadGlobal(args.dx + sequence * count + i);
    }
    storeGlobal(args.gradient + i, sum);
  });
}

// ---- rows, with sums over each ----------------------------------------------------------------------------

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128) trainLayerNorm(PEAL_GRID_CONSTANT LayerNormArgs args) {
  const float perWidth = 1.0f / static_cast<float>(args.width);
  eachRow(args.rows, [&](uint64_t row, bool isRow) {
    const uint64_t width = isRow ? args.width : 0;
    const float* x = args.x + row * args.width;
    float sum = 0;
    eachOfLane(width, [&](uint64_t i) { sum = sum + loadGlobal(x + i); });
    const float center = sumOfRow(sum) * perWidth;
    float squares = 0;
    eachOfLane(width, [&](uint64_t i) {
      const float difference = loadGlobal(x + i) - center;
      squares = squares + difference * difference;
    });
    const float scale = 1.0f / roundedSqrt(sumOfRow(squares) * perWidth + 1e-5f);
    eachOfLane(width, [&](uint64_t i) {
      const float normal = (loadGlobal(x + i) - center) * scale;
      storeGlobal(args.y + row * args.width + i,
                  normal * loadGlobal(args.gain + i) + loadGlobal(args.bias + i));
    });
    if (isRow && threadIndex() % kTrainRowLanes == 0) {
      storeGlobal(args.mean + row, center);
      storeGlobal(args.inverse + row, scale);
    }
  });
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128)
    trainLayerNormBackward(PEAL_GRID_CONSTANT LayerNormBackwardArgs args) {
  const float perWidth = 1.0f / static_cast<float>(args.width);
  eachRow(args.rows, [&](uint64_t row, bool isRow) {
    const uint64_t width = isRow ? args.width : 0;
    const float center = isRow ? loadGlobal(args.mean + row) : 0.0f;
    const float scale = isRow ? loadGlobal(args.inverse + row) : 0.0f;
    const float* x = args.x + row * args.width;
    float* dy = args.dy + row * args.width;
    float* dx = args.dx + row * args.width;
    float sumGradient = 0;
    float sumProduct = 0;
    eachOfLane(width, [&](uint64_t i) {
      const float gradient = loadGlobal(dy + i);
      const float product = gradient * ((loadGlobal(x + i) - center) * scale);
      const float weight = loadGlobal(args.gain + i);
      sumGradient = sumGradient + gradient * weight;
      sumProduct = sumProduct + product * weight;
    });
    const float meanGradient = sumOfRow(sumGradient) * perWidth;
    const float meanProduct = sumOfRow(sumProduct) * perWidth;
    eachOfLane(width, [&](uint64_t i) {
      const float gradient = loadGlobal(dy + i);
      const float normal = (loadGlobal(x + i) - center) * scale;
      const float inner = gradient * loadGlobal(args.gain + i) - meanGradient - normal * meanProduct;
      storeGlobal(dx + i, loadGlobal(dx + i) + inner * scale);
      storeGlobal(dy + i, gradient * normal);
    });
  });
}

PEAL_DEVICE void softmaxOfRow(float* scores, float scale, uint64_t length, uint64_t columns) {
  float largest = length > 0 ? loadGlobal(scores) : 0.0f;
  eachOfLane(length, [&](uint64_t i) {
    const float score = loadGlobal(scores + i);
    largest = score > largest ? score : largest;
  });
  largest = largestOfRow(largest);
  float sum = 0;
  eachOfLane(length, [&](uint64_t i) {
    const float value = exponential((loadGlobal(scores + i) - largest) * scale);
    sum = sum + value;
    storeGlobal(scores + i, value);
  });
  const float normal = 1.0f / sumOfRow(sum);
  eachOfLane(columns, [&](uint64_t i) {
    storeGlobal(scores + i, i < length ? loadGlobal(scores + i) * normal : 0.0f);
  });
}

PEAL_DEVICE void softmaxBackwardOfRow(const float* p, float* dp, float scale, uint64_t length,
                                      uint64_t columns) {
  float sum = 0;
  eachOfLane(length, [&](uint64_t i) { sum = sum + loadGlobal(p + i) * loadGlobal(dp + i); });
  const float inner = sumOfRow(sum);
  eachOfLane(columns, [&](uint64_t i) {
    storeGlobal(dp + i, i < length ? loadGlobal(p + i) * (loadGlobal(dp + i) - inner) * scale : 0.0f);
  });
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128) trainSoftmax(PEAL_GRID_CONSTANT SoftmaxArgs args) {
  eachRow(args.matrices * args.length, [&](uint64_t row, bool isRow) {
    const uint64_t length = isRow ? row % args.length + 1 : 0;
    const uint64_t columns = isRow ? args.length : 0;
    float* scores = args.scores + row * args.length;
    if (args.probabilities == nullptr) {
      softmaxOfRow(scores, args.scale, length, columns);
    } else {
      softmaxBackwardOfRow(args.probabilities + row * args.length, scores, args.scale, length, columns);
    }
  });
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128) trainCrossEntropy(PEAL_GRID_CONSTANT CrossEntropyArgs args) {
  eachRow(args.rows, [&](uint64_t row, bool isRow) {
    const uint64_t width = isRow ? args.width : 0;
    const uint64_t target = isRow ? loadGlobal(args.targets + row) : 0;
    float* logits = args.logits + row * args.width;
    float largest = isRow ? loadGlobal(logits) : 0.0f;
    eachOfLane(width, [&](uint64_t i) {
      const float logit = loadGlobal(logits + i);
      largest = logit > largest ? logit : largest;
    });
    largest = largestOfRow(largest);
    float sum = 0;
    eachOfLane(width, [&](uint64_t i) {
      const float logit = loadGlobal(logits + i);
      if (i == target) {  // by the lane that overwrites it
        storeGlobal(args.chosen + row, logit - largest);
      }
      const float value = exponential(logit - largest);
      sum = sum + value;
      storeGlobal(logits + i, value);
    });
    const float total = sumOfRow(sum);
    const float normal = 1.0f / total;
    eachOfLane(width, [&](uint64_t i) {
      const float value = loadGlobal(logits + i) * normal;
      storeGlobal(logits + i, i == target ? value - 1.0f : value);
    });
    if (isRow && threadIndex() % kTrainRowLanes == 0) {
      storeGlobal(args.totals + row, total);
    }
  });
}

// ---- rows, a block each -----------------------------------------------------------------------------------

// body(row, i) for each element.
template <class Body>
PEAL_DEVICE void eachOfBlocksRows(uint64_t rows, uint64_t width, Body body) {
  PEAL_KEEP_LOOP
  for (uint64_t row = blockIndex(); row < rows; row += gridBlocks()) {
    PEAL_KEEP_LOOP
    for (uint64_t i = threadIndex(); i < width; i += blockThreads()) {
      body(row, i);
    }
  }
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128) trainAddBias(PEAL_GRID_CONSTANT AddBiasArgs args) {
  eachOfBlocksRows(args.rows, args.width, [&](uint64_t row, uint64_t i) {
    const float bias = loadGlobal(args.bias + i);
    const uint64_t at = row * args.width + i;
    storeGlobal(args.y + at, args.base != nullptr ? loadGlobal(args.base + at) + bias : bias);
  });
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128) trainEmbed(PEAL_GRID_CONSTANT EmbedArgs args) {
  eachOfBlocksRows(args.rows, args.width, [&](uint64_t row, uint64_t i) {
    const uint64_t token = loadGlobal(args.ids + row);
    const float position = loadGlobal(args.positions + row % args.length * args.width + i);
    storeGlobal(args.out + row * args.width + i, loadGlobal(args.tokens + token * args.width + i) + position);
  });
}

PEAL_KERNEL void PEAL_LAUNCH_BOUNDS(128) trainTokenGradient(PEAL_GRID_CONSTANT TokenGradientArgs args) {
  eachOfBlocksRows(args.runCount, args.width, [&](uint64_t run, uint64_t i) {
    const uint64_t id = loadGlobal(&args.runs[run].id);
    const uint32_t end = loadGlobal(&args.runs[run].end);
    float sum = loadGlobal(args.gradient + id * args.width + i);
    for (uint32_t k = loadGlobal(&args.runs[run].first); k < end; ++k) {
      sum = sum + loadGlobal(args.dx + uint64_t{loadGlobal(args.rowOrder + k)} * args.width + i);
    }
    storeGlobal(args.gradient + id * args.width + i, sum);
  });
}

}  // namespace peal::train
