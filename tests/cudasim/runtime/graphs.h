// Graphs, executable graphs and user objects.
#pragma once
#include <cuda_runtime.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/cudasim/runtime/engine.h"
#include "tests/cudasim/runtime/events.h"

namespace peal::cudasim {

struct Node {
  cudaGraphNode_t handle = nullptr;
  WorkRef work;
  std::vector<size_t> dependsOn;  // nodes before this one
};

// References that a graph or an executable graph holds.
using HeldObjects = std::map<cudaUserObject_t, unsigned>;

struct Graph {
  cudaGraph_t handle = nullptr;
  std::vector<Node> nodes;
  HeldObjects objects;

  size_t add(WorkRef work, std::vector<size_t> dependsOn);
  std::optional<size_t> find(cudaGraphNode_t node) const;
};
using GraphRef = std::shared_ptr<Graph>;

// What an instantiation keeps; graph and executable graph live on their own.
struct GraphExec {
  cudaGraphExec_t handle = nullptr;
  std::vector<Node> nodes;
  HeldObjects objects;
  CompletionRef lastLaunch;  // launches of one executable graph follow each other
  int launches = 0;          // in progress
  bool isDestroyed = false;
};
using GraphExecRef = std::shared_ptr<GraphExec>;

class GraphTable {
 public:
  GraphRef makeGraph(Lock& lock);
  GraphRef findGraph(cudaGraph_t handle) const;
  GraphRef findOwner(cudaGraphNode_t node) const;
  void destroyGraph(Lock& lock, const GraphRef& graph);

  GraphExecRef instantiate(Lock& lock, const Graph& graph);
  GraphExecRef findExec(cudaGraphExec_t handle) const;
  void destroyExec(Lock& lock, const GraphExecRef& exec);
  // Queues all nodes: independent ones on streams of their own, so that they run at the same time.
  void launch(Lock& lock, const GraphExecRef& exec, const StreamRef& stream);
  // Everything that a launch queued has run; its lanes are free again.
  void endLaunch(Lock& lock, const GraphExecRef& exec, const std::vector<StreamRef>& lanes);
  // As launch, into a capture.
  void launchCaptured(Lock& lock, const GraphExec& exec, Stream& stream);

  cudaUserObject_t makeObject(Lock& lock, void* pointer, cudaHostFn_t destroy, unsigned references);
  bool retain(cudaUserObject_t object, unsigned count);
  // The last reference makes the destructor due. False: no such object, or fewer references.
  bool release(Lock& lock, cudaUserObject_t object, unsigned count);
  // Waits until no destructor is due.
  void settle(Lock& lock);

  void describe(std::vector<std::string>& lines) const;
  void clear(Lock& lock);

 private:
  struct UserObject {
    void* pointer;
    cudaHostFn_t destroy;
    unsigned references;
  };

  void retainAll(const HeldObjects& objects);
  void releaseAll(Lock& lock, const HeldObjects& objects);
  void runDestructors();

  std::map<cudaGraph_t, GraphRef> graphs_;
  std::map<cudaGraphExec_t, GraphExecRef> execs_;
  std::map<cudaUserObject_t, UserObject> objects_;
  std::deque<UserObject> due_;
  bool destructorRuns_ = false;
  bool hasDestructorThread_ = false;
  std::condition_variable destructors_;
};

}  // namespace peal::cudasim
