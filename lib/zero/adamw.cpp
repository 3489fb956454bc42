#include "lib/zero/adamw.h"

#include <cmath>

namespace peal::zero {

AdamwScalars adamwScalars(const AdamwSettings& settings, double learningRate, uint64_t step,
                          double gradientScale) {
  const auto t = static_cast<double>(step);
  const double correction1 = 1 - std::pow(settings.beta1, t);
  const double correction2 = 1 - std::pow(settings.beta2, t);
  AdamwScalars scalars{};
  scalars.gradientScale = static_cast<float>(gradientScale);
  scalars.beta1 = static_cast<float>(settings.beta1);
  scalars.oneMinusBeta1 = static_cast<float>(1 - settings.beta1);
  scalars.beta2 = static_cast<float>(settings.beta2);
  scalars.oneMinusBeta2 = static_cast<float>(1 - settings.beta2);
  scalars.stepSize = static_cast<float>(learningRate / correction1);
  scalars.secondCorrection = static_cast<float>(1 / std::sqrt(correction2));
  scalars.epsilon = static_cast<float>(settings.epsilon);
  scalars.decayFactor = 1;
  return scalars;
}

float decayFactor(const AdamwSettings& settings, double learningRate) {
  return static_cast<float>(1 - learningRate * settings.weightDecay);
}

}  // namespace peal::zero
