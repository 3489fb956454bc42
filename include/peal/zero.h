/*
 * peal ZeRO: training with optimizer state, gradients and parameters sharded over the ranks.
 *
 * The C API of the engine and of its planner. The engine owns the weights (bf16 or fp32), the gradients (bf16
 * or fp32), the fp32 master weights and AdamW's two moments of one model on one rank, and does all
 * communication for them. The caller does the mathematics: it reads weights, writes gradients, and tells the
 * engine where it is. Errors are those of peal.h; pealZeroGetLastError() gives the sentence.
 *
 *   stage 0  nothing is sharded: gradients are all-reduced
 *   stage 1  optimizer state is sharded
 *   stage 2  and gradients
 *   stage 3  and parameters: a unit's weights exist in full only between enter and leave
 *
 * The order of calls, the same at every stage (what a stage has no need of costs nothing there):
 *
 *   pealZeroCreate                                             collective
 *   pealZeroAddGroup ...  pealZeroAddParameter ...  pealZeroSetInitial (rank 0) ...
 *   pealZeroSeal                                               collective
 *   each step:
 *     each micro-batch (options.microBatches of them, or see pealZeroSetNoSync):
 *       each unit:  pealZeroUnitEnter(unit, forward);  pealZeroWeights ...;  pealZeroUnitLeave(unit, forward)
 *       each unit, backwards:
 *         pealZeroUnitEnter(unit, backward)
 *           pealZeroWeights ...;  pealZeroGradient -> write;  pealZeroGradientReady ...
 *         pealZeroUnitLeave(unit, backward)
 *       pealZeroEndMicroBatch
 *     pealZeroStep(lr, tokens)                                 collective
 *   pealZeroDestroy
 *
 * Units may be open at the same time and need not nest: a unit with the embedding and the tied head stays
 * open around the blocks. Every rank enters and leaves the same units in the same order. Passes without
 * backward (evaluation) are enter and leave with forward alone, between two steps.
 *
 * A gradient is the SUM over the tokens of this rank's micro-batch, not a mean: the one division, by the
 * number of tokens of all ranks and micro-batches, is inside the step, so ranks may have different numbers.
 *
 * An engine is used by one thread at a time. It has its own communicator, split from the caller's, whose sums
 * are in rank order, and its own host stream: communication overlaps with what the caller does between calls.
 */
#ifndef PEAL_ZERO_H
#define PEAL_ZERO_H

#include "peal/peal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- options --------------------------------------------------------------------------------- */

typedef struct pealZero* pealZero_t;

/* What becomes of a parameter for which pealZeroGradientReady was not called. */
typedef enum {
  pealZeroMissingIsZero = 0,  /* its gradient counts as zeros; the report counts such parameters */
  pealZeroMissingIsError = 1, /* leaving the unit (backward) fails with pealInvalidUsage */
} pealZeroMissing_t;

/* How the fp32 master weights are kept. */
typedef enum {
  pealZeroMasterFp32 = 0, /* as they are: 4 bytes */
  /* What a master is more than its bf16 weight: 2 bytes, from which it comes back exactly, so masters and
   * moments are as with pealZeroMasterFp32. For that, a master exactly half-way between two weights gives the
   * one away from zero, not the even one (of random masters that is one in 65536). NaN stays NaN. Not with
   * stochasticRounding. */
  pealZeroMasterRemainder = 1,
  /* The engine's weights are fp32 and their own masters, K = 8: read with pealZeroWeightsFp32. Gradients are
   * fp32, too (reduceType). Frozen parameters are fp32 with values that bf16 can hold. For single parameters,
   * with either gradients: pealZeroParameter_t's dtype. */
  pealZeroMasterIsWeight = 2,
} pealZeroMasterFormat_t;

/* What gradients are handed over, summed, sent and kept in. */
typedef enum {
  pealZeroReduceBf16 =
      0, /* sums are fp32, over ranks and over micro-batches, and rounded once at their end */
  /* Written with pealZeroGradientFp32; nothing is rounded from there to AdamW. Twice the bytes of gradients:
   * of memory (gradients and their buffers), and sent. */
  pealZeroReduceFp32 = 1,
} pealZeroReduceType_t;

/* Start from PEAL_ZERO_OPTIONS_INITIALIZER. All ranks pass the same; pealZeroSeal checks that. */
typedef struct pealZeroOptions {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int stage;          /* 0 to 3 */
  int microBatches;   /* of each step, from 1; pealZeroSetNoSync gives a step another number */
  size_t bucketBytes; /* stages 0-2: gradients are reduced in buckets of about this many bytes. A parameter
                         is never split, so a larger one is a bucket of its own */
  /* 0: stages 0 and 1 add up the micro-batches in fp32 on each rank and communicate once, stages 2 and 3
   * reduce every micro-batch. 1: every stage reduces every micro-batch, so that all stages give the same
   * bits when microBatches > 1 too, for 2m (stage 0) and m+1 (stage 1) times the elements instead of 2. */
  int reduceEachMicroBatch;
  int bucketSlots; /* stages 2-3: buffers for gradients not yet reduced, of each type of weights; 0: 2 (stage
                      2), 3 (stage 3). Never more than there are buckets (units) */
  int unitSlots;   /* stage 3: buffers for gathered units; 0: 2, prefetchDepth, and one for each kept unit.
                      Never more than there are units */
  /* Stage 3: while a unit computes, forward or backward, the units that came next last time are gathered, so
   * many ahead, as far as there are buffers; backward their gathering goes before the reduction of this
   * unit's gradients. 0: each unit is gathered when it is entered. */
  int prefetchDepth;
  pealZeroMissing_t missingGradients;
  double clipNorm; /* > 0: gradients are scaled so that their global norm is at most this; 0: off */
  /* AdamW; the decay is decoupled: w -= lr * weightDecay * w. epsilon: from 1.2e-38; with 0, which PyTorch
   * takes, elements whose gradients were all 0 would become NaN. */
  double beta1, beta2, epsilon, weightDecay;
  pealZeroMasterFormat_t master;
  int stochasticRounding; /* 1: an update rounds weights up or down at random, so that their mean is the
                             master. By bits that depend on seed, the number of the update and the element's
                             number among all trained ones in order of registration, and on nothing else */
  uint64_t seed;
  /* Stages 1 to 3 (HSDP): ranks in a shard group, which must divide their number; 0: all. What the stage
   * shards is divided inside groups of that many consecutive ranks of the communicator, and is the same in
   * each group; gradients are added up over the groups, too, with the bits that one group gives. Put the
   * ranks of a node next to each other (as launchers do by default): dealt out round-robin, groups would span
   * nodes, with the same bits and all traffic on the network; split such a communicator by node first. With
   * microBatches > 1 the groups exchange sums once a step, or every time if reduceEachMicroBatch. */
  int shardGroup;
  pealZeroReduceType_t reduceType;
  /* Stage 3: the most units whose gathering is under way at once; what comes ahead waits for its turn. From
   * 1; 0: prefetchDepth + 1, the unit that is entered and those ahead. */
  int gathersInFlight;
  /* Stages 0 to 2, 1: at the end of the first step buckets are filled anew, in the order in which gradients
   * became ready in its first micro-batch on rank 0, so that each is complete early even if parameters were
   * registered in another order. Values do not change. No bucket gets larger than the largest was. */
  int rebuildBuckets;
  /* 1: a step whose reduced gradient is infinite or NaN somewhere is skipped. 0: it is made all the same, and
   * the report's gradientNorm is NaN: for announced steps, below. */
  int skipNonFinite;
  /* A checkpoint in which a trained parameter's weights have the other type, bf16 or fp32. 0: loading it is
   * refused. 1: its masters and moments are loaded, and the weights follow from the masters. */
  int convertWeights;
  /* A checkpoint whose beta1, beta2, epsilon or weightDecay of a trained parameter are others than the
   * engine's. 0: loading it is refused, unless it was saved before the first update. 1: masters and moments
   * are loaded as they are, and the engine's numbers hold from then on. */
  int convertOptimizer;
  /* 1: pealZeroSeal gives all ranks rank 0's first values. 0: none are set, for an engine that pealZeroLoad
   * fills next: no rank needs the whole model in fp32, and nothing is sent. Until then all are zero. */
  int initialValues;
} pealZeroOptions_t;

#define PEAL_ZERO_MAGIC 0x7065617au /* "peaz" */
#define PEAL_ZERO_OPTIONS_INITIALIZER                                                                        \
  {                                                                                                          \
    sizeof(pealZeroOptions_t), PEAL_ZERO_MAGIC, PEAL_VERSION_CODE, 1, 1, (size_t)25 << 20, 0, 0, 0, 1,       \
        pealZeroMissingIsZero, 0.0, 0.9, 0.999, 1e-8, 0.01, pealZeroMasterFp32, 0, 0, 0, pealZeroReduceBf16, \
        0, 1, 1, 0, 0, 1                                                                                     \
  }

/* ---- making an engine -------------------------------------------------------------------------- */

/* Collective over comm, which stays the caller's and may be destroyed before or after. */
PEAL_API pealResult_t pealZeroCreate(pealZero_t* zero, pealComm_t comm, const pealZeroOptions_t* options);

/* Whether pealZeroCreate takes these options, as far as they do not depend on the communicator: for a program
 * that wants to know before it starts its ranks. Local. Errors: pealInvalidArgument, naming the option, its
 * value and what is legal. */
PEAL_API pealResult_t pealZeroCheckOptions(const pealZeroOptions_t* options);

/* Waits for what is running, then frees. In the middle of a step, or after a failure, it aborts instead: the
 * other ranks get pealRemoteError, and nobody waits for a rank that gave up. Local. zero may be NULL. Inside
 * a function of pealZeroSetInitialFunction: pealInvalidUsage, and the engine stays. */
PEAL_API pealResult_t pealZeroDestroy(pealZero_t zero);

/* The last error's sentence. zero NULL: of the calling thread, for errors of pealZeroCreate,
 * pealZeroCheckOptions and pealZeroPlan. Valid until the next call. Never NULL; "" if none. After an error of
 * a collective the engine refuses everything but pealZeroDestroy, with that error's sentence: the ranks are
 * no longer in step. Refusals that leave it usable say so where the call is declared. */
PEAL_API const char* pealZeroGetLastError(pealZero_t zero);

/* AdamW's numbers of a group of parameters. Start from PEAL_ZERO_GROUP_INITIALIZER: learningRateFactor 1, and
 * -1, "as in pealZeroOptions_t", for the others. */
typedef struct pealZeroGroup {
  size_t size;
  unsigned int magic;
  unsigned int version;
  double learningRateFactor; /* times pealZeroStep's learning rate; 0 is legal */
  double beta1, beta2, epsilon, weightDecay;
} pealZeroGroup_t;

#define PEAL_ZERO_GROUP_INITIALIZER \
  { sizeof(pealZeroGroup_t), PEAL_ZERO_MAGIC, PEAL_VERSION_CODE, 1.0, -1.0, -1.0, -1.0, -1.0 }

/* Gives the group's id: 1, 2, ... Group 0 is the options'. Before the parameters that are in it. id may be
 * NULL. */
PEAL_API pealResult_t pealZeroAddGroup(pealZero_t zero, const pealZeroGroup_t* group, int* id);

/* Other numbers for a group, 0 included: schedules of single groups. Collective, between steps, all ranks
 * with the same, and they hold from the next step on; moments stay. -1 is "as in pealZeroOptions_t" again. An
 * error changes nothing on any rank. Before pealZeroSeal, which compares groups, it is local. */
PEAL_API pealResult_t pealZeroSetGroup(pealZero_t zero, int group, const pealZeroGroup_t* numbers);

typedef enum { pealZeroNoDecay = 0, pealZeroDecay = 1 } pealZeroDecay_t;

#define PEAL_ZERO_MAX_DIMS 8

/* A parameter. Start from PEAL_ZERO_PARAMETER_INITIALIZER and give at least name and shape. */
typedef struct pealZeroParameter {
  size_t size;
  unsigned int magic;
  unsigned int version;
  const char* name; /* unique, not empty, copied */
  int dims;         /* 0 (one element) to PEAL_ZERO_MAX_DIMS; the initializer's -1 is refused */
  uint64_t extents[PEAL_ZERO_MAX_DIMS]; /* the shape; their product is the number of elements. 0 is legal */
  int unit;              /* that of the parameter before, or the next number (the first is 0) */
  int group;             /* of pealZeroAddGroup; 0: the options' AdamW */
  pealZeroDecay_t decay; /* pealZeroNoDecay: the group's weightDecay is not for this parameter */
  int frozen;            /* 1: weights only, never changed: no gradient, no optimizer state. At stage 3 they
                            are sharded, and gathered with their unit */
  /* Not NULL: this is another name for that parameter, which was registered before: the same weights, with
   * this id too, while the unit of the first name is open. Shape and unit are those of the first name; group,
   * decay and frozen are not looked at. First values and gradients go by the first name: add up the gradients
   * of both uses in fp32 and hand the sum over, rounded once; under this id they are refused. */
  const char* tiedTo;
  /* Of its weights: pealBfloat16, pealFloat32, or -1: the engine's type, which is bf16 unless master is
   * pealZeroMasterIsWeight. fp32 weights are their own masters (K = 8), read with pealZeroWeightsFp32, and
   * nothing of theirs is rounded or split whatever master and stochasticRounding say; bf16 weights of an
   * engine with pealZeroMasterIsWeight have fp32 masters. Gradients have the engine's type (reduceType)
   * either way. Frozen fp32 ones are rounded to values that bf16 can hold, as which checkpoints keep them.
   * For a tied name it is not looked at. */
  int dtype;
} pealZeroParameter_t;

#define PEAL_ZERO_PARAMETER_INITIALIZER                                                                     \
  {                                                                                                         \
    sizeof(pealZeroParameter_t), PEAL_ZERO_MAGIC, PEAL_VERSION_CODE, NULL, -1, {0}, 0, 0, pealZeroDecay, 0, \
        NULL, -1                                                                                            \
  }

/* Registers a parameter and gives its id: 0, 1, 2, ..., tied names included. Parameters lie in the flat space
 * in this order, and gradients are expected in about the reverse order. id may be NULL. */
PEAL_API pealResult_t pealZeroAddParameter(pealZero_t zero, const pealZeroParameter_t* parameter, int* id);

/* Stage 3: the unit's weights stay gathered from forward to backward (no reshard after forward). */
PEAL_API pealResult_t pealZeroKeepUnit(pealZero_t zero, int unit);

/* values: the parameter's first values, elements floats, read by pealZeroSeal and to be kept until then.
 * Needed on rank 0, ignored on the others. Not for tied names, nor with initialValues 0. */
PEAL_API pealResult_t pealZeroSetInitial(pealZero_t zero, int id, const float* values);

/* Writes elements [first, first + count) of a parameter's first values to values. */
typedef void (*pealZeroFill_t)(void* user, uint64_t first, uint64_t count, float* values);
/* The same where the values are not all in memory at once (fp32 of 7e9 parameters are 28 GB): pealZeroSeal
 * calls fill on rank 0, on its thread, for at most 1048576 elements at a time, each once and in their order,
 * parameter by parameter in no order that is promised. user is kept until then. fill must not call this
 * engine, which refuses it (pealZeroDestroy, too); what it throws fails pealZeroSeal on all ranks, for good.
 * Takes the place of pealZeroSetInitial, and that of it: the later call counts. */
PEAL_API pealResult_t pealZeroSetInitialFunction(pealZero_t zero, int id, pealZeroFill_t fill, void* user);

/* Collective. Checks that all ranks registered the same model with the same options, allocates everything
 * that grows with the model, and gives every rank rank 0's values. Without parameters, or without first
 * values on rank 0, it fails on all ranks and changes nothing: mend that, and call it again on all. Later
 * memory is for a moment only: 4 MiB and the layout's tables when buckets are rebuilt, 4 bytes per element of
 * what pealZeroRead reads, the buffers of checkpoints (below), and some bytes for each operation that is
 * queued. */
PEAL_API pealResult_t pealZeroSeal(pealZero_t zero);

/* ---- GPU memory ------------------------------------------------------------------------------------
 * An engine whose communicator is on GPUs has everything in memory of the rank's device: the pointers of
 * pealZeroWeights and pealZeroGradient are for kernels, and what one host engine computes, it computes with
 * the same bits. The caller computes on one CUDA stream. No call of a micro-batch waits for the device: where
 * this page says that weights are there or that a gradient is written, it means what is in that stream when
 * the call returns, or was when it was made. Collectives run on a stream of the engine's own, and each side
 * waits for the other by events. pealZeroStep, and what reads values, wait for the device. First values and
 * values that are read are the host's. Not into CUDA graphs. pealZeroExpectStep makes the first bucket that
 * is fused wait for the other ranks' hosts. communicationSeconds counts while pealZeroSetTrace is on (a clock
 * is a host function in the stream), waitSeconds is what calls wait for the device. */

/* stream: the CUDA stream on which the caller computes, cast as for pealAllReduce; of the rank's device, and
 * not captured. NULL, as without this call: the default stream. Before pealZeroSeal. Ranks of one process
 * that share a device each need a stream of their own. */
PEAL_API pealResult_t pealZeroSetStream(pealZero_t zero, pealStream_t stream);

/* ---- a step -------------------------------------------------------------------------------------- */

typedef enum { pealZeroForward = 0, pealZeroBackward = 1 } pealZeroPass_t;

/* Returns when the unit's weights are there to be read. */
PEAL_API pealResult_t pealZeroUnitEnter(pealZero_t zero, int unit, pealZeroPass_t pass);
/* The unit's pointers die. Backward: its gradients are complete, those not handed over count as missing. */
PEAL_API pealResult_t pealZeroUnitLeave(pealZero_t zero, int unit, pealZeroPass_t pass);

/* *weights: the parameter's bf16 values, elements of them, to be read while its unit is open. */
PEAL_API pealResult_t pealZeroWeights(pealZero_t zero, int id, const uint16_t** weights);
/* The same of a parameter whose weights are fp32. Each refuses the other's parameters. */
PEAL_API pealResult_t pealZeroWeightsFp32(pealZero_t zero, int id, const float** weights);

/* *gradient: where to write the trained parameter's bf16 gradient of this micro-batch, all elements, each
 * rounded once from an fp32 sum over the micro-batch's tokens. What is there before is undefined. Valid while
 * its unit is open for backward, until pealZeroGradientReady. May wait for a buffer whose reduction runs. At
 * stage 2 it fails if bucketSlots earlier buckets are incomplete: hand gradients over in about the reverse
 * order of registration. */
PEAL_API pealResult_t pealZeroGradient(pealZero_t zero, int id, uint16_t** gradient);
/* The same of an engine with pealZeroReduceFp32: fp32, not rounded. Each refuses the other's engine. */
PEAL_API pealResult_t pealZeroGradientFp32(pealZero_t zero, int id, float** gradient);

/* The gradient is written. Once for each parameter and micro-batch. */
PEAL_API pealResult_t pealZeroGradientReady(pealZero_t zero, int id);

/* Announces what the step will be; optional. If nothing needs the whole gradient first (stage 1 or 2, one
 * shard group, bf16 gradients, clipNorm 0, skipNonFinite 0; on GPUs also fp32 masters, a bucket's parameters
 * of one group, and no micro-batches that are added up after their reduction), the buckets of bf16 weights of
 * the step's last micro-batch are then reduced, updated and gathered by one collective each while backward
 * goes on: the fused step, with the same bits in everything that the engine holds and reports. A bucket goes
 * off when its gradients are there and its units are left; a unit that was left backward cannot be entered
 * forward before the step. Otherwise the step is made as without this. At stage 2 a bucket whose buffer a
 * later one needs before its units are left is reduced then and updated by pealZeroStep; which ones follows
 * from the order of calls, so all ranks make them in the same order. All ranks or none, before the first
 * gradient of the last micro-batch; pealZeroStep must have the same arguments. */
PEAL_API pealResult_t pealZeroExpectStep(pealZero_t zero, double learningRate, uint64_t localTokens);

typedef struct {
  uint64_t buckets;      /* of a step */
  uint64_t fusedBuckets; /* of them those that an announced step fuses, at stage 2 if their units are left in
                            time */
  const char* reason;    /* why not all; "" if all. The engine's, until it is called again */
} pealZeroFusedStatus_t;
/* After pealZeroSeal. Local. Whether it happened: pealZeroReport_t, and calls[pealZeroFused]. */
PEAL_API pealResult_t pealZeroGetFusedStatus(pealZero_t zero, pealZeroFusedStatus_t* status);

/* All units are left. Units that were not entered for backward have only missing gradients. */
PEAL_API pealResult_t pealZeroEndMicroBatch(pealZero_t zero);

/* A "no sync" mode for who does not know the number of a step's micro-batches beforehand: from now on, 1:
 * micro-batches are added up and none is its step's last; 0: the next one is the last, and so is each one
 * after it. From the first call on this says when a step is whole, in place of options.microBatches, which
 * only has to be more than 1 (else pealInvalidUsage), so that there is memory for the sums; a step may then
 * have any number from one. After pealZeroSeal, between micro-batches, before the first gradient of one. At
 * stages 0 and 1 without reduceEachMicroBatch, where nothing is sent before a step's last micro-batch, ranks
 * may have different numbers of them. Elsewhere all ranks call this at the same place: collectives that do
 * not fit are an error on all, at once, or with shard groups when the operation's deadline passes. Local. An
 * error (pealInvalidUsage) changes nothing. */
PEAL_API pealResult_t pealZeroSetNoSync(pealZero_t zero, int on);

typedef struct {
  uint64_t step;               /* updates made so far, this one included: AdamW's t */
  uint64_t tokens;             /* of all ranks in this step */
  double gradientNorm;         /* global norm of the mean gradient (sum / tokens), before clipping. The same
                                  bits for every stage, bucket size and partition: the sum of squares is
                                  exact */
  double clipFactor;           /* min(1, clipNorm / (gradientNorm + 1e-6)); 1 if clipping is off */
  int skipped;                 /* 1: some gradient on some rank was infinite or NaN; nothing was changed, on
                                  any rank. gradientNorm is then NaN. Only with skipNonFinite */
  uint64_t missingGradients;   /* on this rank, over the micro-batches of this step */
  double communicationSeconds; /* that the engine's stream spent in collectives since the step before */
  double waitSeconds;          /* of that, while the caller was waiting inside a call: not hidden */
  uint64_t fusedBuckets;       /* of an announced step: reduced, updated and gathered as one */
} pealZeroReport_t;

/* Collective. localTokens: of this rank over all micro-batches of the step; 0 is legal, but not on all
 * ranks. Afterwards weights are the new ones; at stages 1 and 2 their gathering goes on while the next
 * forward pass begins. report may be NULL. */
PEAL_API pealResult_t pealZeroStep(pealZero_t zero, double learningRate, uint64_t localTokens,
                                   pealZeroReport_t* report);

/* ---- looking inside -------------------------------------------------------------------------------- */

/* Collective, between steps. Compares hashes of what several ranks should hold alike: weights at stages 0 to
 * 2 (of frozen parameters, too), and where there are replicas the elements that they own (stage 0: all ranks;
 * with shard groups: the ranks in the same place of each group). Different: pealInternalError on every rank,
 * and the sentence names the ranks; the engine stays usable. At stage 3 without groups nothing is held twice.
 */
PEAL_API pealResult_t pealZeroCheckReplicas(pealZero_t zero);

typedef enum {
  pealZeroMaster = 0, /* fp32 master weights, however they are kept */
  pealZeroMoment1 = 1,
  pealZeroMoment2 = 2,
  pealZeroWeight = 3, /* the weights; of bf16, widened */
} pealZeroTensor_t;

/* Collective, all ranks with the same arguments, between steps. values: elements floats, the whole parameter
 * on every rank. Frozen parameters have weights only. Counted apart from the training traffic. */
PEAL_API pealResult_t pealZeroRead(pealZero_t zero, int id, pealZeroTensor_t tensor, float* values);

/* What was sent for training since pealZeroSeal. Elements are those of docs/ZERO-ENGINE.md's formulas: what
 * this rank must send if nothing is sent twice. Summed over the ranks, a reduce-scatter or an all-gather of n
 * elements is exactly (N-1) n, an all-reduce of gradients 2 (N-1) n; the small one of each step is counted as
 * in one shot, N (N-1) n, whatever PEAL_ALGO says. With shard groups of G ranks, R of them: R (G-1) n, and 2
 * n between them. */
enum {
  pealZeroAllReduce = 0, /* gradients, stage 0 */
  pealZeroReduceScatter, /* gradients, stages 1 to 3 */
  pealZeroAllGather,     /* weights, stages 1 to 3 */
  pealZeroControl,       /* the small all-reduce of each step: norm, non-finite flag, tokens. Of a fused step
                            also that of what was announced */
  pealZeroStart,    /* pealZeroSeal's agreement and broadcast; state that moves when buckets are rebuilt */
  pealZeroInspect,  /* pealZeroRead, pealZeroCheckReplicas, pealZeroSetGroup; agreement and gathering of
                       checkpoints */
  pealZeroReplicas, /* gradients between shard groups: a sum on its way through them in fp32, and the
                       bf16 result back; one call for both */
  pealZeroFused,    /* calls: reduce-scatters and all-gathers, counted above, that were one collective
                       with the update between them. No elements of its own */
  pealZeroNumCounters
};
typedef struct {
  uint64_t calls[pealZeroNumCounters];
  uint64_t elementsSent[pealZeroNumCounters];
  uint64_t bytesSent[pealZeroNumCounters];
  uint64_t steps; /* calls of pealZeroStep, skipped ones included */
} pealZeroCounters_t;
PEAL_API pealResult_t pealZeroGetCounters(pealZero_t zero, pealZeroCounters_t* counters);

/* One stretch of time of a trace. */
typedef enum {
  pealZeroSpanCollective = 0, /* on the engine's stream: a collective, waiting for other ranks included */
  pealZeroSpanWait = 1,       /* the caller's thread, inside a call, until communication was done */
} pealZeroSpanKind_t;
typedef struct {
  pealZeroSpanKind_t kind;
  int counter; /* pealZeroAllReduce ...: what ran, or the last of what was waited for */
  int index;   /* whose: the bucket, from 0 in the order of their launch; at stage 3 the unit; -1: neither */
  uint64_t bytesSent;     /* by this rank; 0 for a wait */
  int64_t beginNs, endNs; /* CLOCK_MONOTONIC */
} pealZeroSpan_t;
typedef void (*pealZeroTrace_t)(void* user, const pealZeroSpan_t* span);

/* Calls trace for every span from now on: on the caller's thread, inside later calls of the engine, some time
 * after the span's end; collectives in the order of issue. The spans' lengths are what the reports' seconds
 * are made of, to the nanosecond. trace NULL: ends it, after all that is queued was done and told; without
 * that the last spans are lost. Local. */
PEAL_API pealResult_t pealZeroSetTrace(pealZero_t zero, pealZeroTrace_t trace, void* user);

/* The communicator that the engine made for itself, for pealCommGetStats. Owned by the engine. */
PEAL_API pealResult_t pealZeroGetComm(pealZero_t zero, pealComm_t* comm);

typedef enum {
  pealZeroModelState = 0, /* in the formulas of the stages */
  pealZeroWorking = 1,    /* buffers, with formulas of their own */
} pealZeroArenaKind_t;

typedef struct {
  const char* name; /* "weights", "gradients", "master" or "remainders", "moment1", "moment2"; "accumulation",
                       "gradient buffers", "unit buffers", "replica buffers" */
  pealZeroArenaKind_t kind;
  uint64_t bytes;        /* allocated */
  uint64_t plannedBytes; /* pealZeroPlan's figure for this rank */
} pealZeroArena_t;

/* *arenas: *count entries, the engine's, as long as it. After pealZeroSeal. Tables are not listed. */
PEAL_API pealResult_t pealZeroGetMemory(pealZero_t zero, const pealZeroArena_t** arenas, size_t* count);

/* The parameters as registered, tied names included. *count: how many. */
PEAL_API pealResult_t pealZeroParameterCount(pealZero_t zero, int* count);
/* The descriptor of a parameter and its number of elements; either may be NULL. Its strings are the engine's,
 * valid until pealZeroAddParameter or pealZeroSeal is called, and after that as long as the engine. */
PEAL_API pealResult_t pealZeroParameterInfo(pealZero_t zero, int id, pealZeroParameter_t* parameter,
                                            uint64_t* elements);

/* ---- checkpoints -----------------------------------------------------------------------------------------
 * A checkpoint is a directory: one file from each rank that owns something, and a manifest. It knows names
 * and element ranges, not ranks: it loads on any number of them, at any stage and bucket size. The bytes, and
 * what holds after a crash: docs/CHECKPOINTS.md. The file system is one that all ranks share. */

/* Collective, between steps, all ranks with the same path. Saves master weights, moments, the number of
 * updates and rank 0's userData (userBytes bytes of the caller's own, 1 GiB at most; may be NULL with 0;
 * ignored on the other ranks). The checkpoint appears at path at once and whole, on the disk, or not at all;
 * an older checkpoint there is replaced in the same instant, anything else there is refused. Parent
 * directories are made if missing. What killed saves left in the parent directory is removed. Needs buffers
 * of less than 1 MiB, 24 bytes per parameter, and a copy of userData. An error on one rank is an error on
 * all; the engine stays usable unless a rank died. */
PEAL_API pealResult_t pealZeroSave(pealZero_t zero, const char* path, const void* userData, size_t userBytes);

/* The same beside training. Begin, collective and between steps, copies the state (12 bytes for each element
 * that this rank owns, one Nth of them at every stage; 14 if weights are not the rounding of their master; 2
 * for each frozen one) and returns while a thread writes the copy. Wait, collective, anywhere in the order of
 * calls but the same on all ranks, returns when the checkpoint is published, or with the error of any rank.
 * One save at a time. An engine destroyed before Wait publishes nothing. */
PEAL_API pealResult_t pealZeroSaveBegin(pealZero_t zero, const char* path, const void* userData,
                                        size_t userBytes);
PEAL_API pealResult_t pealZeroSaveWait(pealZero_t zero);

/* Collective, between steps. The engine continues as the saved one would have: at the same number of ranks
 * with the same bits. Names, shapes, what is frozen or tied, and each parameter's beta1, beta2, epsilon
 * and weightDecay (but for convertOptimizer) must be those saved, else pealInvalidUsage says which; the order
 * of registration may differ. Everything is verified on all ranks
 * before anything is changed: after a refusal the engine is as it was. Each rank reads what it holds, twice,
 * through buffers of less than 1 MiB. */
PEAL_API pealResult_t pealZeroLoad(pealZero_t zero, const char* path);

/* path: the newest complete checkpoint among the directories in `directory` (the most updates, of those the
 * one written last), sizeBytes at most; "" if there is none. Complete: its manifest is whole and all files
 * have their sizes. Local: with several ranks, let rank 0 ask and tell the others. */
PEAL_API pealResult_t pealZeroLatestCheckpoint(const char* directory, char* path, size_t sizeBytes);

/* Reading one without an engine, as peal-ckpt does. Errors: pealZeroGetLastError(NULL). */
typedef struct pealZeroCheckpoint* pealZeroCheckpoint_t;

typedef struct {
  uint64_t id;   /* random, of this save */
  uint64_t step; /* updates made */
  uint64_t parameters, elements;
  uint64_t files, fileBytes; /* of the parts: 12 or 14 bytes per trained element, 2 per frozen one, checksums
                                and tables */
  uint64_t userBytes;
  int hasWeights;  /* 0: the weights are the rounded master, and not stored */
  int weightBytes; /* of trained parameters: 2, of bf16 weights; 4, of fp32 ones; 0: it does not say, or
                      they differ (pealZeroCheckpointParameter_t) */
  double beta1, beta2, epsilon, weightDecay; /* of group 0 */
} pealZeroCheckpointInfo_t;

typedef struct {
  const char* name; /* this and shape: until the checkpoint is closed */
  uint64_t elements;
  const uint64_t* shape;
  size_t dimensions; /* 0: one element */
  int frozen;
  const char*
      tiedTo;      /* the parameter of which this is another name, or NULL; reading gives that one's values */
  int weightBytes; /* 2: bf16 weights, as all frozen ones are stored; 4: fp32; 0: the checkpoint does not say
                    */
} pealZeroCheckpointParameter_t;

/* Checks the manifest, all sizes, and header and table of every file. Not the values: reading does. */
PEAL_API pealResult_t pealZeroCheckpointOpen(pealZeroCheckpoint_t* checkpoint, const char* path);
PEAL_API pealResult_t pealZeroCheckpointClose(pealZeroCheckpoint_t checkpoint); /* may be NULL */
PEAL_API pealResult_t pealZeroCheckpointInfo(pealZeroCheckpoint_t checkpoint, pealZeroCheckpointInfo_t* info);
PEAL_API pealResult_t pealZeroCheckpointParameter(pealZeroCheckpoint_t checkpoint, uint64_t index,
                                                  pealZeroCheckpointParameter_t* parameter);
/* values: elements [begin, begin + count) of one tensor. The blocks that they lie in are verified. */
PEAL_API pealResult_t pealZeroCheckpointRead(pealZeroCheckpoint_t checkpoint, uint64_t index,
                                             pealZeroTensor_t tensor, uint64_t begin, uint64_t count,
                                             float* values);
/* data: userBytes bytes. */
PEAL_API pealResult_t pealZeroCheckpointUserData(pealZeroCheckpoint_t checkpoint, void* data,
                                                 size_t sizeBytes);

/* ---- the planner --------------------------------------------------------------------------------------
 * Memory, communication and time of a step from a few numbers, for every stage at once. Needs no engine. The
 * engine uses it for its own arenas. Weights of one type: with both, plan the parameters of each by
 * themselves; memory (but for replicaBuffers, where the larger counts) and what is sent add up. */

/* Start from PEAL_ZERO_PLAN_INITIALIZER. A number left at 0 switches off what depends on it. */
typedef struct pealZeroPlanInput {
  size_t size;
  unsigned int magic;
  unsigned int version;
  /* the model */
  uint64_t parameters;       /* trained */
  uint64_t frozenParameters; /* have weights only */
  int weightBytes;           /* per element, default 2 */
  int gradientBytes;         /* per element, default 2 */
  int optimizerBytes;        /* K: per element, default 12 (fp32 master and two moments); 10: remainders */
  int reduceBytes;           /* per gradient element while it is sent; 0: gradientBytes */
  /* the ranks */
  int64_t ranks; /* N */
  int64_t rank;  /* whose memory; rank 0 has the most */
  int64_t group; /* G, ranks in a shard group (HSDP); 0: no such plan. Must divide ranks */
  /* the step */
  int64_t microBatches;     /* m */
  int reduceEachMicroBatch; /* as in pealZeroOptions_t */
  int reshardAfterForward;  /* stage 3; default 1 */
  double tokens;            /* of one micro-batch on one rank */
  /* buffers: taken as given */
  uint64_t bucketBytes;    /* for the number of buckets; default 25 MiB */
  uint64_t buckets;        /* their number; 0: from bucketBytes */
  uint64_t bucketElements; /* the largest bucket; 0: from bucketBytes */
  int bucketSlots;         /* default 2 */
  uint64_t units;          /* stage 3: how many; 0: not known, then no buffers are counted for them */
  uint64_t keptUnits;      /* of them not resharded after forward, when reshardAfterForward is 1 */
  uint64_t unitElements;   /* the largest unit, with its frozen parameters; 0: all / units, rounded up */
  uint64_t unitTrained;    /* trained elements of the unit that has most; 0: as many as unitElements */
  int unitSlots;           /* default 3 */
  int unitGradientSlots;   /* default 3 */
  /* activations: given, or 34 * sequence * sequences * hidden bytes for each of layers (16-bit values,
   * attention recomputed) */
  double activationBytes;
  double layers, hidden, sequence, sequences;
  /* the machine */
  double flopsPerSecond;        /* F, achieved, of one rank */
  double networkBytesPerSecond; /* W, of one rank in one direction */
  double groupBytesPerSecond;   /* inside a shard group, for HSDP; 0: the network's */
  double latencySeconds;        /* alpha, per message */
  double deviceBytes;           /* memory of one rank */
  int replicaSumBytes; /* HSDP: per element in the first half of the all-reduce over replicas; 0: reduceBytes,
                          as in the published formula. The engine's is 4, peal-plan's default: see
                          docs/ZERO-ENGINE.md */
} pealZeroPlanInput_t;

#define PEAL_ZERO_PLAN_INITIALIZER                                                                           \
  {                                                                                                          \
    sizeof(pealZeroPlanInput_t), PEAL_ZERO_MAGIC, PEAL_VERSION_CODE, 0, 0, 2, 2, 12, 0, 1, 0, 0, 1, 0, 1, 0, \
        (uint64_t)25 << 20, 0, 0, 2, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                       \
  }

/* One row. Bytes of memory are exact for input.rank. Elements and bytes sent are per rank and step,
 * the mean over ranks. */
typedef struct {
  int valid;              /* 0: this row does not apply (HSDP without a group) */
  uint64_t shardElements; /* trained elements that the rank owns (N or G shards) */
  /* memory */
  uint64_t weights, gradients, optimizer;
  uint64_t modelStates; /* their sum: ZeRO's formula */
  uint64_t accumulation, gradientBuffers, unitBuffers, replicaBuffers;
  uint64_t activations;
  uint64_t total;
  int fits;            /* in deviceBytes; 1 if that is not given */
  int64_t ranksNeeded; /* the fewest ranks with which total fits; 0: no number does, or no deviceBytes.
                          HSDP: the smallest group, without the buffers for replicas */
  /* communication over the network; elements before the factor (N-1)/N */
  double elements;        /* 2P, (m+1)P, 3mP, ... */
  double bytesSent;       /* elements * bytes * (N-1)/N */
  double reduceBytesSent; /* of that, gradients */
  double gatherBytesSent; /* of that, weights */
  double groupBytesSent;  /* HSDP: inside the shard group. bytesSent is then the all-reduce over replicas */
  double replicaElements; /* HSDP: of that all-reduce, before its factor (R-1)/R: 2P/G, or 2mP/G. elements are
                             then those sent inside the group, before the factor (G-1)/G */
  uint64_t allReduces, reduceScatters, allGathers; /* calls */
  uint64_t messages;                               /* steps of ring collectives: N-1 for each half */
  /* time, seconds per step; 0 if the machine is not given */
  double networkSeconds, groupSeconds; /* bytes / bandwidth + messages * alpha */
  double communicationSeconds;         /* their sum */
  double exposedSeconds;               /* what cannot hide behind computing: see docs/ZERO-ENGINE.md */
  double tokensToHide;                 /* least tokens per rank and micro-batch that hide the rest */
} pealZeroPlanStage_t;

/* Rows after stages 0 to 3. Stage 3 inside shard groups, which is what HSDP means where nothing else is said,
 * and stages 1 and 2 inside them. */
enum { pealZeroPlanHsdp = 4, pealZeroPlanHsdp1 = 5, pealZeroPlanHsdp2 = 6, pealZeroPlanStages = 7 };

typedef struct {
  pealZeroPlanStage_t stages[pealZeroPlanStages]; /* 0, 1, 2, 3, HSDP of stages 3, 1, 2 */
  double flops; /* 6 * parameters * tokens * microBatches, per rank and step */
  double forwardSeconds, backwardSeconds, computeSeconds;
  int recommended;  /* index into stages, -1: nothing fits */
  char reason[400]; /* why, one or two sentences */
} pealZeroPlan_t;

PEAL_API pealResult_t pealZeroPlan(const pealZeroPlanInput_t* input, pealZeroPlan_t* plan);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* PEAL_ZERO_H */
