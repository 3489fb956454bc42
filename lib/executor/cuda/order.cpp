#include "lib/executor/cuda/order.h"

#include <algorithm>
#include <utility>

namespace peal::cuda {
namespace {

// What one thread launched on one device, in one capture or outside of any.
struct Chain {
  int device = 0;
  unsigned long long capture = 0;
  uint64_t communicator = 0;                  // of the newest launches
  std::vector<std::shared_ptr<Mark>> newest;  // of that communicator's ranks
  std::vector<std::shared_ptr<Mark>> before;  // of the one before it: what these launches waited for
};

std::vector<Chain>& chainsOfThisThread() {
  thread_local std::vector<Chain> chains;
  return chains;
}

void dropEnded(std::vector<std::shared_ptr<Mark>>& marks) {
  std::erase_if(marks, [](const std::shared_ptr<Mark>& mark) { return mark->ended(); });
}

Chain& chainFor(int device, unsigned long long capture) {
  std::vector<Chain>& chains = chainsOfThisThread();
  const auto found = std::find_if(chains.begin(), chains.end(), [&](const Chain& chain) {
    return chain.device == device && chain.capture == capture;
  });
  if (found != chains.end()) {
    return *found;
  }
  // Captures end without telling: their chains go when their graphs have.
  std::erase_if(chains, [](Chain& chain) {
    dropEnded(chain.newest);
    dropEnded(chain.before);
    return chain.newest.empty() && chain.before.empty();
  });
  Chain& chain = chains.emplace_back();
  chain.device = device;
  chain.capture = capture;
  return chain;
}

void onGraphDestroyed(void* graph) {
  const std::unique_ptr<std::shared_ptr<CapturedGraph>> held(
      static_cast<std::shared_ptr<CapturedGraph>*>(graph));
  (*held)->destroyed.store(true, std::memory_order_release);  // pairs with the loads below
}

// Makes the graph say when it is gone.
Result<void> watchGraph(cudaGraph_t graph, const std::shared_ptr<CapturedGraph>& captured) {
  auto held = std::make_unique<std::shared_ptr<CapturedGraph>>(captured);
  cudaUserObject_t object = nullptr;
  PEAL_TRY(cudaResult(
      cudaUserObjectCreate(&object, held.get(), onGraphDestroyed, 1, cudaUserObjectNoDestructorSync),
      "cudaUserObjectCreate"));
  static_cast<void>(held.release());  // now the object's
  Result<void> retained = cudaResult(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove),
                                     "cudaGraphRetainUserObject");
  if (!retained) {
    cudaIgnored(cudaUserObjectRelease(object, 1), "cudaUserObjectRelease");
  }
  return retained;
}

}  // namespace

// ---- marks ----

Result<std::shared_ptr<Mark>> Mark::make(int device) {
  Result<Event> event = Event::make(device);
  if (!event) {
    return event.error();
  }
  auto mark = std::make_shared<Mark>();
  mark->event_ = std::move(*event);
  return mark;
}

Result<void> Mark::awaitOn(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  if (!recorded_ || ended()) {
    return {};
  }
  return cudaResult(cudaStreamWaitEvent(stream, event_.get(), 0), "cudaStreamWaitEvent");
}

Result<void> Mark::recordOn(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  PEAL_TRY(cudaResult(cudaEventRecord(event_.get(), stream), "cudaEventRecord"));
  recorded_ = true;
  return {};
}

Result<bool> Mark::happened() {
  const std::lock_guard lock(mutex_);
  return recorded_ ? event_.happened() : Result<bool>(true);
}

void Mark::end() {
  const std::lock_guard lock(mutex_);
  ended_.store(true, std::memory_order_release);  // pairs with ended()
  event_ = Event();
}

// ---- the order ----

Result<std::unique_ptr<LaunchOrder>> LaunchOrder::make(int device, uint64_t communicator) {
  Result<std::shared_ptr<Mark>> mark = Mark::make(device);
  if (!mark) {
    return mark.error();
  }
  std::unique_ptr<LaunchOrder> order(new LaunchOrder(device, communicator));
  order->mark_ = std::move(*mark);
  return order;
}

LaunchOrder::~LaunchOrder() {
  mark_->end();
  for (const std::shared_ptr<CapturedGraph>& graph : graphs_) {
    graph->mark->end();
  }
}

int LaunchOrder::liveGraphs() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(graphs_.begin(), graphs_.end(), [](const auto& graph) {
    return !graph->destroyed.load(std::memory_order_acquire);
  }));
}

Result<std::shared_ptr<Mark>> LaunchOrder::markFor(const StreamState& state) {
  if (state.capture == 0) {
    return mark_;
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(graphs_, [](const std::shared_ptr<CapturedGraph>& graph) {
    const bool destroyed = graph->destroyed.load(std::memory_order_acquire);
    if (destroyed) {
      graph->mark->end();
    }
    return destroyed;
  });
  for (const std::shared_ptr<CapturedGraph>& graph : graphs_) {
    if (graph->capture == state.capture) {
      return graph->mark;
    }
  }
  Result<std::shared_ptr<Mark>> mark = Mark::make(device_);
  if (!mark) {
    return mark;
  }
  auto graph = std::make_shared<CapturedGraph>();
  graph->capture = state.capture;
  graph->mark = *mark;
  if (const Result<void> watched = watchGraph(state.graph, graph); !watched) {
    (*mark)->end();  // CUDA may call back, and so let go of the graph, at any later time
    return watched.error();
  }
  graphs_.push_back(std::move(graph));
  return mark;
}

Result<void> LaunchOrder::before(const StreamState& state) {
  Result<std::shared_ptr<Mark>> mark = markFor(state);
  if (!mark) {
    return mark.error();
  }
  PEAL_TRY((*mark)->awaitOn(state.stream));
  Chain& chain = chainFor(device_, state.capture);
  if (chain.communicator != communicator_) {
    chain.before = std::exchange(chain.newest, {});
    chain.communicator = communicator_;
  }
  for (const std::shared_ptr<Mark>& other : chain.before) {
    PEAL_TRY(other->awaitOn(state.stream));
  }
  return {};
}

Result<void> LaunchOrder::after(const StreamState& state) {
  Result<std::shared_ptr<Mark>> mark = markFor(state);
  if (!mark) {
    return mark.error();
  }
  PEAL_TRY((*mark)->recordOn(state.stream));
  Chain& chain = chainFor(device_, state.capture);
  if (std::find(chain.newest.begin(), chain.newest.end(), *mark) == chain.newest.end()) {
    dropEnded(chain.newest);
    chain.newest.push_back(*mark);
  }
  return {};
}

}  // namespace peal::cuda
