// The four copies, and what it means when none of them is good.
#include "core/superblocks.h"

#include <cerrno>
#include <cstring>
#include <optional>

#include "core/device_io.h"

namespace kvslot {
namespace {

struct CopyScan {
  std::optional<Superblock> best;
  Error first_error{};
  bool any_error = false;
};

CopyScan scan_copies(Device& device) {
  CopyScan scan;
  const Buffer block = Buffer::from_heap(kBlockSizeBytes);
  for (const std::uint64_t offset : superblock_offsets(device.info().size_bytes)) {
    const auto read = read_device(device, offset, block.first(kBlockSizeBytes));
    const Result<Superblock> copy =
        read ? decode_superblock(block.first(kBlockSizeBytes)) : Result<Superblock>(fail(read));
    if (copy && (!scan.best || copy->sequence > scan.best->sequence)) scan.best = *copy;
    if (copy) continue;
    // The most telling error counts: a newer format over a bad checksum over no signature.
    const auto rank = [](Errc code) {
      return code == Errc::kInvalid ? 2 : code == Errc::kIo ? 1 : 0;
    };
    const bool tells_more =
        !scan.any_error || rank(copy.error().code) > rank(scan.first_error.code);
    if (tells_more) scan.first_error = copy.error();
    scan.any_error = true;
    if (is_device_lost(scan.first_error.os_errno)) break;  // and it may still use the block
  }
  return scan;
}

}  // namespace

Result<Superblock> read_superblock(Device& device) {
  if (device.info().size_bytes < kStoreSizeBytesMin)
    return fail(Errc::kCorrupt, "shorter than any store; was it cut off?", EINVAL);
  const CopyScan scan = scan_copies(device);
  if (scan.any_error && scan.first_error.code == Errc::kInvalid)
    return std::unexpected(scan.first_error);
  if (!scan.best) return std::unexpected(scan.first_error);
  if (scan.best->geometry.size_bytes > device.info().size_bytes)
    return fail(Errc::kCorrupt, "shorter than when it was formatted; was it cut off?", EINVAL);
  return *scan.best;
}

Result<void> write_superblock_half(Device& device, const Superblock& superblock,
                                   SuperblockHalf half) {
  const std::vector<std::byte> bytes = encode_superblock(superblock);
  const Buffer block = Buffer::from_heap(kBlockSizeBytes);
  std::memcpy(block.data(), bytes.data(), bytes.size());
  const auto offsets = superblock_offsets(superblock.geometry.size_bytes);
  for (std::size_t copy = half == SuperblockHalf::kFirst ? 0 : 1; copy < offsets.size(); copy += 2)
    if (auto ok = write_device(device, offsets[copy], block.first(kBlockSizeBytes)); !ok) return ok;
  return {};
}

}  // namespace kvslot
