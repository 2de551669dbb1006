// The path of a put, top level: changes become rounds, a round becomes a batch.
//
//   commit        rounds of bounded size; one at a time (the commit turn)
//     make_room   journal space and slots that are on their way back
//     reserve     one lock                                    core/batch.cc
//     write       no lock, one submission                     core/batch_writer.cc
//     publish     one lock                                    core/batch.cc
//   flush_until   one flush for everybody who waits
#include <algorithm>
#include <cerrno>

#include "core/batch.h"
#include "core/batch_writer.h"
#include "core/state.h"
#include "core/stopwatch.h"

namespace kvslot {
namespace {

// What the records of a change take in a block at most, slots fragmented as badly as possible.
std::uint64_t record_bytes_max(const Volume::State& state, const ContentChange& change) {
  std::uint64_t extents = 0;
  for (const PlacedWindow& window : change.placed) extents += window.extents.size();
  for (const WindowWrite& write : change.writes)
    extents +=
        units_of(write.size_bytes, std::min(state.geometry.slot_size_bytes, kExtentSizeBytesMax));
  return kRecordBytesMax + change.key.size() + extents * kExtentRecordBytes +
         (change.placed.size() + change.writes.size()) * 8;
}

std::uint64_t value_bytes(const ContentChange& change) {
  std::uint64_t bytes = 0;
  for (const WindowWrite& write : change.writes) bytes += write.size_bytes;
  return bytes;
}

struct Round {
  std::size_t count = 0;
  std::uint64_t record_bytes = 0;
};

// How many of the leading changes go into one batch. The same file twice ends a round, so that
// the second change sees the outcome of the first.
Round next_round(const Volume::State& state, std::span<const ContentChange> changes) {
  Round round;
  std::uint64_t bytes = 0;
  std::set<NodeId> nodes;
  std::set<std::string_view> keys;
  for (const ContentChange& change : changes) {
    const std::uint64_t records = record_bytes_max(state, change);
    const bool full =
        round.count != 0 &&
        (round.count == kBatchKeysMax || bytes + value_bytes(change) > kBatchBytesMax ||
         round.record_bytes + records > state.geometry.journal_size_bytes / 8);
    const bool repeats = change.node != NodeId::kNone ? !nodes.insert(change.node).second
                                                      : !keys.insert(change.key).second;
    if (full || (repeats && round.count != 0)) break;
    bytes += value_bytes(change);
    round.record_bytes += records;
    ++round.count;
  }
  return round;
}

// For each change the one that decides its key. The last of the batch that may replace wins; one
// that must leave an existing key alone loses to any other, and among such the first wins. The
// losers are answered with the winner's result.
std::vector<std::size_t> winners(std::span<const ContentChange> changes) {
  std::vector<std::size_t> winner(changes.size());
  tsl::robin_map<std::string_view, std::size_t> best;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    winner[i] = i;
    if (changes[i].node != NodeId::kNone || changes[i].key.empty()) continue;
    const auto [found, is_first] = best.insert({changes[i].key, i});
    if (!is_first && !changes[i].keep_existing) found.value() = i;
  }
  for (std::size_t i = 0; i < changes.size(); ++i)
    if (changes[i].node == NodeId::kNone && !changes[i].key.empty())
      winner[i] = best.at(changes[i].key);
  return winner;
}

}  // namespace

namespace {

// Runs rounds under the commit turn. Threads: one thread at a time.
class Committer {
 public:
  Committer(Volume& volume, Volume::State& state, const char* reason)
      : volume_(volume), state_(state), reason_(reason) {}

  // At least one round, for what was recorded.
  std::uint64_t run(std::span<ContentChange> changes) {
    std::uint64_t sequence = published();
    bool has_run = false;
    while (!changes.empty()) {
      if (is_oversized(changes.front())) {
        changes = changes.subspan(1);
        continue;
      }
      const Round round = next_round(state_, changes);
      std::span<ContentChange> taken = changes.first(round.count);
      sequence = std::max(sequence, run_round(taken, round.record_bytes));
      changes = changes.subspan(taken.size());
      has_run = true;
    }
    std::span<ContentChange> none;
    return has_run ? sequence : std::max(sequence, run_round(none, 0));
  }

  // One round of recorded changes only, whatever room the journal has.
  Result<std::uint64_t> run_recorded() {
    MutexLock turn(state_.commit_turn);
    Batch batch(state_, {});
    Stopwatch watch;
    if (batch.reserve(false) == Batch::Reserved::kReady)
      if (auto ok = write_and_publish(batch, watch.lap()); !ok) return fail(ok);
    return published();
  }

 private:
  // Shortens `changes` to those it took, when their attributes are more than a block should hold.
  std::uint64_t run_round(std::span<ContentChange>& changes, std::uint64_t record_bytes) {
    for (int attempt = 0; attempt < kSlotAttemptsMax; ++attempt) {
      make_journal_room(record_bytes);
      MutexLock turn(state_.commit_turn);
      Batch batch(state_, changes);
      Stopwatch watch;
      const auto reserved = batch.reserve(attempt + 1 < kSlotAttemptsMax);
      const std::uint64_t reserve_us = watch.lap();
      if (reserved == Batch::Reserved::kStarved) {
        turn.unlock();
        recover_slots();
        continue;
      }
      changes = changes.first(batch.taken_count());
      if (reserved == Batch::Reserved::kNothing) return published();
      // A refused block is known by its number: flush_until() finds that it was not published.
      static_cast<void>(write_and_publish(batch, reserve_us));
      return batch.sequence();
    }
    return published();
  }

  // A change whose records no journal of this size can hold.
  bool is_oversized(ContentChange& change) {
    if (record_bytes_max(state_, change) <= state_.geometry.journal_size_bytes / 4) return false;
    volume_.unreserve_slots(std::exchange(change.reserved_slots, 0));
    change.result =
        fail(Errc::kTooLarge, "the value has more pieces than one journal block holds", EFBIG);
    return true;
  }

  Result<void> write_and_publish(Batch& batch, std::uint64_t reserve_us)
      REQUIRES(state_.commit_turn) {
    Stopwatch watch;
    mark(InflightState::kSubmitted);
    BatchWriter writer(state_, *state_.ring, batch);
    if (const auto written = writer.write(); !written) {
      give_up(batch, written.error());
      return written;
    }
    mark(InflightState::kWritten);
    BatchRecord record = writer.measured();
    record.reason = reason_;
    record.reserve_us = reserve_us;
    record.write_us = watch.lap();
    copy_ring();
    batch.publish(record, writer.journal_bytes());
    note_publish_time(batch.sequence(), watch.lap());
    return {};
  }

  // The block is not on the device. For lack of space it certainly is not, and everything is as
  // before; after any other error nobody knows, and the store stops.
  void give_up(Batch& batch, const Error& error) {
    const bool certain = error.code == Errc::kNoSpace;
    FaultRecord fault{.time_ns = 0,
                      .operation = "journal",
                      .key = {},
                      .slot = {},
                      .os_errno = to_errno(error),
                      .action = certain ? "the batch failed, its space was given back"
                                        : "the store is read-only until it is opened again"};
    if (certain)
      state_.note_fault(std::move(fault));
    else
      state_.stop_writes("stopped: the journal could not be written", std::move(fault));
    batch.abandon(error, certain);
  }

  // The room is made before the turn is taken: a checkpoint takes the turn for its last block, so
  // it can never wait for us.
  void make_journal_room(std::uint64_t record_bytes) {
    const std::uint64_t wanted = std::min(record_bytes + state_.recorded_bytes_max() +
                                              state_.journal_headroom() + 2 * kBlockSizeBytes,
                                          state_.geometry.journal_size_bytes / 2);
    if (has_room(wanted)) return;
    MutexLock checkpoint_lock(state_.checkpoint_mutex);
    // Whoever held the mutex may have made room; and if we fail, the write will say why.
    if (!volume_.is_read_only() && !has_room(wanted))
      static_cast<void>(run_checkpoint(state_, false));
  }

  bool has_room(std::uint64_t wanted) {
    MutexLock turn(state_.commit_turn);
    return state_.ring->place(wanted).has_value();
  }

  // Slots come back when the records that freed them are durable and readers have left.
  void recover_slots() {
    const std::uint64_t sequence = Committer(volume_, state_, "full").run({});
    if (!volume_.flush_until(sequence)) return;
    MutexLock lock(state_.mutex);
    state_.reclaim();
    // Later readers do not see what is doomed by now.
    const std::uint64_t latest = state_.reader_ticket;
    ++state_.waiting_calls;
    while (state_.oldest_reader() <= latest) state_.readers_left.wait(state_.mutex);
    --state_.waiting_calls;
    state_.reclaim();
  }

  void mark(InflightState inflight_state) {
    MutexLock lock(state_.mutex);
    state_.inflight.set_state(inflight_state);
  }

  void copy_ring() REQUIRES(state_.commit_turn) {
    const JournalRing& ring = *state_.ring;
    MutexLock lock(state_.mutex);
    state_.journal_info.size_bytes = ring.size_bytes();
    state_.journal_info.used_bytes = ring.used_bytes();
    state_.journal_info.head_offset_bytes = ring.head().offset_bytes;
    state_.journal_info.tail_offset_bytes = ring.tail_offset_bytes();
  }

  void note_publish_time(std::uint64_t sequence, std::uint64_t publish_us) {
    MutexLock lock(state_.mutex);
    if (!state_.batches.empty() && state_.batches.back().id == sequence)
      state_.batches.back().publish_us = publish_us;
  }

  [[nodiscard]] std::uint64_t published() const {
    MutexLock lock(state_.mutex);
    return state_.published_upto;
  }

  static constexpr int kSlotAttemptsMax = 4;
  Volume& volume_;
  Volume::State& state_;
  const char* reason_;
};

}  // namespace

Result<std::uint64_t> commit_recorded(Volume::State& state) {
  return Committer(*state.volume, state, "checkpoint").run_recorded();
}

std::uint64_t Volume::commit(std::span<ContentChange> changes, const char* reason) {
  State& s = *state_;
  const std::vector<std::size_t> winner = winners(changes);
  const bool repeats =
      std::any_of(winner.begin(), winner.end(),
                  [&, i = std::size_t{0}](std::size_t w) mutable { return w != i++; });
  std::uint64_t sequence = 0;
  if (!repeats) {
    sequence = Committer(*this, s, reason).run(changes);
  } else {
    std::vector<ContentChange> unique;
    std::vector<std::size_t> origin;
    for (std::size_t i = 0; i < changes.size(); ++i)
      if (winner[i] != i) changes[winner[i]].waiters += changes[i].waiters;
    for (std::size_t i = 0; i < changes.size(); ++i) {
      if (winner[i] != i) continue;
      unique.push_back(std::move(changes[i]));
      origin.push_back(i);
    }
    sequence = Committer(*this, s, reason).run(unique);
    for (std::size_t i = 0; i < origin.size(); ++i) changes[origin[i]] = std::move(unique[i]);
    for (std::size_t i = 0; i < changes.size(); ++i)
      if (winner[i] != i) changes[i].result = changes[winner[i]].result;
  }
  if (unflushed_bytes() > s.options.unflushed_bytes_max) {
    // Bounds what recovery has to verify. A failure stops writes, which every later call reports.
    static_cast<void>(flush_until(sequence));
  }
  if (s.options.inline_checkpoints && wants_checkpoint())
    static_cast<void>(checkpoint());  // a failure is noted, and the journal still has room
  return sequence;
}

Result<void> Volume::State::flush_device() {
  if (auto flushed = device->flush(); !flushed) {
    counters.flush_failures.fetch_add(1, std::memory_order_relaxed);
    stop_if_lost(flushed.error().os_errno);
    stop_writes("stopped: the device failed a flush, what it holds is unknown",
                {.time_ns = 0,
                 .operation = "flush",
                 .key = {},
                 .slot = {},
                 .os_errno = to_errno(flushed.error()),
                 .action = "nobody was acknowledged; read-only until opened again"});
    return flushed;
  }
  counters.flushes.fetch_add(1, std::memory_order_relaxed);
  return {};
}

Result<void> Volume::flush_until(std::uint64_t block_sequence) {
  State& s = *state_;
  MutexLock flush_lock(s.flush_mutex);
  std::uint64_t target = 0;
  std::uint64_t bytes = 0;
  {
    MutexLock lock(s.mutex);
    if (s.read_only_reason != nullptr) return fail(Errc::kReadOnly, s.read_only_reason, EROFS);
    if (block_sequence != UINT64_MAX && block_sequence > s.published_upto)
      return fail(Errc::kNoSpace, "the journal had no room", ENOSPC);
    if (s.durable_upto >= block_sequence || s.durable_upto == s.published_upto) return {};
    target = s.flushing_upto = s.published_upto;
    bytes = s.unflushed_bytes;
  }
  Stopwatch watch;
  const auto flushed = s.flush_device();
  const std::uint64_t flush_us = watch.lap();
  MutexLock lock(s.mutex);
  s.flushing_upto = 0;
  if (!flushed) return flushed;
  s.inflight.forget_durable(target);
  for (BatchRecord& batch : s.batches)
    if (batch.id > s.durable_upto && batch.id <= target) batch.flush_us = flush_us;
  s.durable_upto = target;
  s.unflushed_bytes -= bytes;
  s.reclaim();
  return {};
}

}  // namespace kvslot
