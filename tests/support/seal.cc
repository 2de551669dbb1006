// See seal.h.
#include "tests/support/seal.h"

#include <cstring>

namespace kvslot::testing {
namespace {

constexpr std::size_t kChecksumAt = 8;
constexpr std::size_t kCheckedFrom = 16;
constexpr std::uint64_t kSuperblockSeed = 0x6b76736c6f742131;
constexpr std::uint64_t kHeadFactor = 0x9e3779b97f4a7c15;

void seal(Bytes structure, std::uint64_t seed) {
  const std::uint64_t head = load_number(structure, 0);
  store_number(structure, kChecksumAt,
               checksum_of(structure.subspan(kCheckedFrom), seed ^ (head * kHeadFactor)));
}

}  // namespace

std::uint64_t load_number(ConstBytes source, std::size_t offset_bytes, std::size_t size_bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, source.subspan(offset_bytes, size_bytes).data(), size_bytes);
  return value;
}

void store_number(Bytes target, std::size_t offset_bytes, std::uint64_t value,
                  std::size_t size_bytes) {
  std::memcpy(target.subspan(offset_bytes, size_bytes).data(), &value, size_bytes);
}

void seal_superblock(Bytes block) { seal(block, kSuperblockSeed); }

void seal_journal(Bytes block, const Uuid& uuid) {
  constexpr std::size_t kEpochAt = 16, kSequenceAt = 24;
  seal(block, checksum_seed(uuid, ChecksumKind::kJournal, load_number(block, kEpochAt),
                            load_number(block, kSequenceAt)));
}

namespace {

// Both begin alike: magic 4, index 4, checksum 8, sequence of the checkpoint 8.
void seal_indexed(Bytes structure, const Uuid& uuid, ChecksumKind kind) {
  constexpr std::size_t kIndexAt = 4, kSequenceAt = 16;
  seal(structure, checksum_seed(uuid, kind, load_number(structure, kSequenceAt),
                                load_number(structure, kIndexAt, 4)));
}

}  // namespace

void seal_manifest(Bytes block, const Uuid& uuid) {
  seal_indexed(block, uuid, ChecksumKind::kManifest);
}

void seal_chunk_as_it_is(Bytes chunk, const Uuid& uuid) {
  seal_indexed(chunk, uuid, ChecksumKind::kChunk);
}

}  // namespace kvslot::testing
