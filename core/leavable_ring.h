// A small io_uring for a caller that may leave before the device is done. Nothing is ever waited
// for in the kernel but in the wait for completions: what cannot be submitted at once is refused
// (RWF_NOWAIT), so there are no kernel threads, which a device could hold and their process with
// them. Used by core/uring_engine.
#pragma once

#include <kvslot/device.h>
#include <liburing.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/io_engine.h"
#include "core/transfer.h"

namespace kvslot {

// Each completion wakes the caller, where a batch of core/uring_ring wakes it once: more than these
// are not worth it.
inline constexpr std::size_t kLeavableRequestsMax = 4;

enum class LeavableEnd : std::uint8_t {
  kDone,         // every request has its result
  kLeft,         // the caller leaves; the ring has to be waited for
  kRefused,      // the device could not take them at once, or took them in parts
  kUnsupported,  // the file knows no RWF_NOWAIT
  kBroken,       // the kernel took no entries: the ring is of no more use
};

// Threads: one at a time, any. Other than core/uring_ring, whose flags make completions appear only
// while the thread that submitted asks for them.
class LeavableRing final : public LateRequests {
 public:
  // Null where the kernel has none, or none now.
  [[nodiscard]] static std::unique_ptr<LeavableRing> open();
  ~LeavableRing() override;
  LeavableRing(const LeavableRing&) = delete;
  LeavableRing& operator=(const LeavableRing&) = delete;

  // As Device::run_or_leave, for up to kLeavableRequestsMax requests.
  //   owns     the counters, until nothing is under way
  [[nodiscard]] LeavableEnd run(int fd, std::span<IoRequest> requests,
                                const std::function<bool()>& is_over, IoCounters& counters);
  void wait() override;

 private:
  struct Item {
    Transfer transfer;
    std::size_t size_bytes = 0;
    std::int64_t result = 0;
  };

  explicit LeavableRing(const io_uring& ring) : ring_(ring) {}
  void queue(int fd, std::span<IoRequest> requests);
  bool submit();
  void wait_a_turn();
  void reap();
  LeavableEnd judge();

  io_uring ring_;
  std::uint32_t batch_number_ = 0;  // upper half of user_data
  std::vector<Item> items_;
  std::size_t under_way_ = 0;  // submitted, or about to be, and not completed
  IoCounters* counters_ = nullptr;
};

}  // namespace kvslot
