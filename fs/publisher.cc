// Commits and spills. Locks: a file's own, never while calling the batcher or a waiter.
#include "fs/publisher.h"

#include <kvslot/clock.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

namespace kvslot {

namespace {

using Until = CommitWaiter::Until;

constexpr std::uint32_t kRoundsBeforeWritesWait = 2;

// Counts down to the answer of sync_all.
struct SyncAll {
  std::atomic<std::size_t> left;
  Mutex mutex;
  Result<void> result GUARDED_BY(mutex);
  Done done;
};

}  // namespace

Publisher::Publisher(Volume& volume, Batcher& batcher, ReaderPool& pool, LiveFiles& files)
    : volume_(volume), batcher_(batcher), pool_(pool), files_(files) {}

bool Publisher::is_linked(NodeId node) const {
  const auto info = volume_.stat(node);
  return info && info->linked;
}

// ---- Asking for a commit

// NOLINTNEXTLINE(performance-unnecessary-value-param): see the header
void Publisher::commit(LiveFileRef file, CommitWaiter waiter) {
  {
    MutexLock lock(file->mutex);
    if (file->content.needs_commit()) {
      file->waiting_next.push_back(std::move(waiter));
      file->is_wanted = true;
      if (file->is_busy) return;
      file->is_busy = true;
    } else if (file->content.is_dirty() && waiter.until != Until::kStarted) {
      file->waiting_now.push_back(std::move(waiter));  // all of it is on its way
      return;
    } else {
      lock.unlock();
      if (waiter.until == Until::kDurable)
        batcher_.barrier(std::move(waiter.done));
      else
        waiter.done({});
      return;
    }
  }
  start(file);
}

void Publisher::commit(const LiveFileRef& file) {
  {
    MutexLock lock(file->mutex);
    if (!file->content.needs_commit()) return;
    file->is_wanted = true;
    if (file->is_busy) return;
    file->is_busy = true;
  }
  start(file);
}

// Enters with is_busy set by the caller.
void Publisher::start(const LiveFileRef& file) {
  const bool linked = is_linked(file->node);
  bool needs_base = false;
  {
    MutexLock lock(file->mutex);
    needs_base = linked && !file->content.missing_base().empty();
  }
  if (needs_base)
    post_prepare(file);
  else
    submit(file);
}

Result<void> Publisher::read_base(LiveFile& file, const MissingBase& missing) {
  const std::uint64_t window_size = volume_.geometry().window_size_bytes();
  auto view = missing.placed
                  ? volume_.read_placed(file.node, *missing.placed, 0, missing.size_bytes)
                  : volume_.read(file.node, missing.window * window_size, missing.size_bytes);
  if (!view) return fail(view);
  std::vector<std::byte> base;
  base.reserve(view->size_bytes);
  for (const iovec& piece : view->pieces) {
    const auto* const data = static_cast<const std::byte*>(piece.iov_base);
    base.insert(base.end(), data, data + piece.iov_len);
  }
  MutexLock lock(file.mutex);
  file.content.fill_base(missing.window, base);
  return {};
}

// Completes windows that were written in part, about kSpillBytesMax of them.
Result<void> Publisher::complete_windows(LiveFile& file) {
  std::uint64_t size_bytes = 0;
  for (;;) {
    std::vector<MissingBase> missing;
    std::uint64_t generation = 0;
    {
      MutexLock lock(file.mutex);
      missing = file.content.missing_base();
      generation = file.content.generation();
    }
    Result<void> done;
    for (const MissingBase& base : missing) {
      if (size_bytes >= kSpillBytesMax) return {};
      size_bytes += base.size_bytes;
      if (done = read_base(file, base); !done) break;
    }
    if (done) return done;
    // A write or a truncation may have given back the slots while they were read: only what
    // fails with nothing changed has failed.
    MutexLock lock(file.mutex);
    if (generation == file.content.generation()) return done;
  }
}

void Publisher::post_prepare(const LiveFileRef& file) {
  ++in_flight_;
  pool_.post([this, file] { prepare(file); });
}

// Where windows are left, or new ones came while it read, submit() sends the file here again.
void Publisher::prepare(const LiveFileRef& file) {
  if (auto done = complete_windows(*file); !done)
    give_up(file, done.error());
  else
    submit(file);
  end_flight();
}

void Publisher::end_flight() {
  ++ended_flights_;
  --in_flight_;
  if (on_memory_) on_memory_();
}

bool Publisher::is_commit_starved(LiveFile& file) {
  file.mutex.assert_held();
  return file.is_wanted && file.rounds_before_commit >= kRoundsBeforeWritesWait;
}

void Publisher::submit(const LiveFileRef& file) {
  const bool linked = is_linked(file->node);
  ContentChange change;
  Durability durability = Durability::kWritten;
  Outcome outcome;
  {
    MutexLock lock(file->mutex);
    if (linked && file->content.buffered_bytes() > kCommitBytesMax) {
      change = file->content.begin_spill(kSpillBytesMax, true);
      if (!change.writes.empty()) {
        ++file->rounds_before_commit;
        lock.unlock();
        return send_spill(file, std::move(change));  // and then submitted() starts over
      }
    }
    if (linked && !file->content.missing_base().empty()) {
      ++file->rounds_before_commit;
      lock.unlock();
      return post_prepare(file);
    }
    file->is_wanted = false;
    file->rounds_before_commit = 0;
    // Nobody waits, and somebody has begun to write since: the commit point is the end of that.
    if (linked && file->waiting_next.empty() && file->writers > 0) {
      file->is_busy = false;
      return;
    }
    if (!linked) {  // nothing to store: whoever has it open goes on in memory
      file->is_busy = false;
      outcome.add(file->waiting_next);
    } else {
      change = file->content.begin_commit();
      change.waiters = 0;  // they are the file's: see live_node()
      durability = admit_waiters(*file, outcome);
      record_times(*file);
      file->is_only_emptied = file->is_rewrite = false;
      file->missing.clear();
    }
  }
  if (!linked) {
    tell(std::move(outcome));
    return files_.drop_if_idle(file);
  }
  ++in_flight_;
  ++commits_;
  const bool is_taken =
      batcher_.submit(std::move(change), durability,
                      [this, file](ContentChange result) { submitted(file, std::move(result)); });
  if (!is_taken) outcome.result = fail(Errc::kBusy, "the store is closing", ESHUTDOWN);
  tell(std::move(outcome));
}

// Under the file's lock, so that a time which somebody sets meanwhile comes after it.
void Publisher::record_times(LiveFile& file) {
  file.mutex.assert_held();
  const auto written_at = std::exchange(file.written_at, std::nullopt);
  if (!written_at) return;
  (void)volume_.set_attributes(file.node, {.mode = {},
                                           .uid = {},
                                           .gid = {},
                                           .atime_ns = {},
                                           .mtime_ns = written_at,
                                           .ctime_ns = written_at,
                                           .record = false});
}

// Everybody who asked until now is served by the commit that begins. Those who waited for its
// beginning only go to the outcome.
Durability Publisher::admit_waiters(LiveFile& file, Outcome& outcome) {
  file.mutex.assert_held();
  auto durability = Durability::kWritten;
  for (CommitWaiter& waiter : file.waiting_next) {
    if (waiter.until == Until::kDurable) durability = Durability::kDurable;
  }
  for (CommitWaiter& waiter : file.waiting_next) {
    waiter.needs_barrier = durability != Durability::kDurable;
    if (waiter.until == Until::kStarted)
      outcome.waiters.push_back(std::move(waiter));
    else
      file.waiting_now.push_back(std::move(waiter));
  }
  file.waiting_next.clear();
  return durability;
}

void Publisher::give_up(const LiveFileRef& file, const Error& error) {
  Outcome outcome;
  outcome.result = std::unexpected(error);
  {
    MutexLock lock(file->mutex);
    file->is_busy = false;
    file->is_wanted = false;
    file->rounds_before_commit = 0;
    keep_error(*file, error);
    outcome.add(file->waiting_next);
  }
  report(file->node, error, "kept the old value; the new one stays in memory");
  tell(std::move(outcome));
  files_.drop_if_idle(file);
}

void Publisher::abandon(const LiveFileRef& file) {
  MutexLock lock(file->mutex);
  file->is_abandoned = true;
  if (!file->is_busy) revert(*file);
}

void Publisher::revert(LiveFile& file) {
  file.mutex.assert_held();
  file.is_abandoned = file.is_rewrite = file.is_only_emptied = false;
  file.missing.clear();
  file.written_at.reset();
  file.content.revert();
  files_.mark_stale(file.node);
}

// ---- The result

void Publisher::keep_error(LiveFile& file, const Error& error) {
  file.mutex.assert_held();
  file.error = error;
  ++file.error_count;
  file.error_was_reported = false;
}

void Publisher::settle(LiveFile& file, const ContentChange& change, Outcome& outcome) {
  file.mutex.assert_held();
  file.is_busy = false;
  if (change.place_only) {
    if (change.result || !file.is_wanted) return;
    file.is_wanted = false;  // the commit that waits for the spill fails with it
    file.rounds_before_commit = 0;
    outcome.add(file.waiting_next);
  }
  outcome.add(file.waiting_now);
  if (!change.result) {
    keep_error(file, change.result.error());
    outcome.result = change.result;
  }
}

void Publisher::submitted(const LiveFileRef& file, ContentChange change) {
  const bool unlinked = !change.result && !is_linked(file->node);
  Outcome outcome;
  bool again = false;
  {
    MutexLock lock(file->mutex);
    file->content.finish(change);
    if (unlinked) change.result = {};  // nobody is to be told that a removed file was not stored
    settle(*file, change, outcome);
    if (file->is_abandoned && file->writers == 0) revert(*file);
    file->is_abandoned = false;
    // Without anybody waiting, whoever writes just now commits at the end of that.
    again = !file->waiting_next.empty() || (file->is_wanted && file->writers == 0);
    file->is_wanted = file->is_busy = again;
  }
  if (!change.result) {
    report(file->node, change.result.error(),
           change.place_only ? "kept the bytes in memory"
                             : "kept the old value; the new one stays in memory");
  }
  if (change.place_only) failed_spills_ = change.result ? 0 : failed_spills_ + 1;
  change = ContentChange();  // gives its buffers back
  tell(std::move(outcome));
  if (again) {
    pool_.post([this, file] {
      start(file);
      end_flight();
    });
  } else {
    files_.drop_if_idle(file);
    end_flight();
  }
}

// Answers may have to wait for the thread that serves the request's queue, and that thread for the
// volume: the batcher's committer must not be the one who answers.
void Publisher::tell(Outcome outcome) {
  for (CommitWaiter& waiter : outcome.waiters) {
    if (waiter.until == Until::kDurable && waiter.needs_barrier && outcome.result) {
      batcher_.barrier(std::move(waiter.done));
    } else if (!outcome.result) {
      pool_.post([done = std::move(waiter.done), result = outcome.result] { done(result); });
    } else {
      waiter.done(outcome.result);
    }
  }
}

void Publisher::report(NodeId node, const Error& error, const char* action) {
  Inspector& inspector = volume_.inspector();
  inspector.report_fault({.time_ns = wall_clock_ns(),
                          .operation = "commit",
                          .key = inspector.path_of(node),
                          .slot = std::nullopt,
                          .os_errno = to_errno(error),
                          .action = action});
}

// ---- Everything at once

void Publisher::sync_all(Done done) {
  const std::vector<LiveFileRef> files = files_.all();
  auto state = std::make_shared<SyncAll>();
  state->left = files.size() + 1;
  state->done = std::move(done);
  const auto finish_one = [this, state](Result<void> result) {
    if (!result) {
      MutexLock lock(state->mutex);
      state->result = result;
    }
    if (--state->left > 0) return;
    Result<void> first;
    {
      MutexLock lock(state->mutex);
      first = state->result;
    }
    batcher_.barrier(
        [state, first](Result<void> flushed) { state->done(first ? std::move(flushed) : first); });
  };
  for (const LiveFileRef& file : files) {
    if (is_incomplete(*file))
      finish_one({});  // the old value is the one to keep
    else
      commit(file, {.until = Until::kWritten, .done = finish_one});
  }
  finish_one({});
}

// ---- Spilling

void Publisher::spill_if_large(const LiveFileRef& file) {
  const BufferPool& pool = volume_.buffers();
  const bool is_short = pool.used_bytes() > pool.size_bytes() / 2;
  {
    MutexLock lock(file->mutex);
    const std::uint64_t above = is_short ? kMiB : kSpillAboveBytes;
    const std::uint64_t bytes = file->content.buffered_bytes();
    if (file->is_busy || bytes <= std::max(above, file->spill_above)) return;
    file->is_busy = true;
  }
  spill(file, false);
}

bool Publisher::spill_anything() {
  for (const LiveFileRef& file : files_.all()) {
    {
      MutexLock lock(file->mutex);
      if (file->is_busy || file->content.buffered_bytes() == 0) continue;
      file->is_busy = true;
    }
    spill(file, true);
  }
  if (in_flight_ > 0) return true;
  for (const LiveFileRef& file : files_.all()) {
    {
      MutexLock lock(file->mutex);
      if (file->is_busy || file->content.missing_base().empty()) continue;
      file->is_busy = true;
    }
    ++in_flight_;
    pool_.post([this, file] { complete_and_spill(file); });
    return true;
  }
  return in_flight_ > 0;
}

// Nothing but windows written in part is left: one file's are completed, and then they can go.
void Publisher::complete_and_spill(const LiveFileRef& file) {
  if (!complete_windows(*file)) ++failed_spills_;
  spill(file, true);
  end_flight();
}

void Publisher::spill(const LiveFileRef& file, bool all) {
  ContentChange change;
  bool again = false;
  {
    MutexLock lock(file->mutex);
    change = file->content.begin_spill(kSpillBytesMax, all);
    file->spill_above = 0;
    if (change.writes.empty()) {
      file->spill_above = file->content.buffered_bytes() + kMiB;
      again = file->is_wanted;
      file->is_busy = again;
    }
  }
  if (!change.writes.empty())
    send_spill(file, std::move(change));
  else if (again)
    start(file);
}

void Publisher::send_spill(const LiveFileRef& file, ContentChange change) {
  change.waiters = 0;
  ++in_flight_;
  ++spills_;
  batcher_.submit(std::move(change), Durability::kWritten,
                  [this, file](ContentChange result) { submitted(file, std::move(result)); });
}

}  // namespace kvslot
