// Values of constants and types of functions as the headers on the include path have them. Compiled twice:
// with the simulator's headers and with the toolkit's, each under its own PEAL_NAMES.
#include "tests/cudasim/toolkit_names.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <typeinfo>

namespace peal::cudasim {

std::map<std::string, std::string> PEAL_NAMES() {
  return {
#define PEAL_VALUE(symbol) {#symbol, std::to_string(static_cast<long long>(symbol))},
#define PEAL_FUNCTION(symbol) {#symbol, typeid(symbol).name()},
#include "tests/cudasim/toolkit_names.inc"
  };
}

}  // namespace peal::cudasim
