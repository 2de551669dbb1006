// The engine, node by node: a tree of names in memory, contents on the device, a journal that
// makes both survive. The mount works with this; programs that only know keys use store.h.
//
// The path of a put: ContentChange -> commit (core/commit.cc: reserve, write, publish).
#pragma once

#include <kvslot/buffer.h>
#include <kvslot/content_change.h>
#include <kvslot/device.h>
#include <kvslot/error.h>
#include <kvslot/inspect.h>
#include <kvslot/options.h>
#include <kvslot/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvslot {

struct NodeInfo {
  NodeId node = NodeId::kNone;
  NodeId parent = NodeId::kNone;  // kNone once the node is unlinked
  ObjectId id = ObjectId::kNone;
  NodeKind kind = NodeKind::kFile;
  Attributes attributes;
  std::uint64_t size_bytes = 0;       // of the stored value; of a symlink's target
  std::uint64_t allocated_bytes = 0;  // whole slots
  std::uint32_t subdirectory_count = 0;
  bool linked = true;  // false: removed, kept by a hold
  bool stored = true;  // false: a file that was created and never committed
};

struct DirectoryEntry {
  std::string name;
  NodeId node = NodeId::kNone;
  ObjectId id = ObjectId::kNone;
  NodeKind kind = NodeKind::kFile;
  std::uint64_t cookie = 0;  // pass to list() to go on after this entry; 1 to 2^63-1, increasing
};

struct AttributeChange {
  std::optional<std::uint32_t> mode, uid, gid;
  std::optional<TimestampNs> atime_ns, mtime_ns, ctime_ns;
  // False: a change that belongs to content not committed yet and is recorded with it.
  bool record = true;
  bool waits = true;  // false: recorded at once, however much is (see has_room_to_record)
};

enum class RenameMode : std::uint8_t { kReplace, kNoReplace, kExchange };
enum class RemoveKind : std::uint8_t { kNotDirectory, kDirectory };

// What reading gave: pieces in order, of size_bytes in all, living as long as the view.
struct ReadView {
  std::vector<Buffer> buffers;
  std::vector<iovec> pieces;
  std::size_t size_bytes = 0;
};

struct SpaceInfo {
  std::uint64_t total_blocks = 0;
  std::uint64_t free_blocks = 0;  // what new values can still take, truthful to a slot
  std::uint64_t nodes = 0;
  std::uint64_t nodes_free = 0;
};

// Threads: thread-safe. Namespace calls answer from memory and are recorded in order with the
// next commit; commit, read, flush, checkpoint and close wait for the device.
class Volume {
 public:
  struct State;  // core/state.h

  // Loads the newest checkpoint, replays the journal, and verifies what may not have been flushed.
  //   errors   kCorrupt (not a store, damaged), kInvalid (newer format, other geometry), kIo
  //   owns     takes the device
  //   source   core/recovery.cc; core/LAYOUT.md "Recovery"
  static Result<std::unique_ptr<Volume>> open(std::unique_ptr<Device> device,
                                              const VolumeOptions& options);
  ~Volume();  // as a crash would leave it; call close() first
  Volume(const Volume&) = delete;
  Volume& operator=(const Volume&) = delete;

  // --- Names. `hold` keeps the node valid after it was unlinked, until as many releases.
  Result<NodeInfo> lookup(NodeId parent, std::string_view name, bool hold = false);
  Result<NodeInfo> stat(NodeId node) const;
  // The node of a key such as "a/b/c". Without a hold its number may be another node's by the time
  // it is used, when others remove and create.
  Result<NodeInfo> find(std::string_view key) const;
  Result<NodeInfo> find_and_hold(std::string_view key);
  void hold(NodeId node, std::uint64_t count = 1);
  void release(NodeId node, std::uint64_t count = 1);

  // Makes a file (not recorded before its first commit), a directory, or a symlink to `target`.
  Result<NodeInfo> create(NodeId parent, std::string_view name, NodeKind kind,
                          const Attributes& attributes, std::string_view target = {},
                          bool hold = false);
  Result<void> remove(NodeId parent, std::string_view name, RemoveKind kind);
  Result<void> rename(NodeId from, std::string_view from_name, NodeId to, std::string_view to_name,
                      RenameMode mode);
  Result<NodeInfo> set_attributes(NodeId node, const AttributeChange& change);
  Result<std::string> symlink_target(NodeId node) const;
  // Entries after `cookie` (0: from the start), in cookie order, at most `count_max`.
  Result<std::vector<DirectoryEntry>> list(NodeId directory, std::uint64_t cookie,
                                           std::size_t count_max) const;

  Result<std::string> xattr(NodeId node, std::string_view name) const;
  Result<std::vector<std::string>> list_xattrs(NodeId node) const;
  enum class XattrMode : std::uint8_t { kAny, kCreate, kReplace };
  Result<void> set_xattr(NodeId node, std::string_view name, std::string_view value,
                         XattrMode mode);
  Result<void> remove_xattr(NodeId node, std::string_view name);

  // --- Contents.
  // Up to size_bytes of the stored value from offset_bytes; short only at its end. Every byte
  // was checked against its checksum.
  Result<ReadView> read(NodeId node, std::uint64_t offset_bytes, std::size_t size_bytes);
  // The same for many files, all transfers going to the device together.
  struct ReadRequest {
    NodeId node;
    std::uint64_t offset_bytes;
    std::size_t size_bytes;
    bool whole = false;  // kTooLarge where the value has more than size_bytes
    Result<ReadView> result;
  };
  void read_many(std::span<ReadRequest> requests);
  // The same for a window that was placed; kNotFound where it was given up or replaced since.
  Result<ReadView> read_placed(NodeId node, const PlacedWindow& window, std::uint32_t offset_bytes,
                               std::uint32_t size_bytes);
  // Gives back the slots of placed windows that will never be committed.
  void discard_placed(std::span<const PlacedWindow> windows);
  // The first stored byte (data) or hole at or after offset_bytes; the size is a hole. kNotFound
  // past it.
  Result<std::uint64_t> seek(NodeId node, std::uint64_t offset_bytes, bool data) const;

  // Promises that a later commit finds this many slots.
  [[nodiscard]] Result<void> reserve_slots(std::uint32_t count);
  void unreserve_slots(std::uint32_t count);

  // Writes and publishes all changes as one batch with everything recorded before: one lock to
  // reserve, one submission, one lock to publish. Each change carries its own result.
  // Returns the sequence of the last block: pass it to flush_until, which fails (kNoSpace) where
  // the journal had no room for that block and what was recorded waits for another.
  std::uint64_t commit(std::span<ContentChange> changes, const char* reason = "direct");
  // Makes everything up to that block durable (all that was ever recorded: ~0 after a commit).
  Result<void> flush_until(std::uint64_t block_sequence);
  // Commits what is recorded and flushes it.
  Result<void> flush();
  // Has the log say that its last block is durable, where that is so and nothing says it yet: a
  // block is written, not flushed. For when nothing else goes on; what fails is left out.
  void record_durable();

  // Writes the index as a checkpoint and empties the journal behind it. One at a time.
  Result<void> checkpoint();
  [[nodiscard]] bool wants_checkpoint() const;
  [[nodiscard]] bool has_recorded() const;              // something waits for the next commit
  [[nodiscard]] std::uint64_t unflushed_bytes() const;  // written since the last flush
  // Whether a call that is recorded goes through at once. False: it would wait until a commit has
  // taken what is recorded already.
  [[nodiscard]] bool has_room_to_record() const;
  // Called (from any thread, under no lock) when has_recorded() becomes true.
  void on_recorded(std::function<void()> callback);

  // Flushes, checkpoints, and marks the store clean. What comes once it began fails with kBusy.
  Result<void> close();

  [[nodiscard]] SpaceInfo space() const;
  [[nodiscard]] const Geometry& geometry() const;
  [[nodiscard]] const Device& device() const;
  [[nodiscard]] BufferPool& buffers();
  [[nodiscard]] bool is_read_only() const;  // opened so, or stopped after a failed flush
  // Everything the engine knows, for the pseudo-files: see inspect.h.
  [[nodiscard]] Inspector& inspector();

 private:
  friend class Scrub;  // kvslot/scrub.h
  explicit Volume(std::unique_ptr<State> state);
  void announce_records();  // calls on_recorded
  std::unique_ptr<State> state_;
};

}  // namespace kvslot
