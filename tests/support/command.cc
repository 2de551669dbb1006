// See command.h.
#include "tests/support/command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace kvslot::testing {
namespace {

struct StandardFds {
  int in = -1, out = -1, err = -1;
};

pid_t start(const Words& words, const StandardFds& fds) {
  std::vector<std::string> copies = words;
  std::vector<char*> arguments;
  for (std::string& word : copies) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  if (fds.in >= 0) ::dup2(fds.in, STDIN_FILENO);
  if (fds.out >= 0) ::dup2(fds.out, STDOUT_FILENO);
  if (fds.err >= 0) ::dup2(fds.err, STDERR_FILENO);
  ::execvp(arguments.front(), arguments.data());
  ::_exit(127);
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// A file and not a pipe: nothing blocks however much is written, and a process that keeps it open
// does not keep the reader waiting.
int memory_file(const std::string& content) {
  const int fd = ::memfd_create("test", MFD_CLOEXEC);
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t count = ::write(fd, content.data() + done, content.size() - done);
    if (count <= 0) break;
    done += static_cast<std::size_t>(count);
  }
  ::lseek(fd, 0, SEEK_SET);
  return fd;
}

std::string take_content(int fd) {
  std::string content;
  std::array<char, 65536> part{};
  ::lseek(fd, 0, SEEK_SET);
  for (ssize_t count = 0; (count = ::read(fd, part.data(), part.size())) > 0;) {
    content.append(part.data(), static_cast<std::size_t>(count));
  }
  ::close(fd);
  return content;
}

}  // namespace

CommandResult run_command(const Words& words, const std::string& input) {
  const StandardFds fds{.in = memory_file(input), .out = memory_file({}), .err = memory_file({})};
  CommandResult result;
  result.exit_code = wait_for(start(words, fds));
  ::close(fds.in);
  result.out = take_content(fds.out);
  result.err = take_content(fds.err);
  return result;
}

CommandResult run_shell(const std::string& script, const Words& arguments) {
  Words words = {"/bin/sh", "-c", script, "sh"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_command(words);
}

BackgroundCommand::BackgroundCommand(const Words& words) {
  std::array<int, 2> fds{};
  if (::pipe2(fds.data(), O_CLOEXEC) != 0) return;
  pid_ = start(words, {.out = fds[1]});
  ::close(fds[1]);
  out_fd_ = fds[0];
}

BackgroundCommand::~BackgroundCommand() {
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    wait();
  }
  if (out_fd_ >= 0) ::close(out_fd_);
}

std::string BackgroundCommand::read_line() {
  std::string line;
  for (char byte = 0; ::read(out_fd_, &byte, 1) == 1 && byte != '\n';) line += byte;
  return line;
}

bool BackgroundCommand::is_running() {
  siginfo_t ended{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0;
}

int BackgroundCommand::wait() {
  const int exit_code = wait_for(pid_);
  pid_ = -1;
  return exit_code;
}

void expect_ok(const CommandResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

void expect_mounted(const CommandResult& mounted, const std::string& directory) {
  expect_ok(mounted);
  if (mounted.exit_code != 0) ::rmdir(directory.c_str());
}

void expect_refused(const CommandResult& result, int exit_code, const std::string& thing) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.starts_with("kvslot: ")) << result.err;
  EXPECT_NE(result.err.find(thing), std::string::npos) << thing << ": " << result.err;
  EXPECT_NE(result.err.find("; "), std::string::npos) << "no remedy: " << result.err;
}

std::string why_no_mount() {
  if (::geteuid() != 0) return "mounting needs root; run: sudo scripts/test.sh";
  const int fd = ::open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (fd < 0) return "no usable /dev/fuse: load the kernel's fuse module";
  ::close(fd);
  return {};
}

}  // namespace kvslot::testing
