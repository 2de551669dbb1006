// A mount point, held by its directory: whoever may rename directories above it cannot make the
// daemon mount on, or unmount, another one.
// Called by fs/fuse_mount and fs/session.
#pragma once

#include <cerrno>
#include <string>

namespace kvslot {

// Whether a call on a mount failed because its daemon has died. ECONNABORTED and, over io_uring,
// ECANCELED: what a request gets that meets the end of the connection.
[[nodiscard]] inline bool is_of_dead_mount(int os_errno) {
  return os_errno == ENOTCONN || os_errno == ECONNABORTED || os_errno == ECANCELED;
}

// Threads: thread-safe, immutable.
class MountPlace {
 public:
  // `directory` is absolute and without symbolic links. Where it cannot be held, its path counts.
  explicit MountPlace(std::string directory);
  ~MountPlace();
  MountPlace(const MountPlace&) = delete;
  MountPlace& operator=(const MountPlace&) = delete;

  // As it was given, for people and for fusermount3, which makes sure of it by itself.
  [[nodiscard]] const std::string& name() const { return name_; }
  // What to hand to system calls.
  [[nodiscard]] const std::string& path() const { return path_; }

  // Whether somebody answers there. Waits for the answer.
  [[nodiscard]] bool answers() const;
  // Whether the mount of a daemon is there that is dead.
  [[nodiscard]] bool is_dead() const;
  // Takes away the mount that is there; who still has files open in it keeps them.
  bool unmount_lazily() const;
  // Of the kernel's cache of it.
  void raise_readahead(unsigned kib) const;

 private:
  std::string name_;
  int parent_fd_ = -1;
  std::string path_;
};

}  // namespace kvslot
