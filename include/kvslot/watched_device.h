// A device that is never waited for without end. The mount puts it around its device.
#pragma once

#include <kvslot/device.h>

#include <chrono>
#include <memory>

namespace kvslot {

inline constexpr std::chrono::seconds kDeadlineDefault{30};

struct WatchOptions {
  // How long a call may take, and a second more for each MiB that it moves (or, of a flush, that
  // was written before it): slow is not hung. 0: for ever.
  std::chrono::milliseconds deadline = kDeadlineDefault;
  unsigned threads_max = 64;  // calls under way on threads made for them, on demand
};

// Waits for each call, but not longer than the deadline. Transfers that the caller can leave
// (Device::run_or_leave) are run on its own thread; others, flushes and discards are handed to a
// thread that can wait in its place.
//
// A call that was given up fails with ETIMEDOUT, for the caller. Its memory stays untouched by
// others until the device is done with it, however long that takes (core/loan.h), and it counts as
// overdue until then. While a call is overdue and nothing was answered since, one call at a time
// tries the device and the others fail at once: waiting readers do not add up their deadlines.
//
// Threads: thread-safe. Destruction waits for idle threads only; those that the device holds keep
// the inner device alive and end when it lets them go.
class WatchedDevice final : public Device {
 public:
  explicit WatchedDevice(std::unique_ptr<Device> device, const WatchOptions& options = {});
  ~WatchedDevice() override;

  void run(std::span<IoRequest> requests) override;
  [[nodiscard]] Result<void> flush() override;
  void discard(std::uint64_t offset_bytes, std::uint64_t size_bytes) override;
  [[nodiscard]] const DeviceInfo& info() const override;
  [[nodiscard]] DeviceCounters counters() const override;

  // Holds for calls under way, too.
  void set_deadline(std::chrono::milliseconds deadline);
  [[nodiscard]] std::chrono::milliseconds deadline() const;
  // Whatever is under way now has used up its time.
  void expire();
  void retire_threads() override;

 private:
  struct Operation;
  struct Shared;
  [[nodiscard]] bool run_here(std::span<IoRequest> requests);
  [[nodiscard]] bool carry_out(const std::shared_ptr<Operation>& operation);
  const std::shared_ptr<Shared> shared_;
};

}  // namespace kvslot
