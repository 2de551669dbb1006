// Lets the kernel forget what it caches of one file system. Writing to /proc/sys/vm/drop_caches
// does it for the whole machine, and so for every test that runs beside.
#pragma once

#include <sys/mount.h>

#include <string>

namespace kvslot::testing {

// Names and nodes of a mount that nobody uses, and their pages. False where it may not remount.
inline bool drop_caches_of(const std::string& mount_point) {
  return ::mount(nullptr, mount_point.c_str(), nullptr, MS_REMOUNT | MS_NOSUID | MS_NODEV,
                 nullptr) == 0;
}

}  // namespace kvslot::testing
