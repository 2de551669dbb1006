// The end of the log that no flush is known to have covered: whether its values reached the device,
// and writing it again before anything relies on it.
//
// Used by core/recovery.cc, between loading and the new epoch.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/state.h"
#include "core/state_loader.h"

namespace kvslot {

// Whether a value is inside the slots; kCorrupt otherwise.
[[nodiscard]] Result<void> check_place(const Geometry& geometry, const Extent& extent);

// Threads: one thread at a time, before anybody else knows the volume.
class LogTail {
 public:
  LogTail(Volume::State& state, StateLoader& loaded, const Uuid& uuid)
      : state_(state), loaded_(loaded), uuid_(uuid) {}

  // The lowest sequence of a block with a live value that is not on the device, or 0. Only what is
  // live counts: slots of values that a durable record removed may hold newer bytes.
  //   errors   kIo: a value cannot be read, and the store is opened for writing
  [[nodiscard]] Result<std::uint64_t> first_missing();
  // Writes the blocks and their live values once more, just as they are. A flush must follow. Cut
  // by power loss anywhere, it leaves what the first writing may have left.
  [[nodiscard]] Result<void> write_again();

 private:
  using TailExtent = StateLoader::TailExtent;
  struct ReadValue {
    Buffer bytes;  // whole blocks
    int error = 0;
    bool holds = false;
  };

  [[nodiscard]] bool is_live(const TailExtent& tail) const;
  [[nodiscard]] std::vector<ReadValue> read(std::span<const TailExtent> group);
  [[nodiscard]] Result<void> pass_over_unreadable(const TailExtent& tail, int os_errno);
  [[nodiscard]] Result<void> write_values_again();
  [[nodiscard]] Result<void> write_blocks_again();
  [[nodiscard]] Result<void> write_or_confirm(std::uint64_t offset_bytes, Bytes bytes,
                                              const std::function<bool(ConstBytes)>& holds);

  Volume::State& state_;
  StateLoader& loaded_;
  const Uuid& uuid_;
};

}  // namespace kvslot
