// One io_uring, fed with batches by the thread that made it. Used by uring_engine.
#pragma once

#include <liburing.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/io_engine.h"
#include "core/transfer.h"

namespace kvslot {

struct UringOptions {
  unsigned entries = 256;  // also how many requests may be under way
  unsigned flags = 0;      // IORING_SETUP_*
};

// "SINGLE_ISSUER|CLAMP", for people.
[[nodiscard]] std::string uring_flags_to_string(unsigned flags);

// Fills an entry with what is left of the transfer.
void prepare_transfer(io_uring_sqe* sqe, int fd, const Transfer& transfer);

// Threads: made and run by one thread; close() also by another while run() is not under way.
class UringRing {
 public:
  // Drops flags that the kernel does not know, so options.flags is what was wanted, flags() what
  // was got.
  //   errors   kIo with the kernel's errno: EPERM, ENOSYS, ENOMEM, or an operation is missing
  [[nodiscard]] static Result<std::shared_ptr<UringRing>> open(UringOptions options);
  ~UringRing() { close(); }
  UringRing(const UringRing&) = delete;
  UringRing& operator=(const UringRing&) = delete;

  // As Device::run. False when the ring stopped taking requests: everything was carried out all
  // the same, but the ring is of no more use.
  bool run(int fd, std::span<IoRequest> requests, IoCounters& counters);

  void close();
  [[nodiscard]] bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  [[nodiscard]] unsigned flags() const { return flags_; }
  [[nodiscard]] unsigned entries() const { return entries_; }

 private:
  struct Item {
    Transfer transfer;
    bool is_queued = false;  // in the ring: submitted or about to be
    bool is_done = false;
  };

  UringRing(const io_uring& ring, unsigned flags);
  void start(std::span<IoRequest> requests);
  void queue_ready(int fd, IoCounters& counters);
  bool submit(IoCounters& counters);
  unsigned reap(IoCounters& counters);
  void complete(std::uint64_t user_data, std::int32_t result, IoCounters& counters);
  void give_up(int fd, IoCounters& counters);

  io_uring ring_;
  const unsigned flags_;
  const unsigned entries_;
  std::atomic<bool> closed_{false};

  // The batch under way. Kept between batches for its memory.
  std::uint32_t batch_number_ = 0;  // upper half of user_data: tells a stranger's completion
  std::vector<Item> items_;
  std::vector<std::uint32_t> again_;  // items to be resubmitted
  std::size_t next_ = 0;              // first item never queued
  std::size_t queued_count_ = 0;      // items in the ring; at most entries_, so the completion
                                      // queue, twice as long, cannot overflow
  std::size_t open_count_ = 0;        // items not done
  unsigned refusal_count_ = 0;        // submissions in a row that moved nothing
};

}  // namespace kvslot
