// What a commit is given: new content of files, cut into windows (Volume::commit, Batcher).
#pragma once

#include <kvslot/buffer.h>
#include <kvslot/error.h>
#include <kvslot/types.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvslot {

// New bytes for one window. size_bytes 0 makes the window a hole. The buffer's capacity is at
// least size_bytes rounded up to whole blocks; bytes past size_bytes are the engine's to use.
struct WindowWrite {
  std::uint32_t window = 0;  // the value's bytes from window * window_size_bytes
  std::uint32_t size_bytes = 0;
  Buffer data;
};

// A window whose bytes are on the device already (see ContentChange::place_only).
struct PlacedWindow {
  std::uint32_t window = 0;
  std::vector<Extent> extents;
};

// New content of one file: the windows that change and the size it then has. Windows at or past
// the new size are dropped; a stored window that the new size cuts must be among the writes.
struct ContentChange {
  NodeId node = NodeId::kNone;  // held or linked until the commit returns
  std::uint64_t size_bytes = 0;
  bool whole = false;  // windows that are not named become holes (a full rewrite)
  std::vector<WindowWrite> writes;
  std::vector<PlacedWindow> placed;
  std::uint32_t reserved_slots = 0;  // taken before with reserve_slots, given back by the commit
  std::uint32_t waiters = 1;         // callers that wait for the outcome; shown by the inspector

  // Instead of publishing, writes the windows and moves them from `writes` to `placed`: how a
  // value larger than memory reaches the device before its commit point.
  bool place_only = false;

  // With node == kNone: stores under this key, making missing directories and the file.
  std::string_view key;
  Attributes attributes;       // of a file made for `key`; mtime and ctime of an existing one
  bool keep_existing = false;  // policy keep: an existing or in-flight key is left alone

  // Results.
  Result<void> result;
  bool newly_stored = false;  // `key` did not exist before
  bool written = false;       // false when keep_existing left the key alone
};

}  // namespace kvslot
