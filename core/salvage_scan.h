// Finds what a store left on its device without asking its superblock: every block is looked at
// once. Nothing is believed but what its checksum holds.
//
// Called by core/salvage_device.cc.
#pragma once

#include <kvslot/device.h>
#include <kvslot/options.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/journal.h"
#include "core/layout.h"

namespace kvslot {

// An attempt at a checkpoint; they compare in the order in which they were made.
struct Attempt {
  Attempt(std::uint64_t sequence_of, std::uint64_t epoch_of)
      : sequence(sequence_of), rank(epoch_rank(epoch_of)), epoch(epoch_of) {}
  auto operator<=>(const Attempt&) const = default;

  std::uint64_t sequence, rank, epoch;
};

struct FoundChunk {
  Attempt attempt;
  std::uint64_t replay_from = 0;  // block; 0: not known
  std::uint32_t index = 0;
  std::uint64_t offset_bytes = 0;
  std::uint32_t size_bytes = 0;
};

struct FoundBlock {  // of the journal
  JournalHeader header;
  std::uint64_t offset_bytes = 0;
};

struct FoundTrailer {
  Trailer trailer;
  Extent extent;
};

// The manifests of one attempt: how many chunks they name, and whether none is missing.
struct FoundManifests {
  std::map<std::uint32_t, std::size_t> entries_of;  // by index
  std::optional<std::uint32_t> last;                // index of the one that names no next
  std::optional<std::uint64_t> first_at;            // offset of number 0
  [[nodiscard]] std::optional<std::size_t> chunk_count() const;
};

struct Found {
  std::vector<FoundChunk> chunks;      // by attempt, then index
  std::vector<FoundBlock> blocks;      // by sequence
  std::vector<FoundTrailer> trailers;  // by object, the newest first
  std::map<Attempt, FoundManifests> manifests;
  std::uint64_t unreadable_bytes = 0;
};

using ScanProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// Every structure of the store with this UUID.
[[nodiscard]] Found scan_for_structures(Device& device, const Uuid& uuid,
                                        const ScanProgress& on_progress);

// The UUID that most structures were written under, for a device without a good superblock; nothing
// where no structure holds under any.
[[nodiscard]] std::optional<Uuid> scan_for_uuid(Device& device, const std::vector<Uuid>& guesses,
                                                const ScanProgress& on_progress);

}  // namespace kvslot
