// `kvslot exec`: a command with a mounted store, gone when the command is. The steps after are
// fs/cli/format_store, fs/cli/daemon and fs/cli/mount_table.
//
// SIGINT, SIGTERM and SIGHUP stay blocked here and are taken with sigwaitinfo(2), so that the
// clean-up runs whatever arrives.
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "fs/cli/commands.h"
#include "fs/cli/complaint.h"
#include "fs/cli/daemon.h"
#include "fs/cli/format_store.h"
#include "fs/cli/mount_setup.h"
#include "fs/cli/mount_table.h"

namespace kvslot::cli {
namespace {

constexpr int kExitSignalBase = 128;
constexpr int kExitCannotRun = 126;
constexpr int kExitNotFound = 127;

// Blocks the signals that end a command and SIGCHLD, for as long as it lives.
class BlockedSignals {
 public:
  BlockedSignals() {
    ::sigemptyset(&blocked_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&blocked_, signal);
    ::sigprocmask(SIG_BLOCK, &blocked_, &before_);
  }
  ~BlockedSignals() { restore(); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  // For a child.
  void restore() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

  [[nodiscard]] siginfo_t wait() const {
    siginfo_t info{};
    while (::sigwaitinfo(&blocked_, &info) < 0) {
    }
    return info;
  }

  // A signal to end that has arrived already, or 0.
  [[nodiscard]] int take_pending() const {
    sigset_t ending = blocked_;
    ::sigdelset(&ending, SIGCHLD);
    const timespec no_time{};
    const int signal = ::sigtimedwait(&ending, nullptr, &no_time);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t blocked_{};
  sigset_t before_{};
};

// A private directory to mount on. Never removes more than the empty directory.
class MountDirectory {
 public:
  MountDirectory() {
    const char* const base = std::getenv("TMPDIR");
    path_ = base != nullptr && *base == '/' ? base : "/tmp";
    path_ += "/kvslot-exec.XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~MountDirectory() {
    if (!path_.empty()) ::rmdir(path_.c_str());
  }
  MountDirectory(const MountDirectory&) = delete;
  MountDirectory& operator=(const MountDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

[[noreturn]] void become(const std::vector<std::string>& command, const std::string& directory,
                         const BlockedSignals& signals) {
  ::setenv("KVSLOT_MOUNT", directory.c_str(), 1);
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  signals.restore();
  ::execvp(arguments.front(), arguments.data());
  const int error = errno;
  complain(command.front(),
           fmt::format("cannot be run: {}; give a command that exists", errno_text(error)));
  ::_exit(error == ENOENT ? kExitNotFound : kExitCannotRun);
}

// What a terminal sends reaches the whole foreground group, the command included.
bool is_from_terminal(const siginfo_t& info) { return info.si_code == SI_KERNEL; }

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? kExitSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
}

// Waits for the command and passes signals on to it.
int wait_for_command(pid_t command, const BlockedSignals& signals) {
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(command, &status, WNOHANG);
    if (ended == command) return exit_code_of(status);
    const siginfo_t info = signals.wait();
    if (info.si_signo != SIGCHLD && !is_from_terminal(info)) ::kill(command, info.si_signo);
  }
}

int run_command(const ExecArguments& arguments, const std::string& directory,
                const BlockedSignals& signals) {
  if (const int signal = signals.take_pending(); signal != 0) return kExitSignalBase + signal;
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) become(arguments.command, directory, signals);
  if (pid < 0) {
    return complain("exec", fmt::format("fork: {}; end some processes", errno_text(errno)));
  }
  return wait_for_command(pid, signals);
}

// Ends the mount and waits until the store is closed. Whoever still has files open in it keeps
// them from being unmounted in order; the daemon then detaches the mount.
int end_mount(const std::string& path, const std::string& directory, Daemon& daemon,
              int exit_code) {
  const int error = unmount_directory(directory);
  if (error == EBUSY) {
    complain(directory, "files are still open there; detached it all the same");
  }
  if (error != 0) ::kill(daemon.pid(), SIGTERM);
  if (const auto ended = daemon.wait(); !ended) {
    complain(path, ended.error());
    return exit_code == kExitOk ? kExitFailure : exit_code;
  }
  return exit_code;
}

std::expected<void, Complaint> create_where_missing(const ExecArguments& arguments) {
  std::error_code error;
  if (!arguments.size_bytes || std::filesystem::exists(arguments.path, error)) return {};
  const FormatArguments format{
      .path = arguments.path, .size_bytes = arguments.size_bytes, .label = {}};
  const auto geometry = format_store(format);
  if (!geometry) return std::unexpected(geometry.error());
  return {};
}

}  // namespace

int run_exec(const ExecArguments& arguments) {
  const FormatArguments format{
      .path = arguments.path, .size_bytes = arguments.size_bytes, .label = {}};
  if (const auto checked = check_format_arguments(format); !checked) {
    complain("exec", checked.error());
    return kExitUsage;
  }
  const BlockedSignals signals;
  const MountDirectory directory;
  if (directory.path().empty()) {
    return complain("exec", fmt::format("cannot make a directory to mount on: {}; set TMPDIR",
                                        errno_text(errno)));
  }
  const auto options = make_mount_options(arguments.path, directory.path(), arguments.options);
  if (!options) {
    complain("exec", fmt::format("{}; see 'kvslot exec --help'", options.error()));
    return kExitUsage;
  }
  if (const auto created = create_where_missing(arguments); !created) {
    return complain(arguments.path, created.error());
  }
  auto daemon = Daemon::start(*options, {.ends_with_parent = true});
  if (!daemon) return complain("", daemon.error());
  const int exit_code = run_command(arguments, directory.path(), signals);
  return end_mount(arguments.path, directory.path(), *daemon, exit_code);
}

}  // namespace kvslot::cli
