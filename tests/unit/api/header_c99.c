/* peal.h as a C program sees it. Compiling is the test: enum values are NCCL's, and the initialiser works. */
#include "peal/peal.h"

#define PEAL_TEST_EQUAL(name, a, b) typedef char name[(a) == (b) ? 1 : -1]

PEAL_TEST_EQUAL(sumIsNccls, pealSum, 0);
PEAL_TEST_EQUAL(avgIsNccls, pealAvg, 4);
PEAL_TEST_EQUAL(int8IsNccls, pealInt8, 0);
PEAL_TEST_EQUAL(halfIsNccls, pealHalf, 6);
PEAL_TEST_EQUAL(bfloat16IsNccls, pealBfloat16, 9);
PEAL_TEST_EQUAL(e5m2IsNccls, pealFloat8e5m2, 11);
PEAL_TEST_EQUAL(invalidArgumentIsNccls, pealInvalidArgument, 4);
PEAL_TEST_EQUAL(inProgressIsNccls, pealInProgress, 7);
PEAL_TEST_EQUAL(uniqueIdIsNccls, sizeof(pealUniqueId), 128);

pealConfig_t defaultConfig(void);
pealConfig_t defaultConfig(void) {
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  return config;
}
