// A build without CUDA: peal-train says so.
#include "tools/common/error.h"
#include "tools/train/compute.h"

namespace peal::train {

std::string whyNoCuda() {
  return "--device cuda: this peal-train was built without CUDA (PEAL_CUDA=OFF). Build it where the CUDA "
         "toolkit's "
         "nvcc is, or compute on the host (--device host)";
}
int chooseCudaDevice(int) { throw tools::UsageError(whyNoCuda()); }
std::unique_ptr<Compute> makeCudaCompute(int, const std::string&) { throw tools::UsageError(whyNoCuda()); }
size_t freeCudaBytes(int) { throw tools::UsageError(whyNoCuda()); }

}  // namespace peal::train
