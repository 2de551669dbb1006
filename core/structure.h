// What the structures on the device have in common: how they begin, what their checksum covers,
// where they repeat the store's UUID. Used by layout.cc and checkpoint_layout.cc alone.
#pragma once

#include <kvslot/types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/layout.h"

namespace kvslot {

inline constexpr std::uint32_t kJournalMagic = 0x424a564b;   // "KVJB"
inline constexpr std::uint32_t kManifestMagic = 0x464d564b;  // "KVMF"
inline constexpr std::uint32_t kChunkMagic = 0x4b43564b;     // "KVCK"
inline constexpr std::uint32_t kTrailerMagic = 0x5254564b;   // "KVTR"

// Every structure but the trailer begins: magic (8, or 4 and a size of 4), checksum (8), the rest.
inline constexpr std::size_t kChecksumOffset = 8;
inline constexpr std::size_t kCheckedFrom = 16;

// The UUID, or half of it, for salvage.
inline constexpr std::size_t kJournalHintOffset = 56;
inline constexpr std::size_t kChunkUuidOffset = 28;
inline constexpr std::size_t kManifestUuidOffset = kBlockSizeBytes - sizeof(Uuid);

inline void store_u64(Bytes target, std::size_t offset, std::uint64_t value) {
  std::memcpy(target.data() + offset, &value, sizeof value);
}

[[nodiscard]] inline std::uint64_t load_u64(ConstBytes source, std::size_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, source.data() + offset, sizeof value);
  return value;
}

// Covers the first eight bytes of a structure and everything behind the checksum.
[[nodiscard]] inline std::uint64_t structure_checksum(ConstBytes bytes, std::uint64_t seed) {
  const std::uint64_t head = load_u64(bytes, 0);
  return checksum_of(bytes.subspan(kCheckedFrom), seed ^ (head * 0x9e3779b97f4a7c15));
}

}  // namespace kvslot
