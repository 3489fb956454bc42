// The last words of a launcher's rank that is asked to end (SIGTERM): launchers end all ranks when one dies,
// often before the others have noticed that death and said how to go on.
//
// Made by main around a launched run. Never keeps a process alive for longer than a moment.
#pragma once
#include <functional>
#include <thread>

namespace peal::train {

class LastWords {
 public:
  // From now on SIGTERM leaves the process momentMs to end by itself, as a rank does that finds another one
  // dead; one that has not by then runs `speak`, in a thread of its own, and ends by the signal.
  // Does nothing where SIGTERM is ignored.
  LastWords(int momentMs, std::function<void()> speak);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

 private:
  void watch();

  const int momentMs_;
  const std::function<void()> speak_;
  int ended_ = -1;  // an event: the run is over
  std::thread watcher_;
};

}  // namespace peal::train
