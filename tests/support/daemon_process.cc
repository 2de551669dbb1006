// See daemon_process.h.
#include "tests/support/daemon_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <system_error>

#include "tests/support/control_files.h"
#include "tests/support/patience.h"
#include "tests/support/proc_files.h"

namespace kvslot::testing {

using std::chrono::milliseconds;

DaemonProcess::DaemonProcess(const std::string& mount_point)
    : pid_(server_of(mount_point)), fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))) {
  EXPECT_GE(fd_, 0) << "pidfd_open " << pid_;
}

DaemonProcess::~DaemonProcess() {
  if (fd_ >= 0) ::close(fd_);
}

void DaemonProcess::signal(int number) const {
  EXPECT_EQ(::syscall(SYS_pidfd_send_signal, fd_, number, nullptr, 0), 0);
}

void DaemonProcess::wait_for_end() const {
  if (fd_ < 0) return;  // the constructor has said so
  pollfd ended{.fd = fd_, .events = POLLIN, .revents = 0};
  int count = -1;
  while (count < 0) count = ::poll(&ended, 1, static_cast<int>(milliseconds(kPatience).count()));
  EXPECT_EQ(count, 1) << "process " << pid_ << " does not end";
}

void DaemonProcess::kill() const {
  signal(SIGKILL);
  wait_for_end();
}

void DaemonProcess::stop() const {
  signal(SIGSTOP);
  while (has_running_thread()) ::sched_yield();
}

bool DaemonProcess::has_running_thread() const {
  const std::string tasks = "/proc/" + std::to_string(pid_) + "/task";
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    const std::string text = text_of(task.path() / "stat");
    const std::size_t name_end = text.rfind(')');  // the state follows the name
    if (name_end == std::string::npos || name_end + 2 >= text.size()) continue;
    if (text[name_end + 2] != 'T') return true;
  }
  return false;
}

}  // namespace kvslot::testing
