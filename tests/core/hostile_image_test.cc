// What somebody may do to an image, one thing at a time: every byte flipped, blocks zeroed, moved,
// swapped and taken from elsewhere, the device cut off and grown, an old superblock put back,
// fields of headers forged. HostileImage says what must then hold.
//
// KVSLOT_HOSTILE_STRIDE=1 does everything; without it a sample that differs from kind to kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/layout.h"
#include "tests/support/environment.h"
#include "tests/support/hostile_image.h"
#include "tests/support/seal.h"

namespace kvslot::testing {
namespace {

using End = HostileImage::End;

// Of what is done, each so many-th thing; the given number is for all of CI.
std::uint64_t stride(std::uint64_t sampled) {
  return std::max<std::uint64_t>(number_from("KVSLOT_HOSTILE_STRIDE", sampled), 1);
}

class HostileImageTest : public ::testing::TestWithParam<End> {
 protected:
  [[nodiscard]] bool is_journal(std::uint64_t block) const {
    const Geometry& geometry = image_.geometry();
    const std::uint64_t at = block * kBlockSizeBytes;
    return at >= geometry.journal_offset_bytes &&
           at < geometry.journal_offset_bytes + geometry.journal_size_bytes;
  }
  HostileImage image_{GetParam(), 1};
};

std::string name_of(const ::testing::TestParamInfo<End>& info) {
  return info.param == End::kClosed ? "Closed" : "Crashed";
}

INSTANTIATE_TEST_SUITE_P(Ends, HostileImageTest, ::testing::Values(End::kClosed, End::kCrashed),
                         name_of);

TEST_P(HostileImageTest, IsItselfWhole) {
  image_.judge("untouched");
  EXPECT_GT(image_.blocks().size(), 20U);
}

TEST_P(HostileImageTest, AnyFlippedByteIsSeenRepairedOrHarmless) {
  const std::uint64_t step = stride(769);
  std::uint64_t count = 0;
  for (const std::uint64_t block : image_.blocks()) {
    const std::vector<std::byte> bytes = image_.read_block(block);
    for (std::size_t at = 0; at < bytes.size() && !HasFailure(); ++at) {
      for (const auto& [name, value] :
           {std::pair{"bit 0", bytes[at] ^ std::byte{1}}, std::pair{"all bits", ~bytes[at]},
            std::pair{"zero", std::byte{0}}}) {
        if (count++ % step != 0 || value == bytes[at]) continue;
        std::vector<std::byte> changed = bytes;
        changed[at] = value;
        image_.write_block(block, changed);
        image_.judge("block " + std::to_string(block) + ", byte " + std::to_string(at) + ", " +
                     name);
      }
    }
    image_.write_block(block, bytes);
  }
}

TEST_P(HostileImageTest, AZeroedBlockIsSeenOrHarmless) {
  const std::vector<std::byte> zeros(kBlockSizeBytes);
  for (const std::uint64_t block : image_.blocks()) {
    const std::vector<std::byte> bytes = image_.read_block(block);
    image_.write_block(block, zeros);
    image_.judge("block " + std::to_string(block) + " zeroed");
    image_.write_block(block, bytes);
  }
}

// Writes that went to the wrong place: over another block, or each to the other's.
TEST_P(HostileImageTest, MisdirectedBlocksAreSeenOrHarmless) {
  const std::uint64_t step = stride(29);
  std::uint64_t count = 0;
  for (const std::uint64_t from : image_.blocks()) {
    for (const std::uint64_t to : image_.blocks()) {
      if (from == to || count++ % step != 0) continue;
      const std::vector<std::byte> source = image_.read_block(from);
      const std::vector<std::byte> target = image_.read_block(to);
      image_.write_block(to, source);
      image_.judge("block " + std::to_string(from) + " over " + std::to_string(to));
      // A value and the block that says it was flushed are lost together: two faults.
      const bool is_one_fault = is_journal(from) == is_journal(to);
      image_.write_block(from, is_one_fault ? target : source);
      image_.judge("blocks " + std::to_string(from) + " and " + std::to_string(to) + " swapped");
      image_.write_block(from, source);
      image_.write_block(to, target);
    }
  }
}

TEST_P(HostileImageTest, BlocksOfAnotherStoreAreSeenOrHarmless) {
  const HostileImage other(GetParam(), 2);
  for (const std::uint64_t block : image_.blocks()) {
    const std::vector<std::byte> bytes = image_.read_block(block);
    image_.write_block(block, other.read_block(block));
    image_.judge("block " + std::to_string(block) + " of another store");
    image_.write_block(block, bytes);
  }
}

// A superblock that went astray from a store that was opened more often.
TEST_P(HostileImageTest, ASuperblockOfAnotherStoreDoesNotOutrankOurs) {
  const HostileImage other(GetParam(), 2);
  Superblock newer = *decode_superblock(other.read_block(0));
  newer.sequence += 1000;
  newer.current = {.replay_from = {.epoch = 5, .offset_bytes = 0, .sequence = 1}};
  newer.previous = newer.current;
  for (const std::uint64_t offset : superblock_offsets(image_.geometry().size_bytes)) {
    const std::uint64_t block = offset / kBlockSizeBytes;
    const std::vector<std::byte> bytes = image_.read_block(block);
    image_.write_block(block, encode_superblock(newer));
    image_.judge("superblock of another store at " + std::to_string(offset));
    image_.write_block(block, bytes);
  }
}

TEST_P(HostileImageTest, BlocksOfAnEarlierTimeAreSeenOrHarmless) {
  for (const std::uint64_t block : image_.blocks()) {
    const std::vector<std::byte> bytes = image_.read_block(block);
    std::vector<std::byte> earlier(kBlockSizeBytes);
    image_.earlier().peek(block * kBlockSizeBytes, earlier);
    image_.write_block(block, earlier);
    image_.judge("block " + std::to_string(block) + " of an earlier time");
    image_.write_block(block, bytes);
  }
}

TEST_P(HostileImageTest, ACutOffDeviceIsRefusedAndAGrownOneIsNot) {
  const std::uint64_t size = image_.geometry().size_bytes;
  const auto resized = [&](std::uint64_t size_bytes) {
    auto device =
        std::make_unique<SimulatedDevice>(SimulatedDeviceOptions{.size_bytes = size_bytes});
    for (const std::uint64_t block : image_.blocks())
      if ((block + 1) * kBlockSizeBytes <= size_bytes)
        device->poke(block * kBlockSizeBytes, image_.read_block(block));
    return device;
  };
  for (const std::uint64_t missing :
       {std::uint64_t{kBlockSizeBytes}, 128 * kKiB, 8 * kMiB, size - kBlockSizeBytes})
    image_.judge("cut off by " + std::to_string(missing), *resized(size - missing));
  for (const std::uint64_t more : {std::uint64_t{kBlockSizeBytes}, 128 * kKiB, 16 * kMiB})
    image_.judge("grown by " + std::to_string(more), *resized(size + more));
}

// ---- Forged: the checksum is true, the number is not ----

struct Field {
  std::size_t offset_bytes;
  std::size_t size_bytes;
};

class ForgedFieldTest : public HostileImageTest {
 protected:
  template <typename Seal>
  void forge(std::uint64_t block, std::size_t size_blocks, std::span<const Field> fields,
             const std::string& what, Seal seal) {
    std::vector<std::byte> bytes(size_blocks * kBlockSizeBytes);
    image_.device().peek(block * kBlockSizeBytes, bytes);
    const std::vector<std::byte> before = bytes;
    for (const Field field : fields) {
      const std::uint64_t value = load_number(bytes, field.offset_bytes, field.size_bytes);
      for (const std::uint64_t forged :
           {std::uint64_t{0}, std::uint64_t{1}, value - 1, value + 1, std::uint64_t{0x7fffffff},
            UINT64_MAX - 1, UINT64_MAX, std::uint64_t{1} << 63}) {
        store_number(bytes, field.offset_bytes, forged, field.size_bytes);
        seal(bytes);
        image_.device().poke(block * kBlockSizeBytes, bytes);
        image_.judge_forged(what + ", field at " + std::to_string(field.offset_bytes) + " is " +
                            std::to_string(forged));
        bytes = before;
      }
    }
    image_.device().poke(block * kBlockSizeBytes, before);
  }
};

INSTANTIATE_TEST_SUITE_P(Ends, ForgedFieldTest, ::testing::Values(End::kClosed, End::kCrashed),
                         name_of);

TEST_P(ForgedFieldTest, NumbersOfTheSuperblock) {
  constexpr std::array<Field, 30> kFields = {
      {{16, 4},  {20, 4},  {32, 8},  {48, 8},  {56, 8},  {80, 8},  {88, 4},  {92, 4},
       {96, 4},  {100, 4}, {104, 8}, {112, 8}, {120, 8}, {192, 4}, {200, 8}, {208, 8},
       {216, 8}, {224, 8}, {232, 8}, {240, 8}, {248, 8}, {256, 8}, {264, 8}, {272, 8},
       {280, 8}, {288, 4}, {296, 8}, {304, 8}, {344, 8}, {368, 8}}};
  const auto seal = [this](Bytes bytes) {
    seal_superblock(bytes);
    for (const std::uint64_t offset : superblock_offsets(image_.geometry().size_bytes))
      image_.device().poke(offset, bytes);
  };
  const auto original = image_.read_block(0);
  forge(0, 1, kFields, "superblock", seal);
  for (const std::uint64_t offset : superblock_offsets(image_.geometry().size_bytes))
    image_.device().poke(offset, original);
}

TEST_P(ForgedFieldTest, NumbersOfJournalBlocksManifestsAndChunks) {
  constexpr std::array<Field, 8> kJournal = {
      {{4, 4}, {16, 8}, {24, 8}, {32, 8}, {40, 8}, {48, 4}, {52, 4}, {64, 4}}};
  constexpr std::array<Field, 6> kManifest = {
      {{4, 4}, {16, 8}, {24, 4}, {28, 4}, {32, 4}, {36, 4}}};
  constexpr std::array<Field, 5> kChunk = {{{4, 4}, {16, 8}, {24, 4}, {65, 4}, {70, 8}}};
  const Uuid& uuid = image_.geometry().uuid;
  std::size_t forged = 0;
  for (const std::uint64_t block : image_.blocks()) {
    const auto bytes = image_.read_block(block);
    const auto what = "block " + std::to_string(block);
    switch (load_number(bytes, 0, 4)) {
      case 0x424a564b:  // "KVJB"
        forge(block, load_number(bytes, 4, 4) / kBlockSizeBytes, kJournal, what + ", journal",
              [&](Bytes changed) { seal_journal(changed, uuid); });
        break;
      case 0x464d564b:  // "KVMF"
        forge(block, 1, kManifest, what + ", manifest",
              [&](Bytes changed) { seal_manifest(changed, uuid); });
        break;
      case 0x4b43564b:  // "KVCK"
        forge(block, 1, kChunk, what + ", chunk",
              [&](Bytes changed) { seal_chunk_as_it_is(changed, uuid); });
        break;
      default:
        continue;
    }
    ++forged;
  }
  EXPECT_GE(forged, 6U);
}

}  // namespace
}  // namespace kvslot::testing
