#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <functional>
#include <random>

#include "core/checkpoint_layout.h"
#include "tests/support/check_report.h"
#include "tests/support/planted_store.h"

namespace kvslot {
namespace {

using ::testing::AllOf;
using testing::check;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::errors_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kDeviceBytes;
using testing::remarks_of;
using testing::SimulatedDevice;
using testing::text_of;
using Planted = testing::PlantedStore;

// Recovery and check read the same page with different code: both must come to one judgement.
void expect_recovery_agrees(const SimulatedDevice& device, const CheckReport& report) {
  const auto opened = Volume::open(device.process_crash(), {.seed = 1});
  EXPECT_EQ(opened.has_value(), report.opens) << (opened ? "opened" : opened.error().step) << "\n"
                                              << text_of(report);
}

// The one thing that is wrong.
void expect_error(SimulatedDevice& device, const std::string& part) {
  testing::expect_error(device, part);
  expect_recovery_agrees(device, check(device));
}

TEST(CheckDevice, AStoreWrittenByHandIsClean) {
  Planted store;
  store.add(Planted::directory(ObjectId{2}, ObjectId::kRoot, "dir"));
  store.add_file(3, "key", 10);
  store.add(Planted::file(4, 2, "empty", {}));
  store.write();
  const CheckReport report = check(store.device);
  EXPECT_THAT(report.findings, IsEmpty()) << text_of(report);
  EXPECT_EQ(report.keys, 2);
  EXPECT_EQ(report.directories, 1);
  EXPECT_EQ(report.values_bytes, std::string("value of key").size());
  EXPECT_EQ(report.slots_used, 3);
  EXPECT_EQ(report.slots_free, store.superblock.geometry.slot_count - 3);
}

// ---- Checkpoint and journal ----

TEST(CheckDevice, ADamagedCheckpointWithoutAnotherIsDamage) {
  for (const std::uint32_t slot : {0u, 1u}) {
    Planted store;
    store.write();
    store.device.flip_bit(store.offset_of(slot) + 20, 0);
    expect_error(store.device, "checkpoint 3 cannot be used");
  }
}

TEST(CheckDevice, ADamagedCheckpointCanBeRecoveredFromThePreviousOne) {
  Planted store;
  store.add_file(2, "key", 10);
  store.write_checkpoint(4);
  store.superblock.previous = store.superblock.current;
  store.superblock.current.sequence = 4;
  store.write();
  EXPECT_THAT(check(store.device).findings, IsEmpty());
  store.device.flip_bit(store.offset_of(1) + 20, 0);
  expect_error(store.device, "can be recovered");
  EXPECT_EQ(check(store.device).keys, 1);
  store.device.flip_bit(store.offset_of(5) + 20, 0);
  expect_error(store.device, "cannot stand in");
}

TEST(CheckDevice, APreviousCheckpointThatIsGoneIsARemark) {
  Planted store;
  store.write_checkpoint(4);
  store.superblock.previous = store.superblock.current;
  store.superblock.current.sequence = 4;
  store.write();
  store.device.flip_bit(store.offset_of(5) + 20, 0);
  const CheckReport report = check(store.device);
  EXPECT_FALSE(report.damaged);
  EXPECT_THAT(remarks_of(report), Contains(HasSubstr("not there any more")));
}

TEST(CheckDevice, WrongCountsAreFound) {
  Planted nodes;
  nodes.write_checkpoint();
  nodes.superblock.current.node_count += 1;
  nodes.write_superblocks();
  expect_error(nodes.device, "the superblock says 2");
  Planted bytes;
  bytes.write_checkpoint();
  bytes.superblock.current.stream_bytes += 1;
  bytes.write_superblocks();
  expect_error(bytes.device, "the superblock says");
}

TEST(CheckDevice, ARecordOfACheckpointThatCannotBeDecodedIsFound) {
  Planted store;
  store.stream.push_back(std::byte{200});
  store.stream.resize(store.stream.size() + 4);
  store.write();
  expect_error(store.device, "unknown type");
}

TEST(CheckDevice, ACheckpointThatEndsWithinARecordIsFound) {
  Planted store;
  store.add_file(2, "key", 10);
  store.stream.pop_back();
  store.write();
  expect_error(store.device, "cut off");
}

TEST(CheckDevice, AManifestChainThatReturnsToItselfIsFound) {
  Planted store;
  store.write();
  const Manifest manifest{.checkpoint_sequence = 3, .index = 0, .next_slot = 0, .entries = {}};
  store.device.poke(store.offset_of(0), encode_manifest(manifest, store.superblock.geometry.uuid));
  expect_error(store.device, "another checkpoint");
}

TEST(CheckDevice, AJournalRecordThatCannotBeDecodedIsFound) {
  Planted store;
  store.write_block({Planted::directory(ObjectId{2}, ObjectId::kRoot, "dir")});
  store.write_block(std::vector<std::byte>{std::byte{77}, {}, {}, {}, {}}, 1);
  store.write();
  expect_error(store.device, "journal block 2 is whole, but its record 0 cannot be decoded");
}

TEST(CheckDevice, AJournalBlockThatContradictsItselfIsFound) {
  Planted store;
  store.write_block(std::vector<std::byte>(), 3);
  store.write();
  expect_error(store.device, "says that it has 3 records and holds 0");
  Planted early;
  early.write_block(std::vector<Record>(), 1);
  early.write();
  expect_error(early.device, "says that block 1 was flushed");
}

TEST(CheckDevice, ALogThatEndsBeforeItsCheckpointIsFound) {
  Planted store;
  store.write_block({Planted::directory(ObjectId{2}, ObjectId::kRoot, "dir")});
  store.superblock.current.included_upto = 2;
  store.write();
  expect_error(store.device, "the journal ends before block 2");
}

TEST(CheckDevice, TheLogIsReplayedOverTheCheckpoint) {
  Planted store;
  store.add_file(2, "old", 10);
  store.add_file(3, "gone", 11);
  store.write_block({MoveNode{.object = ObjectId{2}, .parent = ObjectId::kRoot, .name = "new"},
                     RemoveNode{ObjectId{3}}, RemoveNode{ObjectId{55}},
                     Planted::file(4, 1, "gone", {store.value(4, 11, "reuses the slot")})},
                    0);
  store.write();
  const CheckReport report = check(store.device);
  EXPECT_FALSE(report.damaged) << text_of(report);
  EXPECT_EQ(report.keys, 2);
  EXPECT_EQ(report.journal_blocks, 1);
}

TEST(CheckDevice, AnUnwrittenValueEndsTheLogAndIsARemark) {
  Planted store;
  store.superblock.clean = false;
  store.write_block({Planted::file(2, 1, "first", {store.value(2, 10, "first")})});
  store.write_block({Planted::file(3, 1, "second", {store.value(3, 11, "second")})});
  store.write();
  store.device.flip_bit(store.offset_of(11), 0);
  const CheckReport report = check(store.device);
  EXPECT_FALSE(report.damaged) << text_of(report);
  EXPECT_EQ(report.keys, 1);
  EXPECT_THAT(remarks_of(report), Contains(HasSubstr("value of journal block 2")));
  EXPECT_THAT(remarks_of(report), Contains(HasSubstr("replays 1 journal blocks")));
}

TEST(CheckDevice, AFlushedValueThatIsWrongIsDamage) {
  Planted store;
  store.write_block({Planted::file(2, 1, "first", {store.value(2, 10, "first")})});
  store.write_block(std::vector<Record>(), 1);
  store.write();
  store.device.flip_bit(store.offset_of(10), 0);
  expect_error(store.device, "'first': bytes 0 to 5 (slot 10) do not match");
}

// Sealed properly, so that nothing but the check's own judgement stands in the way.
TEST(CheckDevice, RecordsWithRandomBytesAreJudgedWithoutHarm) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 400; ++round) {
    Planted store;
    store.add(Planted::directory(ObjectId{2}, ObjectId::kRoot, "dir"));
    store.add(QuarantineSlots{{SlotId{40}, 2}});
    store.add_file(3, "key", 10);
    std::vector<std::byte> records;
    encode_record(records, MoveNode{.object = ObjectId{3}, .parent = ObjectId{2}, .name = "k"});
    encode_record(records, PatchContent{.object = ObjectId{3},
                                        .attributes = {},
                                        .size_bytes = 140'000,
                                        .windows = {{1, {store.value(3, 12, "more", 32)}}}});
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      std::vector<std::byte>& target = random() % 2 == 0 ? records : store.stream;
      target[random() % target.size()] = static_cast<std::byte>(random());
    }
    store.write_block(records, 2);
    store.write();
    SCOPED_TRACE("round " + std::to_string(round));
    expect_recovery_agrees(store.device, check(store.device));
  }
}

// ---- Names ----

TEST(CheckDevice, AKeyWithoutItsDirectoryIsFound) {
  Planted store;
  store.add(Planted::file(2, 50, "lost", {}));
  store.write();
  expect_error(store.device, "'?/lost' (object 2) is in directory 50, which does not exist");
  Planted below;
  below.add(Planted::file(2, 1, "file", {}));
  below.add(Planted::file(3, 2, "child", {}));
  below.write();
  expect_error(below.device, "which is no directory");
}

TEST(CheckDevice, ACircleOfDirectoriesIsFoundOnce) {
  Planted store;
  store.add(Planted::directory(ObjectId{2}, ObjectId{4}, "a"));
  store.add(Planted::directory(ObjectId{3}, ObjectId{2}, "b"));
  store.add(Planted::directory(ObjectId{4}, ObjectId{3}, "c"));
  store.add(Planted::file(5, 4, "file", {}));
  store.write();
  expect_error(store.device, "is below itself");
}

TEST(CheckDevice, TwoNodesWithOneNameAreFound) {
  Planted store;
  store.add(Planted::file(2, 1, "same\n", {}));
  store.add(Planted::file(3, 1, "other", {}));
  store.add(Planted::file(4, 1, "same\n", {}));
  store.write();
  expect_error(store.device, "'same\\x0a' is the name of two objects, 2 and 4");
}

TEST(CheckDevice, TwoNodesInOnePlaceOfADirectoryAreFound) {
  Planted store;
  store.add(Planted::file(2, 1, "first", {}));
  SetNode second = Planted::file(3, 1, "second", {});
  second.image.cookie = 2;  // the place that the first has by its id
  store.add(second);
  store.write();
  expect_error(store.device, "'first' and 'second' have one place in the listing");
  Planted moved;
  moved.add(Planted::file(2, 1, "first", {}));
  moved.add(Planted::file(3, 1, "second", {}));
  moved.write_block(
      {MoveNode{.object = ObjectId{3}, .parent = ObjectId::kRoot, .cookie = 2, .name = "s"}});
  moved.write();
  expect_error(moved.device, "have one place in the listing");
}

TEST(CheckDevice, IdsOutOfRangeAreFound) {
  for (const bool is_object : {true, false}) {
    Planted store;
    SetNode node = Planted::file(2, 1, "a", {});
    if (is_object) {
      node.image.object = ObjectId{kIdMax + 1};
    } else {
      node.image.cookie = kIdMax + 1;
    }
    store.add(node);
    store.write();
    expect_error(store.device, "checkpoint 3 cannot be used");
  }
  Planted stamp;
  Extent extent = stamp.value(2, 10, "value");
  extent.stamp = kIdMax + 1;
  stamp.write_block({Planted::file(2, 1, "a", {extent})});
  stamp.write();
  expect_error(stamp.device, "cannot be decoded");
}

TEST(CheckDevice, ADirectoryWithAValueIsFound) {
  Planted store;
  SetNode node = Planted::directory(ObjectId{2}, ObjectId::kRoot, "dir");
  node.image.size_bytes = 5;
  node.image.extents = {store.value(2, 10, "value")};
  store.add(node);
  store.write();
  expect_error(store.device, "is no file, but owns slots");
}

// ---- Slots ----

TEST(CheckDevice, ASlotWithTwoOwnersIsFound) {
  Planted store;
  store.add_file(2, "a", 10);
  store.add(Planted::file(3, 1, "b", {store.value(3, 10, "b")}));
  store.write();
  EXPECT_THAT(errors_of(check(store.device, false)),
              ElementsAre(HasSubstr("slot 10 is owned twice, by 'a' and 'b'")));
}

TEST(CheckDevice, TwoWindowsOfAValueInOneSlotAreFound) {
  Planted store;
  const Extent first = store.value(2, 10, "window");
  Extent second = first;
  second.file_block = 32;
  store.add(Planted::file(2, 1, "a", {first, second}));
  store.write();
  expect_error(store.device, "slot 10 is owned twice, by 'a' and 'a'");
}

TEST(CheckDevice, OfManySlotsWithTwoOwnersTheFirstAreNamedAndTheRestCounted) {
  Planted store;
  const std::string piece(kExtentSizeBytesMax, 'p');
  for (const std::uint64_t object : {2, 3}) {
    std::vector<Extent> extents;
    for (std::uint32_t i = 0; i < 10; ++i)
      extents.push_back(store.value(object, 100 + i * 32, piece, i * 32));
    store.add(Planted::file(object, 1, object == 2 ? "a" : "b", std::move(extents)));
  }
  store.write();
  const auto errors = errors_of(check(store.device, false));
  ASSERT_EQ(errors.size(), 257U);
  EXPECT_THAT(errors.front(), HasSubstr("slot 100 is owned twice, by 'a' and 'b'"));
  EXPECT_THAT(errors.back(), HasSubstr("64 more slots have two owners"));
}

TEST(CheckDevice, ACheckpointInAQuarantinedSlotIsFound) {
  Planted store;
  store.add(QuarantineSlots{{SlotId{1}, 1}});
  store.write();
  expect_error(store.device, "slot 1 is quarantined");
}

TEST(CheckDevice, AValueInACheckpointsSlotIsFound) {
  Planted store;
  store.add_file(2, "a", 1);
  store.write();
  EXPECT_THAT(errors_of(check(store.device, false)),
              ElementsAre(HasSubstr("slot 1 is owned twice, by 'a' and the checkpoint")));
}

TEST(CheckDevice, AValueInAQuarantinedSlotIsFound) {
  Planted store;
  store.add(QuarantineSlots{{SlotId{9}, 3}});
  store.add(QuarantineSlots{{SlotId{11}, 4}});  // overlapping is nothing wrong
  store.add_file(2, "a", 10);
  store.write();
  expect_error(store.device, "slot 10 is quarantined");
  EXPECT_EQ(check(store.device).slots_used, 8);
}

TEST(CheckDevice, QuarantinedSlotsThatDoNotExistAreFound) {
  Planted store;
  store.add(QuarantineSlots{{SlotId{0xfffffff0}, 0x20}});
  store.write();
  expect_error(store.device, "reach past the last slot");
}

TEST(CheckDevice, ExtentsOutsideOfTheSlotsAreFound) {
  for (const std::uint32_t block : {0u, 40u, 0xffffffffu}) {
    Planted store;
    Extent extent = store.value(2, 10, "value");
    extent.device_block = block;
    store.add(Planted::file(2, 1, "a", {extent}));
    store.write();
    expect_error(store.device, "outside of the slots");
    Planted in_journal;
    in_journal.write_block({Planted::file(2, 1, "a", {extent})});
    in_journal.write();
    expect_error(in_journal.device, "outside of the slots");
  }
}

TEST(CheckDevice, ExtentsThatOverlapCrossAWindowOrLiePastTheSizeAreFound) {
  const auto patched = [](std::uint64_t size_bytes, std::vector<PatchContent::Window> windows,
                          Planted& store) {
    store.write_block({Planted::file(2, 1, "a", {}), PatchContent{.object = ObjectId{2},
                                                                  .attributes = {},
                                                                  .size_bytes = size_bytes,
                                                                  .windows = std::move(windows)}});
    store.write();
  };
  Planted overlap;
  patched(9000,
          {{0, {overlap.value(2, 10, std::string(8000, 'x'))}},
           {1, {overlap.value(2, 20, std::string(100, 'y'), 1)}}},
          overlap);
  expect_error(overlap.device, "overlap the bytes before them");
  Planted past;
  patched(50, {{0, {past.value(2, 10, std::string(100, 'y'))}}}, past);
  expect_error(past.device, "past the value's size of 50 bytes");
  Planted crossing;
  patched(200'000, {{0, {crossing.value(2, 10, std::string(8000, 'y'), 31)}}}, crossing);
  expect_error(crossing.device, "cross a window boundary");
}

TEST(CheckDevice, AReadThatFailsOnceIsARemarkAndOneThatFailsAlwaysIsDamage) {
  Planted store;
  store.add_file(2, "a", 10);
  store.write();
  testing::Fault fault{.kind = testing::OperationKind::kRead,
                       .times = 1,
                       .offset_bytes = store.offset_of(10),
                       .size_bytes = kBlockSizeBytes};
  store.device.add_fault(fault);
  const CheckReport once = check(store.device);
  EXPECT_FALSE(once.damaged);
  EXPECT_THAT(remarks_of(once), Contains(HasSubstr("second time")));
  fault.times = UINT64_MAX;
  store.device.add_fault(fault);
  expect_error(store.device, "cannot be read");
}

TEST(CheckDevice, AValueOfTheTailThatCannotBeReadDoesNotEndTheLog) {
  Planted store;
  store.write_block({Planted::file(2, 1, "a", {store.value(2, 10, "a")})});
  store.write();
  testing::Fault fault{.kind = testing::OperationKind::kRead,
                       .times = 1,
                       .offset_bytes = store.offset_of(10),
                       .size_bytes = kBlockSizeBytes};
  store.device.add_fault(fault);
  EXPECT_EQ(check(store.device, false).keys, 1) << "a fault on the way costs nothing";
  fault.times = UINT64_MAX;
  store.device.add_fault(fault);
  const CheckReport report = check(store.device, false);
  EXPECT_THAT(errors_of(report), ElementsAre(HasSubstr("nobody knows where the log ends")));
  EXPECT_FALSE(report.opens);
}

}  // namespace
}  // namespace kvslot
