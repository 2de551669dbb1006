// Rebuilding the state at open. Nothing is written before all of it is known.
//
//   load       checkpoint, then the journal from its position, by object id (state_loader.*)
//   verify     values written after the last flush that the journal knows of (log_tail.*): the
//              first batch with one that does not match ends the log, and loading starts over up
//              to there
//   connect    names to directories, slots to values
//   rewrite    what was found behind that flush, since a cache may show what the device lost
//   reopen     a new epoch, so that no block of an earlier life is ever replayed
//
// core/LAYOUT.md "Recovery" gives the reasons.
#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "core/device_io.h"
#include "core/durable_mark.h"
#include "core/log_tail.h"
#include "core/state.h"
#include "core/state_loader.h"
#include "core/stopwatch.h"
#include "core/superblocks.h"

namespace kvslot {
namespace {

// Identities that a crash may have used without leaving a record; they are passed over.
constexpr std::uint64_t kObjectGap = 1 << 16;
constexpr std::uint64_t kStampGap = 1 << 20;

// Threads: one thread at a time, before anybody else knows the volume.
class Recovery {
 public:
  Recovery(Volume::State& state, const Superblock& superblock)
      : state_(state),
        superblock_(superblock),
        uuid_(superblock.geometry.uuid),
        loader_(state, superblock),
        tail_(state, loader_, uuid_) {}

  Result<void> rebuild() NO_THREAD_SAFETY_ANALYSIS {
    auto loaded = rebuild_from(superblock_.current, false);
    const bool damaged =
        !loaded && !is_device_lost(loaded.error().os_errno) &&
        (loaded.error().code == Errc::kCorrupt || loaded.error().code == Errc::kIo);
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

  [[nodiscard]] bool needs_checkpoint() const { return loader_.blocks() != 0 || fell_back_; }
  [[nodiscard]] bool fell_back() const { return fell_back_; }
  // Whether the block that the log ends before is whole, but for a value.
  [[nodiscard]] bool is_cut() const { return is_cut_; }
  [[nodiscard]] const StateLoader& loaded() const { return loader_; }

  // The checkpoint before keeps its slots, as it does within a life, to stand in for the current
  // one; its log lies right behind the head of the ring, where it is overwritten last. One that is
  // gone, or has lost slots to values, keeps none.
  Result<void> keep_previous() {
    if (superblock_.previous.sequence == superblock_.current.sequence) return {};
    auto runs = loader_.runs_of(superblock_.previous);
    if (!runs && is_device_lost(runs.error().os_errno)) return fail(runs);
    if (!runs) return {};
    MutexLock lock(state_.mutex);
    std::vector<SlotRun> claimed;
    for (const SlotRun run : *runs)
      if (state_.slots.claim(run)) claimed.push_back(run);
    const bool is_whole = claimed.size() == runs->size();
    state_.previous_runs = std::move(claimed);
    state_.journal_info.previous = info_of(superblock_.previous);
    if (!is_whole) state_.give_up_previous();
    state_.update_checkpoint_reserve();
    return {};
  }

  // What was replayed, and the superblock that led to it, may be in a cache only: after a process
  // died, power may still be lost; and after a flush that failed, the page cache has what the
  // device does not, and calls it written, so that no flush would carry it there. A checkpoint goes
  // to slots that those blocks freed and that older superblocks name: before anything else is
  // written, all of it is, once more and durably: the tail by this, the superblock by the caller.
  Result<void> write_tail_again() { return tail_.write_again(); }

 private:
  Result<void> rebuild_from(const CheckpointRoot& root, bool is_previous) {
    std::uint64_t limit = UINT64_MAX;
    while (true) {
      if (auto ok = loader_.load(root, is_previous, limit); !ok) return ok;
      // The image may hold effects of blocks up to this one; only replaying them makes it exact.
      if (loader_.end().sequence <= superblock_.current.included_upto)
        return fail(Errc::kCorrupt, "the journal ends before its checkpoint");
      if (auto ok = check_chain(limit); !ok) return ok;
      const auto failed = tail_.first_missing();
      if (!failed) return fail(failed);
      is_cut_ = limit != UINT64_MAX;
      if (*failed == 0) return {};
      limit = *failed - 1;
      state_.note_fault({.time_ns = 0,
                         .operation = "recovery",
                         .key = {},
                         .slot = {},
                         .os_errno = 0,
                         .action = "the log ends before block " + std::to_string(*failed) +
                                   ", whose values had not reached the device"});
    }
  }

  // A chain that a crash ended has nothing behind it that was written after a flush of the missing
  // block. Where there is something, keys are missing that were durable: they can only be read.
  Result<void> check_chain(std::uint64_t limit) {
    if (limit != UINT64_MAX) return {};
    const auto damaged = is_chain_damaged(*state_.device, state_.geometry, loader_.end());
    if (!damaged) return fail(damaged);
    if (!*damaged) return {};
    if (!state_.options.read_only)
      return fail(Errc::kCorrupt,
                  "a journal block that was durable is damaged; mount with -o ro, or take out what "
                  "is whole with 'kvslot fsck --salvage DIR'",
                  EIO);
    state_.note_fault({.time_ns = 0,
                       .operation = "recovery",
                       .key = {},
                       .slot = {},
                       .os_errno = EIO,
                       .action = "a journal block that was durable is damaged: what came after it "
                                 "is not shown"});
    return {};
  }

  // --- Names and slots.

  Result<void> connect() NO_THREAD_SAFETY_ANALYSIS {
    Index& index = state_.index;
    for (const auto& [object, node] : loader_.objects()) {
      if (node == NodeId::kRoot) continue;
      const StateLoader::PendingName& pending = loader_.name_of(node);
      const NodeId parent = loader_.find(pending.parent);
      if (parent == NodeId::kNone || index.kind(parent) != NodeKind::kDirectory)
        return fail(Errc::kCorrupt, "a key without its directory");
      if (index.find(parent, pending.name) != NodeId::kNone)
        return fail(Errc::kCorrupt, "two keys of one name");
      if (is_place_taken(parent, pending.cookie != 0 ? pending.cookie : object))
        return fail(Errc::kCorrupt, "two keys in one place of a directory");
      index.link(node, parent, pending.name, pending.cookie);
      if (auto ok = claim_extents(node); !ok) return ok;
    }
    if (auto ok = check_tree(); !ok) return ok;
    for (const SlotRun run : loader_.checkpoint_runs())
      if (!state_.slots.claim(run))
        return fail(Errc::kCorrupt, "the checkpoint and a value own one slot");
    note_if_cut_off();
    quarantine();
    state_.checkpoint_runs = loader_.checkpoint_runs();
    state_.recovered_nodes = index.node_count() - 1;
    return {};
  }

  // Of a device that lost its end, which nobody writes to.
  void note_if_cut_off() {
    const std::uint64_t is_bytes = state_.device->info().size_bytes;
    const std::uint64_t was_bytes = state_.geometry.size_bytes;
    if (is_bytes >= was_bytes) return;
    state_.note_fault(
        {.time_ns = 0,
         .operation = "device",
         .key = {},
         .slot = {},
         .os_errno = 0,
         .action = "is shorter than when it was formatted: " + std::to_string(is_bytes) + " of " +
                   std::to_string(was_bytes) +
                   " bytes; keys that reach behind its end: " + std::to_string(cut_off_)});
  }

  [[nodiscard]] bool is_place_taken(NodeId directory,
                                    std::uint64_t cookie) const NO_THREAD_SAFETY_ANALYSIS {
    const auto next = state_.index.list(directory, cookie - 1, 1);
    return !next.empty() && state_.index.cookie(next.front()) == cookie;
  }

  // Every directory is below the root: a circle of them would be found by nobody and end no walk.
  Result<void> check_tree() NO_THREAD_SAFETY_ANALYSIS {
    std::vector<bool> reached(state_.index.node_limit(), false);
    reached[static_cast<std::size_t>(NodeId::kRoot)] = true;
    std::vector<NodeId> way;
    for (const auto& [object, node] : loader_.objects()) {
      if (state_.index.kind(node) != NodeKind::kDirectory) continue;
      way.clear();
      for (NodeId at = node; !reached[static_cast<std::size_t>(at)]; at = state_.index.parent(at)) {
        if (way.size() > loader_.objects().size())
          return fail(Errc::kCorrupt, "a circle of directories");
        way.push_back(at);
      }
      for (const NodeId at : way) reached[static_cast<std::size_t>(at)] = true;
    }
    return {};
  }

  // Slot by slot, and each once: a run may be listed again and again, in the checkpoint and in the
  // journal.
  void quarantine() NO_THREAD_SAFETY_ANALYSIS {
    std::vector<SlotRun> runs = loader_.quarantined();
    std::sort(runs.begin(), runs.end());
    std::uint64_t next = 0;
    for (const SlotRun run : runs) {
      const auto first = std::uint64_t{static_cast<std::uint32_t>(run.first)};
      const auto end = std::min<std::uint64_t>(first + run.count, state_.geometry.slot_count);
      for (next = std::max(next, first); next < end; ++next) {
        const SlotRun one{SlotId{static_cast<std::uint32_t>(next)}, 1};
        if (state_.slots.claim(one)) state_.slots.quarantine(one);
      }
    }
  }

  // In order, apart, inside one window each, and inside the value. Pieces of one window may share a
  // slot, one behind the other; nothing else may.
  Result<void> check_shape(NodeId node, std::span<const Extent> extents) NO_THREAD_SAFETY_ANALYSIS {
    if (extents.empty()) return {};
    if (state_.index.kind(node) != NodeKind::kFile)
      return fail(Errc::kCorrupt, "a directory or symbolic link with a value");
    const std::uint32_t window_bytes = state_.geometry.window_size_bytes();
    const Extent* before = nullptr;
    for (const Extent& extent : extents) {
      const std::uint64_t start_bytes = std::uint64_t{extent.file_block} * kBlockSizeBytes;
      const std::uint64_t last_byte = start_bytes + extent.size_bytes - 1;
      const bool overlaps =
          before != nullptr &&
          start_bytes < std::uint64_t{before->file_block} * kBlockSizeBytes + before->size_bytes;
      if (overlaps || last_byte / window_bytes != start_bytes / window_bytes)
        return fail(Errc::kCorrupt, "pieces of a value overlap");
      if (last_byte >= state_.index.size_bytes(node))
        return fail(Errc::kCorrupt, "a value has bytes past its size");
      if (before != nullptr && shares_wrongly(*before, extent))
        return fail(Errc::kCorrupt, "two values own one slot");
      before = &extent;
    }
    return {};
  }

  [[nodiscard]] bool shares_wrongly(const Extent& before, const Extent& extent) const {
    const std::uint64_t end = before.device_block + units_of(before.size_bytes, kBlockSizeBytes);
    const auto slot = [&](std::uint64_t block) {
      return state_.slot_of(static_cast<std::uint32_t>(block));
    };
    const SlotId last = slot(end - 1);
    const SlotId first = slot(extent.device_block);
    if (first < slot(before.device_block) || first > last) return false;
    return extent.device_block < end || state_.window_of(before) != state_.window_of(extent);
  }

  Result<void> claim_extents(NodeId node) NO_THREAD_SAFETY_ANALYSIS {
    Extent scratch;
    const auto extents = state_.index.extents(node, scratch);
    bool is_cut_off = false;
    for (const Extent& extent : extents) {
      if (auto ok = check_place(state_.geometry, extent); !ok) return ok;
      const std::uint64_t end = extent.device_block + units_of(extent.size_bytes, kBlockSizeBytes);
      is_cut_off |= end * kBlockSizeBytes > state_.device->info().size_bytes;
    }
    if (is_cut_off) ++cut_off_;
    if (auto ok = check_shape(node, extents); !ok) return ok;
    for (const SlotRun run : state_.runs_of(extents))
      if (!state_.slots.claim(run)) return fail(Errc::kCorrupt, "two values own one slot");
    return {};
  }

  Volume::State& state_;
  const Superblock& superblock_;
  const Uuid& uuid_;
  StateLoader loader_;
  LogTail tail_;
  bool fell_back_ = false;
  bool is_cut_ = false;
  std::uint64_t cut_off_ = 0;  // files with bytes behind the end of the device
};

// Ends what lies behind here, and begins what goes on. A block that the log was cut before is
// whole, and would be replayed whenever the next one stands elsewhere, at the beginning of the
// ring. And attempts at a checkpoint, of this opening or one that was interrupted, may be whole and
// say that another epoch began here: to salvage, which may have no superblock, the blocks that go
// on say that this one was flushed, as nothing does that was cut off. The empty block repeats what
// the cut-off ones may have known to be durable; torn, it ends the log where it ends now.
Result<void> cover_end(Volume::State& state) REQUIRES(state.commit_turn) {
  const std::uint64_t sequence = state.ring->head().sequence;
  if (auto ok = append_empty_block(state, sequence - 1); !ok) return ok;
  if (auto ok = state.flush_device(); !ok) return ok;
  MutexLock lock(state.mutex);
  state.next_sequence = sequence + 1;
  state.published_upto = state.durable_upto = state.noted_upto = sequence;
  return {};
}

// The log goes on here, behind blocks that are all durable.
void continue_at(Volume::State& state, const JournalPosition& head)
    REQUIRES(state.commit_turn, state.mutex) {
  state.ring = std::make_unique<JournalRing>(state.geometry.journal_size_bytes, head);
  state.next_sequence = head.sequence;
  state.published_upto = state.durable_upto = state.noted_upto = head.sequence - 1;
  state.journal_info.size_bytes = state.geometry.journal_size_bytes;
  state.journal_info.head_offset_bytes = head.offset_bytes;
  state.journal_info.tail_offset_bytes = head.offset_bytes;
  state.journal_info.epoch = head.epoch;
}

// The store is too full for a checkpoint. The log goes on where it ended, in its old epoch, so that
// keys can be removed; what may follow there from an earlier life names other predecessors.
Result<void> go_on_behind(Volume::State& state, const Recovery& recovery)
    REQUIRES(state.checkpoint_mutex) {
  MutexLock turn(state.commit_turn);
  {
    MutexLock lock(state.mutex);
    continue_at(state, recovery.loaded().end());
  }
  state.ring->release_before(state.superblock.current.replay_from);
  // Without room for it nothing can follow either.
  if (auto ok = cover_end(state); !ok && (recovery.is_cut() || ok.error().code != Errc::kNoSpace))
    return ok;
  MutexLock lock(state.mutex);
  state.journal_info.used_bytes = state.ring->used_bytes();
  state.journal_info.tail_offset_bytes = state.ring->tail_offset_bytes();
  return {};
}

// A superblock that was written in part may be the one in force after a crash, and its log is that
// of the new epoch: what went on in the old one would be lost with all that was acknowledged there.
bool may_go_on_behind(Volume::State& state, const Recovery& recovery, const Error& why) {
  MutexLock lock(state.mutex);
  return why.code == Errc::kNoSpace && !recovery.fell_back() && !state.is_superblock_uncertain &&
         state.read_only_reason == nullptr;
}

// The later of two epochs: that of the log, or one that an interrupted opening began behind it, of
// which a block may be there where its checkpoint met a bad slot.
std::uint64_t latest_epoch(Volume::State& state, const JournalPosition& end) {
  if (state.options.read_only) return end.epoch;
  const Buffer buffer = Buffer::from_heap(kBlockSizeBytes);
  const Bytes block = buffer.first(kBlockSizeBytes);
  if (!read_device(*state.device, state.geometry.journal_offset_bytes + end.offset_bytes, block))
    return end.epoch;
  const auto header = peek_journal_header(block);
  const bool is_later = header && header->size_bytes == block.size() &&
                        epoch_rank(header->epoch) > epoch_rank(end.epoch) &&
                        verify_journal_block(block, *header, state.geometry.uuid);
  return is_later ? header->epoch : end.epoch;
}

// Opens a new epoch behind what was replayed.
Result<void> reopen(Volume::State& state, Recovery& recovery) {
  JournalPosition head = recovery.loaded().end();
  head.epoch =
      epoch_after(latest_epoch(state, head),
                  state.options.seed == 0 ? random_u64()
                                          : head.epoch * 6364136223846793005u + state.options.seed);
  bool unclean = false;
  {
    MutexLock checkpoint_lock(state.checkpoint_mutex);
    unclean = !state.superblock.clean;
  }
  {
    MutexLock turn(state.commit_turn);
    MutexLock lock(state.mutex);
    continue_at(state, head);
    state.next_object = recovery.loaded().next_object() + (unclean ? kObjectGap : 0);
    state.next_stamp = recovery.loaded().next_stamp() + (unclean ? kStampGap : 0);
    state.update_checkpoint_reserve();
  }
  if (state.options.read_only) return {};
  MutexLock checkpoint_lock(state.checkpoint_mutex);
  if (recovery.needs_checkpoint()) {
    if (auto ok = recovery.write_tail_again(); !ok) return ok;
    Superblock found = state.superblock;
    found.sequence = sequence_after(found);  // that of an attempt that was interrupted is spent
    if (auto ok = state.switch_superblock(found); !ok) return ok;
  }
  // The root that was loaded is the current one, and the damaged one is forgotten next.
  if (recovery.fell_back()) std::swap(state.superblock.current, state.superblock.previous);
  if (recovery.needs_checkpoint()) {
    const auto written = run_checkpoint(state, false);
    // The log of the one that stood in led over the damaged one, which is forgotten: it takes
    // another checkpoint before one of two can be lost again.
    if (written && recovery.fell_back()) static_cast<void>(run_checkpoint(state, false));
    if (written || !may_go_on_behind(state, recovery, written.error())) return written;
    return go_on_behind(state, recovery);
  }
  if (auto ok = recovery.keep_previous(); !ok) return ok;
  Superblock next = state.superblock;
  next.clean = false;
  next.current.replay_from = head;
  next.sequence = sequence_after(next);
  if (auto ok = state.switch_superblock(next); !ok) return ok;
  MutexLock lock(state.mutex);
  state.journal_info.current = info_of(next.current);
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
