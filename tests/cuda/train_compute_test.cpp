// The model's operations on a simulated GPU against those on the host: own kernels bit for bit, what goes
// through products (tests/cuda/fake_cublas.cpp) within rounding. Odd sizes, few blocks, calls of CUDA that
// fail.
#include <cudasim/runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/train/local_parameters.h"
#include "tools/common/error.h"
#include "tools/train/compute.h"
#include "tools/train/cuda/kernels.h"
#include "tools/train/kernels.h"
#include "tools/train/model.h"

namespace peal::train {
namespace {

using Values = std::vector<float>;

Values drawn(size_t count, uint64_t seed, double deviation = 1) {
  Values values(count);
  initialValues({"", count, 1, false, 0, deviation, 0}, seed, 0, values.data());
  return values;
}

bool sameBits(const Values& a, const Values& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

cudaStream_t streamOf(const Compute& compute) { return reinterpret_cast<cudaStream_t>(compute.stream()); }

// Arrays of one operation on one device.
class Arrays {
 public:
  explicit Arrays(Compute& compute) : compute_(compute) {}
  float* make(const Values& values) {
    arrays_.emplace_back(compute_, values.size());
    if (compute_.device() == ComputeDevice::Host) {
      std::copy(values.begin(), values.end(), arrays_.back().data());
    } else {
      EXPECT_EQ(cudaMemcpyAsync(arrays_.back().data(), values.data(), values.size() * sizeof(float),
                                cudaMemcpyHostToDevice, streamOf(compute_)),
                cudaSuccess);
    }
    return arrays_.back().data();
  }
  float* make(size_t count) { return make(Values(count, std::nanf(""))); }  // to be overwritten
  // Of all arrays, in the order of their making.
  Values all() {
    Values values;
    for (const Floats& array : arrays_) {
      values.resize(values.size() + array.size());
      compute_.download(array.data(), values.data() + values.size() - array.size(), array.size());
    }
    return values;
  }

 private:
  Compute& compute_;
  std::vector<Floats> arrays_;
};

// Few processors, so that blocks take several turns.
class ComputeTest : public testing::Test {
 protected:
  ComputeTest() {
    cudasim::Machine machine;
    machine.devices = 2;
    machine.multiprocessors = 1;
    cudasim::restart(machine);
    gpu_ = makeCudaCompute(1, PEAL_FAKE_CUBLAS);
  }
  ~ComputeTest() override {
    gpu_.reset();
    EXPECT_EQ(cudasim::liveObjects(), std::vector<std::string>());
  }

  // operation(compute, arrays) on both devices.
  template <class Operation>
  void expectSameBits(const Operation& operation) {
    Arrays host(hostCompute()), gpu(*gpu_);
    operation(hostCompute(), host);
    operation(*gpu_, gpu);
    EXPECT_TRUE(sameBits(host.all(), gpu.all()));
  }
  template <class Operation>
  void expectNear(const Operation& operation, double tolerance) {
    Arrays host(hostCompute()), gpu(*gpu_);
    operation(hostCompute(), host);
    operation(*gpu_, gpu);
    const Values expected = host.all(), got = gpu.all();
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], tolerance) << i;
    }
  }

  std::unique_ptr<Compute> gpu_;
};

constexpr size_t kWidths[] = {1, 15, 16, 17, 33, 130};
constexpr size_t kRows[] = {0, 1, 3, 131};  // the last: more than all blocks take at once

template <class Body>
void eachSize(const Body& body) {
  for (const size_t width : kWidths) {
    for (const size_t rows : kRows) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << width);
      body(rows, width);
    }
  }
}

TEST_F(ComputeTest, bf16) {
  const float infinity = std::numeric_limits<float>::infinity();
  Values values = drawn(5003, 1, 1e3);
  for (const float special : {infinity, -infinity, std::nanf(""), -0.0f, 1e-40f, 3.4e38f, 1.00390625f,
                              1.01171875f, __builtin_bit_cast(float, 0x7f800001u)}) {
    values.push_back(special);
  }
  expectSameBits([&](Compute& compute, Arrays& arrays) {
    const float* source = arrays.make(values);
    auto* const halves = reinterpret_cast<uint16_t*>(arrays.make(values.size() / 2));
    compute.narrow(source, halves, values.size());
    compute.widen(halves, arrays.make(values.size()), values.size());
  });
}

TEST_F(ComputeTest, gelu) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{127}, size_t{3001}}) {
    const Values x = drawn(count, 2, 6);
    expectSameBits([&](Compute& compute, Arrays& arrays) {
      const float* from = arrays.make(x);
      compute.gelu(from, arrays.make(count), count);
      compute.geluBackward(from, arrays.make(drawn(count, 3)), count);
    });
  }
}

TEST_F(ComputeTest, biases) {
  eachSize([&](size_t rows, size_t width) {
    expectSameBits([&](Compute& compute, Arrays& arrays) {
      const float* base = arrays.make(drawn(rows * width, 1));
      const float* bias = arrays.make(drawn(width, 2));
      compute.addBias(nullptr, bias, arrays.make(rows * width), rows, width);
      compute.addBias(base, bias, arrays.make(rows * width), rows, width);
      compute.sumRows(base, arrays.make(width), rows, width);
    });
  });
}

TEST_F(ComputeTest, layerNorm) {
  eachSize([&](size_t rows, size_t width) {
    Arrays host(hostCompute()), gpu(*gpu_);
    Values results[2];
    for (const bool isHost : {true, false}) {
      Compute& compute = isHost ? hostCompute() : *gpu_;
      Arrays scratch(compute), arrays(compute);
      const float* x = scratch.make(drawn(rows * width, 1, 3));
      const float* gain = scratch.make(drawn(width, 2));
      float* mean = arrays.make(rows);
      float* inverse = arrays.make(rows);
      compute.layerNorm(x, gain, scratch.make(drawn(width, 3)), arrays.make(rows * width), mean, inverse,
                        rows, width);
      compute.layerNormBackward(scratch.make(drawn(rows * width, 4)), x, gain, mean, inverse,
                                arrays.make(drawn(rows * width, 5)), arrays.make(width), arrays.make(width),
                                rows, width);
      results[isHost ? 0 : 1] = arrays.all();
    }
    EXPECT_TRUE(sameBits(results[0], results[1]));
  });
}

TEST_F(ComputeTest, crossEntropy) {
  eachSize([&](size_t rows, size_t width) {
    std::vector<uint32_t> targets;
    for (size_t row = 0; row < rows; ++row) {
      targets.push_back(static_cast<uint32_t>(mix(1, 2, row) % width));
    }
    double losses[2];
    expectSameBits([&](Compute& compute, Arrays& arrays) {
      losses[compute.device() == ComputeDevice::Host ? 0 : 1] =
          compute.crossEntropy(arrays.make(drawn(rows * width, 6, 9)), targets.data(), rows, width);
    });
    EXPECT_EQ(losses[0], losses[1]);
  });
}

// The kernel alone: on the host it works in place on the score matrix.
TEST_F(ComputeTest, causalSoftmax) {
  constexpr float kScale = 0.37f;
  for (const size_t length : {1, 2, 15, 16, 17, 33, 65}) {
    const size_t matrices = 3, square = length * length, count = matrices * square;
    SCOPED_TRACE(length);
    Arrays host(hostCompute()), gpu(*gpu_);
    float* p = host.make(drawn(count, 1, 4));
    float* dp = host.make(drawn(count, 2));
    for (size_t m = 0; m < matrices; ++m) {
      kernels().causalSoftmax(p + m * square, kScale, 0, length, length, length);
      kernels().causalSoftmaxBackward(p + m * square, dp + m * square, kScale, 0, length, length, length);
    }
    float* gpuP = gpu.make(drawn(count, 1, 4));
    SoftmaxArgs args{gpuP, nullptr, matrices, length, kScale};
    void* pointers[] = {&args};
    ASSERT_EQ(cudaLaunchKernel(softmaxKernel(), dim3(3), dim3(64), pointers, 0, streamOf(*gpu_)),
              cudaSuccess);
    args.scores = gpu.make(drawn(count, 2));
    args.probabilities = gpuP;
    ASSERT_EQ(cudaLaunchKernel(softmaxKernel(), dim3(3), dim3(64), pointers, 0, streamOf(*gpu_)),
              cudaSuccess);
    EXPECT_TRUE(sameBits(host.all(), gpu.all()));
  }
}

TEST_F(ComputeTest, embeddings) {
  for (const size_t sequences : {0, 1, 5}) {
    const size_t vocabulary = 13, length = 7, width = 19, rows = sequences * length;
    std::vector<uint32_t> ids;
    for (size_t row = 0; row < rows; ++row) {
      ids.push_back(static_cast<uint32_t>(mix(3, 4, row) % (vocabulary - 2)));  // two never occur
    }
    const TokenRows tokens{ids.data(), rows, length};
    expectSameBits([&](Compute& compute, Arrays& arrays) {
      compute.embed(tokens, arrays.make(drawn(vocabulary * width, 1)), arrays.make(drawn(length * width, 2)),
                    arrays.make(rows * width), width);
      compute.embedBackward(tokens, arrays.make(drawn(rows * width, 3)),
                            arrays.make(drawn(vocabulary * width, 4)), arrays.make(Values(length * width)),
                            width);
    });
  }
}

TEST_F(ComputeTest, products) {
  struct Size {
    size_t rows, columns, inner;
  };
  for (const Size& size : {Size{1, 1, 1}, Size{3, 5, 7}, Size{17, 2, 33}, Size{4, 9, 0}}) {
    const auto [m, n, k] = size;
    for (const Target target : {Target::Overwrite, Target::Accumulate}) {
      expectNear(
          [&, m = m, n = n, k = k](Compute& compute, Arrays& arrays) {
            const float* a = arrays.make(drawn(m * k, 1));
            const float* b = arrays.make(drawn(k * n, 2));
            const auto made = [&] {
              return Matrix{
                  target == Target::Overwrite ? arrays.make(Values(m * n, 7)) : arrays.make(drawn(m * n, 3)),
                  m, n, n};
            };
            compute.multiply({a, m, k, k}, {b, k, n, n}, made(), target);
            compute.multiplyByTransposed({a, m, k, k}, {b, n, k, k}, made(), target);
            compute.multiplyTransposed({a, k, m, m}, {b, k, n, n}, made(), target);
          },
          2e-5);
    }
  }
}

TEST_F(ComputeTest, attention) {
  for (const AttentionShape& shape : {AttentionShape{1, 1, 1, 1}, AttentionShape{3, 5, 2, 6},
                                      AttentionShape{2, 37, 3, 9}, AttentionShape{0, 4, 2, 4}}) {
    const size_t wide = shape.rows() * shape.width;
    expectNear(
        [&](Compute& compute, Arrays& arrays) {
          const float* qkv = arrays.make(drawn(3 * wide, 1));
          float* probabilities =
              arrays.make(Values(shape.probabilityCount()));  // above the diagonal as they are
          compute.attentionForward(shape, qkv, probabilities, arrays.make(Values(wide, 7)));
          const Floats scratch(compute, attentionScratchCount(compute.device(), shape));
          compute.attentionBackward(shape, qkv, probabilities, arrays.make(drawn(wide, 2)),
                                    arrays.make(Values(3 * wide, 7)), scratch.data());
        },
        1e-5);
  }
}

// ---- the model --------------------------------------------------------------------------------------------

// Parameters of a test in the device's memory.
class GpuParameters : public ParameterAccess {
 public:
  GpuParameters(LocalParameters& host, Compute& compute, const std::vector<ParameterSpec>& specs)
      : host_(host), compute_(compute), specs_(specs) {}
  void enter(size_t unit, Pass pass) override { host_.enter(unit, pass); }
  void leave(size_t unit, Pass pass) override { host_.leave(unit, pass); }
  void read(size_t parameter, float* to) override {
    Values values(specs_[parameter].count());
    host_.read(parameter, values.data());
    if (cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice,
                        streamOf(compute_)) != cudaSuccess) {
      throw tools::ToolError("the test's copy failed");
    }
  }
  void gradientReady(size_t parameter, const float* from) override {
    Values values(specs_[parameter].count());
    compute_.download(from, values.data(), values.size());
    host_.gradientReady(parameter, values.data());
  }

 private:
  LocalParameters& host_;
  Compute& compute_;
  const std::vector<ParameterSpec>& specs_;
};

struct ModelRun {
  double loss;
  std::vector<Values> gradients;
  Values logits;
};

ModelRun runModel(Compute& compute, const ModelShape& shape, Activations activations) {
  Model model(shape, 2, activations, compute);
  EXPECT_EQ(static_cast<double>(model.workspaceBytes()),
            workspaceBytesFor(shape, 2, activations, compute.device()));
  LocalParameters local(model.specs());
  local.randomize(5);
  GpuParameters gpu(local, compute, model.specs());
  ParameterAccess& access =
      compute.device() == ComputeDevice::Host ? static_cast<ParameterAccess&>(local) : gpu;
  std::vector<uint32_t> inputs, targets;
  for (size_t i = 0; i < 2 * shape.context; ++i) {
    inputs.push_back(static_cast<uint32_t>(mix(1, 2, i) % shape.vocabulary));
    targets.push_back(static_cast<uint32_t>(mix(1, 3, i) % shape.vocabulary));
  }
  ModelRun run;
  run.loss = model.loss(access, inputs.data(), targets.data(), 2, shape.context);
  model.backward(access);
  run.gradients = local.gradients;
  const float* logits = model.predict(access, inputs.data(), shape.context - 1);
  run.logits.assign(logits, logits + shape.vocabulary);
  return run;
}

TEST_F(ComputeTest, modelIsTheHosts) {
  const ModelShape shape{2, 12, 3, 9, 11};
  const ModelRun host = runModel(hostCompute(), shape, Activations::Kept);
  const ModelRun gpu = runModel(*gpu_, shape, Activations::Kept);
  EXPECT_NEAR(gpu.loss, host.loss, 1e-5 * host.loss);
  ASSERT_EQ(gpu.gradients.size(), host.gradients.size());
  for (size_t p = 0; p < gpu.gradients.size(); ++p) {
    ASSERT_EQ(gpu.gradients[p].size(), host.gradients[p].size());
    for (size_t i = 0; i < gpu.gradients[p].size(); ++i) {
      EXPECT_NEAR(gpu.gradients[p][i], host.gradients[p][i], 2e-5 * (1 + std::abs(host.gradients[p][i])))
          << p;
    }
  }
  for (size_t i = 0; i < gpu.logits.size(); ++i) {
    EXPECT_NEAR(gpu.logits[i], host.logits[i], 1e-5 * (1 + std::abs(host.logits[i])));
  }
  const ModelRun thrifty = runModel(*gpu_, shape, Activations::Recomputed);
  EXPECT_EQ(thrifty.loss, gpu.loss);
  EXPECT_EQ(thrifty.gradients, gpu.gradients);
}

// Every call of CUDA fails once: a sentence, and nothing is left.
TEST(CudaCompute, tellsOfCallsThatFail) {
  const ModelShape shape{1, 4, 2, 3, 5};
  const auto whole = [&] {
    const auto compute = makeCudaCompute(0, PEAL_FAKE_CUBLAS);
    runModel(*compute, shape, Activations::Kept);
    (void)compute->names();
  };
  cudasim::restart();
  cudasim::countCalls();
  whole();
  const uint64_t calls = cudasim::callCount();
  size_t told = 0;
  for (uint64_t n = 1; n <= calls; n += n < 40 ? 1 : 7) {
    cudasim::restart();
    cudasim::failCall("*", n);
    try {
      whole();
    } catch (const tools::ToolError& error) {
      ++told;
      EXPECT_GT(std::strlen(error.what()), 20u);
    }
    cudasim::failNothing();
    EXPECT_EQ(cudasim::liveObjects(), std::vector<std::string>()) << "after call " << n;
  }
  EXPECT_GT(told, 40u);
}

std::string sentenceOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(CudaCompute, saysWhatIsMissing) {
  cudasim::Machine machine;
  machine.devices = 2;
  cudasim::restart(machine);
  EXPECT_EQ(chooseCudaDevice(3), 1);
  const std::string absent = sentenceOf([] { makeCudaCompute(0, "libcublas-of-nowhere.so"); });
  EXPECT_NE(absent.find("Tried: libcublas-of-nowhere.so: cannot open"), std::string::npos) << absent;
  EXPECT_NE(absent.find("--cublas FILE"), std::string::npos) << absent;
  const std::string other = sentenceOf([] { makeCudaCompute(0, "libm.so.6"); });
  EXPECT_NE(other.find("libm.so.6 is no cuBLAS that peal-train can use: it has no cublasCreate_v2"),
            std::string::npos)
      << other;
  EXPECT_EQ(cudasim::liveObjects(), std::vector<std::string>());
  machine.devices = 0;
  cudasim::restart(machine);
  const std::string none = sentenceOf([] { chooseCudaDevice(0); });
  EXPECT_NE(none.find("--device cuda: there is no GPU for it"), std::string::npos) << none;
}

}  // namespace
}  // namespace peal::train
