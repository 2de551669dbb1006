// Three threads behind one queue: the committer takes all that gathered and commits it as one
// batch; the flusher makes batches durable, one flush for everybody who waits, while the committer
// writes the next, and has the log say so once nothing follows; the checkpointer empties the
// journal in the background.
#include <kvslot/batcher.h>
#include <kvslot/check.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "core/put_changes.h"

namespace kvslot {
namespace {

constexpr std::size_t kJobsTogetherMax = 1024;
// While the device flushes, changes gather up to this; a larger heap of bytes is better written
// meanwhile than later.
constexpr std::uint64_t kGatheredBytesMax = 1 << 20;
// How often the committer steps back in vain: so often for each companion of the last batch, at
// least a little, and more where nobody waits for the outcome.
constexpr std::size_t kVainTurnsPerChange = 128;
constexpr std::size_t kVainTurnsMin = 32;
constexpr std::size_t kVainTurnsMinUnawaited = 256;
constexpr std::size_t kVainTurnsMax = 512;
// And for how long at most: each turn of a process that others come before may take long.
constexpr std::chrono::milliseconds kSteppedBackMax{5};
// Asynchronous puts wait while more than this is queued.
constexpr std::uint64_t kQueuedBytesMax = 256 << 20;
// Changes that have gathered enough.
constexpr std::size_t kGatheredMax = 64;
using Clock = std::chrono::steady_clock;

struct Job {
  ContentChange change;
  Durability durability = Durability::kWritten;
  Batcher::OnDone on_done;
  Batcher::OnFlushed on_flushed;  // set: a barrier, without a change
};

// What waits for a flush.
struct FlushWait {
  std::uint64_t sequence = 0;
  std::vector<Job> jobs;
};

}  // namespace

struct Batcher::State {
  State(Volume& target, const BatcherOptions& chosen) : volume(target), options(chosen) {}

  Volume& volume;
  const BatcherOptions options;

  Mutex mutex;
  Condition work;        // for the committer
  Condition flush_work;  // for the flusher
  Condition checkpoint_work;
  Condition idle;   // for close
  Condition taken;  // for asynchronous puts that wait for room in the queue
  std::deque<Job> queue GUARDED_BY(mutex);
  std::deque<FlushWait> flushes GUARDED_BY(mutex);
  std::set<std::string, std::less<>> async_keys GUARDED_BY(mutex);
  std::optional<Clock::time_point> unflushed_since GUARDED_BY(mutex);
  // Since a flush, behind which no block was made that says so.
  std::optional<Clock::time_point> unnoted_since GUARDED_BY(mutex);
  std::uint64_t last_block GUARDED_BY(mutex) = 0;
  std::uint64_t queued_bytes GUARDED_BY(mutex) = 0;
  std::size_t last_batch GUARDED_BY(mutex) = 0;  // changes in it
  std::size_t awaited GUARDED_BY(mutex) = 0;     // queued jobs that somebody waits for
  bool flushing GUARDED_BY(mutex) = false;
  bool recorded GUARDED_BY(mutex) = false;
  bool checkpoint_wanted GUARDED_BY(mutex) = false;
  bool closing GUARDED_BY(mutex) = false;   // no new jobs
  bool stopping GUARDED_BY(mutex) = false;  // threads end
  bool dispatch_fails GUARDED_BY(mutex) = false;
  std::uint64_t pending GUARDED_BY(mutex) = 0;  // jobs accepted and not answered
  std::uint64_t dispatches GUARDED_BY(mutex) = 0;

  Mutex joining;  // two callers of close(); the threads below are its property
  // Declared last: they end before anything they use.
  std::jthread committer, flusher, checkpointer;

  void start() {
    volume.on_recorded([this] {
      MutexLock lock(mutex);
      recorded = true;
      work.notify_one();
    });
    committer = std::jthread([this] { commit_loop(); });
    flusher = std::jthread([this] { flush_loop(); });
    checkpointer = std::jthread([this] { checkpoint_loop(); });
  }

  void commit_loop() {
    while (true) {
      std::vector<Job> jobs;
      const char* reason = "idle";
      {
        MutexLock lock(mutex);
        while (!has_work() || is_gathering()) {
          if (stopping && !has_work()) return;
          work.wait(mutex);
        }
        step_back();
        recorded = false;
        queued_bytes = 0;
        taken.notify_all();
        awaited = 0;
        if (queue.size() > kJobsTogetherMax) reason = "full";
        while (!queue.empty() && jobs.size() < kJobsTogetherMax) {
          if (queue.front().on_flushed || queue.front().durability == Durability::kDurable)
            reason = "fsync";
          jobs.push_back(std::move(queue.front()));
          queue.pop_front();
        }
      }
      commit(std::move(jobs), reason);
    }
  }

  [[nodiscard]] bool has_work() const REQUIRES(mutex) { return !queue.empty() || recorded; }

  // Busy: what comes while a flush is under way joins the batch that it lets go.
  [[nodiscard]] bool is_gathering() const REQUIRES(mutex) {
    return flushing && queue.size() < kJobsTogetherMax && queued_bytes < kGatheredBytesMax;
  }

  // Those who were just answered, and those for whom there was no processor, are about to submit
  // again: they get their turn first, as long as turns bring something. A turn is a yield, so a
  // busy machine spends it on them and an idle one some nanoseconds: nothing is waited for that
  // may not come. core/ARCHITECTURE.md has what this brings.
  void step_back() REQUIRES(mutex) {
    const std::size_t least = awaited == 0 ? kVainTurnsMinUnawaited : kVainTurnsMin;
    const std::size_t vain_max =
        std::clamp(kVainTurnsPerChange * (last_batch - std::min<std::size_t>(last_batch, 1)), least,
                   kVainTurnsMax);
    const Clock::time_point until = Clock::now() + kSteppedBackMax;
    std::size_t vain = 0;
    while (vain < vain_max && Clock::now() < until && queue.size() < kGatheredMax &&
           queued_bytes < kGatheredBytesMax) {
      const std::size_t before = queue.size();
      mutex.unlock();
      std::this_thread::yield();
      mutex.lock();
      vain = queue.size() == before ? vain + 1 : 0;
    }
    last_batch = queue.size();
  }

  void commit(std::vector<Job> jobs, const char* reason) {
    std::vector<ContentChange> changes;
    changes.reserve(jobs.size());
    for (Job& job : jobs)
      if (!job.on_flushed) changes.push_back(std::move(job.change));
    const std::uint64_t sequence = volume.commit(changes, reason);
    FlushWait wait{.sequence = sequence, .jobs = {}};
    std::size_t next = 0;
    for (Job& job : jobs) {
      if (!job.on_flushed) job.change = std::move(changes[next++]);
      const bool waits =
          job.on_flushed || (job.durability == Durability::kDurable && job.change.result);
      if (waits) {
        wait.jobs.push_back(std::move(job));
      } else {
        answer(job, {});
      }
    }
    MutexLock lock(mutex);
    if (!wait.jobs.empty()) flushes.push_back(std::move(wait));
    if (!unflushed_since) unflushed_since = Clock::now();
    if (std::exchange(last_block, sequence) != sequence) unnoted_since.reset();
    flush_work.notify_one();
    checkpoint_wanted = checkpoint_wanted || volume.wants_checkpoint();
    if (checkpoint_wanted) checkpoint_work.notify_one();
  }

  void flush_loop() {
    while (true) {
      std::deque<FlushWait> waits;
      bool is_quiet = false;
      {
        MutexLock lock(mutex);
        while (flushes.empty() && !stopping && !is_over(unflushed_since) &&
               !is_over(unnoted_since)) {
          if (const auto since = unflushed_since ? unflushed_since : unnoted_since) {
            flush_work.wait_until(mutex, *since + interval());
          } else {
            flush_work.wait(mutex);
          }
        }
        if (flushes.empty() && stopping) return;
        is_quiet = flushes.empty() && !is_over(unflushed_since);
        if (is_quiet) {
          unnoted_since.reset();
        } else {
          waits.swap(flushes);
          unflushed_since.reset();
          flushing = true;
        }
      }
      if (is_quiet) {
        volume.record_durable();
      } else {
        flush(waits);
      }
    }
  }

  void flush(std::deque<FlushWait>& waits) {
    std::uint64_t target = waits.empty() ? UINT64_MAX : 0;
    for (const FlushWait& wait : waits) target = std::max(target, wait.sequence);
    const Result<void> flushed = volume.flush_until(target);
    {
      MutexLock lock(mutex);
      flushing = false;
      if (flushed && !unflushed_since && !unnoted_since) unnoted_since = Clock::now();
      recorded = recorded || volume.has_recorded();  // what an earlier block had no room for
      work.notify_one();
    }
    for (FlushWait& wait : waits)
      for (Job& job : wait.jobs) answer(job, flushed);
  }

  [[nodiscard]] std::chrono::milliseconds interval() const {
    return std::chrono::milliseconds(options.commit_interval_ms);
  }
  [[nodiscard]] bool is_over(const std::optional<Clock::time_point>& since) const REQUIRES(mutex) {
    return since && Clock::now() >= *since + interval();
  }

  void checkpoint_loop() {
    while (true) {
      {
        MutexLock lock(mutex);
        while (!checkpoint_wanted && !stopping) checkpoint_work.wait(mutex);
        if (stopping) return;
        checkpoint_wanted = false;
      }
      static_cast<void>(volume.checkpoint());  // a failure is among the volume's faults
    }
  }

  void answer(Job& job, const Result<void>& flushed) {
    KVSLOT_CHECK(Mutex::held_by_this_thread() == 0, "nobody is called back under a lock");
    if (job.on_flushed) {
      job.on_flushed(flushed);
    } else {
      if (job.change.result && !flushed) job.change.result = flushed;
      job.on_done(std::move(job.change));
    }
    job = Job();  // lets go of what the callbacks hold, before close() can return
    MutexLock lock(mutex);
    if (--pending == 0) idle.notify_all();
  }

  // Back-pressure for asynchronous puts: until what is queued is less than the bound.
  void wait_for_queue() {
    MutexLock lock(mutex);
    while (queued_bytes > kQueuedBytesMax && !closing) taken.wait(mutex);
  }

  // All jobs in one dispatch, or none.
  [[nodiscard]] bool dispatch(std::vector<Job>& jobs) {
    MutexLock lock(mutex);
    if (closing || dispatch_fails) return false;
    ++dispatches;
    pending += jobs.size();
    for (Job& job : jobs) {
      for (const WindowWrite& write : job.change.writes) queued_bytes += write.size_bytes;
      if (job.on_flushed || job.durability == Durability::kDurable) ++awaited;
      queue.push_back(std::move(job));
    }
    work.notify_one();
    return true;
  }
};

Batcher::Batcher(Volume& volume, const BatcherOptions& options)
    : state_(std::make_unique<State>(volume, options)) {
  try {
    state_->start();
  } catch (const std::system_error&) {  // no thread is to be had: those that began must end
    close();
    throw;
  }
}

Batcher::~Batcher() { close(); }

bool Batcher::submit(ContentChange change, Durability durability, OnDone on_done) {
  std::vector<Job> jobs(1);
  jobs[0] = {std::move(change), durability, std::move(on_done), {}};
  if (state_->dispatch(jobs)) return true;
  state_->volume.unreserve_slots(std::exchange(jobs[0].change.reserved_slots, 0));
  jobs[0].change.result = fail(Errc::kBusy, "the store is closing", ESHUTDOWN);
  jobs[0].on_done(std::move(jobs[0].change));
  return false;
}

void Batcher::barrier(OnFlushed on_flushed) {
  std::vector<Job> jobs(1);
  jobs[0].on_flushed = std::move(on_flushed);
  if (state_->dispatch(jobs)) return;
  jobs[0].on_flushed(fail(Errc::kBusy, "the store is closing", ESHUTDOWN));
}

void Batcher::close() {
  State& s = *state_;
  {
    MutexLock lock(s.mutex);
    s.closing = true;
    while (s.pending != 0) s.idle.wait(s.mutex);
    s.stopping = true;
    s.work.notify_all();
    s.flush_work.notify_all();
    s.checkpoint_work.notify_all();
  }
  MutexLock lock(s.joining);
  for (std::jthread* thread : {&s.committer, &s.flusher, &s.checkpointer})
    if (thread->joinable()) thread->join();
  s.volume.on_recorded({});
}

void Batcher::fail_dispatch_for_testing() {
  MutexLock lock(state_->mutex);
  state_->dispatch_fails = true;
}

std::uint64_t Batcher::dispatches() const {
  MutexLock lock(state_->mutex);
  return state_->dispatches;
}

std::size_t Batcher::queued() const {
  MutexLock lock(state_->mutex);
  return state_->queue.size();
}

namespace {

// What the keys of one asynchronous put share.
struct AsyncGroup {
  AsyncPut put;
  std::promise<AsyncPutReport> promise;
  Mutex mutex;
  AsyncPutReport report GUARDED_BY(mutex);
  std::size_t open GUARDED_BY(mutex) = 0;
  std::size_t succeeded GUARDED_BY(mutex) = 0;

  // Answers key `i`; the last one settles the future.
  void finish(std::size_t i, const ContentChange& change) {
    const bool stored = change.result && change.written;
    if (stored && put.on_complete) {
      try {
        put.on_complete(put.keys[i]);
      } catch (...) {
        // The caller's own trouble: the key is stored, and its neighbours are not concerned.
      }
    }
    put.values[i].owner.reset();
    MutexLock lock(mutex);
    if (change.result) ++succeeded;
    if (stored && change.newly_stored) report.stored.push_back(put.keys[i]);
    if (!change.result) report.failed.emplace_back(put.keys[i], change.result.error());
    if (--open != 0) return;
    if (succeeded == 0) {
      promise.set_exception(std::make_exception_ptr(PutFailed(report.failed.front().second)));
    } else {
      promise.set_value(std::move(report));
    }
  }
};

}  // namespace

std::vector<PutFuture> Batcher::submit_put_many(AsyncPut put) {
  State& s = *state_;
  KVSLOT_CHECK(put.keys.size() == put.values.size(), "one value for each key");
  auto group = std::make_shared<AsyncGroup>();
  group->put = std::move(put);
  std::vector<std::size_t> accepted;
  for (std::size_t i = 0; i < group->put.keys.size(); ++i) {
    const std::string& key = group->put.keys[i];
    bool is_new = !s.volume.find(key).has_value();
    if (is_new) {
      MutexLock lock(s.mutex);
      is_new = s.async_keys.insert(key).second;
    }
    if (is_new) {
      accepted.push_back(i);
    } else {
      group->put.values[i].owner.reset();
    }
  }
  if (accepted.empty()) return {};
  const PutFuture future = group->promise.get_future().share();
  {
    MutexLock lock(group->mutex);
    group->open = accepted.size();
  }
  s.wait_for_queue();
  std::vector<Job> jobs(accepted.size());
  for (std::size_t n = 0; n < accepted.size(); ++n) {
    const std::size_t i = accepted[n];
    jobs[n].change = change_for_put(s.volume, group->put.keys[i], group->put.values[i].value);
    jobs[n].change.keep_existing = true;
    jobs[n].durability = group->put.durability;
    jobs[n].on_done = [&s, group, i](ContentChange change) {
      {
        MutexLock lock(s.mutex);
        s.async_keys.erase(group->put.keys[i]);
      }
      group->finish(i, change);
    };
  }
  if (!s.dispatch(jobs)) {
    for (Job& job : jobs) {
      job.change.result = fail(Errc::kBusy, "the store is closing", ESHUTDOWN);
      job.on_done(std::move(job.change));
    }
  }
  return std::vector<PutFuture>(accepted.size(), future);
}

}  // namespace kvslot
