// The model on a GPU: one stream, cuBLAS for the products, kernels.cu for the rest. The kernels and the order
// of sums are the host's; products are cuBLAS's, and so the bits are the host's but for these.
#include "tools/train/compute.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tools/common/error.h"
#include "tools/train/cuda/cublas.h"
#include "tools/train/cuda/kernels.h"

namespace peal::train {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS recommends on Hopper and later
constexpr uint64_t kBlocksPerProcessor = 16;

void checkCuda(cudaError_t result, const std::string& what) {
  if (result != cudaSuccess) {
    throw tools::ToolError(
        fmt::format("{}: {} ({})", what, cudaGetErrorString(result), cudaGetErrorName(result)));
  }
}

// Memory of the current device that grows. Its contents do not survive that.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count = 0) { reserve(count); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  // Room for so many. True if it was made anew.
  bool reserve(size_t count) {
    if (count <= capacity_) {
      return false;
    }
    checkCuda(cudaFree(data_), "freeing an array of the device");
    data_ = nullptr;
    capacity_ = 0;
    void* memory = nullptr;
    checkCuda(cudaMalloc(&memory, count * sizeof(T)),
              fmt::format("cudaMalloc of {} bytes", count * sizeof(T)));
    data_ = static_cast<T*>(memory);
    capacity_ = count;
    return true;
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  size_t capacity_ = 0;
};

class ComputeStream {
 public:
  ComputeStream() {
    checkCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making the model's stream");
  }
  ComputeStream(const ComputeStream&) = delete;
  ComputeStream& operator=(const ComputeStream&) = delete;
  ~ComputeStream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Makes the device current, for the thread that makes the object and uses it.
struct UsedDevice {
  explicit UsedDevice(int device) {
    checkCuda(cudaSetDevice(device), fmt::format("making GPU {} current", device));
  }
};

class CudaCompute final : public Compute {
 public:
  CudaCompute(int device, const std::string& library)
      : number_(device),
        used_(device),
        workspace_(kWorkspaceBytes),
        cublas_(library, stream_.get(), workspace_.data(), kWorkspaceBytes) {
    int processors = 0;
    checkCuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
              fmt::format("asking GPU {} for its processors", device));
    mostBlocks_ = static_cast<uint64_t>(processors) * kBlocksPerProcessor;
  }

  ComputeDevice device() const override { return ComputeDevice::Cuda; }
  ComputeNames names() const override {
    cudaDeviceProp properties{};
    checkCuda(cudaGetDeviceProperties(&properties, number_),
              fmt::format("asking GPU {} for its name", number_));
    return {fmt::format("GPU {} ({}), {}, own kernels", number_, properties.name, cublas_.name()),
            cublas_.name(), "CUDA"};
  }
  pealStream_t stream() const override { return reinterpret_cast<pealStream_t>(stream_.get()); }

  float* allocate(size_t count) override {
    void* memory = nullptr;
    const size_t bytes = std::max<size_t>(count, 1) * sizeof(float);
    checkCuda(cudaMalloc(&memory, bytes),
              fmt::format("cudaMalloc of {} bytes on GPU {} for the model", bytes, number_));
    auto* const values = static_cast<float*>(memory);
    try {
      clear(values, count);
    } catch (...) {
      release(values);
      throw;
    }
    return values;
  }
  void release(float* values) noexcept override { cudaFree(values); }
  void clear(float* values, size_t count) override {
    if (count > 0) {
      checkCuda(cudaMemsetAsync(values, 0, count * sizeof(float), stream_.get()),
                fmt::format("clearing {} floats", count));
    }
  }
  void copy(const float* from, float* to, size_t count) override {
    move(from, to, count, cudaMemcpyDeviceToDevice);
  }
  void download(const float* from, float* to, size_t count) override {
    move(from, to, count, cudaMemcpyDeviceToHost);
    checkCuda(cudaStreamSynchronize(stream_.get()), "waiting for the model's stream");
  }

  void widen(const uint16_t* from, float* to, size_t count) override {
    launchElements(widenKernel(), WidenArgs{from, to, count}, count);
  }
  void narrow(const float* from, uint16_t* to, size_t count) override {
    launchElements(narrowKernel(), NarrowArgs{from, to, count}, count);
  }

  void multiply(ConstMatrix a, ConstMatrix b, Matrix c, Target target) override {
    product(Transposed::Neither, a, b, c, a.columns, target);
  }
  void multiplyByTransposed(ConstMatrix a, ConstMatrix b, Matrix c, Target target) override {
    product(Transposed::B, a, b, c, a.columns, target);
  }
  void multiplyTransposed(ConstMatrix a, ConstMatrix b, Matrix c, Target target) override {
    product(Transposed::A, a, b, c, a.rows, target);
  }

  void addBias(const float* base, const float* bias, float* y, size_t rows, size_t width) override {
    launchBlocks(addBiasKernel(), AddBiasArgs{base, bias, y, rows, width}, rows, width);
  }
  void sumRows(const float* dy, float* biasGradient, size_t rows, size_t width) override;
  void layerNorm(const float* x, const float* gain, const float* bias, float* y, float* mean, float* inverse,
                 size_t rows, size_t width) override {
    launchRows(layerNormKernel(), LayerNormArgs{x, gain, bias, y, mean, inverse, rows, width}, rows);
  }
  void layerNormBackward(float* dy, const float* x, const float* gain, const float* mean,
                         const float* inverse, float* dx, float* gainGradient, float* biasGradient,
                         size_t rows, size_t width) override {
    sumRows(dy, biasGradient, rows, width);
    launchRows(layerNormBackwardKernel(), LayerNormBackwardArgs{dy, x, gain, mean, inverse, dx, rows, width},
               rows);
    sumRows(dy, gainGradient, rows, width);
  }
  void gelu(const float* x, float* y, size_t count) override {
    launchElements(geluKernel(), GeluArgs{x, y, count, 0}, count);
  }
  void geluBackward(const float* x, float* dy, size_t count) override {
    launchElements(geluKernel(), GeluArgs{x, dy, count, 1}, count);
  }

  void attentionForward(const AttentionShape& shape, const float* qkv, float* probabilities,
                        float* out) override;
  void attentionBackward(const AttentionShape& shape, const float* qkv, const float* probabilities,
                         const float* dout, float* dqkv, float* scratch) override;

  void embed(TokenRows rows, const float* tokens, const float* positions, float* out, size_t width) override {
    upload(ids_, rows.ids, rows.count);
    launchBlocks(embedKernel(),
                 EmbedArgs{ids_.data(), tokens, positions, out, rows.count, rows.length, width}, rows.count,
                 width);
  }
  void embedBackward(TokenRows rows, const float* dx, float* tokenGradient, float* positionGradient,
                     size_t width) override;
  double crossEntropy(float* logits, const uint32_t* targets, size_t rows, size_t width) override;

 private:
  void softmax(float* scores, const float* probabilities, const AttentionShape& shape, size_t matrices);

  // ---- launches; of nothing, none ----
  template <class Args>
  void launch(void (*kernel)(Args), Args args, uint64_t blocks, unsigned threads) {
    if (blocks == 0) {
      return;
    }
    void* pointers[] = {&args};
    checkCuda(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(std::min(blocks, mostBlocks_))),
                               dim3(threads), pointers, 0, stream_.get()),
              fmt::format("launching {} blocks of a kernel of the model on GPU {}", blocks, number_));
  }
  template <class Args>
  void launchElements(void (*kernel)(Args), Args args, uint64_t count) {
    launch(kernel, args, (count + kTrainThreads - 1) / kTrainThreads, kTrainThreads);
  }
  template <class Args>
  void launchRows(void (*kernel)(Args), Args args, uint64_t rows) {
    launchElements(kernel, args, rows * kTrainRowLanes);
  }
  template <class Args>
  void launchBlocks(void (*kernel)(Args), Args args, uint64_t rows, uint64_t width) {
    const uint64_t warps = std::clamp<uint64_t>((width + 31) / 32, 1, kTrainThreads / 32);
    launch(kernel, args, width == 0 ? 0 : rows, static_cast<unsigned>(warps * 32));
  }

  // ---- memory ----
  void move(const float* from, float* to, size_t count, cudaMemcpyKind kind) {
    if (count > 0) {
      checkCuda(cudaMemcpyAsync(to, from, count * sizeof(float), kind, stream_.get()),
                fmt::format("copying {} floats of the model", count));
    }
  }
  // CUDA has copied pageable memory when the call returns.
  template <class T>
  void upload(DeviceArray<T>& to, const T* from, size_t count) {
    to.reserve(count);
    if (count > 0) {
      checkCuda(cudaMemcpyAsync(to.data(), from, count * sizeof(T), cudaMemcpyHostToDevice, stream_.get()),
                fmt::format("copying {} numbers to GPU {}", count, number_));
    }
  }

  // cuBLAS does not say what a product over nothing is.
  void product(Transposed transposed, ConstMatrix a, ConstMatrix b, Matrix c, size_t inner, Target target) {
    if (inner > 0 && c.rows > 0 && c.columns > 0) {
      cublas_.multiply(transposed, a, b, c, inner, target);
    } else if (target == Target::Overwrite) {
      clear(c.data, c.rows * c.columns);
    }
  }

  const int number_;
  UsedDevice used_;
  ComputeStream stream_;
  DeviceArray<char> workspace_;
  Cublas cublas_;
  uint64_t mostBlocks_ = 1;
  DeviceArray<float> ones_, totals_;
  DeviceArray<uint32_t> ids_, rowOrder_;
  DeviceArray<TokenRun> runs_;
};

void CudaCompute::sumRows(const float* dy, float* biasGradient, size_t rows, size_t width) {
  if (rows == 0) {
    clear(biasGradient, width);
    return;
  }
  if (ones_.reserve(rows)) {
    const std::vector<float> ones(rows, 1.0f);
    upload(ones_, ones.data(), rows);
  }
  cublas_.sumRows({dy, rows, width, width}, ones_.data(), biasGradient);
}

// ---- attention --------------------------------------------------------------------------------------------

// The heads of one sequence: views of the first, and how far it is to the next.
struct Heads {
  Heads(const AttentionShape& shape, size_t sequence)
      : count(shape.heads),
        length(shape.length),
        width(shape.headWidth()),
        stride(3 * shape.width),
        qkv(sequence * shape.length * stride),
        out(sequence * shape.length * shape.width),
        scores(sequence * shape.heads * shape.length * shape.length) {}
  // Of one kind of the three, in an array of rows × 3 width.
  ConstMatrix of(const float* values, size_t kind) const {
    return {values + qkv + kind * (stride / 3), length, width, stride};
  }
  Matrix of(float* values, size_t kind) const {
    return {values + qkv + kind * (stride / 3), length, width, stride};
  }
  size_t count, length, width, stride;
  size_t qkv, out, scores;  // where the sequence begins in arrays of that kind
};
enum HeadPart : size_t { Query, Key, Value };

void CudaCompute::attentionForward(const AttentionShape& shape, const float* qkv, float* probabilities,
                                   float* out) {
  const size_t length = shape.length, square = length * length, width = shape.headWidth();
  for (size_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const Heads heads(shape, sequence);
    cublas_.multiplyMany(Transposed::B, heads.of(qkv, Query), heads.of(qkv, Key),
                         {probabilities + heads.scores, length, length, length}, width, Target::Overwrite,
                         {heads.count, width, width, square});
  }
  softmax(probabilities, nullptr, shape, shape.sequences * shape.heads);
  for (size_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const Heads heads(shape, sequence);
    cublas_.multiplyMany(Transposed::Neither, {probabilities + heads.scores, length, length, length},
                         heads.of(qkv, Value), {out + heads.out, length, width, shape.width}, length,
                         Target::Overwrite, {heads.count, square, width, width});
  }
}

void CudaCompute::attentionBackward(const AttentionShape& shape, const float* qkv, const float* probabilities,
                                    const float* dout, float* dqkv, float* scratch) {
  const size_t length = shape.length, square = length * length, width = shape.headWidth();
  for (size_t sequence = 0; sequence < shape.sequences; ++sequence) {
    const Heads heads(shape, sequence);
    const ConstMatrix p(probabilities + heads.scores, length, length, length);
    const ConstMatrix dy(dout + heads.out, length, width, shape.width);
    const Matrix dp{scratch, length, length, length};
    const Strides toScores{heads.count, width, width, square}, fromScores{heads.count, square, width, width};
    cublas_.multiplyMany(Transposed::B, dy, heads.of(qkv, Value), dp, width, Target::Overwrite, toScores);
    cublas_.multiplyMany(Transposed::A, p, dy, heads.of(dqkv, Value), length, Target::Overwrite, fromScores);
    softmax(scratch, p.data, shape, shape.heads);
    cublas_.multiplyMany(Transposed::Neither, dp, heads.of(qkv, Key), heads.of(dqkv, Query), length,
                         Target::Overwrite, fromScores);
    cublas_.multiplyMany(Transposed::A, dp, heads.of(qkv, Query), heads.of(dqkv, Key), length,
                         Target::Overwrite, fromScores);
  }
}

void CudaCompute::softmax(float* scores, const float* probabilities, const AttentionShape& shape,
                          size_t matrices) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.headWidth()));
  launchRows(softmaxKernel(), SoftmaxArgs{scores, probabilities, matrices, shape.length, scale},
             matrices * shape.length);
}

// ---- the two ends -----------------------------------------------------------------------------------------

void CudaCompute::embedBackward(TokenRows rows, const float* dx, float* tokenGradient,
                                float* positionGradient, size_t width) {
  launchElements(positionGradientKernel(),
                 PositionGradientArgs{dx, positionGradient, rows.count / rows.length, rows.length, width},
                 rows.count > 0 ? rows.length * width : 0);
  std::vector<uint32_t> order(rows.count);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return rows.ids[a] < rows.ids[b]; });
  std::vector<TokenRun> runs;
  for (uint32_t i = 0; i < order.size(); ++i) {
    const uint32_t id = rows.ids[order[i]];
    if (runs.empty() || runs.back().id != id) {
      runs.push_back({id, i, i});
    }
    runs.back().end = i + 1;
  }
  upload(rowOrder_, order.data(), order.size());
  upload(runs_, runs.data(), runs.size());
  launchBlocks(tokenGradientKernel(),
               TokenGradientArgs{dx, rowOrder_.data(), runs_.data(), tokenGradient, runs.size(), width},
               runs.size(), width);
}

double CudaCompute::crossEntropy(float* logits, const uint32_t* targets, size_t rows, size_t width) {
  if (rows == 0) {
    return 0;
  }
  upload(ids_, targets, rows);
  totals_.reserve(2 * rows);
  float* const chosen = totals_.data() + rows;
  launchRows(crossEntropyKernel(), CrossEntropyArgs{logits, ids_.data(), totals_.data(), chosen, rows, width},
             rows);
  std::vector<float> found(2 * rows);
  download(totals_.data(), found.data(), found.size());
  double loss = 0;
  for (size_t row = 0; row < rows; ++row) {
    loss += std::log(static_cast<double>(found[row])) - static_cast<double>(found[rows + row]);
  }
  return loss;
}

}  // namespace

std::string whyNoCuda() { return ""; }

int chooseCudaDevice(int localRank) {
  int count = 0;
  const cudaError_t asked = cudaGetDeviceCount(&count);
  if (asked != cudaSuccess || count == 0) {
    throw tools::UsageError(fmt::format(
        "--device cuda: there is no GPU for it: {}. Run it on a machine with an NVIDIA GPU and driver "
        "(nvidia-smi lists what there is), or compute on the host (--device host)",
        asked != cudaSuccess ? cudaGetErrorString(asked) : "the driver knows no device"));
  }
  return localRank % count;
}

std::unique_ptr<Compute> makeCudaCompute(int device, const std::string& library) {
  return std::make_unique<CudaCompute>(device, library);
}

size_t freeCudaBytes(int device) {
  const UsedDevice used(device);
  size_t available = 0, total = 0;
  checkCuda(cudaMemGetInfo(&available, &total), fmt::format("asking GPU {} for its memory", device));
  return available;
}

}  // namespace peal::train
