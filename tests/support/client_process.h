// Other processes that use the same directory. For tests/system.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>

namespace kvslot::testing {

// A copy of this process that runs `action`, which says nothing to the test but what it returns.
// Waited for when destroyed.
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
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return result_ = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
  }

 private:
  pid_t pid_;
  int result_ = 255;
};

// Two processes take turns: one asks, the other answers.
class Turns {
 public:
  Turns() {
    const bool made = ::pipe2(ask_.data(), 0) == 0 && ::pipe2(answer_.data(), 0) == 0;
    if (!made) ask_ = answer_ = {-1, -1};
  }
  ~Turns() {
    for (const int fd : {ask_[0], ask_[1], answer_[0], answer_[1]}) ::close(fd);
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  // False where the other one is gone.
  bool ask() const { return pass(ask_[1]) && take(answer_[0]); }
  bool wait_to_be_asked() const { return take(ask_[0]); }
  bool answer() const { return pass(answer_[1]); }

 private:
  static bool pass(int fd) { return ::write(fd, "x", 1) == 1; }
  static bool take(int fd) {
    char byte = 0;
    return ::read(fd, &byte, 1) == 1;
  }
  std::array<int, 2> ask_{};
  std::array<int, 2> answer_{};
};

}  // namespace kvslot::testing
