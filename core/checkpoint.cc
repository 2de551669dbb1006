// Writing a checkpoint: an image of the index in chunks, taken a thousand nodes at a time while
// puts go on, then the superblock that makes it the one to load.
//
// The image is fuzzy: it may hold effects of blocks written after its journal position. Replay
// from that position makes it exact, because records say what is (core/records.h). It must only
// be used once every block whose effects it may hold is durable: hence the commit and flush before
// the superblock.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/checkpoint_layout.h"
#include "core/device_io.h"
#include "core/state.h"
#include "core/superblocks.h"

namespace kvslot {
namespace {

constexpr std::uint32_t kNodesPerLock = 1024;
constexpr int kBadRunsMax = 16;  // of one checkpoint, before the device is given up

// Threads: one thread at a time, the holder of the checkpoint mutex.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(Volume::State& state)
      : state_(state), buffer_(Buffer::from_heap(kChunkSizeBytesMax)) {}

  Result<CheckpointRoot> write(std::uint64_t sequence) {
    root_.sequence = sequence;
    begin();
    if (auto ok = write_nodes(); !ok) return fail(ok);
    if (auto ok = write_manifests(); !ok) return fail(ok);
    return root_;
  }

  void keep_slots() {
    MutexLock lock(state_.mutex);
    state_.previous_runs = std::move(state_.checkpoint_runs);
    state_.checkpoint_runs = std::move(runs_);
    end();
  }

  void keep_slots_as_uncertain() {
    MutexLock lock(state_.mutex);
    state_.previous_runs = std::move(runs_);
    state_.is_superblock_uncertain = true;
    end();
  }

  void give_slots_back() {
    MutexLock lock(state_.mutex);
    for (const SlotRun run : runs_) state_.slots.give_back(run);
    end();
  }

 private:
  // The journal position comes first: no batch is under way while we hold the turn, so everything
  // up to it is in the index.
  void begin() {
    MutexLock turn(state_.commit_turn);
    MutexLock lock(state_.mutex);
    root_.replay_from = state_.ring->head();
    state_.checkpoint_running = true;
    state_.give_up_previous();
    state_.update_checkpoint_reserve();
  }

  void end() REQUIRES(state_.mutex) {
    state_.checkpoint_running = false;
    state_.checkpoint_taken = 0;
    state_.update_checkpoint_reserve();
  }

  Result<void> write_nodes() {
    std::uint32_t next = 1;
    bool more = true;
    while (more) {
      {
        MutexLock lock(state_.mutex);
        if (next == 1)
          for (const SlotRun run : state_.slots.quarantined())
            encode_record(stream_, QuarantineSlots{run});
        const std::uint32_t limit = state_.index.node_limit();
        const std::uint32_t end = std::min(next + kNodesPerLock, limit);
        for (; next < end; ++next) {
          const auto node = static_cast<NodeId>(next);
          if (!state_.index.is_checkpointed(node)) continue;
          encode_record(stream_, SetNode{state_.index.image(node)});
          ++root_.node_count;
        }
        more = next < limit;
        root_.next_object = state_.next_object;
        root_.next_stamp = state_.next_stamp;
      }
      if (auto ok = write_chunks(!more); !ok) return ok;
    }
    return {};
  }

  // Writes whole chunks while the stream fills them, and at the end what is left.
  Result<void> write_chunks(bool at_end) {
    std::size_t done = 0;
    constexpr std::size_t kPayloadMax = kChunkSizeBytesMax - kChunkHeaderBytes;
    while (stream_.size() - done >= kPayloadMax || (at_end && stream_.size() > done)) {
      const std::size_t left = stream_.size() - done;
      const auto wanted = std::min<std::uint64_t>(
          std::max<std::uint64_t>(kChunkSizeBytesMax / state_.geometry.slot_size_bytes, 1),
          state_.slots_of(left + kChunkHeaderBytes));
      const auto run = take(static_cast<std::uint32_t>(wanted));
      if (!run) return fail(run);
      const auto room = std::min<std::uint64_t>(
          std::uint64_t{run->count} * state_.geometry.slot_size_bytes, kChunkSizeBytesMax);
      const auto payload =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(room - kChunkHeaderBytes, left));
      const Bytes chunk = buffer_.first(round_up(payload + kChunkHeaderBytes, kBlockSizeBytes));
      std::memcpy(chunk.data() + kChunkHeaderBytes, stream_.data() + done, payload);
      const CheckpointId id{.sequence = root_.sequence,
                            .epoch = root_.replay_from.epoch,
                            .replay_from = root_.replay_from.sequence};
      seal_chunk(chunk, id, static_cast<std::uint32_t>(entries_.size()), payload,
                 state_.geometry.uuid);
      const auto written = write_slot(*run, chunk);
      if (!written) return fail(written);
      if (!*written) continue;  // in another place
      entries_.push_back(
          {static_cast<std::uint32_t>(run->first), static_cast<std::uint32_t>(chunk.size())});
      done += payload;
    }
    stream_.erase(stream_.begin(), stream_.begin() + static_cast<std::ptrdiff_t>(done));
    root_.stream_bytes += done;
    return {};
  }

  // From the last manifest to the first, so that each knows where the next one is.
  Result<void> write_manifests() {
    const std::size_t count =
        std::max<std::size_t>(units_of(entries_.size(), kManifestEntriesMax), 1);
    std::uint32_t next_slot = kNoSlot;
    for (std::size_t i = count; i-- > 0;) {
      Manifest manifest{.checkpoint_sequence = root_.sequence,
                        .epoch = root_.replay_from.epoch,
                        .index = static_cast<std::uint32_t>(i),
                        .next_slot = next_slot,
                        .entries = {}};
      const auto first = entries_.begin() + static_cast<std::ptrdiff_t>(i * kManifestEntriesMax);
      const auto last = i + 1 == count ? entries_.end()
                                       : first + static_cast<std::ptrdiff_t>(kManifestEntriesMax);
      manifest.entries.assign(first, last);
      const std::vector<std::byte> block = encode_manifest(manifest, state_.geometry.uuid);
      std::memcpy(buffer_.data(), block.data(), block.size());
      for (bool done = false; !done;) {
        const auto run = take(1);
        if (!run) return fail(run);
        const auto written = write_slot(*run, buffer_.first(kBlockSizeBytes));
        if (!written) return fail(written);
        done = *written;
        next_slot = static_cast<std::uint32_t>(run->first);
      }
    }
    root_.manifest_slot = next_slot;
    return {};
  }

  Result<SlotRun> take(std::uint32_t count_max) {
    MutexLock lock(state_.mutex);
    const SlotRun run = state_.slots.take_some(count_max);
    if (run.count == 0) return fail(Errc::kNoSpace, "no slots for the checkpoint", ENOSPC);
    runs_.push_back(run);
    state_.checkpoint_taken += run.count;
    state_.update_checkpoint_reserve();
    return run;
  }

  // False: the slots are bad, and quarantined; the bytes have to go elsewhere.
  Result<bool> write_slot(SlotRun run, ConstBytes bytes) {
    state_.counters.checkpoint_bytes.fetch_add(bytes.size(), std::memory_order_relaxed);
    const auto written = write_device(
        *state_.device, std::uint64_t{state_.first_block_of(run.first)} * kBlockSizeBytes, bytes);
    if (written) return true;
    state_.stop_if_lost(written.error().os_errno);
    if (written.error().code != Errc::kIo || is_device_lost(written.error().os_errno) ||
        ++bad_runs_ > kBadRunsMax)
      return fail(written);
    state_.note_fault({.time_ns = 0,
                       .operation = "checkpoint",
                       .key = {},
                       .slot = run.first,
                       .os_errno = to_errno(written.error()),
                       .action = "slots quarantined, written again elsewhere"});
    MutexLock lock(state_.mutex);
    runs_.pop_back();
    state_.checkpoint_taken -= run.count;
    state_.slots.quarantine(run);
    state_.record(QuarantineSlots{run});
    state_.update_checkpoint_reserve();
    return false;
  }

  Volume::State& state_;
  Buffer buffer_;
  CheckpointRoot root_;
  std::vector<std::byte> stream_;
  std::vector<ManifestEntry> entries_;
  std::vector<SlotRun> runs_;
  int bad_runs_ = 0;
};

Result<CheckpointRoot> write_durably(Volume::State& state, CheckpointWriter& writer,
                                     std::uint64_t sequence) {
  auto root = writer.write(sequence);
  if (!root) return root;
  const auto included = commit_recorded(state);
  if (!included) return fail(included);
  root->included_upto = *included;
  // Chunks were written outside of any batch, so this flush must reach the device.
  if (auto ok = state.flush_device(); !ok) return fail(ok);
  if (auto ok = state.volume->flush_until(root->included_upto); !ok) return fail(ok);
  root->written_ns = state.now();
  return root;
}

// One copy is enough: the other one has, at worst, an older superblock, which its lower sequence
// gives away. A device that is lost may carry a write out later, whatever it said.
Result<void> write_half(Volume::State& state, const Superblock& next, SuperblockHalf half) {
  const auto unwritten = write_superblock_half(*state.device, next, half);
  bool is_lost = false;
  for (const auto& [copy, error] : unwritten) {
    state.stop_if_lost(error.os_errno);
    is_lost |= is_device_lost(error.os_errno);
    if (is_lost) break;
    state.note_fault({.time_ns = 0,
                      .operation = "superblock",
                      .key = {},
                      .slot = {},
                      .os_errno = to_errno(error),
                      .action = "copy " + std::to_string(copy) + " could not be written"});
  }
  if (is_lost || unwritten.size() == kCopiesInHalf) return std::unexpected(unwritten.back().error);
  return {};
}

}  // namespace

CheckpointInfo info_of(const CheckpointRoot& root) {
  return {
      .sequence = root.sequence, .size_bytes = root.stream_bytes, .written_ns = root.written_ns};
}

Result<void> Volume::State::switch_superblock(const Superblock& next) {
  superblock.sequence = next.sequence;  // spent, even if a copy gets no further
  if (auto ok = write_half(*this, next, SuperblockHalf::kFirst); !ok) return ok;
  if (auto ok = flush_device(); !ok) return ok;
  superblock = next;  // from here on a crash finds it, whatever becomes of the other copies
  static_cast<void>(write_half(*this, next, SuperblockHalf::kSecond));
  return {};
}

namespace {

void note_failure(Volume::State& state, const Error& error) {
  state.note_fault({.time_ns = 0,
                    .operation = "checkpoint",
                    .key = {},
                    .slot = {},
                    .os_errno = to_errno(error),
                    .action = "the checkpoint before it stays in force"});
}

// A superblock that could not be written may stand in one of its places all the same, and would be
// the newest there is after a crash. Before the slots that it names are used again, another one
// with what is true replaces it everywhere. The same spends the number of an attempt that failed
// before its superblock, which a crash would forget.
Result<void> supersede_failed(Volume::State& state) REQUIRES(state.checkpoint_mutex) {
  {
    MutexLock lock(state.mutex);
    if (!state.is_superblock_uncertain && state.checkpoint_begun <= state.superblock.sequence)
      return {};
  }
  Superblock again = state.superblock;
  again.sequence = sequence_after(again);
  if (auto ok = state.switch_superblock(again); !ok) {
    note_failure(state, ok.error());
    return ok;
  }
  MutexLock lock(state.mutex);
  state.is_superblock_uncertain = false;
  state.update_checkpoint_reserve();
  return {};
}

}  // namespace

Result<void> run_checkpoint(Volume::State& state, bool clean) {
  if (auto ok = supersede_failed(state); !ok) return ok;
  bool is_short = false;
  {
    MutexLock lock(state.mutex);
    std::uint64_t previous = 0;
    for (const SlotRun run : state.previous_runs) previous += run.count;
    is_short = state.slots.free_count() + previous < state.checkpoint_slots_needed(0) + previous;
  }
  // Slots that wait for a flush are part of the reserve.
  if (is_short) {
    const auto sequence = commit_recorded(state);
    if (!sequence) return fail(sequence);
    if (auto ok = state.volume->flush_until(*sequence); !ok) return ok;
  }
  CheckpointWriter writer(state);
  const std::uint64_t sequence = sequence_after(state.superblock);
  state.checkpoint_begun = sequence;
  auto root = write_durably(state, writer, sequence);
  Superblock next = state.superblock;
  Result<void> outcome;
  if (root) {
    next.previous = next.current;
    next.current = *root;
    next.clean = clean;
    next.sequence = sequence;
    outcome = state.switch_superblock(next);
  } else {
    outcome = fail(root);
  }
  if (!outcome) {
    root ? writer.keep_slots_as_uncertain() : writer.give_slots_back();
    note_failure(state, outcome.error());
    return outcome;
  }
  writer.keep_slots();
  state.counters.checkpoints.fetch_add(1, std::memory_order_relaxed);
  MutexLock turn(state.commit_turn);
  state.ring->release_before(next.current.replay_from);
  MutexLock lock(state.mutex);
  state.journal_info.used_bytes = state.ring->used_bytes();
  state.journal_info.tail_offset_bytes = state.ring->tail_offset_bytes();
  state.noted_upto = std::max(state.noted_upto, next.current.included_upto);
  state.journal_info.current = info_of(next.current);
  state.journal_info.previous =
      state.previous_runs.empty() ? CheckpointInfo{} : info_of(next.previous);
  return {};
}

}  // namespace kvslot
