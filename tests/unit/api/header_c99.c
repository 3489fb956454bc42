/* peal.h, adamw.h and zero.h as a C program sees them. Compiling is the test: enum values are NCCL's, and the
 * initialisers work. */
#include "peal/adamw.h"
#include "peal/peal.h"
#include "peal/zero.h"

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
PEAL_TEST_EQUAL(segmentsAreTwoWords, sizeof(pealAdamwSegment_t), 16);

/* As CUDA declares it. */
typedef struct CUstream_st* cudaStream_t;
#ifndef PEAL_STREAM_IS_CUDA
#define AS_STREAM (pealStream_t)
#else
#define AS_STREAM
#endif
pealResult_t barrierOn(pealComm_t comm, cudaStream_t stream);
pealResult_t barrierOn(pealComm_t comm, cudaStream_t stream) { return pealBarrier(comm, AS_STREAM stream); }

pealConfig_t defaultConfig(void);
pealConfig_t defaultConfig(void) {
  pealConfig_t config = PEAL_CONFIG_INITIALIZER;
  return config;
}

pealZeroOptions_t defaultOptions(void);
pealZeroOptions_t defaultOptions(void) {
  pealZeroOptions_t options = PEAL_ZERO_OPTIONS_INITIALIZER;
  return options;
}
pealZeroGroup_t defaultGroup(void);
pealZeroGroup_t defaultGroup(void) {
  pealZeroGroup_t group = PEAL_ZERO_GROUP_INITIALIZER;
  return group;
}
pealZeroParameter_t defaultParameter(void);
pealZeroParameter_t defaultParameter(void) {
  pealZeroParameter_t parameter = PEAL_ZERO_PARAMETER_INITIALIZER;
  return parameter;
}
pealZeroPlanInput_t defaultPlanInput(void);
pealZeroPlanInput_t defaultPlanInput(void) {
  pealZeroPlanInput_t input = PEAL_ZERO_PLAN_INITIALIZER;
  return input;
}
