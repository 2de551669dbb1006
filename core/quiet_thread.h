// Threads of the engine's own: they take no signals, and it can be known that one is gone.
// Used by core/watched_device, core/posix_engine and core/deadline.
#pragma once

#include <sys/types.h>

#include <functional>
#include <thread>

namespace kvslot {

// A thread with all signals blocked: those are for the program's own. Not joinable where there is
// none to be had.
[[nodiscard]] std::thread start_quiet_thread(std::function<void()> body);

// Returns when the system does not list the thread any more, which is a little after join().
//   thread  its gettid(); it has ended or is about to
void wait_until_gone(pid_t thread);

}  // namespace kvslot
