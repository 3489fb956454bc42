// What all C entry points share: handles, the exception barrier, the last error, argument checks, and what a
// stream argument means.
#pragma once
#include <atomic>
#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "lib/comm/communicator.h"
#include "lib/comm/group.h"
#include "lib/executor/host/stream.h"
#include "peal/peal.h"

// The handles. `magic` tells a handle from garbage; it is cleared before the memory is freed. A stream has
// none: what is given as one may be a CUDA stream.
struct pealComm {
  static constexpr uint64_t kMagic = 0x7065616c636f6d6d;  // "pealcomm"
  uint64_t magic = kMagic;
  std::shared_ptr<peal::Communicator> comm;
  // Calls inside; pealCommAbort frees only after they have left. `issuing`: that of the one thread that uses
  // the communicator, which notes it with a store; `users`: all others.
  std::atomic<int> users{0};
  std::atomic<bool> issuing{false};
  const bool everybodyFences = peal::registeredForFences();
};
struct pealStream {
  std::shared_ptr<peal::HostStream> stream;
};
struct pealEvent {
  static constexpr uint64_t kMagic = 0x7065616c65766e74;  // "pealevnt"
  uint64_t magic = kMagic;
  std::shared_ptr<peal::HostEvent> event;
};

namespace peal::api {

// Remembers the sentence for pealGetLastError(NULL) and returns the code.
pealResult_t report(const Error& error);

// Runs fn, a callable with result Result<void>; nothing it throws gets out.
template <class F>
pealResult_t guarded(F&& fn) {
  try {
    const Result<void> result = std::forward<F>(fn)();
    return result ? pealSuccess : report(result.error());
  } catch (const std::bad_alloc&) {
    return report(
        {pealSystemError, "out of memory in a peal call: the process cannot get more from the system."});
  } catch (const std::exception& exception) {
    return report({pealInternalError, std::string("unexpected failure inside peal: ") + exception.what()});
  }
}

Error nullArgument(const char* function, const char* argument);

// Whether the handle is one; `function` is the caller's name for the sentence.
Result<void> checkComm(const char* function, const pealComm* comm);
Result<void> checkStream(const char* function, const pealStream* stream);
// Streams that pealStreamCreate made and that live: a pealStream_t may also be a CUDA stream, which nobody
// may look into to find out.
void noteStream(const pealStream* stream);
void forgetStream(const pealStream* stream);
// What `stream` is, for a call that works on this device. `where`: for the sentence.
Result<StreamRef> streamOn(const std::string& where, int device, pealStream* stream);
// The stream of a call on this communicator: NULL, a host stream, or on a GPU a CUDA stream.
Result<StreamRef> streamFor(const char* function, const pealComm& comm, pealStream* stream);
Result<void> checkEvent(const char* function, const pealEvent* event);

// The thread that uses a communicator, while it issues calls.
class CommIssue {
 public:
  explicit CommIssue(pealComm& handle) : handle_(handle) {
    handle_.issuing.store(true, std::memory_order_relaxed);
    fenceForSlowSide(handle_.everybodyFences);  // pairs with the fence in pealCommAbort
  }
  ~CommIssue() {
    handle_.issuing.store(false, std::memory_order_release);
  }  // pairs with pealCommAbort's load
  CommIssue(const CommIssue&) = delete;
  CommIssue& operator=(const CommIssue&) = delete;

 private:
  pealComm& handle_;
};

// Counts the caller in while it uses a communicator.
class CommUse {
 public:
  explicit CommUse(pealComm& handle) : handle_(handle) {
    handle_.users.fetch_add(1, std::memory_order_acquire);
  }
  ~CommUse() { handle_.users.fetch_sub(1, std::memory_order_release); }  // pairs with pealCommAbort's load
  CommUse(const CommUse&) = delete;
  CommUse& operator=(const CommUse&) = delete;

 private:
  pealComm& handle_;
};

}  // namespace peal::api
