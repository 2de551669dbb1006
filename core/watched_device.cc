// The threads that wait for the device, and the callers that do not wait longer than they may.
// Step before: everything above <kvslot/device.h>. Step after: the device inside.
#include <kvslot/watched_device.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "core/loan.h"
#include "core/quiet_thread.h"

namespace kvslot {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kBytesPerSecondMin = kMiB;  // of a device that is slow, not hung

// What the deadline of a call depends on. Guarded by the device's mutex.
struct Call {
  bool is_flush = false;
  std::uint64_t moved_bytes = 0;
  std::uint64_t written_bytes = 0;  // of them
  Clock::time_point begun;
  std::uint64_t expiries = 0;  // calls of expire() before it began

  explicit Call(std::span<const IoRequest> requests = {}) {
    for (const IoRequest& request : requests) {
      for (const iovec& segment : request.segments) {
        moved_bytes += segment.iov_len;
        if (request.op == IoOp::kWrite) written_bytes += segment.iov_len;
      }
    }
  }
};

std::vector<iovec> segments_of(std::span<const IoRequest> requests) {
  std::vector<iovec> segments;
  for (const IoRequest& request : requests)
    segments.insert(segments.end(), request.segments.begin(), request.segments.end());
  return segments;
}

void fail_all(std::span<IoRequest> requests) {
  for (IoRequest& request : requests) request.error = ETIMEDOUT;
}

}  // namespace

// One call on another thread: a copy of what was asked for, so that the caller can leave before the
// device does. Or what a caller left, which a thread waits for.
struct WatchedDevice::Operation {
  enum class Kind : std::uint8_t { kRun, kFlush, kDiscard, kLate };

  Kind kind = Kind::kRun;
  std::vector<IoRequest> requests;
  std::vector<iovec> segments;  // of all requests
  Result<void> flushed;
  std::uint64_t offset_bytes = 0, size_bytes = 0;  // of a discard
  std::unique_ptr<LateRequests> late;
  std::shared_ptr<Shared> device;  // for late requests, until they are done

  // Guarded by the device's mutex.
  Call call;
  bool is_started = false;
  bool is_done = false;
  bool is_overdue = false;
  std::optional<Loan> loan;
  Condition done;

  void run_on(Device& inner) {
    if (kind == Kind::kRun) inner.run(requests);
    if (kind == Kind::kFlush) flushed = inner.flush();
    if (kind == Kind::kDiscard) inner.discard(offset_bytes, size_bytes);
    if (kind == Kind::kLate) late->wait();
  }
};

// Lives as long as any of its threads.
struct WatchedDevice::Shared {
  Shared(std::unique_ptr<Device> inner, const WatchOptions& options)
      : device(std::move(inner)), threads_max(options.threads_max), deadline(options.deadline) {}

  const std::unique_ptr<Device> device;
  const unsigned threads_max;

  mutable Mutex mutex;
  Condition work;
  Condition thread_left;
  std::chrono::milliseconds deadline GUARDED_BY(mutex);
  std::deque<std::shared_ptr<Operation>> queue GUARDED_BY(mutex);
  std::vector<Operation*> waiting GUARDED_BY(mutex);  // whose callers wait
  unsigned waiting_here GUARDED_BY(mutex) = 0;        // callers that wait for calls of their own
  std::uint64_t unflushed_bytes GUARDED_BY(mutex) = 0;
  std::uint64_t expiries GUARDED_BY(mutex) = 0;
  std::uint64_t timeouts GUARDED_BY(mutex) = 0;
  std::uint64_t overdue GUARDED_BY(mutex) = 0;
  bool is_silent GUARDED_BY(mutex) = false;  // a call is overdue, and none was answered since
  unsigned threads GUARDED_BY(mutex) = 0;
  std::vector<pid_t> ended_ids GUARDED_BY(mutex);  // of threads, since it is closing
  unsigned idle GUARDED_BY(mutex) = 0;
  bool is_closing GUARDED_BY(mutex) = false;  // threads end when they are idle

  static void serve(const std::shared_ptr<Shared>& self);
  void hand_over(const std::shared_ptr<Shared>& self, const std::shared_ptr<Operation>& operation)
      REQUIRES(mutex);
  [[nodiscard]] bool admit(Call& call) REQUIRES(mutex);
  [[nodiscard]] std::optional<Clock::time_point> end_of(const Call& call) const REQUIRES(mutex);
  [[nodiscard]] bool is_over(const Call& call) const REQUIRES(mutex);
  void note_answer(const Call& call) REQUIRES(mutex);
  void finish(Operation& operation) REQUIRES(mutex);
  [[nodiscard]] bool wait_for(Operation& operation) REQUIRES(mutex);
  void give_up(const std::shared_ptr<Operation>& operation) REQUIRES(mutex);
  void end_idle_threads() REQUIRES(mutex) {
    is_closing = true;
    work.notify_all();
    while (threads > overdue) thread_left.wait(mutex);
  }
  void wake_callers() REQUIRES(mutex) {
    for (Operation* operation : waiting) operation->done.notify_all();
  }
};

// Where there is no thread to be had, the operation waits for one of the others; where there are
// none, its caller carries it out.
void WatchedDevice::Shared::hand_over(const std::shared_ptr<Shared>& self,
                                      const std::shared_ptr<Operation>& operation) {
  queue.push_back(operation);
  if (idle < queue.size() && threads < threads_max) {
    if (std::thread thread = start_quiet_thread([self] { serve(self); }); thread.joinable()) {
      thread.detach();
      ++threads;
    }
  }
  work.notify_one();
}

void WatchedDevice::Shared::serve(const std::shared_ptr<Shared>& self) {
  MutexLock lock(self->mutex);
  while (true) {
    while (self->queue.empty() && !self->is_closing) {
      ++self->idle;
      self->work.wait(self->mutex);
      --self->idle;
    }
    if (self->queue.empty()) break;
    const std::shared_ptr<Operation> operation = std::move(self->queue.front());
    self->queue.pop_front();
    operation->is_started = true;
    lock.unlock();
    operation->run_on(*self->device);
    lock.lock();
    self->finish(*operation);
    lock.unlock();  // or its caller would wake to wait for the lock
    operation->done.notify_all();
    lock.lock();
  }
  --self->threads;
  self->ended_ids.push_back(::gettid());
  self->thread_left.notify_all();
}

// False where it has to fail at once.
bool WatchedDevice::Shared::admit(Call& call) {
  const bool is_hung = is_silent && overdue > 0;
  if (is_hung && (!waiting.empty() || waiting_here > 0 || overdue >= threads_max)) {
    ++timeouts;
    return false;
  }
  if (call.is_flush) call.moved_bytes = unflushed_bytes;
  call.begun = Clock::now();
  call.expiries = expiries;
  return true;
}

// Nothing: never.
std::optional<Clock::time_point> WatchedDevice::Shared::end_of(const Call& call) const {
  if (deadline.count() == 0) return std::nullopt;
  return call.begun + deadline +
         std::chrono::milliseconds(call.moved_bytes * 1000 / kBytesPerSecondMin);
}

bool WatchedDevice::Shared::is_over(const Call& call) const {
  const auto end = end_of(call);
  return call.expiries != expiries || (end && Clock::now() >= *end);
}

void WatchedDevice::Shared::note_answer(const Call& call) {
  is_silent = false;
  unflushed_bytes += call.written_bytes;
  if (call.is_flush) unflushed_bytes -= std::min(unflushed_bytes, call.moved_bytes);
}

void WatchedDevice::Shared::finish(Operation& operation) {
  operation.is_done = true;
  note_answer(operation.call);
  operation.loan.reset();
  operation.device.reset();
  if (operation.is_overdue) --overdue;
}

// False when its time is over.
bool WatchedDevice::Shared::wait_for(Operation& operation) {
  while (!operation.is_done) {
    if (is_over(operation.call)) return false;
    if (const auto end = end_of(operation.call))
      operation.done.wait_until(mutex, *end);
    else
      operation.done.wait(mutex);
  }
  return true;
}

// What the device never saw is forgotten; what it has keeps its memory until it is done.
void WatchedDevice::Shared::give_up(const std::shared_ptr<Operation>& operation) {
  ++timeouts;
  is_silent = true;
  if (!operation->is_started && operation->kind != Operation::Kind::kLate) {
    std::erase(queue, operation);
    return;
  }
  operation->is_overdue = true;
  operation->loan.emplace(operation->segments);
  ++overdue;
}

WatchedDevice::WatchedDevice(std::unique_ptr<Device> device, const WatchOptions& options)
    : shared_(std::make_shared<Shared>(std::move(device), options)) {}

WatchedDevice::~WatchedDevice() {
  MutexLock lock(shared_->mutex);
  shared_->end_idle_threads();
}

// Not before the system lists them no more.
void WatchedDevice::retire_threads() {
  std::vector<pid_t> ids;
  {
    MutexLock lock(shared_->mutex);
    shared_->ended_ids.clear();
    shared_->end_idle_threads();
    shared_->is_closing = false;
    ids.swap(shared_->ended_ids);
  }
  for (const pid_t id : ids) wait_until_gone(id);
  shared_->device->retire_threads();
}

// False: given up.
bool WatchedDevice::carry_out(const std::shared_ptr<Operation>& operation) {
  Shared& s = *shared_;
  MutexLock lock(s.mutex);
  if (!s.admit(operation->call)) return false;
  s.hand_over(shared_, operation);
  if (s.threads == 0) {
    std::erase(s.queue, operation);
    lock.unlock();
    operation->run_on(*s.device);
    lock.lock();
    s.finish(*operation);
    return true;
  }
  s.waiting.push_back(operation.get());
  const bool is_answered = s.wait_for(*operation);
  std::erase(s.waiting, operation.get());
  if (!is_answered) s.give_up(operation);
  return is_answered;
}

// False where the device inside cannot.
bool WatchedDevice::run_here(std::span<IoRequest> requests) {
  Shared& s = *shared_;
  Call call(requests);
  {
    const MutexLock lock(s.mutex);
    if (!s.admit(call)) {
      fail_all(requests);
      return true;
    }
    ++s.waiting_here;
  }
  const auto is_over = [&s, &call] {
    const MutexLock lock(s.mutex);
    return s.is_over(call);
  };
  std::unique_ptr<LateRequests> late;
  const bool has_run = s.device->run_or_leave(requests, is_over, late);
  const MutexLock lock(s.mutex);
  --s.waiting_here;
  if (late == nullptr) {
    if (has_run) s.note_answer(call);
    return has_run;
  }
  const auto operation = std::make_shared<Operation>();
  operation->kind = Operation::Kind::kLate;
  operation->segments = segments_of(requests);
  operation->late = std::move(late);
  operation->device = shared_;
  operation->call = call;
  s.give_up(operation);
  s.hand_over(shared_, operation);
  fail_all(requests);
  return true;
}

void WatchedDevice::run(std::span<IoRequest> requests) {
  if (requests.empty() || run_here(requests)) return;
  const auto operation = std::make_shared<Operation>();
  operation->call = Call(requests);
  operation->segments = segments_of(requests);
  operation->requests.assign(requests.begin(), requests.end());
  std::span<const iovec> rest = operation->segments;
  for (IoRequest& request : operation->requests) {
    request.segments = rest.first(request.segments.size());
    rest = rest.subspan(request.segments.size());
  }
  if (!carry_out(operation)) return fail_all(requests);
  for (std::size_t i = 0; i < requests.size(); ++i)
    requests[i].error = operation->requests[i].error;
}

Result<void> WatchedDevice::flush() {
  const auto operation = std::make_shared<Operation>();
  operation->kind = Operation::Kind::kFlush;
  operation->call.is_flush = true;
  if (!carry_out(operation)) return fail(Errc::kIo, "device: no answer in time", ETIMEDOUT);
  return operation->flushed;
}

void WatchedDevice::discard(std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  const auto operation = std::make_shared<Operation>();
  operation->kind = Operation::Kind::kDiscard;
  operation->offset_bytes = offset_bytes;
  operation->size_bytes = size_bytes;
  static_cast<void>(carry_out(operation));  // of no consequence
}

const DeviceInfo& WatchedDevice::info() const { return shared_->device->info(); }

DeviceCounters WatchedDevice::counters() const {
  DeviceCounters counters = shared_->device->counters();
  const MutexLock lock(shared_->mutex);
  counters.timeouts = shared_->timeouts;
  counters.overdue = shared_->overdue;
  return counters;
}

void WatchedDevice::set_deadline(std::chrono::milliseconds deadline) {
  const MutexLock lock(shared_->mutex);
  shared_->deadline = deadline;
  shared_->wake_callers();
}

std::chrono::milliseconds WatchedDevice::deadline() const {
  const MutexLock lock(shared_->mutex);
  return shared_->deadline;
}

void WatchedDevice::expire() {
  const MutexLock lock(shared_->mutex);
  ++shared_->expiries;
  shared_->wake_callers();
}

}  // namespace kvslot
