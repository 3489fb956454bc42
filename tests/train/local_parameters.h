// Parameters in plain memory, for tests of the model without the engine. Checks the rules of
// ParameterAccess: reads and gradients inside their unit only, one gradient for each parameter, the order of
// the units.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tools/train/parameters.h"

namespace peal::train {

class LocalParameters : public ParameterAccess {
 public:
  explicit LocalParameters(const std::vector<ParameterSpec>& specs) : specs_(specs) {
    for (const ParameterSpec& spec : specs) {
      values.emplace_back(spec.count());
      gradients.emplace_back();
    }
  }

  // Values of the size that a trained model has, every parameter included, so that no gradient is trivial.
  void randomize(uint64_t seed) {
    for (size_t p = 0; p < values.size(); ++p) {
      ParameterSpec spec = specs_[p];
      spec.deviation = spec.mean == 1 ? 0.3 : 0.2;
      initialValues(spec, seed, p, values[p].data());
    }
  }

  void enter(size_t unit, Pass pass) override {
    events.push_back({unit, pass, true});
    EXPECT_EQ(std::count(open_.begin(), open_.end(), unit), 0) << "unit " << unit << " entered twice";
    open_.push_back(unit);
    pass_ = pass;
  }
  void leave(size_t unit, Pass pass) override {
    events.push_back({unit, pass, false});
    EXPECT_TRUE(isOpen(unit));
    open_.erase(std::remove(open_.begin(), open_.end(), unit), open_.end());
  }
  void read(size_t parameter, float* to) override {
    EXPECT_TRUE(isOpen(specs_[parameter].unit)) << specs_[parameter].name << " read outside its unit";
    std::copy(values[parameter].begin(), values[parameter].end(), to);
  }
  void gradientReady(size_t parameter, const float* from) override {
    EXPECT_EQ(pass_, Pass::Backward);
    EXPECT_TRUE(isOpen(specs_[parameter].unit)) << specs_[parameter].name << " given outside its unit";
    EXPECT_TRUE(gradients[parameter].empty()) << specs_[parameter].name << " given twice";
    gradients[parameter].assign(from, from + specs_[parameter].count());
    order.push_back(parameter);
  }
  void forgetGradients() {
    for (std::vector<float>& gradient : gradients) {
      gradient.clear();
    }
    order.clear();
  }
  bool noneOpen() const { return open_.empty(); }

  struct Event {
    size_t unit;
    Pass pass;
    bool isEnter;
    bool operator==(const Event&) const = default;
  };
  std::vector<std::vector<float>> values, gradients;
  std::vector<size_t> order;  // of gradientReady
  std::vector<Event> events;

 private:
  bool isOpen(size_t unit) const { return std::count(open_.begin(), open_.end(), unit) == 1; }

  std::vector<ParameterSpec> specs_;
  std::vector<size_t> open_;
  Pass pass_ = Pass::Forward;
};

}  // namespace peal::train
