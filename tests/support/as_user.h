// Does something as a user who exists only as a number.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

namespace kvslot::testing {

struct User {
  uid_t uid = 0;
  gid_t gid = 0;
};

inline constexpr User kRoot{.uid = 0, .gid = 0};
inline constexpr User kAlice{.uid = 61001, .gid = 61001};
inline constexpr User kBob{.uid = 61002, .gid = 61002};
inline constexpr int kCouldNotBecome = 255;

// Runs `action` in a process of the user's, without other groups, in `directory` (which is entered
// as root, so that it does not matter who may search the directories above). Returns what it
// returned, an errno or 0; kCouldNotBecome where there is no such process.
inline int run_as(const User& user, const std::string& directory,
                  const std::function<int()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_ready = ::chdir(directory.c_str()) == 0 && ::setgroups(0, nullptr) == 0 &&
                          ::setresgid(user.gid, user.gid, user.gid) == 0 &&
                          ::setresuid(user.uid, user.uid, user.uid) == 0;
    ::umask(022);
    ::_exit(is_ready ? action() : kCouldNotBecome);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kCouldNotBecome;
}

// 0 or the errno of a call that returns -1 on failure.
inline int errno_of_call(long result) { return result < 0 ? errno : 0; }

}  // namespace kvslot::testing
