/*
 * peal: collective communication for training, on GPU and host memory.
 *
 * The C API. It has NCCL's shape: the same argument order and the same enum values with `peal` for
 * `nccl`. What peal adds stands in pealConfig_t and in the functions marked "peal only".
 *
 * Conventions that hold for every function:
 *  - counts are in elements, never bytes; any count is legal, 0 included.
 *  - a function returns pealSuccess or an error code; pealGetLastError() gives the sentence.
 *  - a communicator is used by one thread at a time. Different communicators are independent.
 *  - every rank of a communicator calls the same collectives in the same order.
 *  - a call never waits longer than the communicator's deadline (pealConfig_t::timeoutMs).
 *
 * A communicator is on host memory or on GPUs (pealConfig_t::device), one device per rank; ranks may share a
 * device. On a GPU, what a function says of buffers means memory of the rank's device, and what it says of
 * streams means CUDA streams: see "GPU communicators" before the collectives.
 */
#ifndef PEAL_PEAL_H
#define PEAL_PEAL_H

#include <stddef.h>
#include <stdint.h>

#define PEAL_MAJOR 0
#define PEAL_MINOR 1
#define PEAL_PATCH 0
#define PEAL_VERSION(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define PEAL_VERSION_CODE PEAL_VERSION(PEAL_MAJOR, PEAL_MINOR, PEAL_PATCH)

#if defined(_WIN32)
#error "peal runs on Linux"
#endif
#define PEAL_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ------------------------------------------------------------------------------- */

/* One rank's membership in a communicator. */
typedef struct pealComm* pealComm_t;

/* A queue of work. Host communicators: NULL, or a stream made by pealStreamCreate. GPU communicators: a
 * cudaStream_t of the rank's device, cast to this type; NULL is the default stream. One given where the other
 * belongs is pealInvalidArgument. With PEAL_STREAM_IS_CUDA defined before this header is included it is
 * cudaStream_t, so that none has to be cast. */
#ifdef PEAL_STREAM_IS_CUDA
typedef struct CUstream_st* pealStream_t;
#else
typedef struct pealStream* pealStream_t;
#endif

/* A mark in a stream. */
typedef struct pealEvent* pealEvent_t;

#define PEAL_UNIQUE_ID_BYTES 128
/* Names one communicator to be: where its first rank listens, and the secret that admits a rank.
 * Treat it as a password: whoever holds it can join. */
typedef struct {
  char internal[PEAL_UNIQUE_ID_BYTES];
} pealUniqueId;

typedef enum {
  pealSuccess = 0,
  pealUnhandledCudaError = 1,
  pealSystemError = 2,     /* a system call failed; the sentence has errno, object and remedy */
  pealInternalError = 3,   /* a fault in peal itself */
  pealInvalidArgument = 4, /* an argument is wrong by itself */
  pealInvalidUsage = 5,    /* the call does not fit what was called before, here or on another rank */
  pealRemoteError = 6,     /* another rank died, aborted or left */
  pealInProgress = 7,      /* not finished yet; ask again */
  pealTimeout = 8,         /* the deadline passed; the sentence names the ranks that are missing */
  pealNumResults = 9
} pealResult_t;

typedef enum {
  pealSum = 0,
  pealProd = 1,
  pealMax = 2,
  pealMin = 3,
  pealAvg = 4, /* sum, then divided by the number of ranks: integers truncate toward zero */
  pealNumOps = 5,
  pealMaxRedOp = 0x7fffffff /* values from pealNumOps on come from pealRedOpCreatePreMulSum */
} pealRedOp_t;

typedef enum {
  pealInt8 = 0,
  pealChar = 0,
  pealUint8 = 1,
  pealInt32 = 2,
  pealInt = 2,
  pealUint32 = 3,
  pealInt64 = 4,
  pealUint64 = 5,
  pealFloat16 = 6,
  pealHalf = 6,
  pealFloat32 = 7,
  pealFloat = 7,
  pealFloat64 = 8,
  pealDouble = 8,
  pealBfloat16 = 9,
  pealFloat8e4m3 = 10,
  pealFloat8e5m2 = 11,
  pealNumTypes = 12
} pealDataType_t;

/* Where a pre-multiplied sum's scalar lives. */
typedef enum { pealScalarDevice = 0, pealScalarHostImmediate = 1 } pealScalarResidence_t;

#define PEAL_CONFIG_UNDEF_INT ((int)0x80000000)
#define PEAL_SPLIT_NOCOLOR (-1)
/* pealConfig_t::device and the device lists of pealCommInitAll: host memory. */
#define PEAL_DEVICE_HOST (-1)
/* pealConfig_t::device and PEAL_DEVICE ("current", "auto") only: the calling thread's current CUDA device,
 * which is what NCCL takes; and GPU k modulo their number for the k-th rank of a machine, which the launcher
 * must say. */
#define PEAL_DEVICE_CURRENT (-2)
#define PEAL_DEVICE_AUTO (-3)

/* Options of a communicator. Start from PEAL_CONFIG_INITIALIZER; a field left undefined takes its
 * default from the configuration table (`peal-info --config`). */
typedef struct pealConfig {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int device;           /* PEAL_DEVICE_... or a GPU's number; default PEAL_DEVICE (host memory) */
  int deterministic;    /* 1: every sum is taken in rank order, bit for bit a plain loop over ranks */
  int timeoutMs;        /* deadline of every wait, from 1; default PEAL_TIMEOUT_MS */
  const char* commName; /* appears in messages; copied; may be NULL */
} pealConfig_t;

#define PEAL_CONFIG_MAGIC 0x7065616cu /* "peal" */
#define PEAL_CONFIG_INITIALIZER                                                        \
  {                                                                                    \
    sizeof(pealConfig_t), PEAL_CONFIG_MAGIC, PEAL_VERSION_CODE, PEAL_CONFIG_UNDEF_INT, \
        PEAL_CONFIG_UNDEF_INT, PEAL_CONFIG_UNDEF_INT, NULL                             \
  }

/* ---- version, errors, information ----------------------------------------------------------- */

/* *version: PEAL_VERSION_CODE of the library that is loaded (the header's may differ). */
PEAL_API pealResult_t pealGetVersion(int* version);

/* A short fixed text for a code. Never NULL. */
PEAL_API const char* pealGetErrorString(pealResult_t result);

/* The last error's sentence: what was observed, where, and what to do. With comm NULL: of the calling
 * thread, else of that communicator. Valid until the next call on it. Never NULL; "" if none. */
PEAL_API const char* pealGetLastError(pealComm_t comm);

/* The state of the communicator: pealSuccess, or the first error that any of its operations met, those on
 * streams included. Does not block; also looks whether a peer died. */
PEAL_API pealResult_t pealCommGetAsyncError(pealComm_t comm, pealResult_t* asyncError);

/* peal only. JSON text: version, CPU, devices, transports (found or not, and why), the configuration
 * table with values and where each came from. Owned by the library, valid until the next call by the
 * same thread. */
PEAL_API pealResult_t pealSystemInfo(const char** json);

/* peal only. JSON text of what peal knows of this machine: processors, NUMA nodes, caches, PCI, GPUs, NICs,
 * which NIC serves which GPU and why others are idle; docs/TOPOLOGY.md has the form. file: a described
 * topology to read instead, in the same form; NULL: the one of PEAL_TOPOLOGY_FILE, else this machine. Owned
 * by the library, valid until the next call by the same thread. */
PEAL_API pealResult_t pealTopology(const char* file, const char** json);

/* peal only. JSON text: which algorithms could run `collective` ("all_reduce", "reduce_scatter",
 * "all_gather", "broadcast" or "reduce") over an array of so many bytes, on host memory of nodes *
 * ranksPerNode ranks; the time predicted for each, the choice and its reason. Link costs are those of
 * PEAL_TUNER_FILE; without it those of the topology that PEAL_TOPOLOGY_FILE describes, or assumed ones, which
 * the text says. nodes, ranksPerNode: from 1; at most 4096
 * ranks. Owned by the library, valid until the next call by the same thread. */
PEAL_API pealResult_t pealExplainChoice(const char* collective, size_t bytes, int nodes, int ranksPerNode,
                                        const char** json);

/* peal only. The same where the ranks are on GPUs, with the protocol and the number of channels of each
 * algorithm. path: how the GPUs of a node reach each other, "same_device", "nvlink", "pcie" or "host_memory".
 * What they cost is what PEAL_TUNER_FILE says of it, else published figures of others, which the text says.
 */
PEAL_API pealResult_t pealExplainGpuChoice(const char* collective, size_t bytes, int nodes, int ranksPerNode,
                                           const char* path, const char** json);

/* ---- communicators -------------------------------------------------------------------------- */

/* Makes an id and starts listening for the ranks that will use it. One process calls it and hands the
 * id to the others by any means. The listener ends when all ranks have met or the start deadline
 * (PEAL_INIT_TIMEOUT_MS) has passed. */
PEAL_API pealResult_t pealGetUniqueId(pealUniqueId* uniqueId);

/* Joins. Blocks until all nranks ranks have joined or the start deadline has passed; the error then
 * names the ranks that are missing. Inside a group it returns at once and the group's end waits.
 * Without a config the device is that of PEAL_DEVICE: host memory if the variable is not set, whatever CUDA's
 * current device is. Either all ranks are on GPUs or none is. On a GPU it makes memory and streams on that
 * device, at most PEAL_DEVICE_BUFFER_BYTES; the caller's current device stays what it was. */
PEAL_API pealResult_t pealCommInitRank(pealComm_t* comm, int nranks, pealUniqueId commId, int rank);
PEAL_API pealResult_t pealCommInitRankConfig(pealComm_t* comm, int nranks, pealUniqueId commId, int rank,
                                             pealConfig_t* config);

/* ndev ranks in this process: comms[i] is rank i on devlist[i] (devlist NULL: all on host memory). A device
 * may stand in the list several times: these ranks then share it. */
PEAL_API pealResult_t pealCommInitAll(pealComm_t* comms, int ndev, const int* devlist);

/* peal only. What the launcher says of this process. */
typedef struct {
  int rank; /* 0 <= rank < size */
  int size;
  int localRank;        /* -1 if the launcher does not say */
  int localSize;        /* -1 if the launcher does not say */
  const char* launcher; /* "peal", "openmpi", "pmi", "slurm", "torchrun" or "none" (then rank 0 of 1) */
} pealLaunch_t;

/* peal only. Reads rank and size from PEAL_RANK/PEAL_SIZE/PEAL_ROOT, Open MPI, MPICH or PMI, Slurm or
 * torchrun, in that order. Two that disagree are pealInvalidUsage. */
PEAL_API pealResult_t pealGetLaunch(pealLaunch_t* launch);

/* peal only. Joins the communicator of all processes of this launch: needs no id. config may be NULL. */
PEAL_API pealResult_t pealCommInitLaunch(pealComm_t* comm, pealConfig_t* config);

/* New communicators from an old one: ranks of equal color (>= 0) join, ordered by key, then old rank.
 * PEAL_SPLIT_NOCOLOR: *newcomm is NULL. Collective over comm. config NULL: as the parent's. Ranks wait
 * for each other for PEAL_INIT_TIMEOUT_MS, or the parent's timeoutMs if that is longer. */
PEAL_API pealResult_t pealCommSplit(pealComm_t comm, int color, int key, pealComm_t* newcomm,
                                    pealConfig_t* config);

/* Waits until all operations of this communicator are done. After it only destroy and abort are legal. On a
 * GPU it returns the error that operations met meanwhile, if none was returned before. pealInvalidUsage while
 * CUDA graphs hold operations of comm: destroy these graphs first. */
PEAL_API pealResult_t pealCommFinalize(pealComm_t comm);

/* Finalizes if need be, then frees. Local: needs no other rank. comm may be NULL. pealInvalidUsage, and comm
 * stays, while CUDA graphs hold operations of it. */
PEAL_API pealResult_t pealCommDestroy(pealComm_t comm);

/* Makes every running and later operation on comm return an error, on this rank at once and on the
 * others as they notice, then frees comm once its own operations have left. May be called from any
 * thread while another is inside a call on comm; that call returns pealRemoteError. On a GPU kernels that
 * wait look for it about every 100 us, and leave. CUDA graphs that hold operations of comm stay legal to
 * launch and destroy: their operations do nothing. */
PEAL_API pealResult_t pealCommAbort(pealComm_t comm);

PEAL_API pealResult_t pealCommCount(const pealComm_t comm, int* count);
PEAL_API pealResult_t pealCommCuDevice(const pealComm_t comm, int* device); /* or PEAL_DEVICE_HOST */
PEAL_API pealResult_t pealCommUserRank(const pealComm_t comm, int* rank);

/* peal only. What this rank has done since the communicator was made. Waits for a running operation, but no
 * longer than the communicator's timeout (pealTimeout). On a GPU: what it has issued; captures and replays of
 * CUDA graphs are not counted. */
enum {
  pealStatAllReduce = 0,
  pealStatReduceScatter,
  pealStatAllGather,
  pealStatBroadcast,
  pealStatReduce,
  pealStatSend,
  pealStatRecv,
  pealStatBarrier,
  pealNumStats
};
typedef struct {
  uint64_t calls[pealNumStats];     /* finished calls */
  uint64_t bytesSent[pealNumStats]; /* payload that this rank handed to its links */
  uint64_t messages[pealNumStats];  /* slots that it posted */
} pealCommStats_t;
PEAL_API pealResult_t pealCommGetStats(const pealComm_t comm, pealCommStats_t* stats);

/* peal only. The algorithm of the collectives that this rank issues on comm from now on: a name that
 * PEAL_ALGO takes ("ring", "one_shot", "two_shot", "hierarchical", "tree", "hierarchical_ring", not on GPUs,
 * or "auto" for the tuner's choice); NULL: what PEAL_ALGO says. Every rank must say the same between the same
 * calls. A call for which it is not legal fails with pealInvalidUsage on all ranks before anything is sent,
 * and lists the legal ones. Not inside a group. Communicators of pealCommSplit begin with PEAL_ALGO's. */
PEAL_API pealResult_t pealCommForceAlgorithm(pealComm_t comm, const char* algorithm);

/* ---- memory --------------------------------------------------------------------------------- */

/* Memory that peers on the same node read in place, with no copy into slots; in all-reduces they also write
 * their part of recvbuff into it. After an error a peer that was stopped inside the call may still do so:
 * free such memory rather than use it again. Aligned to a page. size 0 gives NULL. Freed by pealMemFree only.
 * Not tied to a communicator. */
PEAL_API pealResult_t pealMemAlloc(void** ptr, size_t size);
/* peal only. The same of a GPU's memory, which pealCommRegister then takes. Not zeroed. */
PEAL_API pealResult_t pealMemAllocDevice(void** ptr, size_t size, int device);
/* Frees what either gave. ptr may be NULL. */
PEAL_API pealResult_t pealMemFree(void* ptr);

/* Lets peers read [buff, buff + size) in place where the system allows it. Deregister before freeing it.
 * Never needed for correctness. On a GPU: memory of the rank's device, of cudaMalloc, or up to 64 pieces of
 * cuMemCreate with POSIX file descriptor handles; else pealInvalidUsage where peers need one. Deregistering
 * waits until no peer maps it; pealInvalidUsage while CUDA graphs hold operations of comm. All operations of
 * all ranks on comm must be done before: kernels may read a mapping, or its closing may wait for them. After
 * an error peers' kernels may still read the buffer although this rank's stream has passed the operation: it
 * may be freed when pealCommDeregister, pealCommAbort or pealCommDestroy has returned, which then wait for
 * them. */
PEAL_API pealResult_t pealCommRegister(const pealComm_t comm, void* buff, size_t size, void** handle);
PEAL_API pealResult_t pealCommDeregister(const pealComm_t comm, void* handle);

/* ---- reductions with a scalar ------------------------------------------------------------------ */

/* *op: each rank's input times its scalar, rounded to datatype, then summed. The scalar may differ by
 * rank. residence: pealScalarHostImmediate reads *scalar now, pealScalarDevice when the operation runs, from
 * memory of the communicator's device (host memory, or the GPU's), which must live until it is done. */
PEAL_API pealResult_t pealRedOpCreatePreMulSum(pealRedOp_t* op, void* scalar, pealDataType_t datatype,
                                               pealScalarResidence_t residence, pealComm_t comm);
PEAL_API pealResult_t pealRedOpDestroy(pealRedOp_t op, pealComm_t comm);

/* ---- GPU communicators -------------------------------------------------------------------------
 * A call checks its arguments, puts a kernel on the stream and returns; the stream runs it. So an error that
 * shows itself while it runs (a peer's death, the deadline, ranks that disagree) comes from a later call,
 * pealCommGetAsyncError or pealCommFinalize; all kernels of the communicator then leave at once.
 *  - buffers: memory of the rank's device (cudaMalloc, pealMemAllocDevice), at least as long as the
 *    call says. Host, pinned and managed memory and other devices' memory are pealInvalidArgument, and so
 *    is a stream of another device.
 *  - streams: operations of one communicator run in the order of the calls, also across streams.
 *    Communicators that one thread uses on one device run in the order of its calls, so they do not wait for
 *    each other as long as every rank uses them in the same order.
 *  - one thread that drives several ranks of a communicator puts their calls in one group. Ranks of one
 *    process that share a device use different streams, none of them the default stream, or one group:
 *        for (r...) pealAllReduce(..., comm[r], stream);  // wrong without a group: rank 1 waits for rank 0
 *    Eight such ranks and more need CUDA_DEVICE_MAX_CONNECTIONS=32, set before CUDA starts: a device has few
 *    work queues, and streams that share one wait for each other. Freeing memory of the device (cudaFree,
 *    pealMemFree, pealCommDestroy, pealCommAbort) waits for all its kernels: not while another rank's kernel
 *    waits for this rank's next call.
 *  - a captured stream (CUDA graphs): collectives, sends and receives may be captured, inside groups
 *    too. Each launch of the graph then runs them; every rank launches its graph in the same order among
 *    its other calls. Launches and calls on different streams are ordered by the caller's events. Making,
 *    splitting, finalizing and deregistering are not captured.
 */

/* ---- collectives ------------------------------------------------------------------------------
 * stream NULL on the host: the call runs to its end on the calling thread. Otherwise it is queued and its
 * buffers belong to it until the stream has passed it. N is the number of ranks. In place: allowed where
 * said; any other overlap of send and receive buffers is undefined. bf16, fp16 and fp8 are summed in fp32.
 * A call on the host that fails ends, like one that succeeds, when no rank uses its buffers any more; what is
 * in its receive buffer is undefined. One exception: a process that is stopped (SIGSTOP) just while it writes
 * into memory of pealMemAlloc may go on writing when it wakes.
 * All take part: a rank that disagrees on type, count, operation or root makes the call fail on the ranks
 * that wait for it, with the field and the ranks in the sentence. A rank that needs nothing from it (the root
 * of a small broadcast) learns of it at a later call. */

/* recvbuff[i] = op over ranks of sendbuff[i]. Both count elements. In place: sendbuff == recvbuff. */
PEAL_API pealResult_t pealAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                                    pealDataType_t datatype, pealRedOp_t op, pealComm_t comm,
                                    pealStream_t stream);

/* Rank r gets elements [r * recvcount, (r + 1) * recvcount) of the reduction. sendbuff: N * recvcount
 * elements. In place: recvbuff == sendbuff + rank * recvcount. */
PEAL_API pealResult_t pealReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                        pealDataType_t datatype, pealRedOp_t op, pealComm_t comm,
                                        pealStream_t stream);

/* recvbuff: N * sendcount elements, rank r's input at r * sendcount. In place: sendbuff == recvbuff +
 * rank * sendcount. */
PEAL_API pealResult_t pealAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                                    pealDataType_t datatype, pealComm_t comm, pealStream_t stream);

/* peal only: the two above with a count per rank. counts: N entries, the same on every rank; zeros are
 * legal. Block r starts at counts[0] + ... + counts[r - 1]. The array is copied before return. */
PEAL_API pealResult_t pealReduceScatterV(const void* sendbuff, void* recvbuff, const size_t counts[],
                                         pealDataType_t datatype, pealRedOp_t op, pealComm_t comm,
                                         pealStream_t stream);
PEAL_API pealResult_t pealAllGatherV(const void* sendbuff, void* recvbuff, const size_t counts[],
                                     pealDataType_t datatype, pealComm_t comm, pealStream_t stream);

/* Every rank's recvbuff = root's sendbuff. sendbuff is read on root only. In place: equal on root. */
PEAL_API pealResult_t pealBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                                    pealDataType_t datatype, int root, pealComm_t comm, pealStream_t stream);
/* The same, in place. */
PEAL_API pealResult_t pealBcast(void* buff, size_t count, pealDataType_t datatype, int root, pealComm_t comm,
                                pealStream_t stream);

/* As all-reduce; recvbuff is written on root only, and may be NULL elsewhere. */
PEAL_API pealResult_t pealReduce(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                                 pealRedOp_t op, int root, pealComm_t comm, pealStream_t stream);

/* Point to point. Sends to a peer meet its receives in the order of issue; count and datatype must be
 * equal on both sides. Outside a group a receive blocks (its stream) until the data have come, and a send
 * until they are handed over, which may need the peer's receive: ranks that exchange put both calls in one
 * group. That a send has returned does not say that they were received: some messages (PEAL_SLOTS; inside
 * a node up to 64 of 4 KiB or less) may wait between two ranks, and are lost, without an error, if the peer
 * ends its communicator before it takes them; what is sent to it after that is lost, too, until no more fits
 * and a send fails with pealRemoteError. A rank may send to itself inside a group only. */
PEAL_API pealResult_t pealSend(const void* sendbuff, size_t count, pealDataType_t datatype, int peer,
                               pealComm_t comm, pealStream_t stream);
PEAL_API pealResult_t pealRecv(void* recvbuff, size_t count, pealDataType_t datatype, int peer,
                               pealComm_t comm, pealStream_t stream);

/* Exchanges of count elements between pairs of ranks; made of sends and receives, which is what
 * pealCommGetStats counts them as. Every rank gives the same count and type. Inside a group they progress
 * with its other sends and receives. */

/* Rank r's recvbuff block s = rank s's sendbuff block r, of count elements each. Both: N * count elements.
 * Not in place. */
PEAL_API pealResult_t pealAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                                   pealDataType_t datatype, pealComm_t comm, pealStream_t stream);
/* Root's recvbuff block r = rank r's sendbuff. recvbuff: N * count elements on root; elsewhere it is not
 * touched and may be NULL. In place: root's sendbuff == recvbuff + root * count. */
PEAL_API pealResult_t pealGather(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                                 int root, pealComm_t comm, pealStream_t stream);
/* Rank r's recvbuff = root's sendbuff block r. sendbuff: N * count elements on root; elsewhere it is not read
 * and may be NULL. In place: root's recvbuff == sendbuff + root * count. */
PEAL_API pealResult_t pealScatter(const void* sendbuff, void* recvbuff, size_t count, pealDataType_t datatype,
                                  int root, pealComm_t comm, pealStream_t stream);

/* peal only. Returns (the stream passes) when all ranks have called it. */
PEAL_API pealResult_t pealBarrier(pealComm_t comm, pealStream_t stream);

/* Calls between start and end are issued together at the outermost end, which returns when those on the
 * NULL stream of the host are done. Sends and receives inside one group progress together. One thread may so
 * drive several communicators; the calls of one communicator are on one stream. Groups nest and belong to a
 * thread. */
PEAL_API pealResult_t pealGroupStart(void);
PEAL_API pealResult_t pealGroupEnd(void);

/* ---- streams and events on the host (peal only) --------------------------------------------------
 * A host stream is a worker thread that runs what is queued, in order. */

PEAL_API pealResult_t pealStreamCreate(pealStream_t* stream);
/* Runs what is queued, then frees. stream may be NULL. */
PEAL_API pealResult_t pealStreamDestroy(pealStream_t stream);
/* Blocks until all that was queued is done; returns the first error of its operations, once. */
PEAL_API pealResult_t pealStreamSynchronize(pealStream_t stream);
/* pealSuccess if all is done, else pealInProgress. */
PEAL_API pealResult_t pealStreamQuery(pealStream_t stream);
/* Queues fn(arg). It must not throw; it may not call peal functions that wait on the same stream. */
PEAL_API pealResult_t pealStreamLaunchHostFunc(pealStream_t stream, void (*fn)(void*), void* arg);
/* Later work in stream starts only after event's last record. An event never recorded is no wait. */
PEAL_API pealResult_t pealStreamWaitEvent(pealStream_t stream, pealEvent_t event);

PEAL_API pealResult_t pealEventCreate(pealEvent_t* event);
PEAL_API pealResult_t pealEventDestroy(pealEvent_t event);
/* The event is complete once stream has done all that is queued now. */
PEAL_API pealResult_t pealEventRecord(pealEvent_t event, pealStream_t stream);
/* pealSuccess or pealInProgress. */
PEAL_API pealResult_t pealEventQuery(pealEvent_t event);
PEAL_API pealResult_t pealEventSynchronize(pealEvent_t event);
/* *ms: time between the completion of two recorded events. */
PEAL_API pealResult_t pealEventElapsedTime(float* ms, pealEvent_t start, pealEvent_t end);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* PEAL_PEAL_H */
