// How a batch of transfers is carried out, behind file_device; and what is counted while it is.
#pragma once

#include <kvslot/device.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvslot {

// DeviceCounters while they change. Threads: thread-safe.
struct IoCounters {
  std::atomic<std::uint64_t> reads{0};
  std::atomic<std::uint64_t> writes{0};
  std::atomic<std::uint64_t> read_bytes{0};
  std::atomic<std::uint64_t> written_bytes{0};
  std::atomic<std::uint64_t> batches{0};
  std::atomic<std::uint64_t> submissions{0};
  std::atomic<std::uint64_t> flushes{0};
  std::atomic<std::uint64_t> retries{0};
  std::atomic<std::uint64_t> short_transfers{0};
  std::atomic<std::uint64_t> queue_depth{0};
  std::atomic<std::uint64_t> queue_depth_max{0};

  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount = 1) {
    counter.fetch_add(amount, std::memory_order_relaxed);
  }
  void enter(std::uint64_t requests);  // these are under way from now on
  void leave(std::uint64_t requests);
  [[nodiscard]] DeviceCounters snapshot() const;
};

// Threads: thread-safe. Destruction waits for nothing: no call may be under way.
class IoEngine {
 public:
  virtual ~IoEngine() = default;

  // As Device::run, on a descriptor that stays open for the call.
  virtual void run(int fd, std::span<IoRequest> requests) = 0;

  // As Device::run_or_leave; the file must be one that takes requests without waiting.
  [[nodiscard]] virtual bool run_or_leave([[maybe_unused]] int fd,
                                          [[maybe_unused]] std::span<IoRequest> requests,
                                          [[maybe_unused]] const std::function<bool()>& is_over,
                                          [[maybe_unused]] std::unique_ptr<LateRequests>& late) {
    return false;
  }

  // As Device::retire_threads.
  virtual void retire_threads() = 0;

  [[nodiscard]] virtual const char* name() const = 0;
  [[nodiscard]] virtual std::string detail() const = 0;
};

struct IoEngineOptions {
  EngineChoice choice = EngineChoice::kAuto;
  unsigned queue_depth_max = 256;
};

// The engine of choice; kAuto takes io_uring and falls back to posix, whose detail() says why.
//   errors   kInvalid with the kernel's errno: io_uring was asked for by name and is not there
//   owns     the counters must outlive the engine
[[nodiscard]] Result<std::unique_ptr<IoEngine>> make_io_engine(const IoEngineOptions& options,
                                                               IoCounters& counters);

}  // namespace kvslot
