// Placement in the ring, and the reader that recovery and check share with nobody else.
#include "core/journal.h"

#include <kvslot/check.h>

#include <algorithm>

#include "core/device_io.h"

namespace kvslot {
namespace {

// An epoch: mark 12 bits, count 28, random 24.
constexpr std::uint64_t kEpochMark = 0x6b7;
constexpr unsigned kEpochMarkShift = 52, kEpochCountShift = 24;
constexpr std::uint64_t kEpochRandomMask = (std::uint64_t{1} << kEpochCountShift) - 1;
constexpr std::uint64_t kEpochCountMax =
    (std::uint64_t{1} << (kEpochMarkShift - kEpochCountShift)) - 1;

}  // namespace

std::uint64_t epoch_rank(std::uint64_t epoch) {
  return epoch >> kEpochMarkShift == kEpochMark ? epoch : 0;
}

std::uint64_t epoch_after(std::uint64_t epoch, std::uint64_t random) {
  const std::uint64_t count = epoch_rank(epoch) >> kEpochCountShift & kEpochCountMax;
  return kEpochMark << kEpochMarkShift | std::min(count + 1, kEpochCountMax) << kEpochCountShift |
         (random & kEpochRandomMask);
}

JournalRing::JournalRing(std::uint64_t size_bytes, const JournalPosition& head)
    : size_bytes_(size_bytes), head_(head), tail_offset_(head.offset_bytes) {}

// Bytes from one offset forward to another; the same offset means empty right after a release.
std::uint64_t JournalRing::distance(std::uint64_t from, std::uint64_t to,
                                    const JournalPosition& tail) const {
  if (tail.sequence == head_.sequence) return 0;
  return to > from ? to - from : size_bytes_ - from + to;
}

std::optional<std::uint64_t> JournalRing::place(std::uint64_t block_bytes) const {
  const std::uint64_t head = head_.offset_bytes;
  const bool wraps = head + block_bytes > size_bytes_;
  const std::uint64_t skipped = wraps ? size_bytes_ - head : 0;
  // One block stays unused, so that a full ring is not taken for an empty one.
  if (block_bytes + skipped + kBlockSizeBytes > free_bytes()) return std::nullopt;
  return wraps ? 0 : head;
}

void JournalRing::advance(std::uint64_t offset_bytes, const JournalHeader& written) {
  KVSLOT_CHECK(written.sequence == head_.sequence, "blocks are written in order");
  const std::uint64_t block_bytes = written.size_bytes;
  const std::uint64_t skipped =
      offset_bytes == head_.offset_bytes ? 0 : size_bytes_ - head_.offset_bytes;
  used_bytes_ += skipped + block_bytes;
  head_.offset_bytes = (offset_bytes + block_bytes) % size_bytes_;
  head_.sequence = written.sequence + 1;
  head_.previous_hash = written.checksum;
}

namespace {

// Blocks are read in stretches of this size, so that recovery is not one small read a block.
constexpr std::uint64_t kReadAheadBytes = 1 << 20;

class RingReader {
 public:
  RingReader(Device& device, const Geometry& geometry) : device_(device), geometry_(geometry) {}

  // Bytes of the ring, from the stretch read last where it holds them.
  Result<ConstBytes> read(std::uint64_t offset_bytes, std::uint64_t size_bytes) {
    if (offset_bytes + size_bytes > geometry_.journal_size_bytes)
      return fail(Errc::kCorrupt, "journal block: past the ring");
    const bool held = offset_bytes >= start_ && offset_bytes + size_bytes <= start_ + filled_;
    if (!held) {
      const std::uint64_t ahead = std::min(std::max(size_bytes, kReadAheadBytes),
                                           geometry_.journal_size_bytes - offset_bytes);
      auto filled = fill(offset_bytes, ahead);
      // A bad sector further on is no concern of this block's.
      if (!filled && ahead > size_bytes && !is_device_lost(filled.error().os_errno))
        filled = fill(offset_bytes, size_bytes);
      if (!filled) return fail(filled);
    }
    return ConstBytes(buffer_.bytes()).subspan(offset_bytes - start_, size_bytes);
  }

 private:
  Result<void> fill(std::uint64_t offset_bytes, std::uint64_t size_bytes) {
    filled_ = 0;
    start_ = offset_bytes;
    if (buffer_.capacity() < size_bytes) buffer_ = Buffer::from_heap(size_bytes);
    const auto read =
        read_device(device_, geometry_.journal_offset_bytes + start_, buffer_.first(size_bytes));
    if (read) filled_ = size_bytes;
    return read;
  }

  Device& device_;
  const Geometry& geometry_;
  Buffer buffer_;
  std::uint64_t start_ = 0;
  std::uint64_t filled_ = 0;
};

Result<std::optional<JournalBlock>> read_block(RingReader& reader, const Geometry& geometry,
                                               const JournalPosition& expected,
                                               std::uint64_t offset_bytes) {
  const auto head = reader.read(offset_bytes, kBlockSizeBytes);
  if (!head) return fail(head);
  const auto header = peek_journal_header(*head);
  if (!header || header->epoch != expected.epoch || header->sequence != expected.sequence ||
      header->previous_hash != expected.previous_hash ||
      offset_bytes + header->size_bytes > geometry.journal_size_bytes)
    return std::optional<JournalBlock>();
  const auto all = reader.read(offset_bytes, header->size_bytes);
  if (!all) return fail(all);
  if (!verify_journal_block(*all, *header, geometry.uuid)) return std::optional<JournalBlock>();
  return JournalBlock{*header, {all->begin(), all->end()}, offset_bytes};
}

}  // namespace

Result<bool> is_chain_damaged(Device& device, const Geometry& geometry,
                              const JournalPosition& end) {
  RingReader reader(device, geometry);
  const std::uint64_t ring = geometry.journal_size_bytes;
  // Blocks do not overlap, so together they are no larger than the ring. Headers that say so, each
  // of them, would otherwise have it read again and again.
  std::uint64_t left_bytes = ring;
  for (std::uint64_t walked = 0; walked < std::min(ring, kLookedBehindBytes);
       walked += kBlockSizeBytes) {
    const std::uint64_t offset = (end.offset_bytes + walked) % ring;
    const auto head = reader.read(offset, kBlockSizeBytes);
    if (!head && is_device_lost(head.error().os_errno)) return fail(head);
    if (!head) continue;  // unreadable where nothing is expected
    const auto header = peek_journal_header(*head);
    if (!header || header->epoch != end.epoch || header->durable_upto < end.sequence ||
        offset + header->size_bytes > ring || header->size_bytes > left_bytes)
      continue;
    left_bytes -= header->size_bytes;
    const auto all = reader.read(offset, header->size_bytes);
    if (!all && is_device_lost(all.error().os_errno)) return fail(all);
    if (all && verify_journal_block(*all, *header, geometry.uuid)) return true;
  }
  return false;
}

Result<JournalPosition> read_journal(
    Device& device, const Geometry& geometry, const JournalPosition& from,
    const std::function<Result<bool>(const JournalBlock&)>& on_block) {
  RingReader reader(device, geometry);
  JournalPosition next = from;
  std::uint64_t walked_bytes = 0;
  while (walked_bytes < geometry.journal_size_bytes) {
    std::uint64_t offset = next.offset_bytes;
    auto block = read_block(reader, geometry, next, offset);
    if (block && !*block && offset != 0) {
      offset = 0;  // perhaps it did not fit before the end of the ring
      block = read_block(reader, geometry, next, offset);
    }
    if (!block) return fail(block);
    if (!*block) break;
    const JournalHeader& header = (*block)->header;
    const auto go_on = on_block(**block);
    if (!go_on) return fail(go_on);
    if (!*go_on) break;
    walked_bytes += header.size_bytes;
    next = (*block)->behind(geometry.journal_size_bytes);
  }
  return next;
}

}  // namespace kvslot
