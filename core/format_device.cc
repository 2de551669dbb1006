// Making a store, and telling what a store is from its superblock: the writing half of admin.h.
#include <kvslot/admin.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <string_view>

#include "core/device_io.h"
#include "core/state.h"
#include "core/superblocks.h"

namespace kvslot {
namespace {

struct Signature {
  const char* refusal;
  std::uint64_t offset_bytes;
  std::string_view bytes;
};

using namespace std::string_view_literals;

// What people would be sorry to lose, by the bytes their formats begin with.
constexpr std::array kSignatures = {
    Signature{"a kvslot store is there", 0, "KVSLOTSB"sv},
    Signature{"an ext2, ext3 or ext4 file system is there", 1080, "\x53\xef"sv},
    Signature{"an XFS file system is there", 0, "XFSB"sv},
    Signature{"a btrfs file system is there", 65600, "_BHRfS_M"sv},
    Signature{"an F2FS file system is there", 1024, "\x10\x20\xf5\xf2"sv},
    Signature{"an NTFS file system is there", 3, "NTFS    "sv},
    Signature{"a LUKS volume is there", 0, "LUKS\xba\xbe"sv},
    Signature{"an LVM physical volume is there", 536, "LVM2 001"sv},
    Signature{"swap space is there", 4086, "SWAPSPACE2"sv},
    Signature{"a squashfs is there", 0, "hsqs"sv},
    Signature{"a GPT partition table is there", 512, "EFI PART"sv},
    Signature{"a GPT partition table is there", 4096, "EFI PART"sv},
    Signature{"a partition table or a FAT file system is there", 510, "\x55\xaa"sv},
};

constexpr std::uint64_t kLookedAtBytes = kMiB;

Result<void> refuse_data(Device& device) {
  const Buffer buffer = Buffer::from_heap(kLookedAtBytes);
  const Bytes bytes = buffer.first(kLookedAtBytes);
  const std::uint64_t end = device.info().size_bytes / kBlockSizeBytes * kBlockSizeBytes;
  for (const std::uint64_t offset : {std::uint64_t{0}, end - kLookedAtBytes}) {
    if (auto ok = read_device(device, offset, bytes); !ok) return ok;
    for (const Signature& signature : kSignatures) {
      const bool found =
          offset == 0 && std::memcmp(bytes.data() + signature.offset_bytes, signature.bytes.data(),
                                     signature.bytes.size()) == 0;
      if (found) return fail(Errc::kExists, signature.refusal, EEXIST);
    }
    if (std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; }))
      return fail(Errc::kExists,
                  offset == 0 ? "the first MiB is not empty" : "the last MiB is not empty", EEXIST);
  }
  return {};
}

Uuid make_uuid(std::uint64_t seed) {
  std::array<std::uint64_t, 2> words{};
  std::mt19937_64 generator(seed);
  for (std::uint64_t& word : words) word = seed == 0 ? random_u64() : generator();
  Uuid uuid{};
  std::memcpy(uuid.data(), words.data(), uuid.size());
  uuid[6] = static_cast<std::uint8_t>((uuid[6] & 0x0f) | 0x40);  // version 4
  uuid[8] = static_cast<std::uint8_t>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

// Under a sparse image the disk may fill up. Deletes must go on then, so the journal's space is
// taken now.
Result<void> allocate_journal(Device& device, const Geometry& geometry) {
  if (device.info().is_block_device) return {};
  constexpr std::uint64_t kZeroBytes = 4 * kMiB;
  const Buffer zeros = Buffer::from_heap(kZeroBytes);
  std::memset(zeros.data(), 0, kZeroBytes);
  for (std::uint64_t done = 0; done < geometry.journal_size_bytes; done += kZeroBytes) {
    const std::uint64_t size = std::min(kZeroBytes, geometry.journal_size_bytes - done);
    if (auto ok = write_device(device, geometry.journal_offset_bytes + done, zeros.first(size));
        !ok)
      return ok;
  }
  return {};
}

}  // namespace

std::string to_string(const Uuid& uuid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[uuid[i] >> 4];
    text += kDigits[uuid[i] & 15];
  }
  return text;
}

Result<Geometry> format_device(Device& device, const FormatOptions& options) {
  if (options.label.size() > kLabelSizeBytesMax)
    return fail(Errc::kTooLarge, "a label has at most 63 bytes", EINVAL);
  auto geometry = plan_geometry(device.info().size_bytes, options.slot_size_bytes,
                                device.info().logical_block_size_bytes);
  if (!geometry) return geometry;
  if (!options.force)
    if (auto ok = refuse_data(device); !ok) return fail(ok);
  geometry->uuid = make_uuid(options.seed);
  geometry->label = options.label;
  Superblock superblock;
  superblock.geometry = *geometry;
  superblock.sequence = 1;
  superblock.formatted_ns = options.clock ? options.clock() : wall_clock_ns();
  superblock.root_uid = options.root_uid;
  superblock.root_gid = options.root_gid;
  superblock.current.replay_from = {.epoch = options.seed == 0 ? random_u64() : options.seed,
                                    .offset_bytes = 0,
                                    .sequence = 1,
                                    .previous_hash = 0};
  superblock.previous = superblock.current;
  if (auto ok = allocate_journal(device, *geometry); !ok) return fail(ok);
  for (const auto half : {SuperblockHalf::kFirst, SuperblockHalf::kSecond}) {
    const auto unwritten = write_superblock_half(device, superblock, half);
    if (!unwritten.empty()) return std::unexpected(unwritten.front().error);
    if (auto ok = device.flush(); !ok) return fail(ok);
  }
  return geometry;
}

Result<StoreInfo> read_store_info(Device& device) {
  const auto superblock = read_superblock(device, CutOff::kAllowed);
  if (!superblock) return fail(superblock);
  return StoreInfo{.geometry = superblock->geometry,
                   .format_version = kFormatVersion,
                   .sequence = superblock->sequence,
                   .epoch = superblock->current.replay_from.epoch,
                   .closed = superblock->clean,
                   .checkpoint_size_bytes = superblock->current.stream_bytes,
                   .key_count = superblock->current.node_count,
                   .checkpoint_written_ns = superblock->current.written_ns,
                   .formatted_ns = superblock->formatted_ns};
}

}  // namespace kvslot
