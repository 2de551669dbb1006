// Looks at the process from time to time: the kernel tells of its end only when its last thread is
// gone.
#include "fs/cli/process_end.h"

#include <fmt/core.h>
#include <poll.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace kvslot::cli {
namespace {

constexpr int kLookIntervalMs = 50;
constexpr int kLooksWhileHeld = 40;  // in a row, before it is believed

// The letter of /proc/PID/stat: Z for an ended process, D for a thread that waits for a device.
char state_in(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '?' : line[name_end + 2];
}

bool is_held(pid_t pid) {
  const std::string process = fmt::format("/proc/{}", pid);
  if (state_in(process + "/stat") != 'Z') return false;
  std::error_code error;
  std::filesystem::directory_iterator thread(process + "/task", error);
  for (; !error && thread != std::filesystem::directory_iterator(); thread.increment(error))
    if (state_in(thread->path().string() + "/stat") == 'D') return true;
  return false;
}

}  // namespace

bool wait_for_end(pid_t pid, int pid_fd) {
  int looks = 0;
  while (looks < kLooksWhileHeld) {
    pollfd poll_fd{.fd = pid_fd, .events = POLLIN, .revents = 0};
    if (::poll(&poll_fd, 1, kLookIntervalMs) > 0) return true;
    looks = is_held(pid) ? looks + 1 : 0;
  }
  return false;
}

}  // namespace kvslot::cli
