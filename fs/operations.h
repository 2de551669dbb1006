// The libfuse callbacks: each translates, calls, and replies exactly once, now or later.
//
// Step before: the kernel. Step after: fs/filesystem, and fs/pseudo_tree for the control directory.
#pragma once

#include <atomic>
#include <functional>

#include "fs/filesystem.h"
#include "fs/fuse_library.h"
#include "fs/pseudo_tree.h"
#include "fs/reader_pool.h"

namespace kvslot {

inline constexpr unsigned kRequestBytesMax = 1 << 20;  // of one WRITE or READ

// What every callback finds behind its request. Completed before the first request is served;
// outlives the session.
struct MountContext {
  Filesystem* filesystem = nullptr;
  PseudoTree* pseudo_tree = nullptr;
  // For pseudo-files, whose readers may not queue behind readers of the device.
  ReaderPool* pseudo_pool = nullptr;
  ReaderPool* reader_pool = nullptr;  // for those that do read the device: slot/<n>
  // The kernel says that the file system is gone; umount(2) waits for the answer where the device
  // is a block device.
  std::function<void()> on_destroy;
  std::atomic<bool> is_uring = false;         // some request came over io_uring
  std::atomic<bool> has_killpriv_v2 = false;  // the kernel leaves suid and sgid to us
};

[[nodiscard]] const fuse_lowlevel_ops& fuse_operations();

}  // namespace kvslot
