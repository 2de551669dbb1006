// What the daemon may do beyond its user: little, and only for as long as it does it.
// Called by fs/session once the mount is made, and by fs/mount_place around what needs more.
#pragma once

#include <cstdint>

namespace kvslot {

// Gives up every capability but two: CAP_SYS_ADMIN, to unmount, and CAP_DAC_READ_SEARCH, to reach a
// mount point in a directory of somebody else. Those are kept out of effect. A process that has the
// first of them cannot gain others by running a program; one that has not needs fusermount3, which
// is setuid, and keeps the ability to. No core dump, and no debugger of the same user, shows its
// memory.
//   threads  holds for the calling thread and those it starts later: call it before any is started
void give_up_capabilities();

// Whether this thread could mount without fusermount3.
[[nodiscard]] bool may_mount();

// What give_up_capabilities() kept is in effect for this thread while one of these lives.
class RaisedPrivileges {
 public:
  RaisedPrivileges();
  ~RaisedPrivileges();
  RaisedPrivileges(const RaisedPrivileges&) = delete;
  RaisedPrivileges& operator=(const RaisedPrivileges&) = delete;

 private:
  std::uint64_t before_ = 0;  // in effect, a bit for each capability
};

}  // namespace kvslot
