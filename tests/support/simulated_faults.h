// What a test asks of a simulated device: how it fails, what power loss leaves, and what was done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

namespace kvslot::testing {

// Which of the writes since the last flush are found after power loss. Those under way when the
// device vanished count as written, except for kNone.
enum class CrashMode : std::uint8_t {
  kNone,    // none: only what was flushed
  kAll,     // all of them
  kRandom,  // each survives, or not, or is torn at 512 bytes
  kPrefix,  // the first few survive in order, and the front of the next one
};

inline constexpr std::size_t kSectorSizeBytes = 512;  // what a device writes as a whole

// A write that no flush has covered. Sector s of it are its bytes from s * 512.
struct PendingWrite {
  std::uint64_t number = 0;  // in order of completion, since the device was made
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  bool is_discard = false;  // whole or not at all: as one sector, number 0
  [[nodiscard]] std::size_t sector_count() const {
    return is_discard ? 1 : size_bytes / kSectorSizeBytes;
  }
};
// Whether a sector of the write at this place in pending_writes() is found after power loss.
using SectorChoice = std::function<bool(std::size_t write, std::size_t sector)>;

enum class OperationKind : std::uint8_t { kAny, kRead, kWrite, kFlush };

// What becomes of a write that a fault strikes.
enum class WriteEffect : std::uint8_t {
  kRefused,      // fails and changes nothing
  kTorn,         // fails, and the front of its bytes is there
  kLost,         // succeeds, and changes nothing
  kMisdirected,  // succeeds, and its bytes are in another place
};

// What happens to matching operations. After a failed flush each write that it covered is durable
// or lost, by lot, and no later flush brings it back. Operations are counted as requests and
// flushes, not as batches.
struct Fault {
  OperationKind kind = OperationKind::kAny;
  std::uint64_t skip = 0;  // matching operations that pass first
  std::uint64_t times = std::numeric_limits<std::uint64_t>::max();
  int error = 5;           // EIO; 0 with flips_bit
  bool flips_bit = false;  // instead of failing, a read returns one wrong bit; the medium is well
  WriteEffect effect = WriteEffect::kRefused;
  std::uint64_t misdirected_to_bytes = 0;
  std::uint64_t offset_bytes = 0;  // only requests that touch this range (flushes always match)
  std::uint64_t size_bytes = std::numeric_limits<std::uint64_t>::max();
};

// One call on the device, in the order in which calls began.
struct DeviceCall {
  enum class Kind : std::uint8_t { kRun, kFlush, kDiscard };
  Kind kind = Kind::kRun;
  std::size_t reads = 0;
  std::size_t writes = 0;
  std::uint64_t size_bytes = 0;
};

}  // namespace kvslot::testing
