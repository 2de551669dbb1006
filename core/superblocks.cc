// The four copies, and what it means when none of them is good.
#include "core/superblocks.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/device_io.h"

namespace kvslot {
namespace {

struct CopyScan {
  std::optional<Superblock> best;
  Error first_error{};
  bool any_error = false;
};

// A copy of another store that was written here by mistake must not outrank ours: of two stores the
// one with more copies counts, and of its copies, as of equally many, the newest.
const Superblock* best_of(const std::vector<Superblock>& good) {
  const auto rank = [&](const Superblock& one) {
    const auto votes = std::count_if(good.begin(), good.end(), [&](const Superblock& other) {
      return other.geometry.uuid == one.geometry.uuid;
    });
    return std::pair(votes, one.sequence);
  };
  const auto best =
      std::max_element(good.begin(), good.end(),
                       [&](const Superblock& a, const Superblock& b) { return rank(a) < rank(b); });
  return best == good.end() ? nullptr : &*best;
}

CopyScan scan_copies(Device& device, std::uint64_t size_bytes) {
  CopyScan scan;
  std::vector<Superblock> good;
  const Buffer block = Buffer::from_heap(kBlockSizeBytes);
  for (const std::uint64_t offset : superblock_offsets(size_bytes)) {
    const auto read = read_device(device, offset, block.first(kBlockSizeBytes));
    const Result<Superblock> copy =
        read ? decode_superblock(block.first(kBlockSizeBytes)) : Result<Superblock>(fail(read));
    if (copy) good.push_back(*copy);
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
  if (const Superblock* const best = best_of(good)) scan.best = *best;
  return scan;
}

}  // namespace

Result<Superblock> read_superblock(Device& device, CutOff cut_off) {
  const bool is_too_short = device.info().size_bytes < kStoreSizeBytesMin;
  const auto too_short = fail(Errc::kCorrupt, "shorter than any store; was it cut off?", EINVAL);
  const bool has_copies = device.info().size_bytes >= 2 * kSuperblockAreaBytes;
  if (is_too_short && (cut_off == CutOff::kRefused || !has_copies)) return too_short;
  CopyScan scan = scan_copies(device, device.info().size_bytes);
  // On a device that has grown the copies at the end are where the end was.
  if (scan.best && scan.best->geometry.size_bytes < device.info().size_bytes)
    scan = scan_copies(device, scan.best->geometry.size_bytes);
  if (scan.any_error && scan.first_error.code == Errc::kInvalid)
    return std::unexpected(scan.first_error);
  if (!scan.best && is_too_short) return too_short;
  if (!scan.best) return std::unexpected(scan.first_error);
  if (cut_off == CutOff::kRefused && scan.best->geometry.size_bytes > device.info().size_bytes)
    return fail(Errc::kCorrupt,
                "shorter than when it was formatted: it was cut off; bring it back to its full "
                "size, or mount it with -o ro",
                EINVAL);
  return *scan.best;
}

std::uint64_t sequence_after(const Superblock& superblock) {
  return std::max(
             {superblock.sequence, superblock.current.sequence, superblock.previous.sequence}) +
         1;
}

std::vector<UnwrittenCopy> write_superblock_half(Device& device, const Superblock& superblock,
                                                 SuperblockHalf half) {
  std::vector<UnwrittenCopy> unwritten;
  const std::vector<std::byte> bytes = encode_superblock(superblock);
  const Buffer block = Buffer::from_heap(kBlockSizeBytes);
  std::memcpy(block.data(), bytes.data(), bytes.size());
  const auto offsets = superblock_offsets(superblock.geometry.size_bytes);
  for (std::size_t copy = half == SuperblockHalf::kFirst ? 0 : 1; copy < offsets.size();
       copy += 2) {
    const auto written = write_device(device, offsets[copy], block.first(kBlockSizeBytes));
    if (written) continue;
    unwritten.push_back({copy, written.error()});
    if (is_device_lost(written.error().os_errno)) break;
  }
  return unwritten;
}

}  // namespace kvslot
