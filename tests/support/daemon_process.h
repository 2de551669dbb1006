// The process that serves a mount: found, stopped, ended and waited for. For tests/system.
#pragma once

#include <sys/types.h>

#include <string>

namespace kvslot::testing {

// Held by a descriptor, so that no other process is ever meant, even after this one ended.
class DaemonProcess {
 public:
  explicit DaemonProcess(const std::string& mount_point);
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const;
  void wait_for_end() const;
  // SIGKILL, and returns when it is gone and holds nothing any more.
  void kill() const;
  // SIGSTOP, and returns when no thread of it runs any more.
  void stop() const;

 private:
  [[nodiscard]] bool has_running_thread() const;

  pid_t pid_ = -1;
  int fd_ = -1;
};

}  // namespace kvslot::testing
