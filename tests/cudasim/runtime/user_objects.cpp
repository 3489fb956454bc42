// User objects: reference counts, and the thread that runs their destructors.
#include "tests/cudasim/runtime/api.h"

namespace peal::cudasim {

cudaUserObject_t GraphTable::makeObject(Lock&, void* pointer, cudaHostFn_t destroy, unsigned references) {
  const auto handle = runtime().nextHandle<cudaUserObject_t>();
  objects_[handle] = {pointer, destroy, references};
  return handle;
}

bool GraphTable::retain(cudaUserObject_t object, unsigned count) {
  const auto found = objects_.find(object);
  if (found == objects_.end()) {
    return false;
  }
  found->second.references += count;
  return true;
}

bool GraphTable::release(Lock&, cudaUserObject_t object, unsigned count) {
  const auto found = objects_.find(object);
  if (found == objects_.end() || found->second.references < count) {
    return false;
  }
  found->second.references -= count;
  if (found->second.references > 0) {
    return true;
  }
  due_.push_back(found->second);
  objects_.erase(found);
  if (!hasDestructorThread_) {
    hasDestructorThread_ = true;
    std::thread([this] { runDestructors(); }).detach();  // the runtime is never destroyed
  }
  destructors_.notify_all();
  return true;
}

void GraphTable::retainAll(const HeldObjects& objects) {
  for (const auto& [object, count] : objects) {
    retain(object, count);
  }
}

void GraphTable::releaseAll(Lock& lock, const HeldObjects& objects) {
  for (const auto& [object, count] : objects) {
    release(lock, object, count);
  }
}

void GraphTable::runDestructors() {
  Lock lock(runtime().mutex);
  for (;;) {
    destructors_.wait(lock, [this] { return !due_.empty(); });
    const UserObject object = due_.front();
    due_.pop_front();
    destructorRuns_ = true;
    lock.unlock();
    callBack(object.destroy, object.pointer);
    lock.lock();
    destructorRuns_ = false;
    destructors_.notify_all();
  }
}

void GraphTable::settle(Lock& lock) {
  destructors_.wait(lock, [this] { return due_.empty() && !destructorRuns_; });
}

}  // namespace peal::cudasim

using namespace peal::cudasim;

namespace {

constexpr unsigned kMostReferences = 0x7fffffff;

bool isCount(unsigned count) { return count > 0 && count <= kMostReferences; }

}  // namespace

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object_out, void* ptr, cudaHostFn_t destroy,
                                 unsigned int initialRefcount, unsigned int flags) {
  return call({"cudaUserObjectCreate", cudaErrorMemoryAllocation}, [&](Lock& lock) {
    // The flag has to be given: destructors are not synchronized by any handle.
    if (object_out == nullptr || destroy == nullptr || !isCount(initialRefcount) ||
        flags != cudaUserObjectNoDestructorSync) {
      return cudaErrorInvalidValue;
    }
    *object_out = runtime().graphs.makeObject(lock, ptr, destroy, initialRefcount);
    return cudaSuccess;
  });
}

cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned int count) {
  return call({"cudaUserObjectRetain", cudaErrorUnknown}, [&](Lock&) {
    return isCount(count) && runtime().graphs.retain(object, count) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
  const Function function{.name = "cudaUserObjectRelease", .usualError = cudaErrorUnknown, .releases = true};
  return call(function, [&](Lock& lock) {
    return isCount(count) && runtime().graphs.release(lock, object, count) ? cudaSuccess
                                                                           : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t handle, cudaUserObject_t object, unsigned int count,
                                      unsigned int flags) {
  return call({"cudaGraphRetainUserObject", cudaErrorMemoryAllocation}, [&](Lock&) {
    const GraphRef graph = runtime().graphs.findGraph(handle);
    const bool moves = flags == cudaGraphUserObjectMove;
    // Moved references are the caller's; others are new.
    if (!graph || !isCount(count) || (flags != 0 && !moves) ||
        !runtime().graphs.retain(object, moves ? 0 : count)) {
      return cudaErrorInvalidValue;
    }
    graph->objects[object] += count;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphReleaseUserObject(cudaGraph_t handle, cudaUserObject_t object, unsigned int count) {
  const Function function{
      .name = "cudaGraphReleaseUserObject", .usualError = cudaErrorUnknown, .releases = true};
  return call(function, [&](Lock& lock) {
    const GraphRef graph = runtime().graphs.findGraph(handle);
    if (!graph || !isCount(count) || graph->objects.count(object) == 0 || graph->objects[object] < count) {
      return cudaErrorInvalidValue;
    }
    if ((graph->objects[object] -= count) == 0) {
      graph->objects.erase(object);
    }
    return runtime().graphs.release(lock, object, count) ? cudaSuccess : cudaErrorInvalidValue;
  });
}
