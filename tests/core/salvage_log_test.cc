// What salvage takes for true of a log that recoveries cut, and of checkpoints that were
// interrupted: nothing that the store had given up undoes what it kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/checkpoint_layout.h"
#include "core/salvage_scan.h"
#include "tests/support/engine.h"
#include "tests/support/planted_store.h"
#include "tests/support/salvage.h"

namespace kvslot::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Opens the device, as a process after a crash does.
std::unique_ptr<Volume> open(std::unique_ptr<SimulatedDevice> device, std::uint64_t seed) {
  auto volume = Volume::open(std::move(device), {.seed = seed});
  EXPECT_TRUE(volume.has_value());
  return std::move(*volume);
}

void put(Volume& volume, std::string_view key, std::string_view value) {
  EXPECT_TRUE(put_key(volume, key, value).has_value());
}

// Overwrites the block that begins with these bytes.
void lose(SimulatedDevice& device, std::string_view text) {
  std::vector<std::byte> bytes(text.size());
  for (std::uint64_t at = 0; at < device.info().size_bytes; at += kBlockSizeBytes) {
    device.peek(at, bytes);
    if (std::ranges::equal(bytes, bytes_of(text))) return wipe(device, at, kBlockSizeBytes);
  }
  ADD_FAILURE() << text << " is not on the device";
}

// Power is lost while a new value of `key` is on its way with what `later` does behind it: the
// blocks get there, the value does not. So recovery ends the log before all of them.
std::unique_ptr<SimulatedDevice> cut_log(std::unique_ptr<SimulatedDevice> device,
                                         const std::function<void(Volume&)>& later) {
  SimulatedDevice& raw = *device;
  const auto volume = open(std::move(device), 1);
  put(*volume, "kept", "the kept value");
  put(*volume, "removed later", "the other value");
  put(*volume, "removed too", "the second value");
  put(*volume, "changed later", "the third value");
  EXPECT_TRUE(volume->flush());
  put(*volume, "kept", "a value that gets lost");
  later(*volume);
  auto left = raw.survivor(1, CrashMode::kAll);
  lose(*left, "a value that gets lost");
  raw.crash_after_operations(0);
  return left;
}

void change_all(Volume& volume) {
  EXPECT_TRUE(volume.remove(NodeId::kRoot, "removed later", RemoveKind::kNotDirectory));
  put(volume, "changed later", "a value that was given up");
  EXPECT_TRUE(volume.remove(NodeId::kRoot, "removed too", RemoveKind::kNotDirectory));
  put(volume, "new later", "a key that was given up");
}

const Values kKept = {{"kept", "the kept value"},
                      {"removed later", "the other value"},
                      {"removed too", "the second value"},
                      {"changed later", "the third value"}};

TEST(SalvageLog, BlocksBehindWhereRecoveryEndedTheLogUndoNothing) {
  for (const bool has_checkpoint : {true, false}) {
    SCOPED_TRACE(has_checkpoint);
    auto device = cut_log(make_device(32 * kMiB), change_all);
    SimulatedDevice& raw = *device;
    const auto volume = open(std::move(device), 2);
    // One block in the place of the first that was cut off; the others are still behind it.
    put(*volume, "new", "the new value");
    EXPECT_TRUE(volume->flush());
    const auto left = raw.survivor(1, CrashMode::kNone);
    raw.crash_after_operations(0);
    wipe_superblocks(*left);
    if (!has_checkpoint) wipe_checkpoints(*left);
    MemorySink sink;
    salvage(*left, sink);
    Values expected = kKept;
    expected["new"] = "the new value";
    EXPECT_EQ(sink.whole, expected);
    EXPECT_THAT(sink.partial, IsEmpty());
  }
}

TEST(SalvageLog, ACheckpointSaysWhereTheLogEndedThatItReplaced) {
  auto device = cut_log(make_device(32 * kMiB), change_all);
  SimulatedDevice& raw = *device;
  const auto volume = open(std::move(device), 2);  // writes a checkpoint, and no block
  const auto left = raw.survivor(1, CrashMode::kNone);
  raw.crash_after_operations(0);
  wipe_superblocks(*left);
  MemorySink sink;
  salvage(*left, sink);
  EXPECT_EQ(sink.whole, kKept);
}

// A value of the last batches is not there. Whether they were flushed, nobody can tell: what is
// there of them comes out beside what is certain, and all is not said to be well.
TEST(SalvageLog, WhatLiesBehindTheEndOfTheLogIsInLostAndFound) {
  const auto device = cut_log(make_device(32 * kMiB), change_all);
  MemorySink sink;
  const SalvageReport report = salvage(*device, sink);
  Values expected = kKept;
  expected["lost+found/changed later"] = "a value that was given up";
  expected["lost+found/new later"] = "a key that was given up";
  EXPECT_EQ(sink.whole, expected);
  EXPECT_FALSE(report.complete);
  EXPECT_EQ(report.lost, 1U) << "the newer value of 'kept'";
  EXPECT_THAT(report.notes, SizeIs(2));
}

// Epochs of an earlier kvslot are random: where they began tells which one was later.
TEST(SalvageLog, RandomEpochsAreOrderedByWhereTheyBegan) {
  for (const std::uint64_t later_epoch : {5, 5000}) {
    SCOPED_TRACE(later_epoch);
    PlantedStore store;
    store.write_block({PlantedStore::file(2, 1, "a", {store.value(2, 10, "a")})}, 0);
    store.write_block({PlantedStore::file(3, 1, "b", {store.value(3, 11, "b")})}, 1);
    store.write_block({PlantedStore::file(4, 1, "c", {store.value(4, 12, "cut off")})}, 1);
    store.write_block({RemoveNode{ObjectId{2}}}, 1);
    store.begin_epoch(later_epoch, 3);
    store.write_block({RemoveNode{ObjectId{3}}}, 2);
    wipe_superblocks(store.device);
    MemorySink sink;
    salvage(store.device, sink);
    EXPECT_EQ(sink.whole, (Values{{"a", "a"}}));
  }
}

// A full store goes on in its epoch.
TEST(SalvageLog, WithinAnEpochABlockThatWasWrittenAgainEndsWhatWasBehindIt) {
  PlantedStore store;
  store.write_block({PlantedStore::file(2, 1, "a", {store.value(2, 10, "a")})}, 0);
  store.write_block({PlantedStore::file(3, 1, "b", {store.value(3, 11, "b")})}, 1);
  store.write_block({RemoveNode{ObjectId{2}}}, 1);
  PlantedStore again;  // the same, but for block 2
  again.write_block({PlantedStore::file(2, 1, "a", {again.value(2, 10, "a")})}, 0);
  again.write_block({RemoveNode{ObjectId{3}}}, 1);
  std::vector<std::byte> block(kBlockSizeBytes);
  const std::uint64_t second = store.superblock.geometry.journal_offset_bytes + kBlockSizeBytes;
  again.device.peek(second, block);
  store.device.poke(second, block);
  wipe_superblocks(store.device);
  MemorySink sink;
  salvage(store.device, sink);
  EXPECT_EQ(sink.whole, (Values{{"a", "a"}}));
}

std::set<Attempt> attempts_on(SimulatedDevice& device) {
  std::set<Attempt> attempts;
  const Uuid uuid = read_superblock(device)->geometry.uuid;
  for (const auto& [attempt, manifests] : scan_for_structures(device, uuid, {}).manifests)
    attempts.insert(attempt);
  return attempts;
}

void refuse_superblock(SimulatedDevice& device) {
  for (const std::size_t copy : {0, 2})
    device.add_fault({.kind = OperationKind::kWrite,
                      .times = 1,
                      .offset_bytes = superblock_offsets(device.info().size_bytes)[copy],
                      .size_bytes = kBlockSizeBytes});
}

TEST(SalvageLog, NoTwoAttemptsAtACheckpointAreTakenForOne) {
  auto device = make_device(32 * kMiB);
  SimulatedDevice* raw = device.get();
  auto volume = open(std::move(device), 1);
  put(*volume, "a", "1");
  // In one opening: the superblock cannot be written.
  const std::size_t before = attempts_on(*raw).size();
  refuse_superblock(*raw);
  EXPECT_FALSE(volume->checkpoint());
  EXPECT_TRUE(volume->checkpoint());
  EXPECT_THAT(attempts_on(*raw), SizeIs(before + 2));
  // In another: a crash forgets the attempt that it interrupts.
  put(*volume, "b", "2");
  EXPECT_TRUE(volume->flush());
  refuse_superblock(*raw);
  EXPECT_FALSE(volume->checkpoint());
  auto left = raw->process_crash();
  raw->crash_after_operations(0);
  raw = left.get();
  const std::set<Attempt> interrupted = attempts_on(*raw);
  volume = open(std::move(left), 2);
  const CheckpointRoot current = read_superblock(*raw)->current;
  EXPECT_FALSE(interrupted.contains(Attempt(current.sequence, current.replay_from.epoch)));
  for (const Attempt& attempt : interrupted)
    EXPECT_LT(attempt, Attempt(current.sequence, current.replay_from.epoch));
}

// Chunks of an interrupted attempt lie beside those of the one that was completed under its number.
TEST(SalvageLog, ChunksOfAnInterruptedAttemptAreNotMixedIntoAnother) {
  PlantedStore store;
  const Uuid& uuid = store.superblock.geometry.uuid;
  const std::uint64_t interrupted = epoch_after(0, 1), completed = epoch_after(interrupted, 0);
  std::vector<std::byte> stale;
  encode_record(stale, PlantedStore::file(2, 1, "stale", {store.value(2, 10, "stale")}));
  encode_record(stale, PlantedStore::file(3, 1, "removed", {store.value(3, 11, "removed")}));
  std::vector<std::byte> chunk(kBlockSizeBytes);
  std::ranges::copy(stale, chunk.begin() + kChunkHeaderBytes);
  const CheckpointId id{.sequence = store.superblock.current.sequence, .epoch = interrupted};
  seal_chunk(chunk, id, 1, static_cast<std::uint32_t>(stale.size()), uuid);
  store.device.poke(store.offset_of(50), chunk);
  store.begin_epoch(completed, 1);
  store.add(PlantedStore::file(2, 1, "now", {store.value(2, 12, "now")}));
  store.write();
  wipe_superblocks(store.device);
  MemorySink sink;
  const SalvageReport report = salvage(store.device, sink);
  EXPECT_EQ(sink.whole, (Values{{"now", "now"}}));
  EXPECT_EQ(report.notes.size(), 3);
}

// Power was lost when an image was complete and its superblock was not, and the blocks whose
// effects it holds went with it: the next opening went by the checkpoint before.
TEST(SalvageLog, ACheckpointThatALaterOpeningDidNotGoByDoesNotCount) {
  PlantedStore store;
  const std::uint64_t before = epoch_after(0, 0);
  store.begin_epoch(before, 1);
  store.superblock.current.sequence = 4;
  const std::vector<std::byte> root = store.stream;
  store.add_file(2, "given up", 10);
  store.write_checkpoint(50);
  store.superblock.current.sequence = 3;
  store.stream = root;
  store.add_file(3, "kept", 11);
  store.write_checkpoint();
  store.begin_epoch(epoch_after(before, 0), 1);
  store.write_block({PlantedStore::file(4, 1, "lost", {store.value(4, 12, "lost")})});
  store.write_block({PlantedStore::file(5, 1, "behind", {store.value(5, 13, "behind")})}, 1);
  store.write_superblocks();
  store.device.flip_bit(store.superblock.geometry.journal_offset_bytes + 70, 1);
  MemorySink sink;
  const SalvageReport report = salvage(store.device, sink);
  EXPECT_FALSE(report.metadata_whole);
  EXPECT_EQ(sink.whole, (Values{{"kept", "value of kept"}, {"behind", "behind"}}));
}

TEST(SalvageLog, LaterEpochsRankHigherAndRandomOnesTellNothing) {
  std::uint64_t epoch = 0x1234567890abcdef;
  EXPECT_EQ(epoch_rank(epoch), 0);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t next = epoch_after(epoch, i % 2 == 0 ? 0 : UINT64_MAX);
    EXPECT_GT(epoch_rank(next), epoch_rank(epoch));
    EXPECT_NE(epoch_after(epoch, 1), epoch_after(epoch, 2));
    epoch = next;
  }
}

}  // namespace
}  // namespace kvslot::testing
