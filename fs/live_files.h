// The files that somebody has open or that hold content not stored yet, by node.
//
// Step before: fs/filesystem. Step after: fs/live_content (the bytes), fs/publisher (commits).
#pragma once

#include <kvslot/error.h>
#include <kvslot/mutex.h>
#include <kvslot/types.h>
#include <kvslot/volume.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fs/live_content.h"
#include "fs/range_set.h"

namespace kvslot {

using Done = std::function<void(Result<void> result)>;

// Somebody who waits for a commit. Called once, under no lock.
struct CommitWaiter {
  enum class Until : std::uint8_t {
    kStarted,  // what is to be stored is settled: later writes are no part of it
    kWritten,
    kDurable,
  };
  Until until = Until::kStarted;
  Done done;
  bool needs_barrier = true;  // the commit alone does not cover all that was asked for
};

// One file. Keeps its node held while it exists.
struct LiveFile {
  // `end_call` is called when it has let go of its node, and outlives it.
  LiveFile(Volume& file_volume, const NodeInfo& info, const std::function<void()>& end_call);
  ~LiveFile();
  LiveFile(const LiveFile&) = delete;
  LiveFile& operator=(const LiveFile&) = delete;

  Volume& volume;
  const NodeId node;
  const std::function<void()>& on_end;
  Mutex mutex;
  LiveContent content GUARDED_BY(mutex);
  std::uint32_t handles GUARDED_BY(mutex) = 0;  // open
  std::uint32_t writers GUARDED_BY(mutex) = 0;  // of these, for writing
  std::uint32_t pins GUARDED_BY(mutex) = 0;     // calls that work with it without a handle
  bool is_dropped GUARDED_BY(mutex) = false;    // no longer in the table: look it up again

  // A commit or a spill is being prepared or is in flight; `wanted`: another one comes after it.
  bool is_busy GUARDED_BY(mutex) = false;
  bool is_wanted GUARDED_BY(mutex) = false;
  std::uint32_t rounds_before_commit GUARDED_BY(mutex) = 0;  // completed or spilled for its sake
  std::uint64_t spill_above GUARDED_BY(mutex) = 0;          // buffered: below, nothing was complete
  std::vector<CommitWaiter> waiting_now GUARDED_BY(mutex);  // for the commit in flight
  std::vector<CommitWaiter> waiting_next GUARDED_BY(mutex);  // for the next one to begin

  // Created or emptied by an open, and nothing written since: not worth a commit at flush.
  bool is_only_emptied GUARDED_BY(mutex);
  // O_TRUNC, or ftruncate to nothing, hid a stored value that no commit has replaced yet. Where a
  // write of the new one did not fit, the old one comes back at the last close, unless that write
  // is made good.
  bool is_rewrite GUARDED_BY(mutex) = false;
  RangeSet missing GUARDED_BY(mutex);
  std::uint64_t resizes GUARDED_BY(mutex) = 0;
  bool is_abandoned GUARDED_BY(mutex) = false;         // reverts once the change in flight is back
  bool has_replaced GUARDED_BY(mutex) = false;         // took a name that another file had
  bool has_lost_privileges GUARDED_BY(mutex) = false;  // suid and sgid were cleared by a write

  // Of the last write, until a commit or utimens records them.
  std::optional<TimestampNs> written_at GUARDED_BY(mutex);

  // A commit failed: reported once to each handle (see OpenFile::errors_seen).
  std::optional<Error> error GUARDED_BY(mutex);
  std::uint64_t error_count GUARDED_BY(mutex) = 0;
  bool error_was_reported GUARDED_BY(mutex) = false;
};

using LiveFileRef = std::shared_ptr<LiveFile>;

// Whether it is a rewrite of which a part did not fit.
[[nodiscard]] bool is_incomplete(LiveFile& file);

// Threads: thread-safe. A file's lock is never taken under the table's.
class LiveFiles {
 public:
  explicit LiveFiles(Volume& volume) : volume_(volume) {}

  // Called whenever nobody uses a file any more, on any thread and perhaps under locks of this
  // table. Set while nobody calls it.
  void on_end(std::function<void()> call) { on_end_ = std::move(call); }
  // The entry of a node, or null: then the volume says all there is to say.
  [[nodiscard]] LiveFileRef find(NodeId node) const;
  // The entry of a regular file, made if need be, pinned.
  //   errors   kNotFound, kWrongKind
  Result<LiveFileRef> pin(NodeId node);
  // Ends a pin, and the entry if nothing needs it any more.
  void unpin(const LiveFileRef& file);
  // Removes the entry if it is clean (or unlinked) and nobody uses it.
  void drop_if_idle(const LiveFileRef& file);

  [[nodiscard]] std::vector<LiveFileRef> all() const;

  // Content changed behind the kernel's back: its next open must not keep what is cached.
  void mark_stale(NodeId node);
  [[nodiscard]] bool take_stale(NodeId node);

 private:
  static constexpr std::size_t kShards = 32;
  struct Shard {
    mutable Mutex mutex;
    std::unordered_map<std::uint32_t, LiveFileRef> files GUARDED_BY(mutex);
  };
  Shard& shard(NodeId node) { return shards_[static_cast<std::uint32_t>(node) % kShards]; }
  const Shard& shard(NodeId node) const {
    return shards_[static_cast<std::uint32_t>(node) % kShards];
  }

  Volume& volume_;
  std::function<void()> on_end_ = [] {};
  std::array<Shard, kShards> shards_;
  std::atomic<std::size_t> stale_count_ = 0;
  Mutex stale_mutex_;
  std::unordered_set<std::uint32_t> stale_ GUARDED_BY(stale_mutex_);
};

// A pin that ends with its scope.
class Pin {
 public:
  Pin(LiveFiles& files, LiveFileRef file) : files_(files), file_(std::move(file)) {}
  ~Pin() { files_.unpin(file_); }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  LiveFile& operator*() const { return *file_; }
  LiveFile* operator->() const { return file_.get(); }
  [[nodiscard]] const LiveFileRef& ref() const { return file_; }

 private:
  LiveFiles& files_;
  LiveFileRef file_;
};

}  // namespace kvslot
