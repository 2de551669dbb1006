// A failure at the n-th operation on the device, for every n of a scenario. Only what depends on
// that operation fails; no slot and no key in flight is left over; and after the store is opened
// again it holds what was acknowledged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <cerrno>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/engine.h"
#include "tests/support/traced_store.h"

namespace kvslot::testing {
namespace {

// Live + free + doomed + quarantined + checkpoint + reserved == total, whatever happened.
std::uint64_t slots_in_all_states(Volume& volume) {
  std::uint64_t sum = 0;
  std::uint32_t cursor = 0;
  while (true) {
    const auto records = volume.inspector().slots(cursor);
    if (records.empty()) return sum;
    for (const SlotRecord& record : records) sum += record.run.count;
  }
}

class ErrorLoop : public ::testing::Test {
 protected:
  // One kind of failure at operation `n`.
  using Arm = std::function<void(SimulatedDevice& device, std::uint64_t n)>;

  struct Options {
    std::uint64_t free_slots = 0;  // 0: an empty store
    bool fails_nobody = false;  // but perhaps a checkpoint, after which the one before is in force
  };

  void loop(const Arm& arm, const Options& options) {
    TracedStore base(kSeed);
    const std::uint32_t slot_size = options.free_slots == 0 ? 4096 : 256 * kKiB;
    base.open(make_device(16 * kMiB, slot_size, {.seed = kSeed}));
    for (const char* key : {"a", "b", "d/c"}) base.put(key, 9000);
    if (options.free_slots != 0) base.fill(options.free_slots);
    base.flush();
    base.settle();
    base.drop();
    const auto image = base.device().survivor(1, CrashMode::kAll);
    std::uint64_t n = 0;
    for (bool is_over = false; !is_over && !HasFailure(); ++n) {
      SCOPED_TRACE("failure at operation " + std::to_string(n));
      TracedStore store = TracedStore::resume(base, kSeed + n);
      if (!store.open(image->process_crash())) return;
      const std::uint64_t before = store.device().operation_count();
      arm(store.device(), n);
      std::uint64_t failures = 0;
      store.tolerate([&](const std::string& what, const Error&) {
        if (what != "checkpoint") ++failures;
        return true;
      });
      scenario(store);
      is_over = store.device().operation_count() < before + n;
      if (options.fails_nobody && !store.is_stopped()) {
        EXPECT_EQ(failures, 0U);
      }
      check_afterwards(store, options);
    }
    EXPECT_GT(n, 20U) << "the scenario does nothing";
  }

 private:
  static constexpr std::uint64_t kSeed = 3;

  static void scenario(TracedStore& s) {
    s.put("new", 5000, true);
    std::vector<TracedStore::Entry> entries;
    for (const std::string key : {"a", "e", "f"})
      entries.push_back({key, s.new_value(4000 + entries.size() * 5000)});
    s.put(entries);
    if (s.model().contains("b")) s.patch("b", 100, true);
    s.rename("a", "moved");
    s.checkpoint();
    s.put_in_pieces("large", 150'000, true);
    s.remove("d/c");
    s.flush();
    s.put("b", 12'000);
    s.checkpoint();
    s.put("last", 100, true);
  }

  // Of slots that are few some may be quarantined.
  static TracedStore::Tolerated expected_afterwards(const Options& options) {
    if (options.free_slots == 0) return nullptr;
    return [](const std::string& what, const Error& error) {
      return what.starts_with("put") && error.code == Errc::kNoSpace;
    };
  }

  void check_afterwards(TracedStore& store, const Options& options) {
    SimulatedDevice& device = store.device();
    device.clear_faults();
    device.set_thin_budget(std::nullopt);
    if (!device.is_crashed()) device.crash_after_operations(UINT32_MAX);  // did not come to it
    Volume& volume = store.volume();
    EXPECT_EQ(slots_in_all_states(volume), volume.geometry().slot_count);
    EXPECT_EQ(stat_of(volume, "puts_inflight"), 0U);
    EXPECT_EQ(stat_of(volume, "slots_reserved"), 0U);
    if (!store.is_stopped()) {
      expect_slots_accounted(volume);
      store.compare_live();
      // The store goes on, and nothing of the failure is left.
      store.tolerate(expected_afterwards(options));
      store.put("after", 5000, true);
      store.checkpoint();
      expect_slots_accounted(volume);
    }
    for (const CrashMode mode : {CrashMode::kNone, CrashMode::kRandom, CrashMode::kAll}) {
      TracedStore after = TracedStore::resume(store, kSeed);
      if (!after.open(device.survivor(7, mode)) || !after.compare()) return;
      expect_slots_accounted(after.volume());
      after.tolerate(expected_afterwards(options));
      after.put("again", 5000, true);
    }
  }
};

// ---- What fails, on an empty store and on one that is nearly full.

Fault failing(std::uint64_t n, std::uint64_t times, int error) {
  return {.kind = OperationKind::kAny, .skip = n, .times = times, .error = error};
}

TEST_F(ErrorLoop, AnyOperationOnce) {
  for (const int error : {EIO, EAGAIN, ETIMEDOUT})
    loop([=](auto& device, auto n) { device.add_fault(failing(n, 1, error)); }, {});
}

TEST_F(ErrorLoop, OneFailedWriteFailsNobody) {
  for (const WriteEffect effect : {WriteEffect::kRefused, WriteEffect::kTorn}) {
    const auto arm = [=](auto& device, auto n) {
      device.add_fault(
          {.kind = OperationKind::kWrite, .skip = n, .times = 1, .error = EIO, .effect = effect});
    };
    loop(arm, {.fails_nobody = true});
  }
}

TEST_F(ErrorLoop, SeveralOperationsInARow) {
  for (const std::uint64_t times : {2, 3, 5})
    loop([=](auto& device, auto n) { device.add_fault(failing(n, times, EIO)); }, {});
}

TEST_F(ErrorLoop, EveryOperationFromSomePointOn) {
  loop([](auto& device, auto n) { device.add_fault(failing(n, UINT64_MAX, EIO)); }, {});
}

TEST_F(ErrorLoop, EveryWriteFromSomePointOn) {
  const auto arm = [](auto& device, auto n) {
    device.add_fault({.kind = OperationKind::kWrite, .skip = n, .effect = WriteEffect::kTorn});
  };
  loop(arm, {});
}

TEST_F(ErrorLoop, NoSpaceBelowTheDevice) {
  for (const std::uint64_t times : std::initializer_list<std::uint64_t>{1, 2, UINT64_MAX}) {
    const auto arm = [=](auto& device, auto n) {
      device.add_fault({.kind = OperationKind::kWrite, .skip = n, .times = times, .error = ENOSPC});
    };
    loop(arm, {});
  }
}

TEST_F(ErrorLoop, AThinDeviceWithLittleLeft) {
  loop([](auto& device, auto n) { device.set_thin_budget(n * kBlockSizeBytes); }, {});
}

TEST_F(ErrorLoop, AFlushThatFails) {
  const auto arm = [](auto& device, auto n) {
    device.add_fault({.kind = OperationKind::kFlush, .skip = n, .times = 1});
  };
  loop(arm, {});
}

TEST_F(ErrorLoop, ADeviceThatVanishes) {
  for (const int error : {ENODEV, EIO})
    loop([=](auto& device, auto n) { device.crash_after_operations(n, error); }, {});
}

TEST_F(ErrorLoop, NearlyFull) {
  for (const std::uint64_t slots : {2, 6}) {
    const Options options{.free_slots = slots};
    loop([](auto& device, auto n) { device.add_fault(failing(n, 1, EIO)); }, options);
    loop([](auto& device, auto n) { device.add_fault(failing(n, 3, EIO)); }, options);
    loop([](auto& device, auto n) { device.add_fault(failing(n, 2, ENOSPC)); }, options);
    loop([](auto& device, auto n) { device.crash_after_operations(n); }, options);
  }
}

}  // namespace
}  // namespace kvslot::testing
