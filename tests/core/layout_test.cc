// Structures on the device: each comes back as it went out, and any damage is seen.
#include "core/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "core/checkpoint_layout.h"

namespace kvslot {
namespace {

Superblock some_superblock() {
  Superblock superblock;
  superblock.geometry = *plan_geometry(64 * kMiB, 4096, 512);
  superblock.geometry.uuid = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  superblock.geometry.label = std::string(kLabelSizeBytesMax, 'l');
  superblock.sequence = 42;
  superblock.clean = false;
  superblock.formatted_ns = -5;
  superblock.compatible_features = 8;
  superblock.current = {.manifest_slot = 3,
                        .sequence = 4,
                        .stream_bytes = 5,
                        .node_count = 6,
                        .written_ns = 7,
                        .next_object = 8,
                        .next_stamp = 9,
                        .included_upto = 10,
                        .replay_from = {11, 8192, 12, 13}};
  superblock.previous = superblock.current;
  superblock.previous.sequence = 3;
  superblock.root_uid = 1000;
  superblock.root_gid = 100;
  return superblock;
}

// Whether `is_good` says no for each single flipped bit of `bytes`.
template <typename Judge>
void expect_every_flip_is_seen(std::vector<std::byte> bytes, Judge is_good) {
  ASSERT_TRUE(is_good(bytes));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto bit = std::byte{1} << (i % 8);
    bytes[i] ^= bit;
    EXPECT_FALSE(is_good(bytes)) << "byte " << i;
    bytes[i] ^= bit;
  }
}

TEST(Layout, SuperblockComesBackAsItWentOut) {
  const Superblock superblock = some_superblock();
  const auto decoded = decode_superblock(encode_superblock(superblock));
  ASSERT_TRUE(decoded) << decoded.error().step;
  EXPECT_EQ(decoded->geometry.uuid, superblock.geometry.uuid);
  EXPECT_EQ(decoded->geometry.label, superblock.geometry.label);
  EXPECT_EQ(decoded->geometry.slot_count, superblock.geometry.slot_count);
  EXPECT_EQ(decoded->sequence, 42U);
  EXPECT_FALSE(decoded->clean);
  EXPECT_EQ(decoded->formatted_ns, -5);
  EXPECT_EQ(decoded->current, superblock.current);
  EXPECT_EQ(decoded->previous, superblock.previous);
  EXPECT_EQ(decoded->root_uid, 1000U);
  EXPECT_EQ(decoded->root_gid, 100U);
}

TEST(Layout, AnyFlippedBitOfASuperblockIsSeenPaddingIncluded) {
  expect_every_flip_is_seen(encode_superblock(some_superblock()),
                            [](ConstBytes bytes) { return decode_superblock(bytes).has_value(); });
}

TEST(Layout, SuperblockOfANewerKvslotIsToldApartFromDamage) {
  Superblock superblock = some_superblock();
  superblock.incompatible_features = 1;
  EXPECT_EQ(decode_superblock(encode_superblock(superblock)).error().code, Errc::kInvalid);
  superblock = some_superblock();
  superblock.read_only_compatible_features = 1;
  EXPECT_TRUE(decode_superblock(encode_superblock(superblock)));
}

TEST(Layout, SuperblocksThatNameImpossiblePlacesAreRefused) {
  const auto refused = [](const auto& spoil) {
    Superblock superblock = some_superblock();
    spoil(superblock);
    return !decode_superblock(encode_superblock(superblock)).has_value();
  };
  EXPECT_FALSE(refused([](Superblock&) {}));
  EXPECT_TRUE(refused([](Superblock& s) { s.geometry.slot_count += 1; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.geometry.slot_size_bytes = 4095; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.geometry.size_bytes *= 2; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.geometry.journal_offset_bytes += 4096; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.current.manifest_slot = s.geometry.slot_count; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.current.replay_from.offset_bytes = 5; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.current.replay_from.sequence = 0; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.current.replay_from.sequence = UINT64_MAX; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.previous.sequence = UINT64_MAX; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.sequence = UINT64_MAX; }));
  EXPECT_TRUE(refused(
      [](Superblock& s) { s.previous.replay_from.offset_bytes = s.geometry.journal_size_bytes; }));
}

TEST(Layout, GeometryIsPlannedWithinItsLimits) {
  EXPECT_EQ(plan_geometry(16 * kMiB - 1, 4096, 512).error().code, Errc::kInvalid);
  EXPECT_EQ(plan_geometry(17 * 1024 * kGiB, 4096, 512).error().code, Errc::kTooLarge);
  for (const std::uint32_t size : {0U, 512U, 2048U, 5000U, 12288U, 8U << 20})
    EXPECT_EQ(plan_geometry(kGiB, size, 512).error().code, Errc::kInvalid) << size;
  EXPECT_FALSE(plan_geometry(kGiB, 4096, 8192));
  EXPECT_FALSE(plan_geometry(kGiB, 4096, 0));
  EXPECT_FALSE(plan_geometry(16 * kMiB, 4 << 20, 512)) << "too few slots";
  for (const std::uint64_t size : {16 * kMiB, 256 * kMiB + 5000, kGiB, 16 * 1024 * kGiB}) {
    for (const std::uint32_t slot : {4096U, 65536U, 1U << 20}) {
      const auto geometry = plan_geometry(size, slot, 4096);
      ASSERT_TRUE(geometry);
      EXPECT_GE(geometry->journal_offset_bytes, kSuperblockAreaBytes);
      EXPECT_GE(geometry->slots_offset_bytes,
                geometry->journal_offset_bytes + geometry->journal_size_bytes);
      EXPECT_LE(geometry->slots_offset_bytes + std::uint64_t{geometry->slot_count} * slot,
                size - kSuperblockAreaBytes);
    }
  }
  const auto middle = plan_geometry(256 * kMiB, 4096, 512);
  EXPECT_GE(std::uint64_t{middle->slot_count} * 4096, 256 * kMiB * 85 / 100);
}

TEST(Layout, SuperblockCopiesStandApart) {
  const auto offsets = superblock_offsets(64 * kMiB + 1000);
  const std::set<std::uint64_t> apart(offsets.begin(), offsets.end());
  EXPECT_EQ(apart.size(), kSuperblockCopies);
  for (const std::uint64_t offset : offsets) {
    EXPECT_EQ(offset % kBlockSizeBytes, 0U);
    EXPECT_LE(offset + kBlockSizeBytes, 64 * kMiB + 1000);
  }
}

TEST(Layout, AnyFlippedBitOfAJournalBlockIsSeen) {
  const Uuid uuid{9};
  std::vector<std::byte> block(kBlockSizeBytes);
  std::memset(block.data() + kJournalHeaderBytes, 7, 100);
  JournalHeader header{.payload_bytes = 100,
                       .epoch = 1,
                       .sequence = 2,
                       .previous_hash = 3,
                       .durable_upto = 4,
                       .record_count = 5};
  seal_journal_block(block, header, uuid);
  const auto judge = [&](ConstBytes bytes) {
    const auto peeked = peek_journal_header(bytes);
    return peeked && verify_journal_block(bytes, *peeked, uuid);
  };
  expect_every_flip_is_seen(block, judge);
  const auto peeked = peek_journal_header(block);
  EXPECT_EQ(peeked->sequence, 2U);
  EXPECT_EQ(peeked->durable_upto, 4U);
  EXPECT_EQ(peeked->checksum, header.checksum);
  EXPECT_FALSE(verify_journal_block(block, *peeked, Uuid{8})) << "of another store";
}

TEST(Layout, AnyFlippedBitOfAManifestIsSeen) {
  const Uuid uuid{9};
  const Manifest manifest{.checkpoint_sequence = 3,
                          .index = 1,
                          .next_slot = 8,
                          .entries = {{5, 4096}, {6, kChunkSizeBytesMax}}};
  const auto block = encode_manifest(manifest, uuid);
  expect_every_flip_is_seen(
      block, [&](ConstBytes bytes) { return decode_manifest(bytes, uuid).has_value(); });
  const auto decoded = decode_manifest(block, uuid);
  EXPECT_EQ(decoded->checkpoint_sequence, 3U);
  EXPECT_EQ(decoded->next_slot, 8U);
  ASSERT_EQ(decoded->entries.size(), 2U);
  EXPECT_EQ(decoded->entries[1].slot, 6U);
  EXPECT_FALSE(decode_manifest(block, Uuid{8}));
}

TEST(Layout, AnyFlippedBitOfAChunkIsSeen) {
  const Uuid uuid{9};
  std::vector<std::byte> chunk(2 * kBlockSizeBytes, std::byte{0xa5});
  seal_chunk(chunk, {.sequence = 3}, 1, 5000, uuid);
  const auto judge = [&](ConstBytes bytes) { return open_chunk(bytes, 3, 1, uuid).has_value(); };
  expect_every_flip_is_seen(chunk, judge);
  EXPECT_EQ(open_chunk(chunk, 3, 1, uuid)->size(), 5000U);
  EXPECT_FALSE(open_chunk(chunk, 4, 1, uuid)) << "of another checkpoint";
  EXPECT_FALSE(open_chunk(chunk, 3, 2, uuid)) << "another place in it";
  EXPECT_FALSE(open_chunk(chunk, 3, 1, Uuid{8})) << "of another store";
}

TEST(Layout, TrailersTellWhoWroteABlockWhereTheyFit) {
  const Uuid uuid{9};
  std::vector<std::byte> block(kBlockSizeBytes);
  const Trailer trailer{.object = ObjectId{1},
                        .parent = ObjectId{2},
                        .stamp = 3,
                        .checksum = 4,
                        .size_bytes = 100,
                        .file_block = 6,
                        .name = "name"};
  EXPECT_TRUE(write_trailer(Bytes(block).subspan(100), trailer, uuid));
  const auto found = read_trailer(block, uuid);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->object, ObjectId{1});
  EXPECT_EQ(found->stamp, 3U);
  EXPECT_EQ(found->name, "name");
  EXPECT_FALSE(read_trailer(block, Uuid{8}));
  EXPECT_FALSE(write_trailer(Bytes(block).first(10), trailer, uuid)) << "no room";
  EXPECT_FALSE(read_trailer(std::vector<std::byte>(kBlockSizeBytes), uuid));
}

TEST(Layout, ChecksumsOfExtentsDifferByStoreObjectAndStamp) {
  const std::vector<std::byte> bytes(100, std::byte{1});
  std::set<std::uint64_t> sums;
  for (const Uuid& uuid : {Uuid{1}, Uuid{2}})
    for (const std::uint64_t object : {1U, 2U})
      for (const std::uint64_t stamp : {1U, 2U})
        sums.insert(extent_checksum(uuid, ObjectId{object}, stamp, bytes));
  EXPECT_EQ(sums.size(), 8U);
}

}  // namespace
}  // namespace kvslot
