#include "tests/cuda/draws.h"

const int peal::cuda::test::kTestDraws = PEAL_TEST_DRAWS;
