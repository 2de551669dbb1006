// `kvslot mount` and `kvslot unmount`. The step after is fs/cli/daemon and fs/session.
#include <fcntl.h>
#include <fmt/core.h>
#include <kvslot/admin.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "fs/cli/commands.h"
#include "fs/cli/complaint.h"
#include "fs/cli/daemon.h"
#include "fs/cli/mount_config.h"
#include "fs/cli/mount_setup.h"
#include "fs/cli/mount_table.h"
#include "fs/cli/process_end.h"
#include "fs/cli/store_access.h"
#include "fs/mount_place.h"
#include "fs/text.h"

namespace kvslot::cli {
namespace {

std::string errno_suffix(int os_errno) {
  return os_errno == 0 ? std::string() : ": " + errno_text(os_errno);
}

int open_process(pid_t pid) {
  return pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1;
}

std::string explain_unmount(int error) {
  if (error == EBUSY) {
    return "is busy: files are open there; close them ('fuser -vm DIR' lists who) and try again";
  }
  if (error == EPERM) return "only root and the one who mounted it may unmount; use sudo";
  return fmt::format("cannot be unmounted: {}", errno_text(error));
}

// Whether the store says that it was closed. Somebody else may have it open again by now, and that
// is all right.
std::expected<void, Complaint> check_closed(const std::string& device_path) {
  const auto device = open_file_device(device_path, {.read_only = true, .open_wait_ms = 0});
  if (!device && device.error().code == Errc::kBusy) return {};
  const auto info = device ? read_store_info(**device) : Result<StoreInfo>(fail(device));
  if (!info) {
    return std::unexpected(fmt::format(
        "unmounted, but it cannot be read ({}{}), so that nobody can say whether it was "
        "closed cleanly; see to the device and run 'kvslot fsck'",
        info.error().step, errno_suffix(info.error().os_errno)));
  }
  if (info->closed) return {};
  return std::unexpected(
      "unmounted, but the store was not closed cleanly; what was synced is safe, and the next "
      "mount recovers it");
}

// Waits for the lock on the image where the server is not known.
std::expected<void, Complaint> wait_for_device(const std::string& device_path) {
  constexpr unsigned kWaitMsMax = 10 * 60 * 1000;
  const auto device =
      open_file_device(device_path, {.read_only = true, .open_wait_ms = kWaitMsMax});
  if (device || device.error().code != Errc::kBusy) return {};
  return std::unexpected("unmounted, but the store is still open after ten minutes");
}

}  // namespace

std::expected<MountOptions, Complaint> make_mount_options(const std::string& path,
                                                          const std::string& directory,
                                                          const std::vector<std::string>& texts) {
  MountOptions options;
  for (const std::string& text : texts) {
    if (const auto parsed = parse_mount_options(text, options); !parsed) {
      return std::unexpected(parsed.error());
    }
  }
  options.device_path = absolute_path(path);
  options.mount_point = absolute_path(directory);
  return options;
}

std::expected<void, Complaint> check_mount_point(const std::string& directory) {
  struct stat status{};
  if (::stat(directory.c_str(), &status) != 0) {
    // Of a killed daemon, the second where a request was under way: the session takes it down.
    if (is_of_dead_mount(errno)) return {};
    if (errno == ENOENT) return std::unexpected("does not exist; make the directory first");
    return std::unexpected(
        fmt::format("cannot be mounted on: {}; choose another directory", errno_text(errno)));
  }
  if (S_ISDIR(status.st_mode)) return {};
  return std::unexpected("is no directory; give a directory to mount on");
}

int run_mount(const MountArguments& arguments) {
  const auto options = make_mount_options(arguments.path, arguments.directory, arguments.options);
  if (!options) {
    complain("mount", fmt::format("{}; see 'kvslot mount --help'", options.error()));
    return kExitUsage;
  }
  if (const auto usable = check_mount_point(arguments.directory); !usable) {
    return complain(arguments.directory, usable.error());
  }
  if (arguments.is_fake) return kExitOk;
  const ServeOptions serving{.ready_fd = arguments.ready_fd};
  if (arguments.foreground) serve(*options, serving);
  const auto daemon = Daemon::start(*options, serving);
  return daemon ? kExitOk : complain("", daemon.error());
}

int run_unmount(const std::string& directory) {
  const std::string path = absolute_path(directory);
  const auto mount = find_mount(path);
  if (!mount)
    return complain(directory,
                    "nothing is mounted there; 'mount -t fuse.kvslot,fuseblk.kvslot' lists");
  if (!mount->is_kvslot()) {
    return complain(directory, fmt::format("is no kvslot mount but {}; use umount", mount->type));
  }
  const auto config = read_mount_config(path);
  if (!config) {
    return complain(directory,
                    "its daemon does not answer; if it is stopped let it go on (kill -CONT), else "
                    "end it (kill -9) and try again");
  }
  const pid_t server = server_in(*config);
  const int pid_fd = open_process(server);
  const int error = unmount_directory(path);
  if (error != 0) {
    if (pid_fd >= 0) ::close(pid_fd);
    return complain(directory, explain_unmount(error));
  }
  if (config->empty()) {  // the daemon is dead, or the mount has no control directory
    const auto waited = wait_for_device(mount->source);
    if (!waited) return complain(mount->source, waited.error());
  }
  if (pid_fd >= 0) {
    const bool has_ended = wait_for_end(server, pid_fd);
    ::close(pid_fd);
    if (!has_ended) return complain(mount->source, kHeldByDevice);
  }
  if (mount->is_read_only) return kExitOk;
  const auto read_only = config->find("read_only");
  if (read_only != config->end() && read_only->second == "yes") {  // the device may still hang
    return complain(
        mount->source,
        "unmounted, but it had stopped taking writes (the system's log says why), so "
        "that it was not closed; what was synced is safe, and the next mount recovers it");
  }
  const auto closed = check_closed(mount->source);
  return closed ? kExitOk : complain(mount->source, closed.error());
}

}  // namespace kvslot::cli
