// The process that serves a mount, made so that its starter learns whether the mount answers.
// Called by `kvslot mount` and `kvslot exec`; the step after is fs/session.
#pragma once

#include <sys/types.h>

#include <expected>
#include <optional>
#include <string>

#include "fs/mount_options.h"
#include "fs/session.h"

namespace kvslot::cli {

struct ServeOptions {
  int ready_fd = -1;              // gets one byte when the mount answers
  bool ends_with_parent = false;  // unmounts when the starter dies
};

// Serves on this thread until unmounted, complains if need be, and ends the process.
[[noreturn]] void serve(const MountOptions& mount, const ServeOptions& options);

// Threads: start() only where the process has one thread, as it forks.
class Daemon {
 public:
  // Returns when the mount answers, or with the reason why it does not.
  static std::expected<Daemon, Complaint> start(const MountOptions& mount,
                                                const ServeOptions& options);
  Daemon(Daemon&& other) noexcept;
  Daemon& operator=(Daemon&&) = delete;
  ~Daemon();  // lets it run on

  [[nodiscard]] pid_t pid() const { return pid_; }
  // Waits until the mount is gone and the store is closed; says why it was not closed cleanly.
  std::expected<void, Complaint> wait();

 private:
  Daemon(pid_t pid, int report_fd) : pid_(pid), report_fd_(report_fd) {}
  [[nodiscard]] std::string read_report() const;
  [[nodiscard]] std::optional<int> wait_for_end() const;

  pid_t pid_;
  int report_fd_;  // 'R' when ready, then or instead 'E' and a complaint
};

}  // namespace kvslot::cli
