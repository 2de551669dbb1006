// Choices that a user of the library makes, with their limits.
#pragma once

#include <kvslot/clock.h>
#include <kvslot/types.h>

#include <array>
#include <cstdint>
#include <string>

namespace kvslot {

using Uuid = std::array<std::uint8_t, 16>;

[[nodiscard]] std::string to_string(const Uuid& uuid);

inline constexpr std::uint64_t kStoreSizeBytesMin = 16 * kMiB;
inline constexpr std::uint64_t kStoreSizeBytesMax = 16 * 1024 * kGiB;
inline constexpr std::uint32_t kSlotSizeBytesMin = 4096;
inline constexpr std::uint32_t kSlotSizeBytesMax = 4 * 1024 * 1024;
inline constexpr std::size_t kLabelSizeBytesMax = 63;

// What format fixed for the life of a store.
struct Geometry {
  Uuid uuid{};
  std::string label;
  std::uint64_t size_bytes = 0;       // of the device at format
  std::uint32_t slot_size_bytes = 0;  // a power of two
  std::uint32_t slot_count = 0;
  std::uint32_t logical_block_size_bytes = 0;
  std::uint64_t slots_offset_bytes = 0;  // of slot 0
  std::uint64_t journal_offset_bytes = 0;
  std::uint64_t journal_size_bytes = 0;

  // Where a value is cut: see kExtentSizeBytesMax.
  [[nodiscard]] std::uint32_t window_size_bytes() const {
    return slot_size_bytes > kExtentSizeBytesMax ? slot_size_bytes : kExtentSizeBytesMax;
  }
  [[nodiscard]] std::uint32_t blocks_per_slot() const { return slot_size_bytes / kBlockSizeBytes; }
};

struct VolumeOptions {
  bool read_only = false;
  // Half a journal triggers a checkpoint: inside commit() when true, otherwise whoever runs the
  // volume's background work (the Batcher) does it.
  bool inline_checkpoints = true;
  std::size_t staging_size_bytes = 0;  // of the buffer pool; 0: buffers come from the heap
  // Unflushed bytes that force a flush, so that recovery has a bounded tail to verify.
  std::uint64_t unflushed_bytes_max = 256 * kMiB;
  std::uint64_t seed = 0;  // of epochs; 0: from the system's random source
  WallClock clock = {};  // of times that no caller gave: of checkpoints, faults, and changed names
};

struct BatcherOptions {
  // The longest that a written value waits for a flush that nobody asked for.
  std::uint32_t commit_interval_ms = 1000;
};

}  // namespace kvslot
