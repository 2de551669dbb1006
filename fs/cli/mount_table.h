// Mounts of kvslot as the system lists them, and taking them down.
// Called by `kvslot unmount` and `kvslot exec`.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace kvslot::cli {

struct MountEntry {
  std::string source;         // the device or image
  std::string type;           // "fuse.kvslot"
  bool is_read_only = false;  // mounted so
  [[nodiscard]] bool is_kvslot() const;
};

// The topmost mount on a directory, by its absolute path.
[[nodiscard]] std::optional<MountEntry> find_mount(const std::string& directory);

// Takes the topmost mount down, by fusermount3 where the caller is not root.
//   returns  0 or the errno; EBUSY: files are open there
int unmount_directory(const std::string& directory);

}  // namespace kvslot::cli
