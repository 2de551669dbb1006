// Transfers by plain system calls. Called by file_device, and by uring_engine for what needs no
// ring or finds none.
#include "core/posix_engine.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "core/quiet_thread.h"

namespace kvslot {
namespace {

constexpr std::size_t kRequestsOnOneThreadMax = 2;  // more than these are worth waking helpers

std::int64_t attempt(int fd, const Transfer& transfer) {
  const std::span<const iovec> segments = transfer.segments();
  const int count = static_cast<int>(segments.size());
  const auto offset = static_cast<off_t>(transfer.offset_bytes());
  const ssize_t moved_bytes = transfer.op() == IoOp::kRead
                                  ? ::preadv(fd, segments.data(), count, offset)
                                  : ::pwritev(fd, segments.data(), count, offset);
  return moved_bytes < 0 ? -static_cast<std::int64_t>(errno) : moved_bytes;
}

void run_request(int fd, IoRequest& request, IoCounters& counters) {
  Transfer transfer(request);
  run_to_end(fd, transfer, counters);
}

}  // namespace

void run_to_end(int fd, Transfer& transfer, IoCounters& counters) {
  counters.enter(1);
  TransferStep step = TransferStep::kResubmit;
  while (step == TransferStep::kResubmit) {
    IoCounters::add(counters.submissions);
    step = transfer.on_result(attempt(fd, transfer), counters);
  }
  counters.leave(1);
}

// A batch whose requests are taken one by one, by its caller and by helpers. It lives on the
// caller's stack: the caller leaves when nothing is left to take and no helper is inside.
struct PosixEngine::Batch {
  int fd;
  std::span<IoRequest> requests;
  std::atomic<std::size_t> next{0};
  std::size_t helpers_inside = 0;  // guarded by the engine's mutex
};

PosixEngine::~PosixEngine() { retire_threads(); }

void PosixEngine::retire_threads() {
  std::vector<std::thread> helpers;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    helpers.swap(helpers_);
  }
  batch_arrived_.notify_all();
  for (std::thread& helper : helpers) helper.join();
  const MutexLock lock(mutex_);
  stopping_ = false;
  for (const pid_t id : helper_ids_) wait_until_gone(id);
  helper_ids_.clear();
}

void PosixEngine::run(int fd, std::span<IoRequest> requests) {
  if (requests.size() > kRequestsOnOneThreadMax) return run_shared(fd, requests);
  for (IoRequest& request : requests) run_request(fd, request, counters_);
}

void PosixEngine::run_shared(int fd, std::span<IoRequest> requests) {
  Batch batch{.fd = fd, .requests = requests};
  {
    const MutexLock lock(mutex_);
    start_helpers();
    open_batches_.push_back(&batch);
  }
  const std::size_t wanted = std::min(requests.size() - 1, kPosixHelpersMax);
  for (std::size_t i = 0; i < wanted; ++i) batch_arrived_.notify_one();
  work_on(batch);
  const MutexLock lock(mutex_);
  std::erase(open_batches_, &batch);
  while (batch.helpers_inside > 0) helper_left_.wait(mutex_);
}

// Fewer threads than wanted, or none, only make a batch slower: its caller works on it too.
void PosixEngine::start_helpers() {
  if (!helpers_.empty()) return;
  while (helpers_.size() < kPosixHelpersMax) {
    std::thread helper = start_quiet_thread([this] { help(); });
    if (!helper.joinable()) return;
    helpers_.push_back(std::move(helper));
  }
}

void PosixEngine::help() {
  MutexLock lock(mutex_);
  helper_ids_.push_back(::gettid());
  while (true) {
    while (!stopping_ && open_batches_.empty()) batch_arrived_.wait(mutex_);
    if (stopping_) return;
    Batch& batch = *open_batches_.front();
    ++batch.helpers_inside;
    lock.unlock();
    work_on(batch);
    lock.lock();
    std::erase(open_batches_, &batch);
    if (--batch.helpers_inside == 0) helper_left_.notify_all();
  }
}

void PosixEngine::work_on(Batch& batch) {
  while (true) {
    const std::size_t index = batch.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= batch.requests.size()) return;
    run_request(batch.fd, batch.requests[index], counters_);
  }
}

}  // namespace kvslot
