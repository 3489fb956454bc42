/* A user's program in C: every rank gives its rank + 1, the sum comes out. */
#include <peal/peal.h>
#include <stdio.h>

#define CHECK(call)                                                                    \
  do {                                                                                 \
    pealResult_t result = (call);                                                      \
    if (result != pealSuccess) {                                                       \
      fprintf(stderr, "%s: %s\n", pealGetErrorString(result), pealGetLastError(NULL)); \
      return 1;                                                                        \
    }                                                                                  \
  } while (0)

int main(void) {
  float values[1000];
  pealComm_t comm;
  int rank;
  int size;
  CHECK(pealCommInitLaunch(&comm, NULL));
  CHECK(pealCommUserRank(comm, &rank));
  CHECK(pealCommCount(comm, &size));
  for (int i = 0; i < 1000; ++i) {
    values[i] = (float)(rank + 1);
  }
  CHECK(pealAllReduce(values, values, 1000, pealFloat32, pealSum, comm, NULL));
  CHECK(pealCommDestroy(comm));
  for (int i = 1; i < 1000; ++i) {
    if (values[i] != values[0]) {
      fprintf(stderr, "element %d is %g\n", i, values[i]);
      return 1;
    }
  }
  printf("rank %d of %d: sum %g in 1000 elements\n", rank, size, values[0]);
  return 0;
}
