#include "tests/cudasim/runtime/graphs.h"

#include <set>

#include "tests/cudasim/runtime/capture.h"
#include "tests/cudasim/runtime/state.h"

namespace peal::cudasim {
namespace {

// An operation that only keeps order, and tells when it ends.
WorkRef emptyWork(int device, std::function<void()> run = {}) {
  auto work = std::make_shared<Work>();
  work->device = device;
  work->run = std::move(run);
  work->always = true;
  return work;
}

}  // namespace

size_t Graph::add(WorkRef work, std::vector<size_t> dependsOn) {
  nodes.push_back({runtime().nextHandle<cudaGraphNode_t>(), std::move(work), std::move(dependsOn)});
  return nodes.size() - 1;
}

std::optional<size_t> Graph::find(cudaGraphNode_t node) const {
  for (size_t i = 0; i < nodes.size(); i++) {
    if (nodes[i].handle == node) {
      return i;
    }
  }
  return std::nullopt;
}

// ---- graphs ----

GraphRef GraphTable::makeGraph(Lock&) {
  auto graph = std::make_shared<Graph>();
  graph->handle = runtime().nextHandle<cudaGraph_t>();
  return graphs_[graph->handle] = graph;
}

GraphRef GraphTable::findGraph(cudaGraph_t handle) const {
  const auto found = graphs_.find(handle);
  return found == graphs_.end() ? nullptr : found->second;
}

GraphRef GraphTable::findOwner(cudaGraphNode_t node) const {
  for (const auto& [handle, graph] : graphs_) {
    if (graph->find(node)) {
      return graph;
    }
  }
  return nullptr;
}

void GraphTable::destroyGraph(Lock& lock, const GraphRef& graph) {
  releaseAll(lock, graph->objects);
  graph->objects.clear();
  graphs_.erase(graph->handle);
}

// ---- executable graphs ----

GraphExecRef GraphTable::instantiate(Lock&, const Graph& graph) {
  auto exec = std::make_shared<GraphExec>();
  exec->handle = runtime().nextHandle<cudaGraphExec_t>();
  exec->nodes = graph.nodes;
  exec->objects = graph.objects;
  retainAll(exec->objects);
  return execs_[exec->handle] = exec;
}

GraphExecRef GraphTable::findExec(cudaGraphExec_t handle) const {
  const auto found = execs_.find(handle);
  return found == execs_.end() ? nullptr : found->second;
}

void GraphTable::destroyExec(Lock& lock, const GraphExecRef& exec) {
  execs_.erase(exec->handle);
  exec->isDestroyed = true;
  if (exec->launches == 0) {
    releaseAll(lock, exec->objects);
  }
}

void GraphTable::endLaunch(Lock& lock, const GraphExecRef& exec, const std::vector<StreamRef>& lanes) {
  for (const StreamRef& lane : lanes) {
    lane->leased = false;
  }
  if (--exec->launches == 0 && exec->isDestroyed) {
    releaseAll(lock, exec->objects);
  }
}

void GraphTable::launch(Lock& lock, const GraphExecRef& exec, const StreamRef& stream) {
  Engine& engine = runtime().engine;
  exec->launches++;
  std::vector<CompletionRef> before;
  if (exec->lastLaunch) {
    before.push_back(exec->lastLaunch);
  }
  const CompletionRef start = engine.enqueue(lock, stream, emptyWork(stream->device), before);

  // A node runs behind the first it depends on if nothing else does yet, else on a lane of its own.
  std::vector<CompletionRef> ended(exec->nodes.size());
  std::vector<StreamRef> laneOf(exec->nodes.size());
  std::map<Stream*, size_t> lastOn;
  std::vector<StreamRef> leased;
  for (size_t i = 0; i < exec->nodes.size(); i++) {
    const Node& node = exec->nodes[i];
    StreamRef lane;
    if (!node.dependsOn.empty() && lastOn[laneOf[node.dependsOn[0]].get()] == node.dependsOn[0]) {
      lane = laneOf[node.dependsOn[0]];
    } else if (i == 0) {
      lane = stream;
    } else {
      lane = engine.leaseLane(lock, node.work->device);
      leased.push_back(lane);
    }
    std::vector<CompletionRef> waits{start};
    for (const size_t earlier : node.dependsOn) {
      waits.push_back(ended[earlier]);
    }
    const EventRef event = node.work->event != nullptr ? runtime().events.find(node.work->event) : nullptr;
    if (event && node.work->type == cudaGraphNodeTypeWaitEvent && event->pending()) {
      waits.push_back(event->pending());
    }
    if (event && node.work->type == cudaGraphNodeTypeEventRecord) {
      engine.enqueue(lock, lane, emptyWork(lane->device), std::move(waits));
      recordOn(lock, event, lane);
      ended[i] = event->last;
    } else {
      ended[i] = engine.enqueue(lock, lane, node.work, std::move(waits));
    }
    laneOf[i] = lane;
    lastOn[lane.get()] = i;
  }

  exec->lastLaunch = engine.enqueue(lock, stream,
                                    emptyWork(stream->device,
                                              [exec, leased] {
                                                Lock inner(runtime().mutex);
                                                runtime().graphs.endLaunch(inner, exec, leased);
                                              }),
                                    std::move(ended));
}

void GraphTable::launchCaptured(Lock&, const GraphExec& exec, Stream& stream) {
  Graph& graph = *stream.capture->graph;
  std::vector<size_t> copies;
  std::set<size_t> last;  // nodes that no other depends on
  for (const Node& node : exec.nodes) {
    std::vector<size_t> dependsOn;
    for (const size_t earlier : node.dependsOn) {
      dependsOn.push_back(copies[earlier]);
      last.erase(copies[earlier]);
    }
    copies.push_back(graph.add(node.work, node.dependsOn.empty() ? stream.captureTail : dependsOn));
    last.insert(copies.back());
  }
  if (!last.empty()) {
    stream.captureTail.assign(last.begin(), last.end());
  }
  for (const auto& [object, count] : exec.objects) {
    graph.objects[object] += count;
  }
  retainAll(exec.objects);
}

void GraphTable::describe(std::vector<std::string>& lines) const {
  for (const auto& [handle, graph] : graphs_) {
    lines.push_back("cudaGraph_t: " + std::to_string(graph->nodes.size()) + " nodes");
  }
  for (const auto& [handle, exec] : execs_) {
    lines.push_back("cudaGraphExec_t: " + std::to_string(exec->nodes.size()) + " nodes");
  }
  for (const auto& [handle, object] : objects_) {
    lines.push_back("cudaUserObject_t: " + std::to_string(object.references) + " references");
  }
}

void GraphTable::clear(Lock& lock) {
  while (!execs_.empty()) {
    destroyExec(lock, GraphExecRef(execs_.begin()->second));
  }
  while (!graphs_.empty()) {
    destroyGraph(lock, GraphRef(graphs_.begin()->second));
  }
  settle(lock);
  objects_.clear();
}

}  // namespace peal::cudasim
