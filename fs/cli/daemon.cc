// Forks the daemon and listens to it. See daemon.h.
//
// The report pipe carries 'R' once the mount answers, and 'E' with a complaint if it never does or
// if closing fails. A pipe that ends without either is a daemon that died.
#include "fs/cli/daemon.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "fs/cli/commands.h"
#include "fs/cli/complaint.h"
#include "fs/cli/exhaustion.h"
#include "fs/cli/isolation.h"
#include "fs/cli/process_end.h"
#include "fs/text.h"

namespace kvslot::cli {
namespace {

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

void detach_from_terminal() {
  const int null_fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null_fd < 0) return;
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null_fd, fd);
  if (null_fd > STDERR_FILENO) ::close(null_fd);
}

struct Readiness {
  Session* session = nullptr;
  int ready_fd = -1;
  int report_fd = -1;  // of a daemon
};

void announce(void* context) {
  const auto& readiness = *static_cast<Readiness*>(context);
  if (readiness.ready_fd >= 0) {
    write_all(readiness.ready_fd, "R");
    ::close(readiness.ready_fd);
  }
  if (readiness.report_fd < 0) return;
  detach_from_terminal();
  // A starter that is gone cannot tell anybody that there is a mount.
  if (!write_all(readiness.report_fd, "R")) readiness.session->shut_down();
}

std::expected<void, Complaint> serve_and_announce(const MountOptions& mount,
                                                  Readiness readiness) try {
  auto session = Session::start(mount);
  if (!session) return std::unexpected(session.error());
  // It stays until the process ends: threads of the connection may still be in it, and so are the
  // files that somebody has open.
  readiness.session = session->release();
  return readiness.session->run(&announce, &readiness);
} catch (const std::exception& thrown) {
  return std::unexpected(fmt::format("{}: {}", mount.device_path, explain_exhaustion(thrown)));
}

[[noreturn]] void run_child(const MountOptions& mount, const ServeOptions& options, int report_fd,
                            pid_t starter) {
  ::setsid();
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);  // the starter may have blocked what ends a mount
  std::signal(SIGPIPE, SIG_IGN);
  if (options.ends_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != starter) ::_exit(1);
  }
  isolate({options.ready_fd, report_fd});
  end_in_one_line(mount.device_path, report_fd);
  const auto served =
      serve_and_announce(mount, {.ready_fd = options.ready_fd, .report_fd = report_fd});
  if (!served) {
    ::openlog("kvslot", LOG_PID, LOG_DAEMON);
    ::syslog(LOG_ERR, "%s", escape_control(served.error()).c_str());
    write_all(report_fd, "E" + served.error());
  }
  std::fflush(nullptr);
  ::close(report_fd);  // now: threads that the device holds put off the end of the process
  std::_Exit(served ? 0 : 1);
}

std::string death_of(int status) {
  if (WIFSIGNALED(status)) return fmt::format("signal {}", WTERMSIG(status));
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

void serve(const MountOptions& mount, const ServeOptions& options) {
  isolate({options.ready_fd});
  end_in_one_line(mount.device_path, -1);
  std::signal(SIGPIPE, SIG_IGN);
  const auto served = serve_and_announce(mount, {.ready_fd = options.ready_fd});
  const int exit_code = served ? kExitOk : complain("", served.error());
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

std::expected<Daemon, Complaint> Daemon::start(const MountOptions& mount,
                                               const ServeOptions& options) {
  std::array<int, 2> pipe_fds{};
  if (::pipe2(pipe_fds.data(), O_CLOEXEC) != 0) {
    return std::unexpected(fmt::format("pipe: {}; close some files", errno_text(errno)));
  }
  const pid_t starter = ::getpid();
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    ::close(pipe_fds[0]);
    ::close(pipe_fds[1]);
    return std::unexpected(fmt::format("fork: {}; end some processes", errno_text(error)));
  }
  if (pid == 0) {
    ::close(pipe_fds[0]);
    run_child(mount, options, pipe_fds[1], starter);
  }
  ::close(pipe_fds[1]);
  Daemon daemon(pid, pipe_fds[0]);
  char first = 0;
  ssize_t count = 0;
  do {
    count = ::read(pipe_fds[0], &first, 1);
  } while (count < 0 && errno == EINTR);
  if (count == 1 && first == 'R') return daemon;
  const std::string complaint = daemon.read_report();
  const auto status = daemon.wait_for_end();
  if (count == 1 && !complaint.empty()) return std::unexpected(complaint);
  return std::unexpected(
      fmt::format("{}: the daemon ended ({}) before the mount answered; run it with -f to see why",
                  mount.device_path, status ? death_of(*status) : "held by the device"));
}

Daemon::Daemon(Daemon&& other) noexcept
    : pid_(other.pid_), report_fd_(std::exchange(other.report_fd_, -1)) {}

Daemon::~Daemon() {
  if (report_fd_ >= 0) ::close(report_fd_);
}

std::string Daemon::read_report() const {
  std::string report;
  std::array<char, 512> part{};
  for (;;) {
    const ssize_t count = ::read(report_fd_, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return report;
    report.append(part.data(), static_cast<std::size_t>(count));
  }
}

// Its status; nothing where the device still holds a thread of it.
std::optional<int> Daemon::wait_for_end() const {
  const int pid_fd = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  const bool has_ended = pid_fd < 0 || cli::wait_for_end(pid_, pid_fd);
  if (pid_fd >= 0) ::close(pid_fd);
  if (!has_ended) return std::nullopt;
  return wait_for(pid_);
}

std::expected<void, Complaint> Daemon::wait() {
  const std::string report = read_report();
  const auto status = wait_for_end();
  if (!status) return std::unexpected(kHeldByDevice);
  if (report.starts_with('E')) return std::unexpected(report.substr(1));
  if (*status == 0) return {};
  return std::unexpected(
      fmt::format("the daemon ended ({}) before the store was closed; what was synced is safe",
                  death_of(*status)));
}

}  // namespace kvslot::cli
