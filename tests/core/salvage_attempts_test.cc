// What salvage makes of attempts at a checkpoint that an opening did not bring to an end, when no
// superblock tells which ones those were.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "core/salvage_scan.h"
#include "core/superblocks.h"
#include "tests/support/engine.h"
#include "tests/support/salvage.h"

namespace kvslot::testing {
namespace {

using ::testing::IsEmpty;

constexpr std::uint64_t kDeviceSizeBytes = 16 * kMiB;
constexpr std::size_t kBare = kBlockSizeBytes;  // a value of this size has no trailer

std::shared_ptr<SimulatedDevice> shared(std::unique_ptr<SimulatedDevice> device) { return device; }

Result<std::unique_ptr<Volume>> open(const std::shared_ptr<SimulatedDevice>& device,
                                     std::uint64_t seed) {
  return Volume::open(std::make_unique<BorrowedDevice>(device), {.seed = seed});
}

// A life and the values that it leaves.
class Life {
 public:
  explicit Life(Volume& volume) : volume_(volume) {}
  void put(const std::string& key, std::uint64_t seed, std::size_t size_bytes) {
    now[key] = value_of(seed, size_bytes);
    const auto stored = put_key(volume_, key, now[key]);
    EXPECT_TRUE(stored) << stored.error().step;
  }
  void remove(const std::string& key) {
    EXPECT_TRUE(volume_.remove(NodeId::kRoot, key, RemoveKind::kNotDirectory));
    now.erase(key);
  }
  void flush() { EXPECT_TRUE(volume_.flush()); }

  Values now;

 private:
  Volume& volume_;
};

void set_times(Volume& volume, const std::string& key, TimestampNs time) {
  EXPECT_TRUE(volume.set_attributes(
      volume.find(key)->node,
      {.mode = 0600, .uid = 0, .gid = 0, .atime_ns = time, .mtime_ns = time, .ctime_ns = 1}));
}

std::set<Attempt> attempts_on(SimulatedDevice& device) {
  std::set<Attempt> attempts;
  const Uuid uuid = read_superblock(device)->geometry.uuid;
  for (const auto& [attempt, manifests] : scan_for_structures(device, uuid, {}).manifests)
    attempts.insert(attempt);
  return attempts;
}

// The process died behind a checkpoint and a few batches, the last of which nobody flushed; then
// the next block has its place at the end of the ring.
std::shared_ptr<SimulatedDevice> crashed_store(bool is_at_end_of_ring = false) {
  const auto device = shared(make_device(kDeviceSizeBytes));
  const auto volume = open(device, 1);
  Life life(**volume);
  for (const std::string key : {"changed", "emptied", "removed", "kept"})
    life.put(key, 1, key == "emptied" ? 100 : kBare);
  EXPECT_TRUE((*volume)->checkpoint());
  life.put("changed", 2, kBare);
  life.flush();
  if (is_at_end_of_ring) {
    const std::uint64_t ring_bytes = (*volume)->geometry().journal_size_bytes;
    while ((*volume)->inspector().journal().head_offset_bytes != ring_bytes - 2 * kBlockSizeBytes) {
      set_times(**volume, "kept", 1);
      life.flush();
    }
  }
  life.put("new", 2, kBare);
  return shared(device->process_crash());
}

// Changes all that crashed_store() has, and what is flushed at its end.
Values live_on(Volume& volume, bool has_checkpoint) {
  Life life(volume);
  life.now = {{"kept", value_of(1, kBare)}, {"new", value_of(2, kBare)}};
  for (TimestampNs time = 2; time <= 200; ++time)  // more than a block of 4096 bytes
    set_times(volume, "kept", time);
  life.put("changed", 3, kBare);
  life.put("emptied", 3, 0);
  life.now["removed"];
  life.remove("removed");
  if (has_checkpoint) {
    EXPECT_TRUE(volume.checkpoint());
  }
  life.put("later", 3, kBare);
  life.flush();
  return life.now;
}

// Whatever of the metadata is left, but for the superblocks.
void expect_newest(const SimulatedDevice& device, const Values& expected) {
  for (const bool has_manifests : {true, false}) {
    SCOPED_TRACE(has_manifests ? "with the manifests" : "without the manifests");
    const auto left = device.survivor(1, CrashMode::kNone);
    wipe_superblocks(*left);
    if (!has_manifests) wipe_checkpoints(*left, "KVMF");
    MemorySink sink;
    salvage(*left, sink);
    EXPECT_TRUE(sink.whole == expected) << ::testing::PrintToString([&] {
      std::string text;
      for (const auto& [key, value] : sink.whole)
        text += key + (expected.contains(key) && expected.at(key) == value ? " " : "(!) ");
      return text;
    }());
    EXPECT_THAT(sink.partial, IsEmpty());
  }
}

// The n-th write of an opening finds no space; where it opens all the same, it goes on in the old
// epoch.
TEST(SalvageAttempts, AStoreThatGoesOnBehindAFailedCheckpointOutdoesIt) {
  const auto crashed = crashed_store();
  int went_on = 0;
  bool is_over = false;
  for (std::uint64_t step = 0; !is_over && !HasFailure(); ++step) {
    for (const bool has_checkpoint : {true, false}) {
      SCOPED_TRACE(::testing::PrintToString(std::pair(step, has_checkpoint)));
      const auto device = shared(crashed->process_crash());
      device->add_fault({.kind = OperationKind::kWrite, .skip = step, .times = 1, .error = ENOSPC});
      const std::uint64_t writes = device->counters().writes;
      auto volume = open(device, 2);
      is_over = device->counters().writes - writes <= step;
      if (!volume) volume = open(device, 3);
      ASSERT_TRUE(volume) << volume.error().step;
      if (!is_over && stat_of(**volume, "checkpoints") == 0) ++went_on;
      expect_newest(*device, live_on(**volume, has_checkpoint));
    }
  }
  EXPECT_GE(went_on, 4) << "of its chunk, of its manifest";
}

// The n-th write to a slot fails, which a block of the journal is to say, and for that block there
// is no space: where the slot was to be the checkpoint's, all of it but its superblock is there.
TEST(SalvageAttempts, AWholeAttemptThatWasNeverInForceEndsNoLog) {
  const auto crashed = crashed_store();
  int went_on = 0;
  for (std::uint64_t step = 0; step < 6 && !HasFailure(); ++step) {
    for (const bool has_checkpoint : {true, false}) {
      SCOPED_TRACE(::testing::PrintToString(std::pair(step, has_checkpoint)));
      const auto device = shared(crashed->process_crash());
      const Geometry geometry = read_superblock(*device)->geometry;
      const std::size_t before = attempts_on(*device).size();
      device->add_fault({.kind = OperationKind::kWrite,
                         .skip = step,
                         .times = 1,
                         .offset_bytes = geometry.slots_offset_bytes});
      device->add_fault({.kind = OperationKind::kWrite,
                         .skip = 1,   // the blocks that were not flushed go out again
                         .times = 2,  // the block is tried twice
                         .error = ENOSPC,
                         .offset_bytes = geometry.journal_offset_bytes,
                         .size_bytes = geometry.journal_size_bytes});
      const auto volume = open(device, 2);
      ASSERT_TRUE(volume) << volume.error().step;
      if (stat_of(**volume, "checkpoints") == 0 && attempts_on(*device).size() == before + 1)
        ++went_on;
      device->clear_faults();
      expect_newest(*device, live_on(**volume, has_checkpoint));
    }
  }
  EXPECT_GE(went_on, 2) << "this test is about an attempt whose manifests are there";
}

// Power is lost in the checkpoint of an opening, which had met bad slots and so is not where that
// of the next opening is. Its epoch counts the same and is the higher one; a block of it is in the
// last place of the ring, where the first batch of the next one does not fit.
TEST(SalvageAttempts, AnOpeningOutdoesOneThatWasInterrupted) {
  const auto crashed = crashed_store(true);
  bool is_over = false;
  for (std::uint64_t step = 0; !is_over && !HasFailure(); ++step) {
    for (const bool has_checkpoint : {true, false}) {
      SCOPED_TRACE(::testing::PrintToString(std::pair(step, has_checkpoint)));
      const auto device = shared(crashed->process_crash());
      device->add_fault({.kind = OperationKind::kWrite,
                         .skip = 2,  // values are written again
                         .times = 12,
                         .offset_bytes = read_superblock(*device)->geometry.slots_offset_bytes});
      device->crash_after_operations(step);
      static_cast<void>(open(device, 2));
      is_over = !device->is_crashed();
      const auto left = shared(device->survivor(step, CrashMode::kAll));
      const auto volume = open(left, 1);
      ASSERT_TRUE(volume) << volume.error().step;
      expect_newest(*left, live_on(**volume, has_checkpoint));
    }
  }
}

// A store that is up tries several times in vain, the last time behind bad slots, and power is
// lost.
TEST(SalvageAttempts, AnOpeningOutdoesAllThatFailedInTheLifeBefore) {
  const auto crashed = crashed_store();
  bool is_over = false;
  for (std::uint64_t step = 0; !is_over && !HasFailure(); ++step) {
    SCOPED_TRACE(step);
    const auto device = shared(crashed->process_crash());
    const auto volume = open(device, 1);
    ASSERT_TRUE(volume) << volume.error().step;
    const Geometry& geometry = (*volume)->geometry();
    Fault fault{.kind = OperationKind::kWrite,
                .times = 1,
                .error = ENOSPC,
                .offset_bytes = geometry.slots_offset_bytes,
                .size_bytes = std::uint64_t{geometry.slot_count} * geometry.slot_size_bytes};
    for (int i = 0; i < 3; ++i) {
      device->add_fault(fault);
      EXPECT_FALSE((*volume)->checkpoint());
    }
    fault.times = 12;
    fault.error = EIO;
    device->add_fault(fault);
    device->crash_after_operations(step);
    static_cast<void>((*volume)->checkpoint());
    is_over = !device->is_crashed();
    const auto left = shared(device->survivor(step, CrashMode::kAll));
    const auto next = open(left, 2);
    ASSERT_TRUE(next) << next.error().step;
    expect_newest(*left, live_on(**next, true));
  }
}

}  // namespace
}  // namespace kvslot::testing
