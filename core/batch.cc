// Reserve and publish: the two moments at which a batch holds the state lock.
#include "core/batch.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kvslot {
namespace {

std::uint32_t raw(NodeId node) { return static_cast<std::uint32_t>(node); }

Result<void> error_of(int os_errno) {
  if (os_errno == ENOSPC) return fail(Errc::kNoSpace, "writing the value", ENOSPC);
  return fail(Errc::kIo, "writing the value", os_errno);
}

}  // namespace

Batch::Reserved Batch::reserve(bool wait_for_slots) {
  MutexLock lock(state_.mutex);
  state_.counters.commit_locks.fetch_add(1, std::memory_order_relaxed);
  if (wait_for_slots) {
    std::uint64_t needed = 0;
    for (const ContentChange& change : changes_)
      for (const WindowWrite& write : change.writes) needed += state_.slots_of(write.size_bytes);
    if (needed > state_.slots.free_count() && state_.slots.doomed_count() > 0)
      return Reserved::kStarved;
  }
  const Result<void> writable =
      changes_.empty() ? state_.check_recordable() : state_.check_writable();
  if (!writable) {
    for (ContentChange& change : changes_) {
      state_.slots.unreserve(std::exchange(change.reserved_slots, 0));
      change.result = writable;
    }
    taken_count_ = changes_.size();
    return Reserved::kNothing;
  }
  planned_.reserve(changes_.size());
  for (ContentChange& change : changes_) {
    const std::uint32_t reserved_slots = std::exchange(change.reserved_slots, 0);
    state_.slots.unreserve(reserved_slots);
    PlannedChange planned;
    planned.change = &change;
    change.result = plan(change, planned);
    if (is_full_) {
      const bool again = state_.slots.reserve(reserved_slots).has_value();
      change.reserved_slots = again ? reserved_slots : 0;
      break;
    }
    ++taken_count_;
    const bool takes_part = change.result && (planned.node != NodeId::kNone);
    if (takes_part) planned_.push_back(std::move(planned));
  }
  state_.update_checkpoint_reserve();
  recorded_ = state_.take_recorded();
  if (planned_.empty() && recorded_.count == 0) return Reserved::kNothing;
  sequence_ = state_.next_sequence++;
  durable_upto_ = state_.durable_upto;
  return Reserved::kReady;
}

Result<void> Batch::plan(ContentChange& change, PlannedChange& planned) {
  if (auto ok = resolve(change, planned); !ok) return ok;
  if (planned.node == NodeId::kNone) return {};
  if (auto ok = take_slots(change, planned); !ok) {
    undo(planned);
    return ok;
  }
  describe(change, planned);
  xattr_bytes_ += xattrs_bytes(planned.image.xattrs);
  is_full_ = !planned_.empty() && xattr_bytes_ > state_.geometry.journal_size_bytes / 8;
  if (is_full_) {
    undo(planned);
    return {};
  }
  std::uint64_t bytes = 0;
  std::uint32_t slot_count = 0;
  for (const PlannedWindow& window : planned.windows) {
    for (const PlannedExtent& extent : window.extents) bytes += extent.extent.size_bytes;
    for (const SlotRun run : window.runs) slot_count += run.count;
  }
  state_.inflight.add({.node = planned.node,
                       .object = planned.image.object,
                       .batch = state_.next_sequence,
                       .slots = slot_count,
                       .bytes = bytes,
                       .waiters = change.waiters,
                       .state = InflightState::kReserved,
                       .since = std::chrono::steady_clock::now()});
  state_.hold_locked(planned.node, 1);
  return {};
}

// Which node the change is for. With keep_existing and an existing key: none.
Result<void> Batch::resolve(ContentChange& change, PlannedChange& planned) {
  Index& index = state_.index;
  if (change.size_bytes > kValueSizeBytesMax)
    return fail(Errc::kTooLarge, "a value has at most 16 TiB", EFBIG);
  if (change.node != NodeId::kNone) {
    if (!index.is_valid(change.node)) return fail(Errc::kNotFound, "no such node", ENOENT);
    if (index.kind(change.node) != NodeKind::kFile)
      return fail(Errc::kWrongKind, "only files have values", EISDIR);
    if (!index.is_linked(change.node) && !change.place_only)
      return fail(Errc::kNotFound, "the file was removed", ENOENT);
    planned.node = change.node;
    return {};
  }
  const Attributes attributes = state_.with_times(change.attributes);
  auto place = state_.place_of(change.key, true, attributes);
  if (!place) return fail(place);
  if (place->node == NodeId::kNone) {
    const auto node =
        state_.add_node(place->directory, place->name, NodeKind::kFile, attributes, {});
    if (!node) return fail(node);
    planned.node = *node;
    planned.created = true;
    change.newly_stored = true;
    return {};
  }
  if (index.kind(place->node) != NodeKind::kFile)
    return fail(Errc::kWrongKind, "the key is a directory or a symbolic link", EISDIR);
  if (change.keep_existing) return {};
  Attributes updated = index.attributes(place->node);
  updated.mtime_ns = attributes.mtime_ns;
  updated.ctime_ns = attributes.ctime_ns;
  index.set_attributes(place->node, updated);
  planned.node = place->node;
  return {};
}

Result<void> Batch::take_slots(ContentChange& change, PlannedChange& planned) {
  std::uint64_t needed = 0;
  for (const WindowWrite& write : change.writes) needed += state_.slots_of(write.size_bytes);
  // Each slot may become an extent of its own, and the checkpoint has to hold them all.
  // What takes no slot (a truncation, windows that are placed already) is never refused.
  if (needed != 0 &&
      (!state_.has_available(needed) || !state_.admit_image_bytes(needed * kExtentRecordBytes))) {
    state_.counters.no_space.fetch_add(1, std::memory_order_relaxed);
    return fail(Errc::kNoSpace, "no free slots", ENOSPC);
  }
  for (const WindowWrite& write : change.writes) {
    PlannedWindow window{.window = write.window, .runs = {}, .extents = {}};
    if (!state_.slots.take(state_.slots_of(write.size_bytes), window.runs))
      return fail(Errc::kNoSpace, "no free slots", ENOSPC);
    cut_window(write, window);
    state_.unindexed_extents += window.extents.size();
    planned.windows.push_back(std::move(window));
  }
  return {};
}

// Cuts a window's bytes at the ends of its runs and at the extent size.
void Batch::cut_window(const WindowWrite& write, PlannedWindow& window) {
  const std::uint32_t window_block = static_cast<std::uint32_t>(
      std::uint64_t{write.window} * state_.geometry.window_size_bytes() / kBlockSizeBytes);
  KVSLOT_CHECK(write.data.capacity() >= round_up(write.size_bytes, kBlockSizeBytes),
               "a window's buffer holds whole blocks");
  std::uint32_t done = 0;
  window.extents.clear();
  for (const SlotRun run : window.runs) {
    const std::uint64_t run_bytes = std::uint64_t{run.count} * state_.geometry.slot_size_bytes;
    std::uint32_t device_block = state_.first_block_of(run.first);
    const auto end =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(done + run_bytes, write.size_bytes));
    while (done < end) {
      const std::uint32_t size = std::min(end - done, kExtentSizeBytesMax);
      PlannedExtent planned;
      planned.extent = {.file_block = window_block + done / kBlockSizeBytes,
                        .size_bytes = size,
                        .device_block = device_block,
                        .stamp = state_.next_stamp++,
                        .checksum = 0};
      planned.data = write.data.data() + done;
      window.extents.push_back(planned);
      done += size;
      device_block += size / kBlockSizeBytes;
    }
  }
}

// Copies what the record will say.
void Batch::describe(ContentChange& change, PlannedChange& planned) {
  Index& index = state_.index;
  const bool first_commit = index.stored(planned.node) != StoredState::kStored;
  planned.is_set = first_commit || change.whole;
  NodeImage& image = planned.image;
  image.object = index.object(planned.node);
  planned.parent = index.parent(planned.node);
  image.parent = index.is_linked(planned.node) ? index.object(planned.parent) : ObjectId::kNone;
  image.name = std::string(index.name(planned.node));
  image.attributes = index.attributes(planned.node);
  image.size_bytes = change.size_bytes;
  const std::uint64_t place = index.cookie(planned.node);
  image.cookie = place == static_cast<std::uint64_t>(image.object) ? 0 : place;
  if (planned.is_set) image.xattrs = index.xattrs(planned.node);
  if (change.place_only) return;
  if (first_commit) {
    index.set_stored(planned.node, StoredState::kStoring);
    const auto shadow = state_.shadows.find(raw(planned.node));
    if (shadow != state_.shadows.end()) planned.hidden = index.object(shadow->second);
  }
}

// Gives back what an unpublished change took.
void Batch::undo(PlannedChange& planned) {
  for (const PlannedWindow& window : planned.windows) {
    for (const SlotRun run : window.runs) state_.slots.give_back(run);
    state_.unindexed_extents -= window.extents.size();
  }
  planned.windows.clear();
  if (state_.index.stored(planned.node) == StoredState::kStoring) {
    state_.index.set_stored(planned.node, StoredState::kUnstored);
    if (const auto orphan = state_.orphans.find(raw(planned.node)); orphan != state_.orphans.end())
      orphan.value() = 0;
    if (state_.index.is_shadowed(planned.node)) state_.unhide(planned.node);
  }
  if (planned.created && state_.index.is_linked(planned.node)) state_.retire(planned.node);
  planned.change->newly_stored = false;
}

namespace {

bool has_failed(const PlannedWindow& window) {
  return std::any_of(window.extents.begin(), window.extents.end(),
                     [](const PlannedExtent& extent) { return extent.error != 0; });
}

}  // namespace

void Batch::quarantine_window(PlannedWindow& window) {
  for (const SlotRun run : window.runs) {
    state_.slots.quarantine(run);
    quarantined_.push_back(run);
  }
  window.runs.clear();
}

void Batch::quarantine_failed(PlannedChange& planned) {
  MutexLock lock(state_.mutex);
  for (PlannedWindow& window : planned.windows)
    if (has_failed(window)) quarantine_window(window);
}

bool Batch::lacks_slots_to_move() const {
  MutexLock lock(state_.mutex);
  std::uint64_t needed = 0;
  for (const PlannedChange& planned : planned_)
    for (std::size_t i = 0; i < planned.windows.size(); ++i)
      if (has_failed(planned.windows[i]))
        needed += state_.slots_of(planned.change->writes[i].size_bytes);
  return needed > state_.slots.free_count() && state_.slots.doomed_count() > 0;
}

bool Batch::move_elsewhere(PlannedChange& planned) {
  MutexLock lock(state_.mutex);
  for (std::size_t i = 0; i < planned.windows.size(); ++i) {
    PlannedWindow& window = planned.windows[i];
    if (!has_failed(window)) continue;
    quarantine_window(window);
    state_.unindexed_extents -= window.extents.size();
    const WindowWrite& write = planned.change->writes[i];
    state_.update_checkpoint_reserve();  // which the bad slots made larger, and nobody may take
    const std::uint32_t needed = state_.slots_of(write.size_bytes);
    if (!state_.has_available(needed) || !state_.slots.take(needed, window.runs)) {
      window.extents.clear();
      return false;
    }
    cut_window(write, window);
    state_.unindexed_extents += window.extents.size();
    for (PlannedExtent& extent : window.extents) extent.error = -1;  // still to be written
  }
  return true;
}

std::vector<std::byte> Batch::encode_records(std::uint32_t& count) const {
  std::vector<std::byte> bytes = recorded_.bytes;
  count = recorded_.count;
  const auto add = [&](const Record& record) {
    encode_record(bytes, record);
    ++count;
  };
  for (const SlotRun run : quarantined_) add(QuarantineSlots{run});
  for (const PlannedChange& planned : planned_) {
    if (planned.is_placing() || planned.error != 0) continue;
    if (planned.hidden != ObjectId::kNone) add(RemoveNode{planned.hidden});
    if (planned.is_set) {
      SetNode set{planned.image};
      for (const PlacedWindow& window : planned.change->placed)
        set.image.extents.insert(set.image.extents.end(), window.extents.begin(),
                                 window.extents.end());
      for (const PlannedWindow& window : planned.windows)
        for (const PlannedExtent& extent : window.extents)
          set.image.extents.push_back(extent.extent);
      std::sort(set.image.extents.begin(), set.image.extents.end(),
                [](const Extent& a, const Extent& b) { return a.file_block < b.file_block; });
      add(std::move(set));
      continue;
    }
    PatchContent patch{.object = planned.image.object,
                       .attributes = planned.image.attributes,
                       .size_bytes = planned.image.size_bytes,
                       .windows = {}};
    for (const PlacedWindow& window : planned.change->placed)
      patch.windows.push_back({window.window, window.extents});
    for (const PlannedWindow& window : planned.windows) {
      patch.windows.push_back({window.window, {}});
      for (const PlannedExtent& extent : window.extents)
        patch.windows.back().extents.push_back(extent.extent);
    }
    add(std::move(patch));
  }
  return bytes;
}

void Batch::publish(const BatchRecord& measured, std::uint64_t journal_bytes) {
  MutexLock lock(state_.mutex);
  state_.counters.commit_locks.fetch_add(1, std::memory_order_relaxed);
  BatchRecord record = measured;
  record.id = sequence_;
  record.records = recorded_.count;
  record.journal_bytes = static_cast<std::uint32_t>(journal_bytes);
  state_.inflight.publish();
  state_.published_upto = sequence_;
  state_.recorded_refused = false;
  for (PlannedChange& planned : planned_) {
    finish(planned);
    if (planned.error != 0) ++record.failures;
    if (planned.error == 0 && !planned.is_placing()) ++record.keys;
  }
  state_.unflushed_bytes += record.value_bytes + journal_bytes;
  state_.batches.push_back(record);
  if (state_.batches.size() > kBatchRecordsKept) state_.batches.pop_front();
  state_.update_checkpoint_reserve();
  state_.reclaim();
  auto& counters = state_.counters;
  counters.batches.fetch_add(1, std::memory_order_relaxed);
  counters.batched_keys.fetch_add(record.keys, std::memory_order_relaxed);
  counters.puts.fetch_add(record.keys, std::memory_order_relaxed);
  counters.value_bytes_written.fetch_add(record.value_bytes, std::memory_order_relaxed);
  counters.journal_bytes.fetch_add(journal_bytes, std::memory_order_relaxed);
}

void Batch::abandon(const Error& error, bool certain) {
  MutexLock lock(state_.mutex);
  state_.inflight.clear();
  if (certain) {
    KVSLOT_CHECK(state_.next_sequence == sequence_ + 1, "batches are one at a time");
    state_.next_sequence = sequence_;
    RecordedChanges later = std::move(state_.recorded);
    state_.recorded = std::move(recorded_);
    state_.recorded.bytes.insert(state_.recorded.bytes.end(), later.bytes.begin(),
                                 later.bytes.end());
    state_.recorded.count += later.count;
    state_.recorded.touched = std::move(later.touched);
    state_.recorded_refused = true;
    state_.recorded_drained.notify_all();
  }
  for (PlannedChange& planned : planned_) {
    if (certain) {
      undo(planned);
    } else {
      planned.windows.clear();
    }
    planned.change->result = std::unexpected(error);
    state_.release_locked(planned.node, 1);
  }
}

void Batch::finish(PlannedChange& planned) {
  if (planned.error != 0) {
    planned.change->result = error_of(planned.error);
    undo(planned);
  } else if (planned.is_placing()) {
    finish_placing(planned);
  } else {
    publish_content(planned);
  }
  planned.change->written = planned.error == 0;
  state_.release_locked(planned.node, 1);
}

void Batch::finish_placing(PlannedChange& planned) {
  for (const PlannedWindow& window : planned.windows) {
    PlacedWindow placed{.window = window.window, .extents = {}};
    for (const PlannedExtent& extent : window.extents) placed.extents.push_back(extent.extent);
    if (!placed.extents.empty()) state_.placed[placed.extents.front().stamp] = window.runs;
    planned.change->placed.push_back(std::move(placed));
  }
}

void Batch::publish_content(PlannedChange& planned) {
  std::vector<Extent> replaced;
  std::vector<Extent> content = merged_content(planned, replaced);
  for (const PlacedWindow& window : planned.change->placed) {
    if (!window.extents.empty()) state_.placed.erase(window.extents.front().stamp);
    state_.unindexed_extents -= window.extents.size();
  }
  for (const PlannedWindow& window : planned.windows)
    state_.unindexed_extents -= window.extents.size();
  state_.doom_extents(replaced, sequence_);
  state_.index.set_content(planned.node, planned.change->size_bytes, std::move(content));
  settle_names(planned);
}

// A first commit makes the node part of the stored tree under the name it had when reserved; what
// happened to the name since is recorded now.
void Batch::settle_names(PlannedChange& planned) {
  Index& index = state_.index;
  if (index.stored(planned.node) != StoredState::kStoring) return;
  index.set_stored(planned.node, StoredState::kStored);
  if (!index.is_linked(planned.node) && !index.is_shadowed(planned.node)) {
    state_.record(RemoveNode{planned.image.object});
    state_.orphans[raw(planned.node)] = state_.next_sequence;
    return;
  }
  const bool moved = index.parent(planned.node) != planned.parent ||
                     index.name(planned.node) != planned.image.name;
  if (moved) {
    const std::uint64_t place = index.cookie(planned.node);
    state_.record(
        MoveNode{.object = planned.image.object,
                 .parent = index.object(index.parent(planned.node)),
                 .cookie = place == static_cast<std::uint64_t>(planned.image.object) ? 0 : place,
                 .ctime_ns = index.attributes(planned.node).ctime_ns,
                 .name = std::string(index.name(planned.node))});
  }
  const Attributes now = index.attributes(planned.node);
  const Attributes& then = planned.image.attributes;
  const bool touched = now.mode != then.mode || now.uid != then.uid || now.gid != then.gid ||
                       now.mtime_ns != then.mtime_ns || now.atime_ns != then.atime_ns;
  if (touched) state_.record(SetAttributes{planned.image.object, now});
  if (index.xattrs(planned.node) != planned.image.xattrs)
    state_.record(SetXattrs{planned.image.object, now.ctime_ns, index.xattrs(planned.node)});
  state_.end_shadow(planned.node);
}

// The extents the value has after this change; those it gives up are appended to `replaced`.
std::vector<Extent> Batch::merged_content(const PlannedChange& planned,
                                          std::vector<Extent>& replaced) const {
  const ContentChange& change = *planned.change;
  std::vector<std::uint64_t> windows;
  std::vector<Extent> content;
  for (const PlacedWindow& window : change.placed) {
    windows.push_back(window.window);
    content.insert(content.end(), window.extents.begin(), window.extents.end());
  }
  for (const PlannedWindow& window : planned.windows) {
    windows.push_back(window.window);
    for (const PlannedExtent& extent : window.extents) content.push_back(extent.extent);
  }
  std::sort(windows.begin(), windows.end());
  Extent scratch;
  for (const Extent& old : state_.index.extents(planned.node, scratch)) {
    const bool gone = change.whole ||
                      std::uint64_t{old.file_block} * kBlockSizeBytes >= change.size_bytes ||
                      std::binary_search(windows.begin(), windows.end(), state_.window_of(old));
    (gone ? replaced : content).push_back(old);
  }
  std::sort(content.begin(), content.end(),
            [](const Extent& a, const Extent& b) { return a.file_block < b.file_block; });
  return content;
}

}  // namespace kvslot
