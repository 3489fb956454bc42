// The text of the loops declared in kernels.h. Included by one file per instruction set, which names its
// set with PEAL_TRAIN_KERNELS; see kernels_vector.h for why nothing here has external linkage.
#include "tools/train/kernels.h"
#include "tools/train/kernels_vector.h"

namespace peal::train {
namespace {

// body(offset, count): whole vectors first, then one part of fewer than kLanes, if any.
template <class Body>
PEAL_TRAIN_INLINE void eachVector(size_t width, Body body) {
  size_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    body(i, kLanes);
  if (i < width)
    body(i, width - i);
}

PEAL_TRAIN_INLINE Vec loadSome(const float* from, size_t count, float fill = 0.0f) {
  return count == kLanes ? load(from) : loadPart(from, count, fill);
}

PEAL_TRAIN_INLINE void storeSome(float* to, Vec value, size_t count) {
  if (count == kLanes) {
    store(to, value);
  } else {
    storePart(to, value, count);
  }
}

void widen(const uint16_t* source, float* target, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = static_cast<uint32_t>(source[i]) << 16;
    std::memcpy(target + i, &bits, sizeof bits);
  }
}

void narrow(const float* source, uint16_t* target, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, source + i, sizeof bits);
    uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    bool isNan = (bits & 0x7fffffffu) > 0x7f800000u;
    target[i] = static_cast<uint16_t>((isNan ? (bits | 0x400000u) : rounded) >> 16);
  }
}

void layerNorm(const float* x, const float* gain, const float* bias, float* y, float* mean, float* inverse,
               size_t rows, size_t width) {
  const float perWidth = 1.0f / static_cast<float>(width);
  for (size_t row = 0; row < rows; ++row, x += width, y += width) {
    Vec sum{};
    eachVector(width, [&](size_t i, size_t n) { sum += loadSome(x + i, n); });
    const float center = sumLanes(sum) * perWidth;
    Vec squares{};
    eachVector(width, [&](size_t i, size_t n) {
      Vec difference = loadSome(x + i, n, center) - center;
      squares += difference * difference;
    });
    const float scale = 1.0f / __builtin_sqrtf(sumLanes(squares) * perWidth + 1e-5f);
    eachVector(width, [&](size_t i, size_t n) {
      Vec normal = (loadSome(x + i, n) - center) * scale;
      storeSome(y + i, normal * loadSome(gain + i, n) + loadSome(bias + i, n), n);
    });
    mean[row] = center;
    inverse[row] = scale;
  }
}

void layerNormBackward(const float* dy, const float* x, const float* gain, const float* mean,
                       const float* inverse, float* dx, float* gainGradient, float* biasGradient, size_t rows,
                       size_t width) {
  const float perWidth = 1.0f / static_cast<float>(width);
  std::memset(gainGradient, 0, width * sizeof(float));
  std::memset(biasGradient, 0, width * sizeof(float));
  for (size_t row = 0; row < rows; ++row, dy += width, x += width, dx += width) {
    const float center = mean[row], scale = inverse[row];
    Vec sumGradient{}, sumProduct{};
    eachVector(width, [&](size_t i, size_t n) {
      Vec gradient = loadSome(dy + i, n);
      Vec normal = (loadSome(x + i, n, center) - center) * scale;
      Vec product = gradient * normal;
      storeSome(gainGradient + i, loadSome(gainGradient + i, n) + product, n);
      storeSome(biasGradient + i, loadSome(biasGradient + i, n) + gradient, n);
      Vec weight = loadSome(gain + i, n);
      sumGradient += gradient * weight;
      sumProduct += product * weight;
    });
    const float meanGradient = sumLanes(sumGradient) * perWidth;
    const float meanProduct = sumLanes(sumProduct) * perWidth;
    eachVector(width, [&](size_t i, size_t n) {
      Vec normal = (loadSome(x + i, n) - center) * scale;
      Vec inner = loadSome(dy + i, n) * loadSome(gain + i, n) - meanGradient - normal * meanProduct;
      storeSome(dx + i, loadSome(dx + i, n) + inner * scale, n);
    });
  }
}

void addBias(const float* base, const float* bias, float* y, size_t rows, size_t width) {
  for (size_t row = 0; row < rows; ++row, y += width) {
    eachVector(width, [&](size_t i, size_t n) {
      Vec value = loadSome(bias + i, n);
      if (base)
        value = loadSome(base + row * width + i, n) + value;
      storeSome(y + i, value, n);
    });
  }
}

void sumRows(const float* dy, float* biasGradient, size_t rows, size_t width) {
  std::memset(biasGradient, 0, width * sizeof(float));
  for (size_t row = 0; row < rows; ++row, dy += width) {
    eachVector(width, [&](size_t i, size_t n) {
      storeSome(biasGradient + i, loadSome(biasGradient + i, n) + loadSome(dy + i, n), n);
    });
  }
}

void add(const float* x, float* y, size_t count) {
  eachVector(count,
             [&](size_t i, size_t n) { storeSome(y + i, loadSome(y + i, n) + loadSome(x + i, n), n); });
}

constexpr float kGeluScale = 2.0f * 0.7978845608028654f;  // 2 sqrt(2/pi)
constexpr float kGeluCube = 0.044715f;

void gelu(const float* x, float* y, size_t count) {
  eachVector(count, [&](size_t i, size_t n) {
    Vec value = loadSome(x + i, n);
    Vec twiceU = kGeluScale * (value + kGeluCube * value * value * value);
    storeSome(y + i, value / (1.0f + expVec(-twiceU)), n);
  });
}

void geluBackward(const float* x, float* dy, size_t count) {
  eachVector(count, [&](size_t i, size_t n) {
    Vec value = loadSome(x + i, n);
    Vec square = value * value;
    Vec sigmoid = 1.0f / (1.0f + expVec(-(kGeluScale * (value + kGeluCube * value * square))));
    Vec slope = kGeluScale * (1.0f + (3.0f * kGeluCube) * square);
    Vec derivative = sigmoid + value * sigmoid * (1.0f - sigmoid) * slope;
    storeSome(dy + i, loadSome(dy + i, n) * derivative, n);
  });
}

void causalSoftmax(float* scores, float scale, size_t firstRow, size_t rows, size_t columns, size_t stride) {
  for (size_t row = 0; row < rows; ++row, scores += stride) {
    const size_t length = firstRow + row + 1;
    Vec top = splat(scores[0]);
    eachVector(length, [&](size_t i, size_t n) { top = larger(loadSome(scores + i, n, scores[0]), top); });
    const float largest = largestLane(top);
    Vec sum{};
    eachVector(length, [&](size_t i, size_t n) {
      // The lanes beyond the row get e^-87, which no fp32 sum of terms with a 1 among them can see.
      Vec value = expVec((loadSome(scores + i, n, -3e38f) - largest) * scale);
      sum += value;
      storeSome(scores + i, value, n);
    });
    const float normal = 1.0f / sumLanes(sum);
    eachVector(length,
               [&](size_t i, size_t n) { storeSome(scores + i, loadSome(scores + i, n) * normal, n); });
    std::memset(scores + length, 0, (columns - length) * sizeof(float));
  }
}

void causalSoftmaxBackward(const float* p, float* dp, float scale, size_t firstRow, size_t rows,
                           size_t columns, size_t stride) {
  for (size_t row = 0; row < rows; ++row, p += stride, dp += stride) {
    const size_t length = firstRow + row + 1;
    Vec sum{};
    eachVector(length, [&](size_t i, size_t n) { sum += loadSome(p + i, n) * loadSome(dp + i, n); });
    const float inner = sumLanes(sum);
    eachVector(length, [&](size_t i, size_t n) {
      storeSome(dp + i, loadSome(p + i, n) * (loadSome(dp + i, n) - inner) * scale, n);
    });
    std::memset(dp + length, 0, (columns - length) * sizeof(float));
  }
}

double crossEntropy(float* logits, const uint32_t* targets, size_t rows, size_t width) {
  double loss = 0;
  for (size_t row = 0; row < rows; ++row, logits += width) {
    Vec top = splat(logits[0]);
    eachVector(width, [&](size_t i, size_t n) { top = larger(loadSome(logits + i, n, logits[0]), top); });
    const float largest = largestLane(top);
    const float chosen = logits[targets[row]] - largest;
    Vec sum{};
    eachVector(width, [&](size_t i, size_t n) {
      Vec value = expVec(loadSome(logits + i, n, -3e38f) - largest);
      sum += value;
      storeSome(logits + i, value, n);
    });
    const float total = sumLanes(sum), normal = 1.0f / total;
    eachVector(width,
               [&](size_t i, size_t n) { storeSome(logits + i, loadSome(logits + i, n) * normal, n); });
    logits[targets[row]] -= 1.0f;
    loss += __builtin_log(static_cast<double>(total)) - static_cast<double>(chosen);
  }
  return loss;
}

void exponential(const float* source, float* target, size_t count) {
  eachVector(count, [&](size_t i, size_t n) { storeSome(target + i, expVec(loadSome(source + i, n)), n); });
}

}  // namespace

extern const Kernels PEAL_TRAIN_KERNELS = {PEAL_TRAIN_KERNELS_NAME,
                                           widen,
                                           narrow,
                                           layerNorm,
                                           layerNormBackward,
                                           addBias,
                                           sumRows,
                                           add,
                                           gelu,
                                           geluBackward,
                                           causalSoftmax,
                                           causalSoftmaxBackward,
                                           crossEntropy,
                                           exponential};

}  // namespace peal::train
