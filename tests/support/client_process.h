// Other processes that use the same directory. For tests/system.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>

#include "tests/support/patience.h"

namespace kvslot::testing {

// A copy of this process that runs `action`, which says nothing to the test but what it returns.
// Waited for when destroyed. The test fails, and it is killed, where it hangs.
class ClientProcess {
 public:
  explicit ClientProcess(const std::function<int()>& action) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(action());
  }
  ~ClientProcess() { (void)wait(); }
  ClientProcess(const ClientProcess&) = delete;
  ClientProcess& operator=(const ClientProcess&) = delete;

  // What its action returned, 0 to 254; 255 where it did not return.
  int wait() {
    if (pid_ <= 0) return result_;
    if (!has_ended()) {
      ADD_FAILURE() << "process " << pid_ << " does not end";
      ::kill(pid_, SIGKILL);
    }
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return result_ = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  }

 private:
  // Waits until it has, or there is no hope.
  [[nodiscard]] bool has_ended() const {
    using std::chrono::milliseconds;
    const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
    EXPECT_GE(fd, 0) << "pidfd_open " << pid_;
    if (fd < 0) return false;
    pollfd ended{.fd = fd, .events = POLLIN, .revents = 0};
    int count = -1;
    while (count < 0) count = ::poll(&ended, 1, static_cast<int>(milliseconds(kPatience).count()));
    ::close(fd);
    return count == 1;
  }

  pid_t pid_;
  int result_ = 255;
};

// Two processes take turns: one asks, the other answers. Each says first which one it is, so that
// neither waits for one that is gone.
class Turns {
 public:
  Turns() {
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_.data()) != 0) ends_ = {-1, -1};
  }
  ~Turns() {
    for (int& end : ends_) close_end(end);
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void be_asking() { close_end(ends_[1]); }
  void be_answering() { close_end(ends_[0]); }
  // False where the other one is gone.
  [[nodiscard]] bool ask() const { return pass(ends_[0]) && take(ends_[0]); }
  [[nodiscard]] bool wait_to_be_asked() const { return take(ends_[1]); }
  [[nodiscard]] bool answer() const { return pass(ends_[1]); }

 private:
  static void close_end(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  static bool pass(int end) { return ::send(end, "x", 1, MSG_NOSIGNAL) == 1; }
  static bool take(int end) {
    char byte = 0;
    return ::read(end, &byte, 1) == 1;
  }
  std::array<int, 2> ends_{};
};

}  // namespace kvslot::testing
