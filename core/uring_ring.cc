// Feeds a batch to an io_uring and reaps every completion of it. Called by uring_engine.
#include "core/uring_ring.h"

#include <kvslot/check.h>

#include <array>
#include <cerrno>

#include "core/posix_engine.h"

namespace kvslot {
namespace {

struct FlagName {
  unsigned flag;
  const char* name;
};

// In the order in which they are given up when the kernel refuses them.
constexpr std::array<FlagName, 4> kFlagNames{{
    {IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN"},
    {IORING_SETUP_SINGLE_ISSUER, "SINGLE_ISSUER"},
    {IORING_SETUP_SUBMIT_ALL, "SUBMIT_ALL"},
    {IORING_SETUP_CLAMP, "CLAMP"},
}};

// Without the first flag of kFlagNames that is set; 0 stays 0.
unsigned drop_one_flag(unsigned flags) {
  for (const FlagName& known : kFlagNames) {
    if ((flags & known.flag) != 0) return flags & ~known.flag;
  }
  return 0;
}

bool has_operations(io_uring& ring) {
  io_uring_probe* const probe = io_uring_get_probe_ring(&ring);
  if (probe == nullptr) return false;
  bool all = true;
  for (const int op : {IORING_OP_READV, IORING_OP_WRITEV, IORING_OP_READ, IORING_OP_WRITE}) {
    all = all && io_uring_opcode_supported(probe, op) != 0;
  }
  io_uring_free_probe(probe);
  return all;
}

}  // namespace

void prepare_transfer(io_uring_sqe* sqe, int fd, const Transfer& transfer) {
  const std::span<const iovec> segments = transfer.segments();
  const std::uint64_t offset = transfer.offset_bytes();
  const auto count = static_cast<unsigned>(segments.size());
  const auto length = static_cast<unsigned>(segments.front().iov_len);
  if (transfer.op() == IoOp::kRead) {
    if (count == 1) return io_uring_prep_read(sqe, fd, segments.front().iov_base, length, offset);
    return io_uring_prep_readv(sqe, fd, segments.data(), count, offset);
  }
  if (count == 1) return io_uring_prep_write(sqe, fd, segments.front().iov_base, length, offset);
  return io_uring_prep_writev(sqe, fd, segments.data(), count, offset);
}

std::string uring_flags_to_string(unsigned flags) {
  std::string names;
  for (const FlagName& known : kFlagNames) {
    if ((flags & known.flag) == 0) continue;
    if (!names.empty()) names += '|';
    names += known.name;
  }
  return names.empty() ? "no flags" : names;
}

Result<std::shared_ptr<UringRing>> UringRing::open(UringOptions options) {
  io_uring ring{};
  unsigned flags = options.flags;
  int result = io_uring_queue_init(options.entries, &ring, flags);
  while (result == -EINVAL && flags != 0) {
    flags = drop_one_flag(flags);
    result = io_uring_queue_init(options.entries, &ring, flags);
  }
  if (result < 0) return fail(Errc::kIo, "io_uring: set up a ring", -result);
  std::shared_ptr<UringRing> opened(new UringRing(ring, flags));
  if (!has_operations(opened->ring_)) {
    return fail(Errc::kIo, "io_uring: operations missing", ENOSYS);
  }
  return opened;
}

UringRing::UringRing(const io_uring& ring, unsigned flags)
    : ring_(ring), flags_(flags), entries_(ring.sq.ring_entries) {}

void UringRing::close() {
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  KVSLOT_CHECK(queued_count_ == 0, "io_uring: closed with requests under way");
  io_uring_queue_exit(&ring_);
}

bool UringRing::run(int fd, std::span<IoRequest> requests, IoCounters& counters) {
  start(requests);
  while (open_count_ > 0) {
    queue_ready(fd, counters);
    if (!submit(counters)) {
      give_up(fd, counters);
      return false;
    }
  }
  KVSLOT_CHECK(queued_count_ == 0, "io_uring: batch over with requests under way");
  return true;
}

void UringRing::start(std::span<IoRequest> requests) {
  ++batch_number_;
  items_.clear();
  items_.reserve(requests.size());
  for (IoRequest& request : requests) items_.push_back({.transfer = Transfer(request)});
  again_.clear();
  again_.reserve(requests.size());
  next_ = 0;
  open_count_ = items_.size();
  refusal_count_ = 0;
}

void UringRing::queue_ready(int fd, IoCounters& counters) {
  while (queued_count_ < entries_ && (!again_.empty() || next_ < items_.size())) {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) return;  // Full of entries not yet submitted; they go first.
    auto index = static_cast<std::uint32_t>(next_);
    if (again_.empty()) {
      ++next_;
    } else {
      index = again_.back();
      again_.pop_back();
    }
    Item& item = items_[index];
    KVSLOT_CHECK(!item.is_queued && !item.is_done, "io_uring: request queued twice");
    item.is_queued = true;
    prepare_transfer(sqe, fd, item.transfer);
    sqe->user_data = (std::uint64_t{batch_number_} << 32) | index;
    ++queued_count_;
    counters.enter(1);
  }
}

// One system call that submits what is queued and waits: for everything when nothing is left to
// be queued, otherwise for a quarter of the ring, so that it is refilled in few calls and never
// runs dry. False when the kernel keeps refusing entries.
bool UringRing::submit(IoCounters& counters) {
  const bool is_last = next_ == items_.size();
  const auto all = static_cast<unsigned>(queued_count_);
  const unsigned wait_count = is_last ? all : (all + 3) / 4;
  const unsigned unsubmitted_before = io_uring_sq_ready(&ring_);
  const int result = io_uring_submit_and_wait(&ring_, wait_count);
  IoCounters::add(counters.submissions);
  const unsigned unsubmitted = io_uring_sq_ready(&ring_);
  const unsigned reaped = reap(counters);
  if (result < 0) IoCounters::add(counters.retries);
  if (unsubmitted == 0) {  // At most a wait that was interrupted: these may go on for ever.
    KVSLOT_CHECK(result >= 0 || is_transient(-result), "io_uring: cannot wait for completions");
    return true;
  }
  if (unsubmitted < unsubmitted_before || reaped > 0) {
    refusal_count_ = 0;
    return true;
  }
  return (result >= 0 || is_transient(-result)) && ++refusal_count_ <= kRetriesMax;
}

unsigned UringRing::reap(IoCounters& counters) {
  unsigned head = 0;
  unsigned count = 0;
  io_uring_cqe* cqe = nullptr;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    complete(cqe->user_data, cqe->res, counters);
    ++count;
  }
  io_uring_cq_advance(&ring_, count);
  return count;
}

void UringRing::complete(std::uint64_t user_data, std::int32_t result, IoCounters& counters) {
  const auto index = static_cast<std::uint32_t>(user_data);
  KVSLOT_CHECK(
      (user_data >> 32) == batch_number_ && index < items_.size() && items_[index].is_queued,
      "io_uring: completion of a request that is not under way");
  Item& item = items_[index];
  item.is_queued = false;
  --queued_count_;
  counters.leave(1);
  if (item.transfer.on_result(result, counters) == TransferStep::kResubmit) {
    again_.push_back(index);
    return;
  }
  item.is_done = true;
  --open_count_;
}

// The kernel refuses what is in the ring. Waits for what it took, then does without the ring.
void UringRing::give_up(int fd, IoCounters& counters) {
  const unsigned unsubmitted = io_uring_sq_ready(&ring_);
  while (queued_count_ > unsubmitted) {
    io_uring_cqe* cqe = nullptr;
    const int result = io_uring_wait_cqe(&ring_, &cqe);
    KVSLOT_CHECK(result >= 0 || is_transient(-result), "io_uring: cannot drain the ring");
    reap(counters);
  }
  counters.leave(queued_count_);
  queued_count_ = 0;
  close();
  for (Item& item : items_) {
    if (!item.is_done) run_to_end(fd, item.transfer, counters);
  }
}

}  // namespace kvslot
