// See mount_config.h.
#include "fs/cli/mount_config.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <sstream>

namespace kvslot::cli {
namespace {

constexpr std::chrono::seconds kAnswerMax{20};

// Copies the file into a pipe, and ends the process. Only what is allowed after fork(). It may wait
// in the kernel for as long as the daemon lives, so it keeps nothing that others wait for.
[[noreturn]] void copy_and_end(const char* path, int target) {
  std::array<char, 4096> buffer;
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(fd);
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  ssize_t size = 0;
  while (file >= 0 && (size = ::read(file, buffer.data(), buffer.size())) > 0) {
    if (::write(target, buffer.data(), static_cast<std::size_t>(size)) != size) break;
  }
  ::_exit(0);
}

// What arrives until the other end is closed; nothing where that takes too long.
std::optional<std::string> read_until_end(int source) {
  const auto end = std::chrono::steady_clock::now() + kAnswerMax;
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd poll_fd{.fd = source, .events = POLLIN, .revents = 0};
    const int ready = left.count() > 0 ? ::poll(&poll_fd, 1, static_cast<int>(left.count())) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    const ssize_t size = ::read(source, buffer.data(), buffer.size());
    if (size <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
}

}  // namespace

std::optional<MountConfig> read_mount_config(const std::string& directory) {
  const std::string path = directory + "/.kvslot/config";
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return MountConfig{};
  const pid_t reader = ::fork();
  if (reader == 0) copy_and_end(path.c_str(), ends[1]);
  ::close(ends[1]);
  const auto text = reader > 0 ? read_until_end(ends[0]) : std::string();
  ::close(ends[0]);
  if (!text) {  // it may never be collected; whoever collects orphans does that
    ::kill(reader, SIGKILL);
    return std::nullopt;
  }
  if (reader > 0) ::waitpid(reader, nullptr, 0);
  MountConfig config;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t tab = line.find('\t');
    if (tab != std::string::npos) config[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return config;
}

pid_t server_in(const MountConfig& config) {
  const auto found = config.find("pid");
  if (found == config.end()) return 0;
  const std::string& text = found->second;
  pid_t pid = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), pid);
  return parsed.ec == std::errc{} && pid > 0 ? pid : 0;
}

}  // namespace kvslot::cli
