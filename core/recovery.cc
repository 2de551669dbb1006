// Rebuilding the state at open. Nothing is written before all of it is known.
//
//   load       checkpoint, then the journal from its position, by object id
//   verify     values written after the last flush that the journal knows of: the first batch
//              with one that does not match ends the log, and loading starts over up to there
//   connect    names to directories, slots to values
//   reopen     a new epoch, so that no block of an earlier life is ever replayed
//
// core/LAYOUT.md "Recovery" gives the reasons.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>

#include "core/device_io.h"
#include "core/state.h"
#include "core/superblocks.h"

namespace kvslot {
namespace {

// Identities that a crash may have used without leaving a record; they are passed over.
constexpr std::uint64_t kObjectGap = 1 << 16;
constexpr std::uint64_t kStampGap = 1 << 20;
constexpr std::size_t kVerifiedTogether = 64;

// Threads: one thread at a time, before anybody else knows the volume.
class Recovery {
 public:
  Recovery(Volume::State& state, const Superblock& superblock)
      : state_(state), superblock_(superblock), uuid_(superblock.geometry.uuid) {}

  Result<void> rebuild() NO_THREAD_SAFETY_ANALYSIS {
    auto loaded = rebuild_from(superblock_.current, false);
    const bool damaged =
        !loaded && (loaded.error().code == Errc::kCorrupt || loaded.error().code == Errc::kIo);
    const bool has_previous = superblock_.previous.sequence != superblock_.current.sequence;
    if (damaged && has_previous) {
      // The newest checkpoint is damaged. The one before, with the journal since, says the same
      // as long as neither has been written over.
      const auto first_error = loaded;
      loaded = rebuild_from(superblock_.previous, true);
      if (!loaded) return first_error;
      fell_back_ = true;
    }
    if (!loaded) return loaded;
    return connect();
  }

  [[nodiscard]] bool needs_checkpoint() const { return blocks_ != 0 || fell_back_; }
  [[nodiscard]] bool fell_back() const { return fell_back_; }
  [[nodiscard]] const JournalPosition& end() const { return end_; }
  [[nodiscard]] std::uint64_t next_object() const { return next_object_; }
  [[nodiscard]] std::uint64_t next_stamp() const { return next_stamp_; }

 private:
  struct PendingName {
    ObjectId parent = ObjectId::kNone;
    std::uint64_t cookie = 0;
    std::string name;
  };
  // An extent whose bytes may not have survived.
  struct TailExtent {
    std::uint64_t sequence;
    ObjectId object;
    Extent extent;
  };

  Result<void> rebuild_from(const CheckpointRoot& root, bool is_previous) {
    std::uint64_t limit = UINT64_MAX;
    while (true) {
      if (auto ok = load(root, is_previous, limit); !ok) return ok;
      // The image may hold effects of blocks up to this one; only replaying them makes it exact.
      if (end_.sequence <= superblock_.current.included_upto)
        return fail(Errc::kCorrupt, "the journal ends before its checkpoint");
      const auto failed = verify_tail();
      if (!failed) return fail(failed);
      if (*failed == 0) return {};
      limit = *failed - 1;
    }
  }

  Result<void> load(const CheckpointRoot& root, bool is_previous, std::uint64_t limit) {
    clear(root);
    if (root.manifest_slot != kNoSlot)
      if (auto ok = load_checkpoint(root); !ok) return ok;
    if (is_previous) {
      // Up to where the newer checkpoint begins, in case its journal is of a newer epoch.
      const std::uint64_t joint = superblock_.current.included_upto;
      if (auto ok = replay(root.replay_from, std::min(limit, joint)); !ok) return ok;
      if (end_.sequence <= joint) return {};
    }
    return replay(superblock_.current.replay_from, limit);
  }

  void clear(const CheckpointRoot& root) NO_THREAD_SAFETY_ANALYSIS {
    state_.index.clear();
    objects_.clear();
    names_.clear();
    tail_.clear();
    quarantined_.clear();
    checkpoint_runs_.clear();
    blocks_ = 0;
    // The superblock was written after a flush of these.
    durable_upto_ = superblock_.current.included_upto;
    next_object_ = root.next_object;
    next_stamp_ = root.next_stamp;
    end_ = root.replay_from;
    const Attributes attributes{.mode = 0755,
                                .uid = 0,
                                .gid = 0,
                                .atime_ns = superblock_.formatted_ns,
                                .mtime_ns = superblock_.formatted_ns,
                                .ctime_ns = superblock_.formatted_ns};
    const NodeId node =
        state_.index.add(ObjectId::kRoot, NodeKind::kDirectory, attributes, StoredState::kStored);
    KVSLOT_CHECK(node == NodeId::kRoot, "the root is the first node");
    objects_[1] = node;
    name_of(node) = {};
  }

  PendingName& name_of(NodeId node) {
    const auto number = static_cast<std::size_t>(node);
    if (number >= names_.size()) names_.resize(std::max(number + 1, names_.size() * 2));
    return names_[number];
  }

  // --- The checkpoint.

  Result<std::vector<ManifestEntry>> read_manifests(const CheckpointRoot& root) {
    std::vector<ManifestEntry> entries;
    const Buffer block = Buffer::from_heap(kBlockSizeBytes);
    std::uint32_t slot = root.manifest_slot;
    for (std::uint32_t index = 0; slot != kNoSlot; ++index) {
      if (slot >= state_.geometry.slot_count || index > state_.geometry.slot_count)
        return fail(Errc::kCorrupt, "checkpoint: manifest slot out of range");
      const std::uint64_t offset =
          std::uint64_t{state_.first_block_of(SlotId{slot})} * kBlockSizeBytes;
      if (auto ok = read_device(*state_.device, offset, block.first(kBlockSizeBytes)); !ok)
        return fail(ok);
      const auto manifest = decode_manifest(block.first(kBlockSizeBytes), uuid_);
      if (!manifest) return fail(manifest);
      if (manifest->checkpoint_sequence != root.sequence || manifest->index != index)
        return fail(Errc::kCorrupt, "checkpoint: manifest of another checkpoint");
      entries.insert(entries.end(), manifest->entries.begin(), manifest->entries.end());
      checkpoint_runs_.push_back({SlotId{slot}, 1});
      slot = manifest->next_slot;
    }
    return entries;
  }

  Result<void> load_checkpoint(const CheckpointRoot& root) {
    const auto entries = read_manifests(root);
    if (!entries) return fail(entries);
    const Buffer buffer = Buffer::from_heap(kChunkSizeBytesMax);
    std::vector<std::byte> stream;
    std::uint64_t stream_bytes = 0;
    std::uint32_t index = 0;
    for (const ManifestEntry& entry : *entries) {
      const std::uint32_t slots = state_.slots_of(entry.size_bytes);
      if (entry.slot >= state_.geometry.slot_count ||
          slots > state_.geometry.slot_count - entry.slot)
        return fail(Errc::kCorrupt, "checkpoint: chunk slot out of range");
      const std::uint64_t offset =
          std::uint64_t{state_.first_block_of(SlotId{entry.slot})} * kBlockSizeBytes;
      const Bytes chunk = buffer.first(entry.size_bytes);
      if (auto ok = read_device(*state_.device, offset, chunk); !ok) return ok;
      const auto payload = open_chunk(chunk, root.sequence, index++, uuid_);
      if (!payload) return fail(payload);
      checkpoint_runs_.push_back({SlotId{entry.slot}, slots});
      stream.insert(stream.end(), payload->begin(), payload->end());
      stream_bytes += payload->size();
      if (auto ok = apply_stream(stream); !ok) return ok;
    }
    if (!stream.empty() || stream_bytes != root.stream_bytes)
      return fail(Errc::kCorrupt, "checkpoint: ends in the middle of a record");
    return {};
  }

  // Applies the whole records at the front of the stream and leaves the rest.
  Result<void> apply_stream(std::vector<std::byte>& stream) {
    constexpr std::size_t kPrefixBytes = 5;
    std::size_t done = 0;
    while (stream.size() - done >= kPrefixBytes) {
      std::uint32_t body_bytes = 0;
      std::memcpy(&body_bytes, stream.data() + done + 1, sizeof body_bytes);
      if (stream.size() - done < kPrefixBytes + body_bytes) break;
      ByteReader in(ConstBytes(stream).subspan(done, kPrefixBytes + body_bytes));
      auto record = decode_record(in);
      if (!record) return fail(record);
      apply(std::move(*record), 0);
      done += kPrefixBytes + body_bytes;
    }
    stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(done));
    return {};
  }

  // --- The journal.

  Result<void> replay(const JournalPosition& from, std::uint64_t limit) {
    const auto end = read_journal(
        *state_.device, state_.geometry, from, [&](const JournalBlock& block) -> Result<bool> {
          if (block.header.sequence > limit) return false;
          ByteReader in(block.records());
          while (in.left() != 0) {
            auto record = decode_record(in);
            if (!record) return fail(record);
            apply(std::move(*record), block.header.sequence);
          }
          ++blocks_;
          durable_upto_ = std::max(durable_upto_, block.header.durable_upto);
          while (!tail_.empty() && tail_.front().sequence <= durable_upto_) tail_.pop_front();
          return true;
        });
    if (!end) return fail(end);
    end_ = *end;
    return {};
  }

  NodeId find(ObjectId object) const {
    const auto found = objects_.find(static_cast<std::uint64_t>(object));
    return found == objects_.end() ? NodeId::kNone : found->second;
  }

  // `sequence` is 0 for records of a checkpoint, whose values were flushed.
  void apply(Record record, std::uint64_t sequence) {
    std::visit([&](auto& body) { apply_body(body, sequence); }, record);
  }

  void apply_body(SetNode& record, std::uint64_t sequence) NO_THREAD_SAFETY_ANALYSIS {
    NodeImage& image = record.image;
    note_extents(image.object, image.extents, sequence);
    NodeId node = find(image.object);
    if (node == NodeId::kNone) {
      node = state_.index.add(image.object, image.kind, image.attributes, StoredState::kStored);
      objects_[static_cast<std::uint64_t>(image.object)] = node;
    } else {
      state_.index.set_attributes(node, image.attributes);
    }
    if (image.kind == NodeKind::kFile)
      state_.index.set_content(node, image.size_bytes, std::move(image.extents));
    if (!image.target.empty()) state_.index.set_target(node, std::move(image.target));
    if (!image.xattrs.empty() || !state_.index.xattrs(node).empty())
      state_.index.set_xattrs(node, std::move(image.xattrs));
    next_object_ = std::max({next_object_, static_cast<std::uint64_t>(image.object) + 1,
                             image.cookie + 1});  // places in listings are ids as well
    name_of(node) = {image.parent, image.cookie, std::move(image.name)};
  }

  // The other records are about a node that may be gone already: a fuzzy checkpoint has seen the
  // removal that a later record of this journal repeats.

  void apply_body(MoveNode& record, std::uint64_t) NO_THREAD_SAFETY_ANALYSIS {
    next_object_ = std::max(next_object_, record.cookie + 1);
    const NodeId node = find(record.object);
    if (node == NodeId::kNone) return;
    Attributes attributes = state_.index.attributes(node);
    attributes.ctime_ns = record.ctime_ns;
    state_.index.set_attributes(node, attributes);
    name_of(node) = {record.parent, record.cookie, std::move(record.name)};
  }

  void apply_body(RemoveNode& record, std::uint64_t) NO_THREAD_SAFETY_ANALYSIS {
    const NodeId node = find(record.object);
    if (node == NodeId::kNone || node == NodeId::kRoot) return;
    objects_.erase(static_cast<std::uint64_t>(record.object));
    name_of(node) = {};
    state_.index.erase(node);
  }

  void apply_body(SetAttributes& record, std::uint64_t) NO_THREAD_SAFETY_ANALYSIS {
    const NodeId node = find(record.object);
    if (node != NodeId::kNone) state_.index.set_attributes(node, record.attributes);
  }

  void apply_body(SetXattrs& record, std::uint64_t) NO_THREAD_SAFETY_ANALYSIS {
    const NodeId node = find(record.object);
    if (node == NodeId::kNone) return;
    Attributes attributes = state_.index.attributes(node);
    attributes.ctime_ns = record.ctime_ns;
    state_.index.set_attributes(node, attributes);
    state_.index.set_xattrs(node, std::move(record.xattrs));
  }

  void apply_body(PatchContent& record, std::uint64_t sequence) NO_THREAD_SAFETY_ANALYSIS {
    const NodeId node = find(record.object);
    if (node == NodeId::kNone) return;
    std::vector<std::uint64_t> windows;
    std::vector<Extent> content;
    for (auto& window : record.windows) {
      note_extents(record.object, window.extents, sequence);
      windows.push_back(window.window);
      content.insert(content.end(), window.extents.begin(), window.extents.end());
    }
    std::sort(windows.begin(), windows.end());
    Extent scratch;
    for (const Extent& old : state_.index.extents(node, scratch)) {
      const bool gone = std::uint64_t{old.file_block} * kBlockSizeBytes >= record.size_bytes ||
                        std::binary_search(windows.begin(), windows.end(), state_.window_of(old));
      if (!gone) content.push_back(old);
    }
    std::sort(content.begin(), content.end(),
              [](const Extent& a, const Extent& b) { return a.file_block < b.file_block; });
    state_.index.set_attributes(node, record.attributes);
    state_.index.set_content(node, record.size_bytes, std::move(content));
  }

  void apply_body(QuarantineSlots& record, std::uint64_t) { quarantined_.push_back(record.run); }

  void note_extents(ObjectId object, const std::vector<Extent>& extents, std::uint64_t sequence) {
    for (const Extent& extent : extents) {
      next_stamp_ = std::max(next_stamp_, extent.stamp + 1);
      if (sequence != 0) tail_.push_back({sequence, object, extent});
    }
  }

  // --- What may not have been flushed.

  [[nodiscard]] bool is_live(const TailExtent& tail) const NO_THREAD_SAFETY_ANALYSIS {
    const NodeId node = find(tail.object);
    if (node == NodeId::kNone) return false;
    Extent scratch;
    const auto extents = state_.index.extents(node, scratch);
    const auto at = std::partition_point(extents.begin(), extents.end(), [&](const Extent& e) {
      return e.file_block < tail.extent.file_block;
    });
    return at != extents.end() && *at == tail.extent;
  }

  // The lowest sequence of a block with a live value that is not on the device, or 0. Only what is
  // live counts: slots of values that a durable record removed may hold newer bytes.
  Result<std::uint64_t> verify_tail() {
    std::uint64_t failed = 0;
    std::vector<TailExtent> group;
    for (std::size_t i = 0; i <= tail_.size(); ++i) {
      const bool at_end = i == tail_.size();
      if (!at_end && is_live(tail_[i])) {
        if (auto ok = check_place(tail_[i].extent); !ok) return fail(ok);
        group.push_back(tail_[i]);
      }
      if (group.size() < kVerifiedTogether && !at_end) continue;
      const std::uint64_t in_group = verify_group(group);
      if (in_group != 0 && (failed == 0 || in_group < failed)) failed = in_group;
      group.clear();
    }
    return failed;
  }

  std::uint64_t verify_group(const std::vector<TailExtent>& group) {
    std::vector<Buffer> buffers;
    std::vector<iovec> segments;
    std::vector<IoRequest> requests;
    segments.reserve(group.size());
    for (const TailExtent& tail : group) {
      const std::size_t bytes = round_up(tail.extent.size_bytes, kBlockSizeBytes);
      buffers.push_back(Buffer::from_heap(bytes));
      segments.push_back({buffers.back().data(), bytes});
      requests.push_back({.op = IoOp::kRead,
                          .offset_bytes = std::uint64_t{tail.extent.device_block} * kBlockSizeBytes,
                          .segments = {&segments.back(), 1},
                          .error = 0});
    }
    if (!requests.empty()) state_.device->run(requests);
    std::uint64_t failed = 0;
    for (std::size_t i = 0; i < group.size(); ++i) {
      const TailExtent& tail = group[i];
      const bool holds =
          requests[i].error == 0 &&
          extent_checksum(uuid_, tail.object, tail.extent.stamp,
                          buffers[i].first(tail.extent.size_bytes)) == tail.extent.checksum;
      if (!holds && (failed == 0 || tail.sequence < failed)) failed = tail.sequence;
    }
    return failed;
  }

  // --- Names and slots.

  Result<void> connect() NO_THREAD_SAFETY_ANALYSIS {
    Index& index = state_.index;
    for (const auto& [object, node] : objects_) {
      if (node == NodeId::kRoot) continue;
      const PendingName& pending = name_of(node);
      const NodeId parent = find(pending.parent);
      if (parent == NodeId::kNone || index.kind(parent) != NodeKind::kDirectory)
        return fail(Errc::kCorrupt, "a key without its directory");
      if (index.find(parent, pending.name) != NodeId::kNone)
        return fail(Errc::kCorrupt, "two keys of one name");
      index.link(node, parent, pending.name, pending.cookie);
      if (auto ok = claim_extents(node); !ok) return ok;
    }
    if (auto ok = check_tree(); !ok) return ok;
    quarantine();
    for (const SlotRun run : checkpoint_runs_)
      if (!state_.slots.claim(run))
        return fail(Errc::kCorrupt, "the checkpoint and a value own one slot");
    state_.checkpoint_runs = checkpoint_runs_;
    state_.recovered_nodes = index.node_count() - 1;
    names_ = {};
    return {};
  }

  // Every directory is below the root: a circle of them would be found by nobody and end no walk.
  Result<void> check_tree() NO_THREAD_SAFETY_ANALYSIS {
    std::vector<bool> reached(state_.index.node_limit(), false);
    reached[static_cast<std::size_t>(NodeId::kRoot)] = true;
    std::vector<NodeId> way;
    for (const auto& [object, node] : objects_) {
      if (state_.index.kind(node) != NodeKind::kDirectory) continue;
      way.clear();
      for (NodeId at = node; !reached[static_cast<std::size_t>(at)]; at = state_.index.parent(at)) {
        if (way.size() > objects_.size()) return fail(Errc::kCorrupt, "a circle of directories");
        way.push_back(at);
      }
      for (const NodeId at : way) reached[static_cast<std::size_t>(at)] = true;
    }
    return {};
  }

  // Slot by slot: a run may be listed twice, in the checkpoint and in the journal.
  void quarantine() NO_THREAD_SAFETY_ANALYSIS {
    for (const SlotRun run : quarantined_) {
      const auto first = static_cast<std::uint32_t>(run.first);
      for (std::uint32_t i = 0; i < run.count && first + i < state_.geometry.slot_count; ++i) {
        const SlotRun one{SlotId{first + i}, 1};
        if (state_.slots.claim(one)) state_.slots.quarantine(one);
      }
    }
  }

  Result<void> check_place(const Extent& extent) const {
    const Geometry& geometry = state_.geometry;
    const std::uint64_t first = geometry.slots_offset_bytes / kBlockSizeBytes;
    const std::uint64_t end =
        first + std::uint64_t{geometry.slot_count} * geometry.blocks_per_slot();
    if (extent.device_block < first ||
        extent.device_block + units_of(extent.size_bytes, kBlockSizeBytes) > end)
      return fail(Errc::kCorrupt, "a value outside the slots");
    return {};
  }

  // In order, apart, inside one window each, and inside the value.
  Result<void> check_shape(NodeId node, std::span<const Extent> extents) NO_THREAD_SAFETY_ANALYSIS {
    if (extents.empty()) return {};
    if (state_.index.kind(node) != NodeKind::kFile)
      return fail(Errc::kCorrupt, "a directory or symbolic link with a value");
    std::uint64_t end_bytes = 0;
    for (const Extent& extent : extents) {
      const std::uint64_t start_bytes = std::uint64_t{extent.file_block} * kBlockSizeBytes;
      const std::uint64_t last_byte = start_bytes + extent.size_bytes - 1;
      const std::uint32_t window_bytes = state_.geometry.window_size_bytes();
      if (start_bytes < end_bytes || last_byte / window_bytes != start_bytes / window_bytes)
        return fail(Errc::kCorrupt, "pieces of a value overlap");
      end_bytes = last_byte + 1;
    }
    if (end_bytes > state_.index.size_bytes(node))
      return fail(Errc::kCorrupt, "a value has bytes past its size");
    return {};
  }

  Result<void> claim_extents(NodeId node) NO_THREAD_SAFETY_ANALYSIS {
    Extent scratch;
    const auto extents = state_.index.extents(node, scratch);
    if (auto ok = check_shape(node, extents); !ok) return ok;
    for (const Extent& extent : extents)
      if (auto ok = check_place(extent); !ok) return ok;
    for (const SlotRun run : state_.runs_of(extents))
      if (!state_.slots.claim(run)) return fail(Errc::kCorrupt, "two values own one slot");
    return {};
  }

  Volume::State& state_;
  const Superblock& superblock_;
  const Uuid& uuid_;
  tsl::robin_map<std::uint64_t, NodeId> objects_;
  std::vector<PendingName> names_;  // by node number
  std::deque<TailExtent> tail_;     // in order of sequence
  std::vector<SlotRun> quarantined_;
  std::vector<SlotRun> checkpoint_runs_;
  std::uint64_t blocks_ = 0;
  std::uint64_t durable_upto_ = 0;
  std::uint64_t next_object_ = 0;
  std::uint64_t next_stamp_ = 0;
  JournalPosition end_;
  bool fell_back_ = false;
};

// Opens a new epoch behind what was replayed.
Result<void> reopen(Volume::State& state, const Recovery& recovery) {
  JournalPosition head = recovery.end();
  head.epoch = state.options.seed == 0 ? random_u64() : head.epoch * 6364136223846793005u + 1;
  bool unclean = false;
  {
    MutexLock checkpoint_lock(state.checkpoint_mutex);
    unclean = !state.superblock.clean;
  }
  {
    MutexLock turn(state.commit_turn);
    state.ring = std::make_unique<JournalRing>(state.geometry.journal_size_bytes, head);
    MutexLock lock(state.mutex);
    state.next_sequence = head.sequence;
    state.published_upto = head.sequence - 1;
    state.durable_upto = head.sequence - 1;
    state.next_object = recovery.next_object() + (unclean ? kObjectGap : 0);
    state.next_stamp = recovery.next_stamp() + (unclean ? kStampGap : 0);
    state.journal_info.size_bytes = state.geometry.journal_size_bytes;
    state.journal_info.head_offset_bytes = head.offset_bytes;
    state.journal_info.tail_offset_bytes = head.offset_bytes;
    state.journal_info.epoch = head.epoch;
    state.update_checkpoint_reserve();
  }
  if (state.options.read_only) return {};
  MutexLock checkpoint_lock(state.checkpoint_mutex);
  // The root that was loaded is the current one, and the damaged one is forgotten next.
  if (recovery.fell_back()) std::swap(state.superblock.current, state.superblock.previous);
  if (recovery.needs_checkpoint()) return run_checkpoint(state, false);
  Superblock next = state.superblock;
  next.clean = false;
  next.current.replay_from = head;
  ++next.sequence;
  if (auto ok = state.switch_superblock(next); !ok) return ok;
  MutexLock lock(state.mutex);
  state.journal_info.current = {.sequence = next.current.sequence,
                                .size_bytes = next.current.stream_bytes,
                                .written_ns = next.current.written_ns};
  return {};
}

}  // namespace

Result<void> recover(Volume::State& state) {
  Stopwatch watch;
  Superblock superblock;
  {
    MutexLock checkpoint_lock(state.checkpoint_mutex);
    superblock = state.superblock;
  }
  Recovery recovery(state, superblock);
  if (auto ok = recovery.rebuild(); !ok) return ok;
  if (auto ok = reopen(state, recovery); !ok) return ok;
  state.recovery_us = watch.lap();
  return {};
}

}  // namespace kvslot
