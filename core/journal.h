// The journal ring: where the next block goes, what room is left, and reading a chain of blocks.
// Blocks are whole; one that does not fit before the end of the ring starts again at its
// beginning. Used by core/commit.cc (append) and core/recovery.cc (read).
#pragma once

#include <kvslot/device.h>
#include <kvslot/options.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/layout.h"

namespace kvslot {

// An epoch says how many openings there were before it, so that salvage knows the later of two, and
// holds 24 random bits: a recovery that was interrupted counted the same.
[[nodiscard]] std::uint64_t epoch_after(std::uint64_t epoch, std::uint64_t random);
// Higher for later epochs; 0 for those of an earlier kvslot, which are random and tell nothing.
[[nodiscard]] std::uint64_t epoch_rank(std::uint64_t epoch);

// Threads: one thread at a time (the one that holds the commit turn).
class JournalRing {
 public:
  // Blocks go on at `head`; nothing from `tail` on is overwritten.
  JournalRing(std::uint64_t size_bytes, const JournalPosition& head);

  // Where a block of this size would go, or nothing when it would overwrite what is needed.
  [[nodiscard]] std::optional<std::uint64_t> place(std::uint64_t block_bytes) const;
  // The block at `offset_bytes` (from place) was written; the next one names its hash.
  void advance(std::uint64_t offset_bytes, const JournalHeader& written);

  // A checkpoint holds everything before this point.
  void release_before(const JournalPosition& tail) {
    used_bytes_ = distance(tail.offset_bytes, head_.offset_bytes, tail);
    tail_offset_ = tail.offset_bytes;
  }

  [[nodiscard]] const JournalPosition& head() const { return head_; }
  [[nodiscard]] std::uint64_t tail_offset_bytes() const { return tail_offset_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::uint64_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] std::uint64_t free_bytes() const { return size_bytes_ - used_bytes_; }

 private:
  [[nodiscard]] std::uint64_t distance(std::uint64_t from, std::uint64_t to,
                                       const JournalPosition& tail) const;

  const std::uint64_t size_bytes_;
  JournalPosition head_;
  std::uint64_t tail_offset_;
  std::uint64_t used_bytes_ = 0;
};

// One block as found on the device, verified.
struct JournalBlock {
  JournalHeader header;
  std::vector<std::byte> bytes;
  std::uint64_t offset_bytes = 0;  // in the ring
  [[nodiscard]] ConstBytes records() const {
    return ConstBytes(bytes).subspan(kJournalHeaderBytes, header.payload_bytes);
  }
  // Where the next one of the chain is expected, in a ring of this size.
  [[nodiscard]] JournalPosition behind(std::uint64_t ring_bytes) const {
    return {.epoch = header.epoch,
            .offset_bytes = (offset_bytes + header.size_bytes) % ring_bytes,
            .sequence = header.sequence + 1,
            .previous_hash = header.checksum};
  }
};

// Reads the chain that starts at `from` until a block is missing, torn, or of another chain, and
// hands each one to `on_block` until that returns false. Returns where the chain ended: the
// position of the first block that is not part of it.
[[nodiscard]] Result<JournalPosition> read_journal(
    Device& device, const Geometry& geometry, const JournalPosition& from,
    const std::function<Result<bool>(const JournalBlock&)>& on_block);

// Whether a block of this epoch lies behind the end of a chain and says that the block missing
// there was flushed: then no crash ended the chain, damage did. Looks at the next
// kLookedBehindBytes of the ring; what cannot be read there says nothing.
//   errors   the device is lost
inline constexpr std::uint64_t kLookedBehindBytes = 16 * kMiB;
[[nodiscard]] Result<bool> is_chain_damaged(Device& device, const Geometry& geometry,
                                            const JournalPosition& end);

}  // namespace kvslot
