// See mount_place.h. Needs /proc, as everything here does.
#include "fs/mount_place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "fs/privileges.h"

namespace kvslot {

namespace {

bool unmount_by_helper(const std::string& directory) {
  std::string program = "fusermount3";
  std::string unmount = "-u";
  std::string lazy = "-z";
  std::string separator = "--";
  std::string path = directory;
  char* arguments[] = {program.data(),   unmount.data(), lazy.data(),
                       separator.data(), path.data(),    nullptr};
  pid_t pid = 0;
  if (::posix_spawnp(&pid, program.c_str(), nullptr, nullptr, arguments, environ) != 0) {
    return false;
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

MountPlace::MountPlace(std::string directory) : name_(std::move(directory)), path_(name_) {
  const std::size_t slash = name_.rfind('/');
  if (slash == std::string::npos || slash + 1 == name_.size()) return;
  const std::string parent = slash == 0 ? "/" : name_.substr(0, slash);
  parent_fd_ = ::open(parent.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (parent_fd_ < 0) return;
  const std::string held = fmt::format("/proc/self/fd/{}", parent_fd_);
  if (::access(held.c_str(), F_OK) == 0) path_ = held + name_.substr(slash);
}

MountPlace::~MountPlace() {
  if (parent_fd_ >= 0) ::close(parent_fd_);
}

bool MountPlace::answers() const {
  const RaisedPrivileges raised;
  struct statfs status{};
  return ::statfs(path_.c_str(), &status) == 0;
}

// Asks for what the kernel does not cache.
bool MountPlace::is_dead() const {
  const RaisedPrivileges raised;
  struct statfs status{};
  return ::statfs(path_.c_str(), &status) != 0 && (is_of_dead_mount(errno));
}

bool MountPlace::unmount_lazily() const {
  int error = 0;
  {
    const RaisedPrivileges raised;
    if (::umount2(path_.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) != 0) error = errno;
  }
  if (error == EPERM) return unmount_by_helper(name_);
  return error == 0;
}

void MountPlace::raise_readahead(unsigned kib) const {
  const RaisedPrivileges raised;
  struct stat status{};
  if (::stat(path_.c_str(), &status) != 0) return;
  const std::string device = fmt::format("{}:{}", major(status.st_dev), minor(status.st_dev));
  for (const char* const suffix : {"", "-fuseblk"}) {
    std::ofstream file(fmt::format("/sys/class/bdi/{}{}/read_ahead_kb", device, suffix));
    file << kib;  // of no consequence where it fails
  }
}

}  // namespace kvslot
