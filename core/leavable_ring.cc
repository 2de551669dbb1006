// Submits a few requests and waits for them in short turns. See leavable_ring.h.
#include "core/leavable_ring.h"

#include <kvslot/check.h>

#include <algorithm>
#include <cerrno>

#include "core/uring_ring.h"

namespace kvslot {
namespace {

constexpr unsigned kEntries = 8;
constexpr unsigned kFlags = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_CLAMP;
constexpr unsigned kFeatures = IORING_FEAT_EXT_ARG | IORING_FEAT_SUBMIT_STABLE;
constexpr long kTurnNanoseconds = 100'000'000;  // of waiting, before the caller is asked

static_assert(kLeavableRequestsMax <= kEntries);

}  // namespace

std::unique_ptr<LeavableRing> LeavableRing::open() {
  io_uring_params parameters{};
  parameters.flags = kFlags;
  io_uring ring{};
  if (io_uring_queue_init_params(kEntries, &ring, &parameters) < 0) return nullptr;
  std::unique_ptr<LeavableRing> opened(new LeavableRing(ring));
  return (parameters.features & kFeatures) == kFeatures ? std::move(opened) : nullptr;
}

LeavableRing::~LeavableRing() {
  KVSLOT_CHECK(under_way_ == 0, "io_uring: closed with requests under way");
  io_uring_queue_exit(&ring_);
}

LeavableEnd LeavableRing::run(int fd, std::span<IoRequest> requests,
                              const std::function<bool()>& is_over, IoCounters& counters) {
  counters_ = &counters;
  queue(fd, requests);
  const bool is_taken = submit();
  while (under_way_ > 0) {
    if (is_over()) return LeavableEnd::kLeft;
    wait_a_turn();
  }
  return is_taken ? judge() : LeavableEnd::kBroken;
}

void LeavableRing::queue(int fd, std::span<IoRequest> requests) {
  KVSLOT_CHECK(under_way_ == 0 && requests.size() <= kLeavableRequestsMax,
               "io_uring: too many requests");
  ++batch_number_;
  items_.clear();
  for (IoRequest& request : requests) {
    items_.push_back({.transfer = Transfer(request), .size_bytes = checked_size_bytes(request)});
  }
  for (std::size_t i = 0; i < items_.size(); ++i) {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    KVSLOT_CHECK(sqe != nullptr, "io_uring: no entry in an empty ring");
    prepare_transfer(sqe, fd, items_[i].transfer);
    sqe->rw_flags = RWF_NOWAIT;
    sqe->user_data = (std::uint64_t{batch_number_} << 32) | i;
  }
  under_way_ = items_.size();
  counters_->enter(under_way_);
}

// Waits a turn, too, in the same system call. False where the kernel leaves entries in the ring,
// which are never submitted then.
bool LeavableRing::submit() {
  __kernel_timespec turn{.tv_sec = 0, .tv_nsec = kTurnNanoseconds};
  io_uring_cqe* cqe = nullptr;
  IoCounters::add(counters_->submissions);
  static_cast<void>(io_uring_submit_and_wait_timeout(
      &ring_, &cqe, static_cast<unsigned>(under_way_), &turn, nullptr));
  const unsigned refused = io_uring_sq_ready(&ring_);
  under_way_ -= refused;
  counters_->leave(refused);
  reap();
  return refused == 0;
}

void LeavableRing::wait_a_turn() {
  __kernel_timespec turn{.tv_sec = 0, .tv_nsec = kTurnNanoseconds};
  io_uring_cqe* cqe = nullptr;
  const int result =
      io_uring_wait_cqes(&ring_, &cqe, static_cast<unsigned>(under_way_), &turn, nullptr);
  KVSLOT_CHECK(result >= 0 || result == -ETIME || is_transient(-result),
               "io_uring: cannot wait for completions");
  reap();
}

void LeavableRing::reap() {
  unsigned head = 0;
  unsigned count = 0;
  io_uring_cqe* cqe = nullptr;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    const auto index = static_cast<std::uint32_t>(cqe->user_data);
    KVSLOT_CHECK((cqe->user_data >> 32) == batch_number_ && index < items_.size(),
                 "io_uring: completion of a request that is not under way");
    items_[index].result = cqe->res;
    ++count;
  }
  io_uring_cq_advance(&ring_, count);
  under_way_ -= count;
  counters_->leave(count);
}

LeavableEnd LeavableRing::judge() {
  const auto is_unsupported = [](const Item& item) { return item.result == -EOPNOTSUPP; };
  const auto is_open = [](const Item& item) {
    return item.result < 0 ? is_transient(static_cast<int>(-item.result))
                           : static_cast<std::size_t>(item.result) != item.size_bytes;
  };
  if (std::ranges::any_of(items_, is_unsupported)) return LeavableEnd::kUnsupported;
  if (std::ranges::any_of(items_, is_open)) return LeavableEnd::kRefused;
  for (Item& item : items_) {
    KVSLOT_CHECK(item.transfer.on_result(item.result, *counters_) == TransferStep::kDone,
                 "io_uring: a transfer that is complete is not done");
  }
  return LeavableEnd::kDone;
}

void LeavableRing::wait() {
  while (under_way_ > 0) {
    io_uring_cqe* cqe = nullptr;
    const int result = io_uring_wait_cqe(&ring_, &cqe);
    KVSLOT_CHECK(result >= 0 || is_transient(-result), "io_uring: cannot wait for completions");
    reap();
  }
}

}  // namespace kvslot
