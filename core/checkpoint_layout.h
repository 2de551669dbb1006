// The structures of a checkpoint: a chain of manifest blocks names the chunks, whose payloads form
// one stream of records. Used by checkpoint, recovery, check and salvage.
#pragma once

#include <kvslot/error.h>
#include <kvslot/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/layout.h"

namespace kvslot {

inline constexpr std::size_t kChunkHeaderBytes = 64;
inline constexpr std::size_t kChunkSizeBytesMax = 1 << 20;
inline constexpr std::size_t kManifestEntriesMax = 252;

struct ManifestEntry {
  std::uint32_t slot = 0;
  std::uint32_t size_bytes = 0;  // of the chunk, header included
};

// An attempt at a checkpoint; an interrupted one may have had the same number.
struct CheckpointId {
  std::uint64_t sequence = 0;
  std::uint64_t epoch = 0;        // 0: written by an earlier kvslot
  std::uint64_t replay_from = 0;  // the first block to replay over it
};

struct Manifest {
  std::uint64_t checkpoint_sequence = 0;
  std::uint64_t epoch = 0;
  std::uint32_t index = 0;  // 0, 1, 2, ... along the chain
  std::uint32_t next_slot = kNoSlot;
  std::vector<ManifestEntry> entries;
};

[[nodiscard]] std::vector<std::byte> encode_manifest(const Manifest& manifest, const Uuid& uuid);
[[nodiscard]] Result<Manifest> decode_manifest(ConstBytes block, const Uuid& uuid);

// Seals a chunk whose payload stands at kChunkHeaderBytes; the rest of the buffer is zeroed.
void seal_chunk(Bytes chunk, const CheckpointId& checkpoint, std::uint32_t index,
                std::uint32_t payload_bytes, const Uuid& uuid);
// The payload of a chunk.
[[nodiscard]] Result<ConstBytes> open_chunk(ConstBytes chunk, std::uint64_t checkpoint_sequence,
                                            std::uint32_t index, const Uuid& uuid);

// What the header of a chunk says, if its magic and size make sense; nothing is verified.
struct ChunkHeader {
  CheckpointId checkpoint;
  std::uint32_t index = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t size_bytes = 0;  // whole blocks, header included
  [[nodiscard]] ConstBytes payload(ConstBytes chunk) const {
    return chunk.subspan(kChunkHeaderBytes, payload_bytes);
  }
};
[[nodiscard]] std::optional<ChunkHeader> peek_chunk_header(ConstBytes first_block);

}  // namespace kvslot
