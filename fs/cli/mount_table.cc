// See mount_table.h.
#include "fs/cli/mount_table.h"

#include <mntent.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>

extern char** environ;

namespace kvslot::cli {
namespace {

struct CloseMounts {
  void operator()(std::FILE* file) const { ::endmntent(file); }
};

int unmount_by_helper(const std::string& directory) {
  std::string program = "fusermount3";
  std::string flag = "-uq";
  std::string separator = "--";
  std::string target = directory;
  std::array<char*, 5> arguments = {program.data(), flag.data(), separator.data(), target.data(),
                                    nullptr};
  pid_t pid = 0;
  const int error =
      ::posix_spawnp(&pid, program.c_str(), nullptr, nullptr, arguments.data(), environ);
  if (error != 0) return error == ENOENT ? EPERM : error;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return errno;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : EBUSY;
}

}  // namespace

bool MountEntry::is_kvslot() const { return type == "fuse.kvslot" || type == "fuseblk.kvslot"; }

std::optional<MountEntry> find_mount(const std::string& directory) {
  const std::unique_ptr<std::FILE, CloseMounts> mounts(::setmntent("/proc/self/mounts", "re"));
  std::optional<MountEntry> found;
  if (mounts == nullptr) return found;
  std::array<char, 3 * 4096> line{};  // two paths and the options
  struct mntent entry{};
  while (::getmntent_r(mounts.get(), &entry, line.data(), static_cast<int>(line.size())) !=
         nullptr) {
    if (directory != entry.mnt_dir) continue;
    found = {.source = entry.mnt_fsname,
             .type = entry.mnt_type,
             .is_read_only = ::hasmntopt(&entry, MNTOPT_RO) != nullptr};
  }
  return found;
}

int unmount_directory(const std::string& directory) {
  if (::umount2(directory.c_str(), UMOUNT_NOFOLLOW) == 0) return 0;
  return errno == EPERM ? unmount_by_helper(directory) : errno;
}

}  // namespace kvslot::cli
