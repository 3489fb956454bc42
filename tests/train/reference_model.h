// The same GPT written as its formulas, in double precision and with plain loops: the model under test is
// compared with it, and its finite differences are the gradients under test. Shares nothing with
// tools/train but the list of parameters.
#pragma once
#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "tools/train/parameters.h"

namespace peal::train {

class ReferenceModel {
 public:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  ReferenceModel(const ModelShape& shape, const std::vector<std::vector<float>>& values) : shape_(shape) {
    for (const std::vector<float>& value : values) {
      parameters.emplace_back(value.begin(), value.end());
    }
  }

  double loss(const std::vector<uint32_t>& inputs, const std::vector<uint32_t>& targets,
              size_t length) const {
    double sum = 0;
    for (size_t start = 0; start < inputs.size(); start += length) {
      const Rows logits = sequenceLogits(inputs.data() + start, length);
      for (size_t t = 0; t < length; ++t) {
        double total = 0;
        for (double logit : logits[t]) {
          total += std::exp(logit);
        }
        sum += std::log(total) - logits[t][targets[start + t]];
      }
    }
    return sum;
  }

  Rows sequenceLogits(const uint32_t* inputs, size_t length) const {
    Rows x(length, Row(shape_.width));
    for (size_t t = 0; t < length; ++t) {
      for (size_t i = 0; i < shape_.width; ++i) {
        x[t][i] = parameters[kTokenEmbedding][inputs[t] * shape_.width + i] +
                  parameters[kPositionEmbedding][t * shape_.width + i];
      }
    }
    for (size_t block = 0; block < shape_.layers; ++block) {
      const Row* p = &parameters[blockParameter(block, Norm1Gain)];
      addTo(x, linear(attend(linear(norm(x, p[Norm1Gain], p[Norm1Bias]), p[QkvWeight], p[QkvBias])),
                      p[ProjectWeight], p[ProjectBias]));
      Rows hidden = linear(norm(x, p[Norm2Gain], p[Norm2Bias]), p[ExpandWeight], p[ExpandBias]);
      for (Row& row : hidden) {
        for (double& value : row) {
          value = gelu(value);
        }
      }
      addTo(x, linear(hidden, p[ContractWeight], p[ContractBias]));
    }
    const Rows last = norm(x, parameters[finalNormGain(shape_)], parameters[finalNormBias(shape_)]);
    return linear(last, parameters[kTokenEmbedding], Row(shape_.vocabulary, 0.0));
  }

  static double gelu(double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  }

  std::vector<Row> parameters;

 private:
  static void addTo(Rows& x, const Rows& y) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t i = 0; i < x[t].size(); ++i) {
        x[t][i] += y[t][i];
      }
    }
  }

  static Rows norm(const Rows& x, const Row& gain, const Row& bias) {
    Rows y = x;
    for (Row& row : y) {
      const double width = static_cast<double>(row.size());
      double mean = 0, variance = 0;
      for (double value : row) {
        mean += value / width;
      }
      for (double value : row) {
        variance += (value - mean) * (value - mean) / width;
      }
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = (row[i] - mean) / std::sqrt(variance + 1e-5) * gain[i] + bias[i];
      }
    }
    return y;
  }

  static Rows linear(const Rows& x, const Row& weight, const Row& bias) {
    Rows y(x.size(), bias);
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t o = 0; o < bias.size(); ++o) {
        for (size_t i = 0; i < x[t].size(); ++i) {
          y[t][o] += x[t][i] * weight[o * x[t].size() + i];
        }
      }
    }
    return y;
  }

  Rows attend(const Rows& qkv) const {
    const size_t width = shape_.width, headWidth = width / shape_.heads;
    Rows out(qkv.size(), Row(width, 0.0));
    for (size_t first = 0; first < width; first += headWidth) {
      for (size_t t = 0; t < qkv.size(); ++t) {
        Row weight(t + 1);
        double total = 0;
        for (size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (size_t i = first; i < first + headWidth; ++i) {
            score += qkv[t][i] * qkv[s][width + i];
          }
          weight[s] = std::exp(score / std::sqrt(static_cast<double>(headWidth)));
          total += weight[s];
        }
        for (size_t s = 0; s <= t; ++s) {
          for (size_t i = first; i < first + headWidth; ++i) {
            out[t][i] += weight[s] / total * qkv[s][2 * width + i];
          }
        }
      }
    }
    return out;
  }

  ModelShape shape_;
};

}  // namespace peal::train
