/*
 * peal: the AdamW step of ZeRO, fused: one pass over a flat shard, and the same as a part of one collective.
 *
 * On GPU memory both are one kernel and never wait for the host; on host memory they are loops with the best
 * instruction set. Both give the same bits. Errors are those of peal.h; pealGetLastError(NULL) has the
 * sentence.
 *
 * For element i of the shard, with g = gradient[i] * gradientScale, t = step + 1 (beta^t and the two
 * corrections in fp64, all else in fp32, each operation rounded once):
 *
 *   m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
 *   w = (1 - learningRate * weightDecay) w
 *       - learningRate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
 *   weight[i] = bf16(w)
 *
 * Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019. Memory traffic: 28 bytes per
 * element (2 + 12 read, 12 + 2 written).
 */
#ifndef PEAL_ADAMW_H
#define PEAL_ADAMW_H

#include "peal/peal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What changes from step to step. The step reads it when it runs, from memory of its device (or pinned host
 * memory), so a CUDA graph that holds a step sees what was written since. Aligned to 8 bytes. */
typedef struct {
  uint64_t step; /* updates done so far; a step adds 1 when all of it is done, unless it skips */
  double learningRate;
  double gradientScale; /* every gradient is multiplied by it: clip factor / tokens */
  uint64_t nonFinite;   /* not 0: the step skips: it reads and writes nothing else */
  uint64_t reserved;    /* 0 when no step runs; after a fault inside a step: set it to 0 again */
} pealAdamwControl_t;

/* Elements below `end`, from the previous segment's end on. */
typedef struct {
  uint64_t end;
  double weightDecay;
} pealAdamwSegment_t;

/* The optimizer's state of one flat shard; count elements in each array. On a GPU all pointers are memory of
 * that GPU. Arrays aligned alike modulo 16 elements' bytes are quickest; any alignment to the element is
 * legal. No two arrays overlap. */
typedef struct {
  double beta1, beta2;
  double epsilon; /* from 1.2e-38: with less, elements whose gradients were all 0 would become NaN */
  float* master;
  float* moment1;
  float* moment2;
  uint64_t count;
  /* Sorted by end, the last one's at least count; on a GPU in its memory. segmentCount 0: no decay. */
  const pealAdamwSegment_t* segments;
  uint64_t segmentCount;
  /* 1: weights are rounded up or down at random, so that their mean is the master weight: by bits that depend
   * on seed, step and firstIndex + i only, firstIndex being element 0's number in the whole model. */
  int stochasticRounding;
  uint64_t seed;
  uint64_t firstIndex;
  pealAdamwControl_t* control;
  /* pealReduceAdamwGather: where this rank's block of sums (bf16, count elements) is kept, too; NULL:
   * nowhere. pealAdamwStep does not use it. May be this rank's block of `gradients` where `weights` is
   * another array. */
  void* reduced;
} pealAdamw_t;

/* One update of state->count elements: gradient and weight (both bf16) may be the same array. device:
 * PEAL_DEVICE_HOST, or a GPU. stream: as for that device's communicators (peal.h); NULL on host memory runs
 * to its end on the calling thread. *state is copied before return. */
PEAL_API pealResult_t pealAdamwStep(const void* gradient, void* weight, const pealAdamw_t* state, int device,
                                    pealStream_t stream);

/* Reduce-scatter of the gradients (sum), AdamW on this rank's block, all-gather of the weights: one
 * collective, on a GPU one kernel. counts: elements of each rank's block, N entries, the same on every rank;
 * zeros are legal. gradients, weights: all blocks, counts[0] + ... elements of bf16; they may be the same
 * array. state->count is counts[rank]; state->control has the same values on every rank (a rank that alone
 * skips makes the others wait until their deadline); a step that skips sends nothing and leaves `weights`
 * and state->reduced as they are. After an error the shard and `weights` are undefined and the step is not
 * counted. The same bits as pealReduceScatterV, pealAdamwStep and pealAllGatherV. */
PEAL_API pealResult_t pealReduceAdamwGather(const void* gradients, void* weights, const size_t counts[],
                                            const pealAdamw_t* state, pealComm_t comm, pealStream_t stream);

/* Turns the sums of elements [first, first + count) of this rank's block into what all ranks get in their
 * place: values has the sums, in memory of the library, and is overwritten with the results. What the caller
 * had in its own place for them is still there. Called piece by piece, once for every element and in their
 * order, on the thread that runs the operation (a stream's, or the caller's); it must not call this library.
 */
typedef void (*pealApply_t)(void* user, void* values, size_t first, size_t count);

/* The same as one collective for any optimizer that works on each element by itself, on host memory:
 * reduce-scatter (sum), apply on this rank's block, all-gather of what it wrote. counts: elements of each
 * rank's block, N entries, the same on every rank; zeros are legal. inputs, results: all blocks. They do not
 * overlap. The same bits as pealReduceScatterV, apply and pealAllGatherV. After an error this rank's block
 * and what apply writes are undefined. GPUs: pealReduceAdamwGather. */
PEAL_API pealResult_t pealReduceApplyGather(const void* inputs, void* results, const size_t counts[],
                                            pealDataType_t type, pealApply_t apply, void* user,
                                            pealComm_t comm, pealStream_t stream);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* PEAL_ADAMW_H */
