// Salvage: whatever is damaged, what comes out is what was written, and what is
// missing is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/store.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "tests/support/engine.h"
#include "tests/support/environment.h"
#include "tests/support/planted_store.h"
#include "tests/support/salvage.h"

namespace kvslot {
namespace {

using testing::bytes_of;
using ::testing::Contains;
using testing::CrashMode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::number_from;
using ::testing::Pair;
using testing::SimulatedDevice;
using testing::value_of;
using Planted = testing::PlantedStore;
using testing::MemorySink;
using testing::salvage;
using testing::Values;
using testing::wipe;
using testing::wipe_checkpoints;
using testing::wipe_journal;
using testing::wipe_superblocks;

// A store with overwritten, removed, moved and patched keys, and every value
// they ever had.
class History {
 public:
  History() {
    for (std::size_t i = 0; i < 20; ++i) put("d/" + std::to_string(i), 1000 * i + 1);
    EXPECT_TRUE(store().checkpoint());
    for (std::size_t i = 10; i < 30; ++i) put("d/" + std::to_string(i), 700 * i);
    put("large", 300'000);
    put("empty", 0);
    EXPECT_TRUE(store().checkpoint());
    for (std::size_t i = 25; i < 40; ++i) put("e/" + std::to_string(i), 300 * i);
    EXPECT_TRUE(store().rename("d/5", "e/moved"));
    now["e/moved"] = now["d/5"];
    ever["e/moved"].insert(now["d/5"]);
    now.erase("d/5");
    EXPECT_TRUE(store().remove("d/3"));
    now.erase("d/3");
    EXPECT_TRUE(store().flush());
  }
  [[nodiscard]] std::unique_ptr<SimulatedDevice> device() {
    return harness_.device().survivor(1, CrashMode::kAll);
  }
  [[nodiscard]] const Geometry& geometry() { return harness_.volume().geometry(); }

  // Nothing that came out whole has bytes that it never had.
  void expect_honest(const MemorySink& sink) const {
    for (const auto& [path, value] : sink.whole) {
      const std::string name = path.substr(path.rfind('/') + 1);
      bool is_known = false;
      for (const auto& [key, values] : ever)
        is_known |= key.substr(key.rfind('/') + 1) == name && values.contains(value);
      EXPECT_TRUE(is_known) << path << " of " << value.size();
    }
  }

  Values now;
  std::map<std::string, std::set<std::string>> ever;

 private:
  Store& store() { return harness_.store(); }
  void put(const std::string& key, std::size_t size) {
    const std::string value = value_of(++puts_, size);
    EXPECT_TRUE(store().put(key, bytes_of(value)));
    now[key] = value;
    ever[key].insert(value);
  }

  testing::StoreHarness harness_{32 * kMiB};
  std::uint64_t puts_ = 0;
};

TEST(SalvageDevice, AStoreThatIsWholeComesOutWhole) {
  History history;
  const auto device = history.device();
  MemorySink sink;
  const SalvageReport report = salvage(*device, sink);
  EXPECT_EQ(sink.whole, history.now);
  EXPECT_TRUE(report.complete);
  EXPECT_THAT(report.notes, IsEmpty());
}

TEST(SalvageDevice, WithoutSuperblocksEverythingComesOut) {
  History history;
  const auto device = history.device();
  wipe_superblocks(*device);
  MemorySink sink;
  const SalvageReport report = salvage(*device, sink);
  for (const auto& [key, value] : history.now) EXPECT_EQ(sink.whole[key], value) << key;
  EXPECT_FALSE(sink.whole.contains("d/3")) << "the journal says that it was removed";
  EXPECT_FALSE(report.complete);
  history.expect_honest(sink);
}

TEST(SalvageDevice, ACopyOfAnotherStoresSuperblockIsNotGoneBy) {
  History history;
  const auto device = history.device();
  Superblock foreign = *read_superblock(*device);
  foreign.geometry.uuid[3] ^= 1;
  foreign.sequence += 100;
  device->poke(superblock_offsets(device->info().size_bytes)[1], encode_superblock(foreign));
  MemorySink sink;
  EXPECT_TRUE(salvage(*device, sink).complete);
  EXPECT_EQ(sink.whole, history.now);
}

std::unique_ptr<SimulatedDevice> cut_off(const SimulatedDevice& device, std::uint64_t cut_bytes) {
  auto shorter = std::make_unique<SimulatedDevice>(
      testing::SimulatedDeviceOptions{.size_bytes = device.info().size_bytes - cut_bytes});
  std::vector<std::byte> bytes(shorter->info().size_bytes);
  device.peek(0, bytes);
  shorter->poke(0, bytes);
  return shorter;
}

TEST(SalvageDevice, ADeviceThatWasCutOffGivesWhatIsLeft) {
  History history;
  const auto device = history.device();
  wipe_checkpoints(*device, "KVMF");
  const auto shorter = cut_off(*device, kMiB);
  MemorySink sink;
  salvage(*shorter, sink);
  for (const auto& [key, value] : history.now) EXPECT_EQ(sink.whole[key], value) << key;
}

// What was kept there is missing, nothing else, and nothing comes back.
TEST(SalvageDevice, OfADeviceWithoutItsEndCheckpointAndJournalAreGoneBy) {
  for (const std::uint64_t cut_bytes : {std::uint64_t{kBlockSizeBytes}, std::uint64_t{kMiB}}) {
    SCOPED_TRACE(cut_bytes);
    History history;
    const auto device = history.device();
    const auto shorter = cut_off(*device, cut_bytes);
    MemorySink sink;
    const SalvageReport report = salvage(*shorter, sink);
    EXPECT_EQ(sink.whole, history.now);
    EXPECT_TRUE(report.complete);
    EXPECT_THAT(report.notes, ElementsAre(HasSubstr("it was cut off")));
  }
}

TEST(SalvageDevice, AValueBehindTheEndOfTheDeviceIsMissingAndEndsNothing) {
  testing::StoreHarness harness(16 * kMiB);
  const auto put = [&](const std::string& key, std::size_t size) {
    return harness.store().put(key, bytes_of(value_of(size, size))).has_value();
  };
  std::vector<std::string> keys;
  do {
    keys.push_back("k" + std::to_string(keys.size()));
  } while (put(keys.back(), 120'000));
  keys.pop_back();
  ASSERT_TRUE(harness.store().flush());
  const auto shorter = cut_off(*harness.device().survivor(1, CrashMode::kAll), kMiB);
  MemorySink sink;
  const SalvageReport report = salvage(*shorter, sink);
  EXPECT_TRUE(report.metadata_whole);
  EXPECT_FALSE(report.complete);
  EXPECT_EQ(report.lost + report.files, keys.size());
  EXPECT_LT(report.lost, 12U);
  EXPECT_GT(report.lost, 3U);
}

// The record of an empty value counts more than a trailer that is older.
TEST(SalvageDevice, AValueThatWasEmptiedDoesNotComeBackFromItsTrailer) {
  for (const bool is_in_checkpoint : {false, true})
    for (const bool has_superblock : {false, true}) {
      SCOPED_TRACE(::testing::PrintToString(std::pair(is_in_checkpoint, has_superblock)));
      testing::StoreHarness harness(16 * kMiB);
      const auto put = [&](const std::string& key, std::string_view value) {
        EXPECT_TRUE(harness.store().put(key, bytes_of(value)));
      };
      put("other", "a value");
      put("k", "the old value");
      put("lost", "the old value");
      EXPECT_TRUE(harness.store().checkpoint());
      put("k", "");
      if (is_in_checkpoint) {
        EXPECT_TRUE(harness.store().checkpoint());
      }
      put("lost", "");
      const std::uint64_t of_lost = harness.volume().inspector().journal().head_offset_bytes;
      put("lost", "the new value");
      EXPECT_TRUE(harness.store().flush());
      put("other", "another value");
      EXPECT_TRUE(harness.store().flush());
      const auto device = harness.device().survivor(1, CrashMode::kAll);
      wipe(*device, harness.volume().geometry().journal_offset_bytes + of_lost, kBlockSizeBytes);
      if (!has_superblock) wipe_superblocks(*device);
      MemorySink sink;
      EXPECT_FALSE(salvage(*device, sink).metadata_whole);
      EXPECT_THAT(sink.whole, ElementsAre(Pair("k", ""), Pair("lost", "the new value"),
                                          Pair("other", "another value")));
    }
}

TEST(SalvageDevice, WithoutManifestsEverythingComesOut) {
  History history;
  const auto device = history.device();
  wipe_checkpoints(*device, "KVMF");
  MemorySink sink;
  salvage(*device, sink);
  for (const auto& [key, value] : history.now) EXPECT_EQ(sink.whole[key], value) << key;
  history.expect_honest(sink);
}

TEST(SalvageDevice, WithoutTheCurrentCheckpointTheOneBeforeAndTheJournalSayTheSame) {
  History history;
  const auto device = history.device();
  const Superblock superblock = *read_superblock(*device);
  wipe(*device,
       superblock.geometry.slots_offset_bytes +
           std::uint64_t{superblock.current.manifest_slot} * kBlockSizeBytes,
       kBlockSizeBytes);
  MemorySink sink;
  EXPECT_TRUE(salvage(*device, sink).complete);
  EXPECT_EQ(sink.whole, history.now);
}

// Every value that has a trailer, or that the rest of the metadata names, comes
// out.
TEST(SalvageDevice, WhatTrailersTellComesOutWithoutAnyMetadata) {
  for (const bool has_superblock : {true, false}) {
    SCOPED_TRACE(has_superblock);
    History history;
    const auto device = history.device();
    if (!has_superblock) wipe_superblocks(*device);
    wipe_journal(*device, history.geometry());
    wipe_checkpoints(*device);
    wipe_checkpoints(*device, "KVMF");
    MemorySink sink;
    const SalvageReport report = salvage(*device, sink);
    EXPECT_EQ(report.metadata_whole, false);
    history.expect_honest(sink);
    std::size_t found = 0;
    std::size_t expected = 0;
    for (const auto& [key, value] : history.now) {
      const std::size_t slack =
          (kBlockSizeBytes - value.size() % kBlockSizeBytes) % kBlockSizeBytes;
      if (value.empty() || value.size() > kExtentSizeBytesMax || slack < 64 + 5) continue;
      if (key == "e/moved") continue;  // it is there under its old name
      ++expected;
      const std::string name = key.substr(key.rfind('/') + 1);
      for (const auto& [path, salvaged] : sink.whole)
        found += path.starts_with("lost+found/") && path.ends_with("/" + name) && salvaged == value;
    }
    EXPECT_EQ(found, expected);
    EXPECT_GT(expected, 30U);
    EXPECT_TRUE(sink.partial.contains("lost+found/large")) << "its last window has a trailer";
  }
}

TEST(SalvageDevice, DamageAnywhereNeverMakesAWrongValue) {
  History history;
  const auto pristine = history.device();
  const std::uint64_t first = number_from("KVSLOT_SALVAGE_SEED", 1);
  const std::uint64_t count = number_from("KVSLOT_SALVAGE_SEEDS", 40);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("replay with KVSLOT_SALVAGE_SEEDS=1 KVSLOT_SALVAGE_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto device = pristine->process_crash();
    if (seed % 2 == 0) wipe_superblocks(*device);
    if (seed % 3 == 0) wipe_checkpoints(*device, random() % 2 == 0 ? "KVCK" : "KVMF");
    if (seed % 5 == 0) wipe_journal(*device, history.geometry());
    const std::uint64_t used_bytes = 4 * kMiB;
    for (int i = 0; i < 60; ++i)
      device->flip_bit(random() % used_bytes, static_cast<unsigned>(random() % 8));
    for (int i = 0; i < 4; ++i)
      wipe(*device, random() % (used_bytes / kBlockSizeBytes) * kBlockSizeBytes, 8192);
    MemorySink sink;
    if (salvage_device(*device, sink, {})) history.expect_honest(sink);
  }
}

TEST(SalvageDevice, AnUnreadableDeviceGivesWhatCanBeRead) {
  History history;
  const auto device = history.device();
  const Geometry& geometry = history.geometry();
  device->add_fault({.kind = testing::OperationKind::kRead,
                     .offset_bytes = geometry.journal_offset_bytes,
                     .size_bytes = geometry.journal_size_bytes});
  MemorySink sink;
  const SalvageReport report = salvage(*device, sink);
  EXPECT_THAT(report.notes, Contains(HasSubstr("cannot be read")));
  EXPECT_GT(sink.whole.size(), 30U);
  history.expect_honest(sink);
}

TEST(SalvageDevice, AValueWithAHoleIsNotPassedOffAsWhole) {
  Planted store;
  const std::string window(kExtentSizeBytesMax, 'w');
  std::vector<Extent> extents = {store.value(2, 100, window), store.value(2, 200, window, 32),
                                 store.value(2, 300, "end", 64)};
  store.add(Planted::file(2, 1, "large", extents));
  store.add_file(3, "gone", 10);
  store.write();
  store.device.flip_bit(store.offset_of(200), 3);
  store.device.flip_bit(store.offset_of(10), 3);
  MemorySink sink;
  const SalvageReport report = salvage(store.device, sink);
  EXPECT_THAT(sink.whole, IsEmpty());
  ASSERT_TRUE(sink.partial.contains("large"));
  EXPECT_EQ(sink.partial["large"], window + std::string(kExtentSizeBytesMax, '\0') + "end");
  EXPECT_EQ(report.partial, 1);
  EXPECT_EQ(report.lost, 1);
  EXPECT_THAT(report.notes,
              Contains(HasSubstr("'large'.partial: of 262147 bytes 131072 to 262144")));
  EXPECT_THAT(report.notes, Contains(HasSubstr("'gone': nothing of its 13 bytes is left")));
}

TEST(SalvageDevice, WhatContradictsItselfComesOutAsFarAsItHolds) {
  Planted store;
  store.add_file(2, "right", 10);
  Extent stolen = store.value(3, 11, "stolen");
  stolen.device_block = store.block_of(10);
  store.add(Planted::file(3, 1, "wrong", {stolen}));
  store.add(Planted::file(4, 77, "no directory", {store.value(4, 12, "a")}));
  store.add(Planted::directory(ObjectId{5}, ObjectId{6}, "circle"));
  store.add(Planted::directory(ObjectId{6}, ObjectId{5}, "circle"));
  store.add(Planted::file(7, 5, "in a circle", {store.value(7, 13, "b")}));
  store.add(Planted::directory(ObjectId{8}, ObjectId::kRoot, "lost+found"));
  store.write();
  MemorySink sink;
  const SalvageReport report = salvage(store.device, sink);
  EXPECT_EQ(sink.whole, (Values{{"right", "value of right"},
                                {"lost+found_/dir-77/no directory", "a"},
                                {"lost+found_/dir-5/in a circle", "b"}}));
  EXPECT_EQ(report.lost, 1);
}

TEST(SalvageDevice, BlocksBehindAHoleInTheLogCount) {
  Planted store;
  store.write_block({Planted::file(2, 1, "before", {store.value(2, 10, "before")})});
  store.write_block({Planted::file(3, 1, "in", {store.value(3, 11, "in")})});
  store.write_block({Planted::file(4, 1, "behind", {store.value(4, 12, "behind")})}, 2);
  store.write();
  store.device.flip_bit(store.superblock.geometry.journal_offset_bytes + kBlockSizeBytes + 70, 1);
  MemorySink sink;
  salvage(store.device, sink);
  EXPECT_EQ(sink.whole, (Values{{"before", "before"}, {"behind", "behind"}}));
}

TEST(SalvageDevice, ATrailersNameNeverLeavesTheFolder) {
  Planted store;
  const Uuid& uuid = store.superblock.geometry.uuid;
  std::uint32_t slot = 20;
  for (const std::string& name :
       {std::string("../../etc/passwd"), std::string(".."), std::string("/abs"),
        std::string("a\0b", 3), std::string(), std::string("fine\n\xff")}) {
    const Extent extent = store.value(slot, slot, "value");
    std::vector<std::byte> slack(kBlockSizeBytes - 5);
    ASSERT_TRUE(write_trailer(slack,
                              {.object = ObjectId{slot},
                               .parent = ObjectId::kRoot,
                               .stamp = extent.stamp,
                               .checksum = extent.checksum,
                               .size_bytes = 5,
                               .file_block = 0,
                               .name = name},
                              uuid));
    store.device.poke(store.offset_of(slot) + 5, slack);
    ++slot;
  }
  store.write_superblocks();  // and no checkpoint
  MemorySink sink;
  salvage(store.device, sink);
  EXPECT_EQ(sink.whole, (Values{{"lost+found/fine\n\xff", "value"}}));
}

TEST(SalvageDevice, AFullFolderEndsItAndANameItCannotHoldDoesNot) {
  History history;
  const auto device = history.device();
  MemorySink sink;
  sink.refusal = fail(Errc::kNoSpace, "full");
  EXPECT_EQ(salvage_device(*device, sink, {}).error().code, Errc::kNoSpace);
  sink.refusal = fail(Errc::kTooLarge, "name");
  const SalvageReport report = salvage(*device, sink);
  EXPECT_EQ(report.files, 0);
  EXPECT_THAT(report.notes, Contains(HasSubstr("cannot be written: name")));
}

TEST(SalvageDevice, ModesTimesAndAttributesComeOutAsTheRecordsLastSaidThem) {
  for (const bool has_superblock : {true, false}) {
    SCOPED_TRACE(has_superblock);
    Planted store;
    SetNode file = Planted::file(2, 1, "file", {store.value(2, 10, "a")});
    file.image.attributes = {.mode = 0640, .uid = 3, .gid = 4, .mtime_ns = 5};
    file.image.xattrs = {{"user.a", "1"}};
    store.add(file);
    SetNode other = Planted::file(3, 1, "other", {store.value(3, 11, "b")});
    other.image.attributes.mode = 0600;
    other.image.xattrs = {{"user.b", "2"}};
    store.add(other);
    store.write_block({SetAttributes{ObjectId{3}, {.mode = 0444, .uid = 7, .mtime_ns = -8}},
                       SetXattrs{ObjectId{2}, 0, {{"user.c", "3"}}},
                       PatchContent{.object = ObjectId{2},
                                    .attributes = {.mode = 0640, .uid = 3, .mtime_ns = 9},
                                    .size_bytes = 1,
                                    .windows = {}}});
    store.write();
    if (!has_superblock) wipe_superblocks(store.device);
    MemorySink sink;
    salvage(store.device, sink);
    ASSERT_TRUE(sink.files["file"].attributes && sink.files["other"].attributes);
    EXPECT_EQ(sink.files["file"].attributes->mode, 0640);
    EXPECT_EQ(sink.files["file"].attributes->mtime_ns, 9);
    EXPECT_THAT(sink.files["file"].xattrs, ElementsAre(Pair("user.c", "3")));
    EXPECT_EQ(sink.files["other"].attributes->mode, 0444);
    EXPECT_EQ(sink.files["other"].attributes->uid, 7);
    EXPECT_EQ(sink.files["other"].attributes->mtime_ns, -8);
    EXPECT_THAT(sink.files["other"].xattrs, ElementsAre(Pair("user.b", "2")));
  }
}

TEST(SalvageDevice, RandomRecordsAndZerosDoNoHarm) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 100; ++round) {
    Planted store;
    store.add(Planted::directory(ObjectId{2}, ObjectId::kRoot, "dir"));
    store.add_file(3, "key", 10);
    std::vector<std::byte> records;
    encode_record(records, MoveNode{.object = ObjectId{3}, .parent = ObjectId{2}, .name = "k"});
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      std::vector<std::byte>& target = random() % 2 == 0 ? records : store.stream;
      target[random() % target.size()] = static_cast<std::byte>(random());
    }
    store.write_block(records, 1);
    store.write();
    if (round % 2 == 0) wipe_superblocks(store.device);
    MemorySink sink;
    static_cast<void>(salvage_device(store.device, sink, {}));
  }
  SimulatedDevice zeros({.size_bytes = 16 * kMiB});
  MemorySink sink;
  EXPECT_EQ(salvage_device(zeros, sink, {}).error().code, Errc::kCorrupt);
}

}  // namespace
}  // namespace kvslot
