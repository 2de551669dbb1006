// Where things are on the device, and its structures: superblock, journal block, trailer. Those of
// a checkpoint are in checkpoint_layout.h, the records in records.h; nothing else knows byte
// offsets. core/LAYOUT.md describes the same in words.
#pragma once

#include <kvslot/error.h>
#include <kvslot/options.h>
#include <kvslot/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvslot {

inline constexpr std::uint32_t kFormatVersion = 1;
inline constexpr std::uint32_t kNoSlot = 0xffffffff;

// Object ids, cookies and stamps have 48 bits, and leave room for the gaps that recovery makes.
inline constexpr std::uint64_t kIdMax = (std::uint64_t{1} << 48) - (std::uint64_t{1} << 32);

// --- Where things are.

inline constexpr std::uint64_t kSuperblockAreaBytes = 128 * kKiB;  // at the start and at the end
inline constexpr std::size_t kSuperblockCopies = 4;

// Offsets of the superblock copies on a device of this size. Copies 0 and 2 are written first.
[[nodiscard]] std::array<std::uint64_t, kSuperblockCopies> superblock_offsets(
    std::uint64_t device_size_bytes);

// The areas of a device of this size; kInvalid when size or slot size are out of range.
[[nodiscard]] Result<Geometry> plan_geometry(std::uint64_t device_size_bytes,
                                             std::uint32_t slot_size_bytes,
                                             std::uint32_t logical_block_size_bytes);

// --- Checksums. Each kind of structure and each store has a seed of its own, so that nothing
// validates as something else, or as part of another store.

enum class ChecksumKind : std::uint64_t { kJournal = 1, kManifest, kChunk, kTrailer, kExtent };

[[nodiscard]] std::uint64_t checksum_of(ConstBytes bytes, std::uint64_t seed);
[[nodiscard]] std::uint64_t checksum_seed(const Uuid& uuid, ChecksumKind kind, std::uint64_t a,
                                          std::uint64_t b);
// Of an extent's bytes.
[[nodiscard]] std::uint64_t extent_checksum(const Uuid& uuid, ObjectId object, std::uint64_t stamp,
                                            ConstBytes bytes);

// --- Superblock.

// A point in the journal ring from which blocks can be read.
struct JournalPosition {
  std::uint64_t epoch = 0;
  std::uint64_t offset_bytes = 0;   // within the ring
  std::uint64_t sequence = 0;       // of the first block there
  std::uint64_t previous_hash = 0;  // that this block must name
  bool operator==(const JournalPosition&) const = default;
};

struct CheckpointRoot {
  std::uint32_t manifest_slot = kNoSlot;  // kNoSlot: an empty store, only the root directory
  std::uint64_t sequence = 0;             // counts checkpoints
  std::uint64_t stream_bytes = 0;         // of all chunks' payloads together
  std::uint64_t node_count = 0;
  TimestampNs written_ns = 0;
  std::uint64_t next_object = 2;
  std::uint64_t next_stamp = 1;
  std::uint64_t included_upto = 0;  // effects of blocks up to this one may be in it
  JournalPosition replay_from;
  bool operator==(const CheckpointRoot&) const = default;
};

struct Superblock {
  Geometry geometry;
  std::uint64_t incompatible_features = 0;          // unknown bits: refuse to open
  std::uint64_t read_only_compatible_features = 0;  // unknown bits: refuse to write
  std::uint64_t compatible_features = 0;
  std::uint64_t sequence = 0;  // the highest valid copy counts
  bool clean = true;
  TimestampNs formatted_ns = 0;
  CheckpointRoot current;
  CheckpointRoot previous;                   // as long as its slots and the journal hold it
  std::uint32_t root_uid = 0, root_gid = 0;  // of the root directory, until a record says more
};

[[nodiscard]] std::vector<std::byte> encode_superblock(const Superblock& superblock);
// errors: kInvalid for a newer format (nothing else is judged then), kCorrupt otherwise.
[[nodiscard]] Result<Superblock> decode_superblock(ConstBytes block);

// --- Journal block: header, records, zeros up to a whole block.

inline constexpr std::size_t kJournalHeaderBytes = 64;

struct JournalHeader {
  std::uint32_t size_bytes = 0;     // whole blocks, header included
  std::uint32_t payload_bytes = 0;  // of the records
  std::uint64_t checksum = 0;       // of all but itself; also the hash the next block names
  std::uint64_t epoch = 0;
  std::uint64_t sequence = 0;
  std::uint64_t previous_hash = 0;
  std::uint64_t durable_upto = 0;  // every block up to this one was flushed with its values
  std::uint32_t record_count = 0;
};

// Fills in size and checksum; `block` is whole blocks with the records at kJournalHeaderBytes.
void seal_journal_block(Bytes block, JournalHeader& header, const Uuid& uuid);
// The header of a block that starts here, if its magic and size make sense; nothing is verified.
[[nodiscard]] std::optional<JournalHeader> peek_journal_header(ConstBytes first_block);
// Verifies all of a block.
[[nodiscard]] bool verify_journal_block(ConstBytes block, const JournalHeader& header,
                                        const Uuid& uuid);

// --- Trailer: who wrote these blocks, in the slack behind an extent's bytes. For salvage and for
// people; nothing else reads it. An extent without slack for it has none.

struct Trailer {
  ObjectId object = ObjectId::kNone;
  ObjectId parent = ObjectId::kNone;
  std::uint64_t stamp = 0;
  std::uint64_t checksum = 0;    // of the extent
  std::uint32_t size_bytes = 0;  // of the extent
  std::uint32_t file_block = 0;
  std::string name;  // at the time of writing
};

inline constexpr std::size_t kTrailerFixedBytes = 64;

// Writes the trailer at the end of `slack`, the zeroed bytes behind the extent up to a whole
// block, if it fits.
bool write_trailer(Bytes slack, const Trailer& trailer, const Uuid& uuid);
// The trailer at the end of an extent's last block, if one is there and its checksum holds.
[[nodiscard]] std::optional<Trailer> read_trailer(ConstBytes last_block, const Uuid& uuid);

// --- For salvage without a good superblock: what a block says of the store's UUID. Chunks and
// manifests hold all of it, journal blocks and trailers one half. Nothing is verified.

struct UuidHint {
  bool is_structure = false;
  std::optional<Uuid> whole;
  std::optional<std::size_t> half;  // 0: the first eight bytes, 1: the others
  std::uint64_t half_value = 0;
};
[[nodiscard]] UuidHint peek_uuid(ConstBytes block);
// Of a superblock copy with its signature, whatever its checksum says.
[[nodiscard]] std::optional<Uuid> peek_superblock_uuid(ConstBytes block);

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}
[[nodiscard]] constexpr std::uint64_t units_of(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit;
}

}  // namespace kvslot
