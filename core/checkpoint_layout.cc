// Encodes and judges the structures of core/checkpoint_layout.h.
#include "core/checkpoint_layout.h"

#include <kvslot/check.h>

#include <algorithm>
#include <cstring>

#include "core/codec.h"
#include "core/structure.h"

namespace kvslot {
namespace {

constexpr std::size_t kManifestEpochOffset = kManifestUuidOffset - sizeof(std::uint64_t);

}  // namespace

std::vector<std::byte> encode_manifest(const Manifest& manifest, const Uuid& uuid) {
  KVSLOT_CHECK(manifest.entries.size() <= kManifestEntriesMax, "manifest fits its block");
  std::vector<std::byte> block;
  block.reserve(kBlockSizeBytes);
  ByteWriter out(block);
  out.number(kManifestMagic);
  out.number(manifest.index);
  out.number(std::uint64_t{0});  // checksum
  out.number(manifest.checkpoint_sequence);
  out.number(manifest.next_slot);
  out.number(static_cast<std::uint32_t>(manifest.entries.size()));
  for (const ManifestEntry& entry : manifest.entries) {
    out.number(entry.slot);
    out.number(entry.size_bytes);
  }
  out.zeros(kManifestEpochOffset - block.size());
  out.number(manifest.epoch);
  out.bytes(std::as_bytes(std::span(uuid)));
  const std::uint64_t seed =
      checksum_seed(uuid, ChecksumKind::kManifest, manifest.checkpoint_sequence, manifest.index);
  store_u64(block, kChecksumOffset, structure_checksum(block, seed));
  return block;
}

Result<Manifest> decode_manifest(ConstBytes block, const Uuid& uuid) {
  if (block.size() != kBlockSizeBytes) return fail(Errc::kCorrupt, "manifest: short");
  ByteReader in(block);
  if (in.number<std::uint32_t>() != kManifestMagic)
    return fail(Errc::kCorrupt, "manifest: signature");
  Manifest manifest;
  manifest.index = in.number<std::uint32_t>();
  const auto checksum = in.number<std::uint64_t>();
  manifest.checkpoint_sequence = in.number<std::uint64_t>();
  manifest.next_slot = in.number<std::uint32_t>();
  const auto count = in.number<std::uint32_t>();
  const std::uint64_t seed =
      checksum_seed(uuid, ChecksumKind::kManifest, manifest.checkpoint_sequence, manifest.index);
  if (count > kManifestEntriesMax || checksum != structure_checksum(block, seed))
    return fail(Errc::kCorrupt, "manifest: checksum");
  manifest.epoch = load_u64(block, kManifestEpochOffset);
  for (std::uint32_t i = 0; i < count; ++i) {
    ManifestEntry entry;
    entry.slot = in.number<std::uint32_t>();
    entry.size_bytes = in.number<std::uint32_t>();
    if (entry.size_bytes < kChunkHeaderBytes || entry.size_bytes > kChunkSizeBytesMax ||
        entry.size_bytes % kBlockSizeBytes != 0)
      return fail(Errc::kCorrupt, "manifest: impossible chunk");
    manifest.entries.push_back(entry);
  }
  if (!in.ok()) return fail(Errc::kCorrupt, "manifest: entries");
  return manifest;
}

void seal_chunk(Bytes chunk, const CheckpointId& checkpoint, std::uint32_t index,
                std::uint32_t payload_bytes, const Uuid& uuid) {
  std::vector<std::byte> head;
  head.reserve(kChunkHeaderBytes);
  ByteWriter out(head);
  out.number(kChunkMagic);
  out.number(index);
  out.number(std::uint64_t{0});  // checksum
  out.number(checkpoint.sequence);
  out.number(payload_bytes);
  out.bytes(std::as_bytes(std::span(uuid)));
  out.zeros(4);
  out.number(checkpoint.epoch);
  out.number(checkpoint.replay_from);
  std::memcpy(chunk.data(), head.data(), head.size());
  const Bytes rest = chunk.subspan(kChunkHeaderBytes + payload_bytes);
  std::fill(rest.begin(), rest.end(), std::byte{0});
  const std::uint64_t seed = checksum_seed(uuid, ChecksumKind::kChunk, checkpoint.sequence, index);
  store_u64(chunk, kChecksumOffset, structure_checksum(chunk, seed));
}

Result<ConstBytes> open_chunk(ConstBytes chunk, std::uint64_t checkpoint_sequence,
                              std::uint32_t index, const Uuid& uuid) {
  const auto header = peek_chunk_header(chunk);
  if (!header || header->index != index || header->checkpoint.sequence != checkpoint_sequence)
    return fail(Errc::kCorrupt, "checkpoint chunk: not the one that belongs here");
  const std::uint64_t seed = checksum_seed(uuid, ChecksumKind::kChunk, checkpoint_sequence, index);
  if (load_u64(chunk, kChecksumOffset) != structure_checksum(chunk, seed))
    return fail(Errc::kCorrupt, "checkpoint chunk: checksum");
  if (header->payload_bytes > chunk.size() - kChunkHeaderBytes)
    return fail(Errc::kCorrupt, "checkpoint chunk: size");
  return header->payload(chunk);
}

std::optional<ChunkHeader> peek_chunk_header(ConstBytes first_block) {
  ByteReader in(first_block);
  if (in.number<std::uint32_t>() != kChunkMagic) return std::nullopt;
  ChunkHeader header;
  header.index = in.number<std::uint32_t>();
  in.number<std::uint64_t>();  // checksum
  header.checkpoint.sequence = in.number<std::uint64_t>();
  header.payload_bytes = in.number<std::uint32_t>();
  in.bytes(sizeof(Uuid) + 4);
  header.checkpoint.epoch = in.number<std::uint64_t>();
  header.checkpoint.replay_from = in.number<std::uint64_t>();
  if (!in.ok() || header.payload_bytes > kChunkSizeBytesMax - kChunkHeaderBytes)
    return std::nullopt;
  header.size_bytes = static_cast<std::uint32_t>(
      round_up(kChunkHeaderBytes + header.payload_bytes, kBlockSizeBytes));
  return header;
}

}  // namespace kvslot
