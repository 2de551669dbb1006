// A thread for a call that may hang, and its caller, who may leave first.
#include <kvslot/deadline.h>
#include <kvslot/mutex.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "core/quiet_thread.h"

namespace kvslot {
namespace {

struct HungCall {
  std::function<void()> body;
  Mutex mutex;
  Condition ended;
  bool has_ended GUARDED_BY(mutex) = false;
  pid_t thread GUARDED_BY(mutex) = 0;

  void run() {
    body();
    body = nullptr;  // what it holds goes before anybody learns that it is done
    const MutexLock lock(mutex);
    thread = ::gettid();
    has_ended = true;
    ended.notify_all();
  }
  // False when the time is over.
  bool wait(std::chrono::milliseconds deadline) {
    const auto end = std::chrono::steady_clock::now() + deadline;
    MutexLock lock(mutex);
    while (!has_ended) {
      if (deadline.count() == 0) {
        ended.wait(mutex);
        continue;
      }
      if (std::chrono::steady_clock::now() >= end) return false;
      ended.wait_until(mutex, end);
    }
    return true;
  }
};

}  // namespace

bool run_in_time(std::chrono::milliseconds deadline, std::function<void()> call) {
  const auto shared = std::make_shared<HungCall>();
  shared->body = std::move(call);
  std::thread thread = start_quiet_thread([shared] { shared->run(); });
  if (!thread.joinable()) {
    shared->run();
    return true;
  }
  if (!shared->wait(deadline)) {
    thread.detach();
    return false;
  }
  thread.join();
  const MutexLock lock(shared->mutex);
  wait_until_gone(shared->thread);
  return true;
}

}  // namespace kvslot
