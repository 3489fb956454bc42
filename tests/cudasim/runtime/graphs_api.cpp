// Graphs: nodes, instantiation, launch, destruction.
#include <algorithm>

#include "tests/cudasim/runtime/api.h"
#include "tests/cudasim/runtime/capture.h"

using namespace peal::cudasim;

namespace {

constexpr unsigned long long kInstantiateFlags =
    cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUpload |
    cudaGraphInstantiateFlagDeviceLaunch | cudaGraphInstantiateFlagUseNodePriority;

// A graph that a stream is still being captured into is the capture's.
bool isBeingCaptured(Lock& lock, const GraphRef& graph) {
  const auto streams = runtime().engine.userStreams(lock);
  return std::any_of(streams.begin(), streams.end(), [&](const StreamRef& stream) {
    return stream->capture && stream->capture->graph == graph;
  });
}

}  // namespace

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* numNodes) {
  return call({"cudaGraphGetNodes", cudaErrorUnknown}, [&](Lock&) {
    const GraphRef graph = runtime().graphs.findGraph(handle);
    if (!graph || numNodes == nullptr) {
      return cudaErrorInvalidValue;
    }
    if (nodes == nullptr) {
      *numNodes = graph->nodes.size();
      return cudaSuccess;
    }
    for (size_t i = 0; i < *numNodes; i++) {
      nodes[i] = i < graph->nodes.size() ? graph->nodes[i].handle : nullptr;
    }
    *numNodes = std::min(*numNodes, graph->nodes.size());
    return cudaSuccess;
  });
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* pType) {
  return call({"cudaGraphNodeGetType", cudaErrorUnknown}, [&](Lock&) {
    const GraphRef graph = runtime().graphs.findOwner(node);
    if (!graph || pType == nullptr) {
      return cudaErrorInvalidValue;
    }
    *pType = graph->nodes[*graph->find(node)].work->type;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* pGraphExec, cudaGraph_t handle, unsigned long long flags) {
  return call({"cudaGraphInstantiate", cudaErrorMemoryAllocation}, [&](Lock& lock) {
    const GraphRef graph = runtime().graphs.findGraph(handle);
    if (pGraphExec == nullptr || !graph || (flags & ~kInstantiateFlags) != 0 ||
        isBeingCaptured(lock, graph)) {
      return cudaErrorInvalidValue;
    }
    *pGraphExec = runtime().graphs.instantiate(lock, *graph)->handle;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t handle, cudaStream_t streamHandle) {
  return call({"cudaGraphUpload", cudaErrorMemoryAllocation}, [&](Lock& lock) {
    const StreamRef stream = runtime().engine.find(lock, streamHandle, currentDevice());
    if (!runtime().graphs.findExec(handle) || !stream) {
      return stream ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    }
    return refuseUse(lock, stream);
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t streamHandle) {
  return call({"cudaGraphLaunch", cudaErrorLaunchOutOfResources}, [&](Lock& lock) {
    const GraphExecRef exec = runtime().graphs.findExec(handle);
    const StreamRef stream = runtime().engine.find(lock, streamHandle, currentDevice());
    if (!exec || !stream) {
      return stream ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle;
    }
    if (const cudaError_t error = refuseUse(lock, stream); error != cudaSuccess) {
      return error;
    }
    if (stream->capture) {
      runtime().graphs.launchCaptured(lock, *exec, *stream);
    } else {
      runtime().graphs.launch(lock, exec, stream);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) {
  const Function function{.name = "cudaGraphDestroy", .usualError = cudaErrorUnknown, .releases = true};
  return call(function, [&](Lock& lock) {
    const GraphRef graph = runtime().graphs.findGraph(handle);
    if (!graph || isBeingCaptured(lock, graph)) {
      return cudaErrorInvalidValue;
    }
    runtime().graphs.destroyGraph(lock, graph);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t handle) {
  const Function function{.name = "cudaGraphExecDestroy", .usualError = cudaErrorUnknown, .releases = true};
  return call(function, [&](Lock& lock) {
    const GraphExecRef exec = runtime().graphs.findExec(handle);
    if (!exec) {
      return cudaErrorInvalidValue;
    }
    runtime().graphs.destroyExec(lock, exec);
    return cudaSuccess;
  });
}
