#include "tools/train/attention.h"

#include <algorithm>
#include <cmath>

#include "tools/train/kernels.h"
#include "tools/train/matmul.h"

namespace peal::train {
namespace {

// Rows of a score matrix worked on at once. Row block [first, first + rows) has non-zero scores in its
// first first + rows columns only, so blocks save up to half of the products.
constexpr size_t kRowBlock = 32;

struct Head {
  size_t rowOffset;  // of the sequence
  size_t column;     // of the head
  size_t index;      // among sequences × heads
};

template <class Body>
void eachHead(const AttentionShape& shape, Body body) {
  for (size_t sequence = 0; sequence < shape.sequences; ++sequence) {
    for (size_t head = 0; head < shape.heads; ++head) {
      body(Head{sequence * shape.length, head * shape.headWidth(), sequence * shape.heads + head});
    }
  }
}

float scoreScale(const AttentionShape& shape) {
  return 1.0f / std::sqrt(static_cast<float>(shape.headWidth()));
}

}  // namespace

void attentionForward(const AttentionShape& shape, const float* qkv, float* probabilities, float* out) {
  const size_t stride = 3 * shape.width, length = shape.length, headWidth = shape.headWidth();
  const float scale = scoreScale(shape);
  eachHead(shape, [&](const Head& head) {
    const float* query = qkv + head.rowOffset * stride + head.column;
    const float* key = query + shape.width;
    const float* value = key + shape.width;
    float* scores = probabilities + head.index * length * length;
    float* target = out + head.rowOffset * shape.width + head.column;
    for (size_t first = 0; first < length; first += kRowBlock) {
      const size_t rows = std::min(kRowBlock, length - first), columns = first + rows;
      Matrix block{scores + first * length, rows, columns, length};
      multiplyByTransposed({query + first * stride, rows, headWidth, stride},
                           {key, columns, headWidth, stride}, block, Target::Overwrite);
      kernels().causalSoftmax(block.data, scale, first, rows, columns, length);
      multiply(block, {value, columns, headWidth, stride},
               {target + first * shape.width, rows, headWidth, shape.width}, Target::Overwrite);
    }
  });
}

void attentionBackward(const AttentionShape& shape, const float* qkv, const float* probabilities,
                       const float* dout, float* dqkv, float* scratch) {
  const size_t stride = 3 * shape.width, length = shape.length, headWidth = shape.headWidth();
  const float scale = scoreScale(shape);
  const size_t lastBlock = (length - 1) / kRowBlock * kRowBlock;
  eachHead(shape, [&](const Head& head) {
    const size_t offset = head.rowOffset * stride + head.column;
    const float *query = qkv + offset, *key = query + shape.width, *value = key + shape.width;
    float *dquery = dqkv + offset, *dkey = dquery + shape.width, *dvalue = dkey + shape.width;
    const float* scores = probabilities + head.index * length * length;
    const float* dtarget = dout + head.rowOffset * shape.width + head.column;
    // From the last block, which reaches every row of dkey and dvalue and overwrites them, to the first.
    for (size_t first = lastBlock + kRowBlock; first > 0;) {
      first -= kRowBlock;
      const size_t rows = std::min(kRowBlock, length - first), columns = first + rows;
      const Target sum = first == lastBlock ? Target::Overwrite : Target::Accumulate;
      ConstMatrix p(scores + first * length, rows, columns, length);
      ConstMatrix dy(dtarget + first * shape.width, rows, headWidth, shape.width);
      Matrix dp{scratch, rows, columns, length};
      multiplyByTransposed(dy, {value, columns, headWidth, stride}, dp, Target::Overwrite);
      multiplyTransposed(p, dy, {dvalue, columns, headWidth, stride}, sum);
      kernels().causalSoftmaxBackward(p.data, dp.data, scale, first, rows, columns, length);
      multiply(dp, {key, columns, headWidth, stride}, {dquery + first * stride, rows, headWidth, stride},
               Target::Overwrite);
      multiplyTransposed(dp, {query + first * stride, rows, headWidth, stride},
                         {dkey, columns, headWidth, stride}, sum);
    }
  });
}

}  // namespace peal::train
