// A Device in memory for tests. It keeps what is durable apart from what was merely written, can
// lose power at any point, tear writes, fail, stall, rot and fill up. One seed gives one history.
#pragma once

#include <kvslot/device.h>
#include <kvslot/mutex.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "tests/support/simulated_faults.h"
#include "tests/support/sparse_bytes.h"

namespace kvslot::testing {

struct SimulatedDeviceOptions {
  std::uint64_t size_bytes = 64 * kMiB;
  std::uint64_t seed = 1;
  // Carry out the requests of a batch in random order instead of the order given.
  bool shuffles_batches = false;
};

// Threads: thread-safe.
class SimulatedDevice final : public Device {
 public:
  explicit SimulatedDevice(const SimulatedDeviceOptions& options = {});

  void run(std::span<IoRequest> requests) override;
  [[nodiscard]] Result<void> flush() override;
  // Reads zeros afterwards; after power loss the old bytes may be back, as with a real device.
  void discard(std::uint64_t offset_bytes, std::uint64_t size_bytes) override;
  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  [[nodiscard]] DeviceCounters counters() const override;

  // ---- Crashes ----

  // The next `count` operations are carried out, every later one fails with `error`: the device
  // vanished. 0 makes it vanish now.
  void crash_after_operations(std::uint64_t count, int error = 19 /* ENODEV */);
  [[nodiscard]] bool is_crashed() const;
  [[nodiscard]] std::uint64_t operation_count() const;  // requests and flushes until now
  // The device as found after power loss now. Faults, gate and counters start afresh.
  [[nodiscard]] std::unique_ptr<SimulatedDevice> survivor(std::uint64_t seed, CrashMode mode) const;
  // The same with exactly the sectors chosen; `pending_writes` lists what there is to choose from.
  [[nodiscard]] std::unique_ptr<SimulatedDevice> survivor(const SectorChoice& survives) const;
  [[nodiscard]] std::vector<PendingWrite> pending_writes() const;
  // The device as the next process finds it after kill -9: all that completed is there, and what
  // was not flushed may still be lost to power loss later.
  [[nodiscard]] std::unique_ptr<SimulatedDevice> process_crash() const;

  // ---- Faults ----

  void add_fault(const Fault& fault);
  void clear_faults();
  // A thin device: writes to pages never written take from the budget and fail with ENOSPC when
  // it is used up; discard gives back. nullopt: no limit.
  void set_thin_budget(std::optional<std::uint64_t> budget_bytes);
  void flip_bit(std::uint64_t offset_bytes, unsigned bit);  // on the medium, for good
  // The bytes as they are, and a way to plant others, durable at once; neither is an operation.
  void peek(std::uint64_t offset_bytes, Bytes target) const;
  void poke(std::uint64_t offset_bytes, ConstBytes source);
  // A number that differs when any byte does.
  [[nodiscard]] std::uint64_t fingerprint() const;

  // ---- Holding operations ----

  // From now on calls of run() and flush() that contain this kind wait before they do anything.
  void hold(OperationKind kind);
  // Returns once that many calls are waiting; ends the process where they never come.
  void wait_until_held(std::size_t calls) const;
  [[nodiscard]] std::size_t held_count() const;
  void let_pass(std::size_t calls);  // as many more calls go on, or do not wait when they come
  void release();                    // all go on, and later ones do not wait

  // ---- What was done ----

  static constexpr std::size_t kCallsMax = 1 << 20;     // further calls are not listed
  [[nodiscard]] std::vector<DeviceCall> calls() const;  // since the start or clear_calls()
  void clear_calls();
  [[nodiscard]] std::size_t unflushed_write_count() const;

 private:
  struct Pending {  // a write or a discard that no flush has covered
    std::uint64_t offset_bytes = 0;
    std::vector<std::byte> bytes;  // empty: a discard
    std::uint64_t discard_size_bytes = 0;
    bool is_complete = true;  // false: under way when the device vanished
  };
  struct ArmedFault {
    Fault fault;
    std::uint64_t seen = 0;
  };

  void record(const DeviceCall& call) REQUIRES(mutex_);
  void pass_gate(bool has_reads, bool has_writes, bool is_flush) REQUIRES(mutex_);
  [[nodiscard]] bool is_held(bool has_reads, bool has_writes, bool is_flush) const REQUIRES(mutex_);
  int count_operation() REQUIRES(mutex_);
  const Fault* matching_fault(OperationKind kind, std::uint64_t offset_bytes,
                              std::uint64_t size_bytes) REQUIRES(mutex_);
  int carry_out(IoRequest& request, bool began_alive) REQUIRES(mutex_);
  void read(const IoRequest& request) const REQUIRES(mutex_);
  int write(const IoRequest& request, const Fault* fault) REQUIRES(mutex_);
  void begin_writes(std::span<const IoRequest> requests) REQUIRES(mutex_);
  void end_writes(std::span<const IoRequest> requests) REQUIRES(mutex_);
  bool take_from_budget(const IoRequest& request, std::uint64_t size_bytes) REQUIRES(mutex_);
  static Pending pending_of(const IoRequest& request);
  static void apply(SparseBytes& bytes, const Pending& pending);
  static void apply_torn(SparseBytes& bytes, const Pending& pending, std::mt19937_64& random);
  void make_durable(std::uint64_t pending_end) REQUIRES(mutex_);
  void make_uncertain(std::uint64_t pending_end) REQUIRES(mutex_);
  [[nodiscard]] SparseBytes surviving_bytes(std::mt19937_64& random, CrashMode mode) const
      REQUIRES(mutex_);

  const SimulatedDeviceOptions options_;
  const DeviceInfo info_;

  mutable Mutex mutex_;
  SparseBytes live_ GUARDED_BY(mutex_);
  SparseBytes durable_ GUARDED_BY(mutex_);
  std::vector<Pending> pending_ GUARDED_BY(mutex_);     // in order of completion
  std::uint64_t pending_start_ GUARDED_BY(mutex_) = 0;  // number of pending_[0] since the start
  // Ranges of writes that were submitted and have not completed: no two may overlap, because a
  // device may complete them in either order.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> under_way_ GUARDED_BY(mutex_);
  std::mt19937_64 random_ GUARDED_BY(mutex_);

  std::uint64_t operation_count_ GUARDED_BY(mutex_) = 0;
  std::uint64_t crash_at_operation_ GUARDED_BY(mutex_) = std::numeric_limits<std::uint64_t>::max();
  int crash_error_ GUARDED_BY(mutex_) = 0;
  std::vector<ArmedFault> faults_ GUARDED_BY(mutex_);
  std::optional<std::uint64_t> thin_budget_bytes_ GUARDED_BY(mutex_);

  mutable Condition gate_changed_;
  std::vector<OperationKind> held_kinds_ GUARDED_BY(mutex_);
  std::size_t held_count_ GUARDED_BY(mutex_) = 0;
  std::size_t passes_ GUARDED_BY(mutex_) = 0;

  DeviceCounters counters_ GUARDED_BY(mutex_);
  std::vector<DeviceCall> calls_ GUARDED_BY(mutex_);
};

}  // namespace kvslot::testing
