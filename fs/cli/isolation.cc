// See isolation.h.
#include "fs/cli/isolation.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace kvslot::cli {
namespace {

void close_between(unsigned first, unsigned last) {
  if (first <= last) ::syscall(SYS_close_range, first, last, 0);
}

void close_all_but(std::vector<int> kept) {
  std::ranges::sort(kept);
  unsigned next = STDERR_FILENO + 1;
  for (const int fd : kept) {
    if (fd <= STDERR_FILENO) continue;
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    close_between(next, static_cast<unsigned>(fd) - 1);
    next = static_cast<unsigned>(fd) + 1;
  }
  close_between(next, UINT_MAX);
}

void clear_environment() {
  std::vector<std::pair<std::string, std::string>> kept;
  for (const char* const name : {"PATH", "TZ"}) {
    if (const char* const value = std::getenv(name)) kept.emplace_back(name, value);
  }
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    ::explicit_bzero(*entry, std::strlen(*entry));
  }
  ::clearenv();
  for (const auto& [name, value] : kept) ::setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace

void open_standard_fds() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free number is taken, and that is this one. Opened the other way round, it fails
    // as a closed one does.
    const int opened = ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened != fd) ::_exit(EXIT_FAILURE);
  }
}

void isolate(std::initializer_list<int> kept) {
  close_all_but(kept);
  clear_environment();
  if (::chdir("/") != 0) ::_exit(EXIT_FAILURE);
}

}  // namespace kvslot::cli
