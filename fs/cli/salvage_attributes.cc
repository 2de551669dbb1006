// See salvage_attributes.h.
#include "fs/cli/salvage_attributes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <string_view>

namespace kvslot::cli {
namespace {

constexpr mode_t kModeKept = 01777;

using Times = std::array<timespec, 2>;  // of the last read, of the last change

timespec time_of(TimestampNs ns) {
  constexpr TimestampNs kSecond = 1'000'000'000;
  const TimestampNs rest = (ns % kSecond + kSecond) % kSecond;
  return {.tv_sec = (ns - rest) / kSecond, .tv_nsec = rest};
}

Times times_of(const Attributes& attributes) {
  return {time_of(attributes.atime_ns), time_of(attributes.mtime_ns)};
}

// Names of other kinds are no store's, and may mean something to the system.
bool set_xattrs(int fd, const SalvagedFile& file) {
  bool all = true;
  for (const auto& [name, value] : file.xattrs)
    all &= name.starts_with("user.") &&
           ::fsetxattr(fd, name.c_str(), value.data(), value.size(), 0) == 0;
  return all;
}

// Attributes before the mode, which may forbid them; the owner before the mode, which it changes.
bool restore(int fd, const SalvagedFile& file) {
  const Attributes& attributes = *file.attributes;
  bool all = set_xattrs(fd, file);
  if (::geteuid() == 0) all &= ::fchown(fd, attributes.uid, attributes.gid) == 0;
  all &= ::fchmod(fd, attributes.mode & kModeKept) == 0;
  all &= ::futimens(fd, times_of(attributes).data()) == 0;
  return all;
}

}  // namespace

bool restore_file(int fd, const SalvagedFile& file) {
  return !file.attributes || restore(fd, file);
}

bool restore_directory(int fd, const SalvagedFile& directory) {
  if (directory.attributes) return restore(fd, directory);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return ::fchmod(fd, 0777 & ~mask) == 0;
}

bool restore_symlink(int directory_fd, const char* name, const SalvagedFile& link) {
  if (!link.attributes) return true;
  const Attributes& attributes = *link.attributes;
  bool all = true;
  if (::geteuid() == 0)
    all &= ::fchownat(directory_fd, name, attributes.uid, attributes.gid, AT_SYMLINK_NOFOLLOW) == 0;
  all &= ::utimensat(directory_fd, name, times_of(attributes).data(), AT_SYMLINK_NOFOLLOW) == 0;
  return all;
}

}  // namespace kvslot::cli
