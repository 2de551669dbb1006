// Checkpoint stream and journal records into the index.
#include "core/state_loader.h"

#include <algorithm>

#include "core/device_io.h"

namespace kvslot {

Result<void> StateLoader::load(const CheckpointRoot& root, bool is_previous, std::uint64_t limit) {
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

void StateLoader::clear(const CheckpointRoot& root) NO_THREAD_SAFETY_ANALYSIS {
  state_.index.clear();
  objects_.clear();
  names_.clear();
  tail_.clear();
  tail_blocks_.clear();
  quarantined_.clear();
  checkpoint_runs_.clear();
  blocks_ = 0;
  // The superblock was written after a flush of these.
  durable_upto_ = std::max(durable_upto_, superblock_.current.included_upto);
  next_object_ = root.next_object;
  next_stamp_ = root.next_stamp;
  end_ = root.replay_from;
  const Attributes attributes{.mode = 0755,
                              .uid = superblock_.root_uid,
                              .gid = superblock_.root_gid,
                              .atime_ns = superblock_.formatted_ns,
                              .mtime_ns = superblock_.formatted_ns,
                              .ctime_ns = superblock_.formatted_ns};
  const NodeId node =
      state_.index.add(ObjectId::kRoot, NodeKind::kDirectory, attributes, StoredState::kStored);
  KVSLOT_CHECK(node == NodeId::kRoot, "the root is the first node");
  objects_[1] = node;
  name_of(node) = {};
}

StateLoader::PendingName& StateLoader::name_of(NodeId node) {
  const auto number = static_cast<std::size_t>(node);
  if (number >= names_.size()) names_.resize(std::max(number + 1, names_.size() * 2));
  return names_[number];
}

// --- The checkpoint.

Result<std::vector<ManifestEntry>> StateLoader::read_manifests(const CheckpointRoot& root,
                                                               std::vector<SlotRun>& runs) const {
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
    runs.push_back({SlotId{slot}, 1});
    slot = manifest->next_slot;
  }
  return entries;
}

Result<SlotRun> StateLoader::run_of(const ManifestEntry& entry) const {
  const std::uint32_t slots = state_.slots_of(entry.size_bytes);
  if (entry.slot >= state_.geometry.slot_count || slots > state_.geometry.slot_count - entry.slot)
    return fail(Errc::kCorrupt, "checkpoint: chunk slot out of range");
  return SlotRun{SlotId{entry.slot}, slots};
}

Result<std::vector<SlotRun>> StateLoader::runs_of(const CheckpointRoot& root) const {
  std::vector<SlotRun> runs;
  const auto entries = read_manifests(root, runs);
  if (!entries) return fail(entries);
  for (const ManifestEntry& entry : *entries) {
    const auto run = run_of(entry);
    if (!run) return fail(run);
    runs.push_back(*run);
  }
  return runs;
}

Result<void> StateLoader::load_checkpoint(const CheckpointRoot& root) {
  const auto entries = read_manifests(root, checkpoint_runs_);
  if (!entries) return fail(entries);
  const Buffer buffer = Buffer::from_heap(kChunkSizeBytesMax);
  std::vector<std::byte> stream;
  std::uint64_t stream_bytes = 0;
  std::uint32_t index = 0;
  for (const ManifestEntry& entry : *entries) {
    const auto run = run_of(entry);
    if (!run) return fail(run);
    const std::uint64_t offset = std::uint64_t{state_.first_block_of(run->first)} * kBlockSizeBytes;
    const Bytes chunk = buffer.first(entry.size_bytes);
    if (auto ok = read_device(*state_.device, offset, chunk); !ok) return ok;
    const auto payload = open_chunk(chunk, root.sequence, index++, uuid_);
    if (!payload) return fail(payload);
    checkpoint_runs_.push_back(*run);
    stream.insert(stream.end(), payload->begin(), payload->end());
    stream_bytes += payload->size();
    if (auto ok = apply_stream(stream); !ok) return ok;
  }
  if (!stream.empty() || stream_bytes != root.stream_bytes)
    return fail(Errc::kCorrupt, "checkpoint: ends in the middle of a record");
  return {};
}

// Applies the whole records at the front of the stream and leaves the rest.
Result<void> StateLoader::apply_stream(std::vector<std::byte>& stream) {
  RecordReader in(stream);
  while (true) {
    auto record = in.next();
    if (!record) return fail(record);
    if (!*record) break;
    apply(std::move(**record), 0);
  }
  stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(in.done_bytes()));
  return {};
}

// --- The journal.

Result<void> StateLoader::replay(const JournalPosition& from, std::uint64_t limit) {
  end_ = from;
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
        end_ = block.behind(state_.geometry.journal_size_bytes);
        durable_upto_ = std::max(durable_upto_, block.header.durable_upto);
        tail_blocks_.push_back(
            {block.header.sequence, block.offset_bytes, block.header.size_bytes});
        const auto pop_durable = [&](auto& tail) {
          while (!tail.empty() && tail.front().sequence <= durable_upto_) tail.pop_front();
        };
        pop_durable(tail_);
        pop_durable(tail_blocks_);
        return true;
      });
  if (end) return {};
  const bool is_unreadable = end.error().code == Errc::kIo && !is_device_lost(end.error().os_errno);
  if (!is_unreadable) return fail(end);
  if (!state_.options.read_only)
    return fail(Errc::kIo,
                "the journal cannot be read; mount with -o ro, or take out what is whole with "
                "'kvslot fsck --salvage DIR'",
                end.error().os_errno);
  state_.note_fault({.time_ns = 0,
                     .operation = "recovery",
                     .key = {},
                     .slot = {},
                     .os_errno = end.error().os_errno,
                     .action = "the journal cannot be read further: what came after it is not "
                               "shown"});
  return {};
}

NodeId StateLoader::find(ObjectId object) const {
  const auto found = objects_.find(static_cast<std::uint64_t>(object));
  return found == objects_.end() ? NodeId::kNone : found->second;
}

// `sequence` is 0 for records of a checkpoint, whose values were flushed.
void StateLoader::apply(Record record, std::uint64_t sequence) {
  std::visit([&](auto& body) { apply_body(body, sequence); }, record);
}

void StateLoader::apply_body(SetNode& record, std::uint64_t sequence) NO_THREAD_SAFETY_ANALYSIS {
  NodeImage& image = record.image;
  note_extents(image.object, image.extents, sequence);
  NodeId node = find(image.object);
  if (node == NodeId::kNone) {
    node = state_.index.add(image.object, image.kind, image.attributes, StoredState::kStored);
    objects_[static_cast<std::uint64_t>(image.object)] = node;
  } else {
    state_.index.set_attributes(node, image.attributes);
  }
  if (image.kind == NodeKind::kFile || !image.extents.empty())  // the latter is judged later
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

void StateLoader::apply_body(MoveNode& record, std::uint64_t) NO_THREAD_SAFETY_ANALYSIS {
  next_object_ = std::max(next_object_, record.cookie + 1);
  const NodeId node = find(record.object);
  if (node == NodeId::kNone) return;
  Attributes attributes = state_.index.attributes(node);
  attributes.ctime_ns = record.ctime_ns;
  state_.index.set_attributes(node, attributes);
  name_of(node) = {record.parent, record.cookie, std::move(record.name)};
}

void StateLoader::apply_body(RemoveNode& record, std::uint64_t) NO_THREAD_SAFETY_ANALYSIS {
  const NodeId node = find(record.object);
  if (node == NodeId::kNone || node == NodeId::kRoot) return;
  objects_.erase(static_cast<std::uint64_t>(record.object));
  name_of(node) = {};
  state_.index.erase(node);
}

void StateLoader::apply_body(SetAttributes& record, std::uint64_t) NO_THREAD_SAFETY_ANALYSIS {
  const NodeId node = find(record.object);
  if (node != NodeId::kNone) state_.index.set_attributes(node, record.attributes);
}

void StateLoader::apply_body(SetXattrs& record, std::uint64_t) NO_THREAD_SAFETY_ANALYSIS {
  const NodeId node = find(record.object);
  if (node == NodeId::kNone) return;
  Attributes attributes = state_.index.attributes(node);
  attributes.ctime_ns = record.ctime_ns;
  state_.index.set_attributes(node, attributes);
  state_.index.set_xattrs(node, std::move(record.xattrs));
}

void StateLoader::apply_body(PatchContent& record,
                             std::uint64_t sequence) NO_THREAD_SAFETY_ANALYSIS {
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

void StateLoader::apply_body(QuarantineSlots& record, std::uint64_t) {
  quarantined_.push_back(record.run);
}

void StateLoader::note_extents(ObjectId object, const std::vector<Extent>& extents,
                               std::uint64_t sequence) {
  for (const Extent& extent : extents) {
    next_stamp_ = std::max(next_stamp_, extent.stamp + 1);
    if (sequence != 0) tail_.push_back({sequence, object, extent});
  }
}

}  // namespace kvslot
