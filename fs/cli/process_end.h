// Waiting for the daemon's end, which a device that hangs can put off. Called by `kvslot unmount`
// and, through Daemon::wait, by `kvslot exec`.
#pragma once

#include <sys/types.h>

namespace kvslot::cli {

inline constexpr const char* kHeldByDevice =
    "unmounted, but the device still holds a request of the store's: its daemon ends, and the "
    "store can be mounted again, when the device answers";

// Waits until the process that `pid_fd` stands for has ended.
//   returns  false where it has, but for threads that the kernel keeps in a request to the device
[[nodiscard]] bool wait_for_end(pid_t pid, int pid_fd);

}  // namespace kvslot::cli
