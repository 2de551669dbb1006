// Encodes and judges the structures of core/layout.h. Called by journal, checkpoint, recovery,
// format and check.
#include "core/layout.h"

#include <kvslot/check.h>
#include <xxh_x86dispatch.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/codec.h"
#include "core/structure.h"

namespace kvslot {
namespace {

constexpr std::string_view kSuperblockMagic = "KVSLOTSB";
constexpr std::uint64_t kSuperblockSeed = 0x6b76736c6f742131;
constexpr std::size_t kSuperblockUuidOffset = 64;

std::uint64_t half_of(const Uuid& uuid, std::uint64_t number) {
  return load_u64(std::as_bytes(std::span(uuid)), number % 2 * sizeof(std::uint64_t));
}

std::optional<Uuid> uuid_at(ConstBytes block, std::size_t offset) {
  Uuid uuid{};
  std::memcpy(uuid.data(), block.data() + offset, uuid.size());
  if (uuid == Uuid{}) return std::nullopt;  // written by a kvslot that did not repeat it
  return uuid;
}

void encode_position(ByteWriter& out, const JournalPosition& position) {
  out.number(position.epoch);
  out.number(position.offset_bytes);
  out.number(position.sequence);
  out.number(position.previous_hash);
}

JournalPosition decode_position(ByteReader& in) {
  JournalPosition position;
  position.epoch = in.number<std::uint64_t>();
  position.offset_bytes = in.number<std::uint64_t>();
  position.sequence = in.number<std::uint64_t>();
  position.previous_hash = in.number<std::uint64_t>();
  return position;
}

void encode_root(ByteWriter& out, const CheckpointRoot& root) {
  out.number(root.manifest_slot);
  out.number(std::uint32_t{0});
  out.number(root.sequence);
  out.number(root.stream_bytes);
  out.number(root.node_count);
  out.number(root.written_ns);
  out.number(root.next_object);
  out.number(root.next_stamp);
  out.number(root.included_upto);
  encode_position(out, root.replay_from);
}

CheckpointRoot decode_root(ByteReader& in) {
  CheckpointRoot root;
  root.manifest_slot = in.number<std::uint32_t>();
  in.number<std::uint32_t>();
  root.sequence = in.number<std::uint64_t>();
  root.stream_bytes = in.number<std::uint64_t>();
  root.node_count = in.number<std::uint64_t>();
  root.written_ns = in.number<TimestampNs>();
  root.next_object = in.number<std::uint64_t>();
  root.next_stamp = in.number<std::uint64_t>();
  root.included_upto = in.number<std::uint64_t>();
  root.replay_from = decode_position(in);
  return root;
}

void encode_geometry(ByteWriter& out, const Geometry& geometry) {
  out.bytes(std::as_bytes(std::span(geometry.uuid)));
  out.number(geometry.size_bytes);
  out.number(geometry.slot_size_bytes);
  out.number(geometry.slot_count);
  out.number(geometry.logical_block_size_bytes);
  out.number(static_cast<std::uint32_t>(geometry.label.size()));
  out.number(geometry.slots_offset_bytes);
  out.number(geometry.journal_offset_bytes);
  out.number(geometry.journal_size_bytes);
  out.text(geometry.label);
  out.zeros(kLabelSizeBytesMax + 1 - geometry.label.size());
}

Geometry decode_geometry(ByteReader& in) {
  Geometry geometry;
  const ConstBytes uuid = in.bytes(geometry.uuid.size());
  if (!uuid.empty()) std::memcpy(geometry.uuid.data(), uuid.data(), uuid.size());
  geometry.size_bytes = in.number<std::uint64_t>();
  geometry.slot_size_bytes = in.number<std::uint32_t>();
  geometry.slot_count = in.number<std::uint32_t>();
  geometry.logical_block_size_bytes = in.number<std::uint32_t>();
  const auto label_bytes = std::min<std::size_t>(in.number<std::uint32_t>(), kLabelSizeBytesMax);
  geometry.slots_offset_bytes = in.number<std::uint64_t>();
  geometry.journal_offset_bytes = in.number<std::uint64_t>();
  geometry.journal_size_bytes = in.number<std::uint64_t>();
  geometry.label = std::string(in.text(kLabelSizeBytesMax + 1).substr(0, label_bytes));
  return geometry;
}

// Whether the stored geometry is the one that format would have planned: then every area is
// inside the device and no arithmetic on it can overflow.
bool is_planned(const Geometry& geometry) {
  const auto planned = plan_geometry(geometry.size_bytes, geometry.slot_size_bytes,
                                     geometry.logical_block_size_bytes);
  return planned && planned->slot_count == geometry.slot_count &&
         planned->slots_offset_bytes == geometry.slots_offset_bytes &&
         planned->journal_offset_bytes == geometry.journal_offset_bytes &&
         planned->journal_size_bytes == geometry.journal_size_bytes;
}

}  // namespace

std::array<std::uint64_t, kSuperblockCopies> superblock_offsets(std::uint64_t device_size_bytes) {
  const std::uint64_t end = device_size_bytes / kBlockSizeBytes * kBlockSizeBytes;
  return {0, kSuperblockAreaBytes / 2, end - kBlockSizeBytes, end - kSuperblockAreaBytes / 2};
}

Result<Geometry> plan_geometry(std::uint64_t device_size_bytes, std::uint32_t slot_size_bytes,
                               std::uint32_t logical_block_size_bytes) {
  if (device_size_bytes < kStoreSizeBytesMin)
    return fail(Errc::kInvalid, "a store needs at least 16 MiB", EINVAL);
  if (device_size_bytes > kStoreSizeBytesMax)
    return fail(Errc::kTooLarge, "a store has at most 16 TiB", EFBIG);
  if (slot_size_bytes < kSlotSizeBytesMin || slot_size_bytes > kSlotSizeBytesMax ||
      !std::has_single_bit(slot_size_bytes))
    return fail(Errc::kInvalid, "slot size: a power of two from 4K to 4M is needed", EINVAL);
  if (logical_block_size_bytes > kBlockSizeBytes || logical_block_size_bytes == 0)
    return fail(Errc::kInvalid, "devices with logical blocks over 4096 bytes cannot be used",
                EINVAL);
  Geometry geometry;
  geometry.size_bytes = device_size_bytes;
  geometry.slot_size_bytes = slot_size_bytes;
  geometry.logical_block_size_bytes = logical_block_size_bytes;
  geometry.journal_offset_bytes = kSuperblockAreaBytes;
  geometry.journal_size_bytes =
      std::clamp(device_size_bytes / 64, kMiB, kGiB) / kBlockSizeBytes * kBlockSizeBytes;
  geometry.slots_offset_bytes =
      round_up(geometry.journal_offset_bytes + geometry.journal_size_bytes,
               std::min<std::uint64_t>(slot_size_bytes, kMiB));
  const std::uint64_t end =
      device_size_bytes / kBlockSizeBytes * kBlockSizeBytes - kSuperblockAreaBytes;
  const std::uint64_t count = (end - geometry.slots_offset_bytes) / slot_size_bytes;
  // Two checkpoints of an empty store and one value are the least that makes sense.
  if (end <= geometry.slots_offset_bytes || count < 6)
    return fail(Errc::kInvalid, "the device is too small for slots of this size", EINVAL);
  geometry.slot_count = static_cast<std::uint32_t>(std::min<std::uint64_t>(count, kNoSlot - 1));
  return geometry;
}

std::uint64_t checksum_of(ConstBytes bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::uint64_t checksum_seed(const Uuid& uuid, ChecksumKind kind, std::uint64_t a, std::uint64_t b) {
  std::array<std::uint64_t, 5> words{};
  std::memcpy(words.data(), uuid.data(), uuid.size());
  words[2] = static_cast<std::uint64_t>(kind);
  words[3] = a;
  words[4] = b;
  return XXH3_64bits(words.data(), sizeof words);
}

std::uint64_t extent_checksum(const Uuid& uuid, ObjectId object, std::uint64_t stamp,
                              ConstBytes bytes) {
  return checksum_of(
      bytes, checksum_seed(uuid, ChecksumKind::kExtent, static_cast<std::uint64_t>(object), stamp));
}

std::vector<std::byte> encode_superblock(const Superblock& superblock) {
  std::vector<std::byte> block;
  block.reserve(kBlockSizeBytes);
  ByteWriter out(block);
  out.text(kSuperblockMagic);
  out.number(std::uint64_t{0});  // checksum
  out.number(kFormatVersion);
  out.number(std::uint32_t{superblock.clean ? 1u : 0u});
  out.number(superblock.incompatible_features);
  out.number(superblock.read_only_compatible_features);
  out.number(superblock.compatible_features);
  out.number(superblock.sequence);
  out.number(superblock.formatted_ns);
  encode_geometry(out, superblock.geometry);
  encode_root(out, superblock.current);
  encode_root(out, superblock.previous);
  out.number(superblock.root_uid);
  out.number(superblock.root_gid);
  KVSLOT_CHECK(block.size() <= kBlockSizeBytes, "superblock fits its block");
  out.zeros(kBlockSizeBytes - block.size());
  store_u64(block, kChecksumOffset, structure_checksum(block, kSuperblockSeed));
  return block;
}

Result<Superblock> decode_superblock(ConstBytes block) {
  if (block.size() != kBlockSizeBytes) return fail(Errc::kCorrupt, "superblock: short");
  ByteReader in(block);
  if (in.text(kSuperblockMagic.size()) != kSuperblockMagic)
    return fail(Errc::kCorrupt, "superblock: no kvslot signature");
  if (in.number<std::uint64_t>() != structure_checksum(block, kSuperblockSeed))
    return fail(Errc::kCorrupt, "superblock: checksum");
  const auto version = in.number<std::uint32_t>();
  if (version > kFormatVersion)
    return fail(Errc::kInvalid, "the format is newer than this kvslot; use a newer kvslot");
  Superblock superblock;
  superblock.clean = in.number<std::uint32_t>() == 1;
  superblock.incompatible_features = in.number<std::uint64_t>();
  superblock.read_only_compatible_features = in.number<std::uint64_t>();
  superblock.compatible_features = in.number<std::uint64_t>();
  superblock.sequence = in.number<std::uint64_t>();
  superblock.formatted_ns = in.number<TimestampNs>();
  superblock.geometry = decode_geometry(in);
  superblock.current = decode_root(in);
  superblock.previous = decode_root(in);
  superblock.root_uid = in.number<std::uint32_t>();
  superblock.root_gid = in.number<std::uint32_t>();
  if (superblock.incompatible_features != 0)
    return fail(Errc::kInvalid, "the store uses features of a newer kvslot; use a newer kvslot");
  if (!in.ok() || !is_planned(superblock.geometry))
    return fail(Errc::kCorrupt, "superblock: impossible geometry");
  const std::uint64_t ring = superblock.geometry.journal_size_bytes;
  for (const CheckpointRoot* root : {&superblock.current, &superblock.previous}) {
    // What only ever counts up is nowhere near its end, unless somebody forged it.
    constexpr std::uint64_t kSequenceMax = std::uint64_t{1} << 62;
    if (superblock.sequence > kSequenceMax || root->sequence > kSequenceMax ||
        root->replay_from.sequence == 0 || root->replay_from.sequence > kSequenceMax ||
        root->next_object > kIdMax || root->next_stamp > kIdMax ||
        root->replay_from.offset_bytes >= ring ||
        root->replay_from.offset_bytes % kBlockSizeBytes != 0 ||
        (root->manifest_slot != kNoSlot && root->manifest_slot >= superblock.geometry.slot_count))
      return fail(Errc::kCorrupt, "superblock: impossible checkpoint");
  }
  return superblock;
}

void seal_journal_block(Bytes block, JournalHeader& header, const Uuid& uuid) {
  header.size_bytes = static_cast<std::uint32_t>(block.size());
  std::vector<std::byte> head;
  head.reserve(kJournalHeaderBytes);
  ByteWriter out(head);
  out.number(kJournalMagic);
  out.number(header.size_bytes);
  out.number(std::uint64_t{0});  // checksum
  out.number(header.epoch);
  out.number(header.sequence);
  out.number(header.previous_hash);
  out.number(header.durable_upto);
  out.number(header.payload_bytes);
  out.number(header.record_count);
  out.number(half_of(uuid, header.sequence));
  std::memcpy(block.data(), head.data(), head.size());
  header.checksum = structure_checksum(
      block, checksum_seed(uuid, ChecksumKind::kJournal, header.epoch, header.sequence));
  store_u64(block, kChecksumOffset, header.checksum);
}

std::optional<JournalHeader> peek_journal_header(ConstBytes first_block) {
  ByteReader in(first_block);
  if (in.number<std::uint32_t>() != kJournalMagic) return std::nullopt;
  JournalHeader header;
  header.size_bytes = in.number<std::uint32_t>();
  header.checksum = in.number<std::uint64_t>();
  header.epoch = in.number<std::uint64_t>();
  header.sequence = in.number<std::uint64_t>();
  header.previous_hash = in.number<std::uint64_t>();
  header.durable_upto = in.number<std::uint64_t>();
  header.payload_bytes = in.number<std::uint32_t>();
  header.record_count = in.number<std::uint32_t>();
  if (!in.ok() || header.size_bytes == 0 || header.size_bytes % kBlockSizeBytes != 0 ||
      header.payload_bytes > header.size_bytes - kJournalHeaderBytes)
    return std::nullopt;
  return header;
}

bool verify_journal_block(ConstBytes block, const JournalHeader& header, const Uuid& uuid) {
  if (block.size() != header.size_bytes) return false;
  return structure_checksum(block, checksum_seed(uuid, ChecksumKind::kJournal, header.epoch,
                                                 header.sequence)) == header.checksum;
}

bool write_trailer(Bytes slack, const Trailer& trailer, const Uuid& uuid) {
  const std::size_t size = kTrailerFixedBytes + trailer.name.size();
  if (slack.size() < size) return false;
  std::vector<std::byte> bytes;
  bytes.reserve(size);
  ByteWriter out(bytes);
  out.text(trailer.name);
  out.number(static_cast<std::uint64_t>(trailer.object));
  out.number(static_cast<std::uint64_t>(trailer.parent));
  out.number(trailer.stamp);
  out.number(trailer.checksum);
  out.number(trailer.size_bytes);
  out.number(trailer.file_block);
  out.number(static_cast<std::uint32_t>(trailer.name.size()));
  out.number(half_of(uuid, trailer.stamp));
  out.number(kTrailerMagic);
  const std::uint64_t own = checksum_of(bytes, checksum_seed(uuid, ChecksumKind::kTrailer, 0, 0));
  out.number(own);
  KVSLOT_CHECK(bytes.size() == size, "trailer has its documented size");
  std::memcpy(slack.data() + slack.size() - size, bytes.data(), size);
  return true;
}

std::optional<Trailer> read_trailer(ConstBytes last_block, const Uuid& uuid) {
  if (last_block.size() < kTrailerFixedBytes) return std::nullopt;
  ByteReader in(last_block.last(kTrailerFixedBytes));
  Trailer trailer;
  trailer.object = in.number<ObjectId>();
  trailer.parent = in.number<ObjectId>();
  trailer.stamp = in.number<std::uint64_t>();
  trailer.checksum = in.number<std::uint64_t>();
  trailer.size_bytes = in.number<std::uint32_t>();
  trailer.file_block = in.number<std::uint32_t>();
  const auto name_bytes = in.number<std::uint32_t>();
  in.number<std::uint64_t>();
  const auto magic = in.number<std::uint32_t>();
  const auto own = in.number<std::uint64_t>();
  if (magic != kTrailerMagic || name_bytes > kNameSizeBytesMax ||
      kTrailerFixedBytes + name_bytes > last_block.size())
    return std::nullopt;
  const ConstBytes all = last_block.last(kTrailerFixedBytes + name_bytes);
  const ConstBytes covered = all.first(all.size() - sizeof own);
  if (own != checksum_of(covered, checksum_seed(uuid, ChecksumKind::kTrailer, 0, 0)))
    return std::nullopt;
  ByteReader name(all);
  trailer.name = std::string(name.text(name_bytes));
  return trailer;
}

UuidHint peek_uuid(ConstBytes block) {
  UuidHint hint;
  if (block.size() != kBlockSizeBytes) return hint;
  std::uint32_t magic = 0;
  std::memcpy(&magic, block.data(), sizeof magic);
  constexpr std::size_t kTrailerMagicOffset = kBlockSizeBytes - 12;
  std::uint32_t trailer_magic = 0;
  std::memcpy(&trailer_magic, block.data() + kTrailerMagicOffset, sizeof trailer_magic);
  hint.is_structure = true;
  if (magic == kChunkMagic) {
    hint.whole = uuid_at(block, kChunkUuidOffset);
  } else if (magic == kManifestMagic) {
    hint.whole = uuid_at(block, kManifestUuidOffset);
  } else if (magic == kJournalMagic) {
    hint.half = load_u64(block, 24) % 2;  // of the sequence
    hint.half_value = load_u64(block, kJournalHintOffset);
  } else if (trailer_magic == kTrailerMagic) {
    hint.half = load_u64(block, kBlockSizeBytes - 48) % 2;  // of the stamp
    hint.half_value = load_u64(block, kBlockSizeBytes - 20);
  } else {
    hint.is_structure = false;
  }
  if (hint.half_value == 0) hint.half.reset();
  return hint;
}

std::optional<Uuid> peek_superblock_uuid(ConstBytes block) {
  if (block.size() < kBlockSizeBytes ||
      std::memcmp(block.data(), kSuperblockMagic.data(), kSuperblockMagic.size()) != 0)
    return std::nullopt;
  return uuid_at(block, kSuperblockUuidOffset);
}

}  // namespace kvslot
