// The threads that wait for the device, and the callers that do not wait longer than they may.
// Step before: everything above <kvslot/device.h>. Step after: the device inside.
#include <kvslot/watched_device.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <deque>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/loan.h"

namespace kvslot {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kBytesPerSecondMin = kMiB;  // of a device that is slow, not hung

}  // namespace

// One call: a copy of what was asked for, so that the caller can leave before the device does.
struct WatchedDevice::Operation {
  enum class Kind : std::uint8_t { kRun, kFlush, kDiscard };

  Kind kind = Kind::kRun;
  std::vector<IoRequest> requests;
  std::vector<iovec> segments;  // of all requests
  Result<void> flushed;
  std::uint64_t offset_bytes = 0, size_bytes = 0;  // of a discard

  // Guarded by the device's mutex.
  std::uint64_t moved_bytes = 0;
  std::uint64_t written_bytes = 0;  // of them
  Clock::time_point begun;
  std::uint64_t expiries = 0;  // calls of expire() before it began
  bool is_started = false;
  bool is_done = false;
  bool is_overdue = false;
  std::optional<Loan> loan;
  Condition done;

  void run_on(Device& device) {
    if (kind == Kind::kRun) device.run(requests);
    if (kind == Kind::kFlush) flushed = device.flush();
    if (kind == Kind::kDiscard) device.discard(offset_bytes, size_bytes);
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
  void start_thread(const std::shared_ptr<Shared>& self) REQUIRES(mutex);
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

// Signals are for the program's own threads. Where there is no thread to be had, the call waits
// for one of the others.
void WatchedDevice::Shared::start_thread(const std::shared_ptr<Shared>& self) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([self] { serve(self); }).detach();
    ++threads;
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
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

void WatchedDevice::Shared::finish(Operation& operation) {
  operation.is_done = true;
  is_silent = false;
  unflushed_bytes += operation.written_bytes;
  if (operation.kind == Operation::Kind::kFlush)
    unflushed_bytes -= std::min(unflushed_bytes, operation.moved_bytes);
  operation.loan.reset();
  if (operation.is_overdue) --overdue;
}

// False when its time is over.
bool WatchedDevice::Shared::wait_for(Operation& operation) {
  const auto extra = std::chrono::milliseconds(operation.moved_bytes * 1000 / kBytesPerSecondMin);
  while (!operation.is_done) {
    if (operation.expiries != expiries) return false;
    if (deadline.count() == 0) {
      operation.done.wait(mutex);
      continue;
    }
    const auto end = operation.begun + deadline + extra;
    if (Clock::now() >= end) return false;
    operation.done.wait_until(mutex, end);
  }
  return true;
}

// What the device never saw is forgotten; what it has keeps its memory until it is done.
void WatchedDevice::Shared::give_up(const std::shared_ptr<Operation>& operation) {
  ++timeouts;
  is_silent = true;
  if (!operation->is_started) {
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
  for (const pid_t id : ids)
    while (::tgkill(::getpid(), id, 0) == 0) std::this_thread::yield();
}

// False: given up.
bool WatchedDevice::carry_out(const std::shared_ptr<Operation>& operation) {
  Shared& s = *shared_;
  MutexLock lock(s.mutex);
  const bool is_hung = s.is_silent && s.overdue > 0;
  if (is_hung && (!s.waiting.empty() || s.overdue >= s.threads_max)) {
    ++s.timeouts;
    return false;
  }
  if (operation->kind == Operation::Kind::kFlush) operation->moved_bytes = s.unflushed_bytes;
  operation->begun = Clock::now();
  operation->expiries = s.expiries;
  s.queue.push_back(operation);
  if (s.idle < s.queue.size() && s.threads < s.threads_max) s.start_thread(shared_);
  s.work.notify_one();
  s.waiting.push_back(operation.get());
  const bool is_answered = s.wait_for(*operation);
  std::erase(s.waiting, operation.get());
  if (!is_answered) s.give_up(operation);
  return is_answered;
}

void WatchedDevice::run(std::span<IoRequest> requests) {
  if (requests.empty()) return;
  const auto operation = std::make_shared<Operation>();
  std::size_t segment_count = 0;
  for (const IoRequest& request : requests) segment_count += request.segments.size();
  operation->segments.reserve(segment_count);
  operation->requests.assign(requests.begin(), requests.end());
  for (IoRequest& request : operation->requests) {
    const std::size_t first = operation->segments.size();
    for (const iovec& segment : request.segments) {
      operation->segments.push_back(segment);
      operation->moved_bytes += segment.iov_len;
      if (request.op == IoOp::kWrite) operation->written_bytes += segment.iov_len;
    }
    request.segments = std::span(operation->segments).subspan(first);
  }
  const bool is_answered = carry_out(operation);
  for (std::size_t i = 0; i < requests.size(); ++i)
    requests[i].error = is_answered ? operation->requests[i].error : ETIMEDOUT;
}

Result<void> WatchedDevice::flush() {
  const auto operation = std::make_shared<Operation>();
  operation->kind = Operation::Kind::kFlush;
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
