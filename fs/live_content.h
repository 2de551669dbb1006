// The live bytes of one file: dirty windows in memory, laid over windows that are on their way to
// the device, over windows placed there unpublished, over the stored value. No locks, no waiting.
//
// Step before: fs/filesystem (write, truncate, read). Step after: fs/publisher, which takes the
// changes from here to the batcher and brings their results back.
#pragma once

#include <kvslot/error.h>
#include <kvslot/types.h>
#include <kvslot/volume.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "fs/range_set.h"

namespace kvslot {

inline constexpr std::uint64_t kFileSizeBytesMax =
    (std::uint64_t{1} << 32) * kBlockSizeBytes - kSlotSizeBytesMax;

// Bytes that only the device has, and where a reader puts them.
struct DevicePiece {
  std::size_t target_offset = 0;  // in the reader's buffer
  std::size_t size_bytes = 0;
  std::uint64_t file_offset_bytes = 0;
  std::optional<PlacedWindow> placed;  // unset: from the stored value
  std::uint32_t window_offset = 0;     // of the piece in its window, for placed ones
};

// A window that cannot be committed before these bytes of its lower layer were filled in.
struct MissingBase {
  std::uint32_t window = 0;
  std::uint32_t size_bytes = 0;        // [0, size_bytes) of the window
  std::optional<PlacedWindow> placed;  // unset: from the stored value
};

// Threads: one thread at a time (fs/live_files.h holds the lock).
class LiveContent {
 public:
  // `stored_size_bytes` and `allocated_bytes` of the stored value; is_stored: there is one.
  LiveContent(Volume& volume, NodeId node, std::uint64_t stored_size_bytes,
              std::uint64_t allocated_bytes, bool is_stored);
  ~LiveContent();  // gives back slots, buffers and placed windows
  LiveContent(const LiveContent&) = delete;
  LiveContent& operator=(const LiveContent&) = delete;

  enum class Memory : std::uint8_t { kPoolOnly, kPoolOrHeap };

  // All of `bytes` at `offset_bytes`, or nothing.
  //   errors   kNoSpace, kTooLarge (EFBIG), kBusy: no staging memory just now (kPoolOnly)
  Result<void> write(std::uint64_t offset_bytes, ConstBytes bytes, Memory memory);
  // Cuts, or extends with zeros. Errors as write.
  Result<void> truncate(std::uint64_t size_bytes);
  // Zeros [offset, offset + length) as far as the file goes; whole windows become holes.
  // Where it fails, part of it may be zeros already.
  Result<void> zero(std::uint64_t offset_bytes, std::uint64_t length_bytes, Memory memory);
  // Makes sure of space for later writes to the range; given back when this object goes.
  Result<void> reserve(std::uint64_t offset_bytes, std::uint64_t length_bytes);
  // Forgets everything that is not stored. Requires that nothing is in flight.
  void revert();

  // Copies what memory knows of [offset, offset + target.size()) and returns what it does not.
  // The caller has limited the range to size_bytes().
  [[nodiscard]] std::vector<DevicePiece> read(std::uint64_t offset_bytes, Bytes target) const;
  // The first data (or hole) at or after the offset, as lseek(2) wants it.
  [[nodiscard]] Result<std::uint64_t> seek(std::uint64_t offset_bytes, bool data) const;

  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::uint64_t stored_size_bytes() const { return stored_size_bytes_; }
  [[nodiscard]] std::uint64_t allocated_bytes() const;
  [[nodiscard]] std::uint64_t buffered_bytes() const { return buffered_bytes_; }
  [[nodiscard]] bool is_dirty() const { return version_ != committed_version_; }
  // Something changed that the change in flight does not carry.
  [[nodiscard]] bool needs_commit() const { return version_ != carried_version(); }
  // A commit is in flight, and has less than there is now.
  [[nodiscard]] bool is_partly_in_flight() const {
    return in_flight_version_ && *in_flight_version_ != version_;
  }
  // Nothing lies over the stored value: read it from the volume directly.
  [[nodiscard]] bool is_plain() const;
  // Grows whenever what lies on the device under this content may have changed.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }

  // --- Committing. At most one change is in flight.
  [[nodiscard]] std::vector<MissingBase> missing_base() const;
  // Fills the gaps of a window with `base`, its lower layer's bytes from the window's start.
  void fill_base(std::uint32_t window, ConstBytes base);
  // Everything that is dirty, as a change to submit. Requires missing_base() to be empty.
  [[nodiscard]] ContentChange begin_commit();
  // Up to size_bytes_max of complete windows, to be placed on the device unpublished; the one
  // written last stays, unless `all`. No writes in the change: nothing to spill.
  [[nodiscard]] ContentChange begin_spill(std::uint64_t size_bytes_max, bool all);
  // Takes the result of the change in flight. On failure all of it is dirty again.
  void finish(ContentChange& change);

 private:
  struct Window {
    Buffer data;
    std::uint32_t used = 0;  // bytes before this are in `data` or shine through
    std::uint32_t reserved_slots = 0;
    bool hides_below = false;  // [0, used) is all here, the rest is zeros
    RangeSet dirty;            // where !hides_below: what is here
  };
  struct Placed {
    PlacedWindow at;
    std::uint32_t visible = 0;  // bytes not cut off since
    std::uint32_t slots = 0;
    bool in_flight = false;  // named by the change in flight: not ours to discard
  };
  struct InFlight {
    const std::byte* data = nullptr;
    std::uint32_t used = 0;
  };
  // What one window of a write needs before anything is changed.
  struct Step {
    std::uint32_t window = 0;
    std::uint32_t begin = 0, end = 0;  // in the window
    std::uint32_t used = 0;            // afterwards
    std::uint32_t slots = 0;           // reserved for it afterwards
    Buffer grown;                      // replaces the window's buffer when set
  };

  [[nodiscard]] std::uint64_t carried_version() const {
    return in_flight_version_ ? *in_flight_version_ : committed_version_;
  }
  [[nodiscard]] std::uint64_t start_of(std::uint32_t window) const {
    return std::uint64_t{window} * window_size_bytes_;
  }
  [[nodiscard]] std::uint32_t slots_for(std::uint64_t bytes) const {
    return static_cast<std::uint32_t>((bytes + slot_size_bytes_ - 1) / slot_size_bytes_);
  }
  [[nodiscard]] std::uint32_t visible_below(std::uint32_t window) const;
  [[nodiscard]] std::optional<InFlight> in_flight(std::uint32_t window) const;
  [[nodiscard]] bool is_complete(std::uint32_t number, const Window& window) const;
  Result<void> take_slots(std::uint32_t count);
  void give_slots(std::uint32_t count);
  Result<Step> plan_step(std::uint32_t number, std::uint32_t begin, std::uint32_t end,
                         Memory memory);
  void apply_step(Step step, ConstBytes bytes);
  void hide_below(std::uint32_t number, Window& window);
  void discard_placed(std::uint32_t number);
  void set_buffer(Window& window, Buffer buffer);
  void set_slots(Window& window, std::uint32_t slots);
  Result<void> cut(std::uint64_t size_bytes);
  void cut_window(std::uint32_t number, std::uint32_t keep, Buffer copy, std::uint32_t slots);
  void zero_window(std::uint32_t number);
  [[nodiscard]] std::uint32_t present_bytes(std::uint32_t number) const;
  [[nodiscard]] Range stored_data(std::uint64_t begin, std::uint64_t end) const;
  [[nodiscard]] std::uint64_t next_present(std::uint64_t number, Range& stored) const;
  [[nodiscard]] std::vector<Range> present_slots(const Range& slots) const;
  void read_window(std::uint32_t number, std::uint32_t begin, Bytes target,
                   std::size_t target_offset, std::vector<DevicePiece>& pieces) const;
  void read_below(std::uint32_t number, std::uint32_t begin, Bytes target,
                  std::size_t target_offset, std::vector<DevicePiece>& pieces) const;
  void give_back_everything();
  void add_holes(ContentChange& change) const;
  void fly(ContentChange& change);
  void finish_commit(const ContentChange& change);
  void finish_spill(ContentChange& change);
  void finish_failed(ContentChange& change);

  Volume& volume_;
  const NodeId node_;
  const std::uint32_t window_size_bytes_;
  const std::uint32_t slot_size_bytes_;

  std::uint64_t size_bytes_;
  std::uint64_t base_size_bytes_;  // of the stored value: what no truncation has cut off
  std::uint64_t stored_size_bytes_;
  std::uint64_t stored_allocated_bytes_;
  std::map<std::uint32_t, Window> windows_;
  std::map<std::uint32_t, InFlight> in_flight_;
  std::map<std::uint32_t, Placed> placed_;
  std::uint64_t in_flight_limit_ = 0;  // cuts in_flight_, and the stored value it turns into
  std::uint32_t last_window_ = ~0U;    // written last

  std::uint64_t version_ = 0;
  std::uint64_t committed_version_ = 0;
  std::optional<std::uint64_t> in_flight_version_;  // unset while spilling
  std::uint64_t generation_ = 0;
  std::uint64_t buffered_bytes_ = 0;
  std::uint64_t live_slots_ = 0;  // reserved by windows_, held by in_flight_ and placed_
  std::uint32_t in_flight_slots_ = 0;
  std::uint32_t extra_slots_ = 0;  // from reserve()
  RangeSet reserved_;              // the file's slots that extra_slots_ stand for
};

}  // namespace kvslot
