// Starts a thread without signals, and sees it off.
#include "core/quiet_thread.h"

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <system_error>
#include <utility>

namespace kvslot {

std::thread start_quiet_thread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

void wait_until_gone(pid_t thread) {
  while (::tgkill(::getpid(), thread, 0) == 0) std::this_thread::yield();
}

}  // namespace kvslot
