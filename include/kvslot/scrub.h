// One pass over all live values of an open store, that reads them from the device and compares
// checksums. It repairs nothing: bytes that rotted must not get a fresh checksum.
#pragma once

#include <kvslot/buffer.h>
#include <kvslot/error.h>
#include <kvslot/types.h>
#include <kvslot/volume.h>

#include <cstdint>
#include <vector>

namespace kvslot {

inline constexpr std::uint64_t kScrubStepBytesMax = kMiB;  // read by one step

struct ScrubProgress {
  std::uint64_t files = 0;    // values looked at
  std::uint64_t extents = 0;  // verified
  std::uint64_t bytes = 0;
  std::uint64_t corrupt = 0;     // extents whose bytes are not what was written, read twice
  std::uint64_t unreadable = 0;  // extents that the device would not read
};

// Beside readers and writers: it takes the state lock for a moment at each step, holds a reader's
// ticket while it reads (slots it looks at are not used again meanwhile), and calls damaged only
// what is still the value's when it was read. What it finds is among the inspector's faults.
//
// Threads: one thread at a time. The volume outlives it.
class Scrub {
 public:
  explicit Scrub(Volume& volume);

  // Reads and verifies the next values, at most kScrubStepBytesMax.
  //   returns  whether there may be more
  //   errors   kIo: the device is lost; kBusy: the store was closed
  [[nodiscard]] Result<bool> step();

  [[nodiscard]] const ScrubProgress& progress() const { return progress_; }

 private:
  struct Piece {
    NodeId node = NodeId::kNone;
    ObjectId object = ObjectId::kNone;
    Extent extent;
  };
  [[nodiscard]] std::vector<Piece> collect();
  void collect_from(NodeId node, std::uint64_t& size_bytes, std::vector<Piece>& pieces);
  [[nodiscard]] Result<void> verify(const std::vector<Piece>& pieces);
  [[nodiscard]] Result<void> judge(const Piece& piece, Bytes bytes, int error);
  [[nodiscard]] bool matches(const Piece& piece, ConstBytes bytes) const;
  [[nodiscard]] bool is_current(const Piece& piece) const;

  Volume::State& state_;
  ScrubProgress progress_;
  // Where the next step goes on: a node, and the block of its value.
  std::uint32_t node_ = 1;
  ObjectId object_ = ObjectId::kNone;  // that node_ was when it was left in the middle
  std::uint32_t block_ = 0;
  bool is_over_ = false;
};

}  // namespace kvslot
