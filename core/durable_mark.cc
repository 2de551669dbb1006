// What the log says about its own end. Each block tells that the ones before it were flushed; the
// last one has nobody behind it, and damage of its values would look like a write that power loss
// cut off. Once the store is idle, an empty block says it.
#include "core/durable_mark.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/device_io.h"

namespace kvslot {

Result<void> append_empty_block(Volume::State& state, std::uint64_t durable_upto) {
  const Buffer block = Buffer::from_heap(kBlockSizeBytes);
  const Bytes bytes = block.first(kBlockSizeBytes);
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  const JournalPosition& head = state.ring->head();
  JournalHeader header{.epoch = head.epoch,
                       .sequence = head.sequence,
                       .previous_hash = head.previous_hash,
                       .durable_upto = durable_upto};
  seal_journal_block(bytes, header, state.geometry.uuid);
  const auto place = state.ring->place(kBlockSizeBytes);
  if (!place) return fail(Errc::kNoSpace, "the journal is full", ENOSPC);
  const std::uint64_t offset = state.geometry.journal_offset_bytes + *place;
  if (auto ok = write_device(*state.device, offset, bytes); !ok) return ok;
  state.ring->advance(*place, header);
  MutexLock lock(state.mutex);
  state.journal_info.head_offset_bytes = state.ring->head().offset_bytes;
  state.journal_info.used_bytes = state.ring->used_bytes();
  return {};
}

namespace {

// A block that was taken although its write failed would be replayed in place of the next one,
// which may stand elsewhere.
bool erase_head(Volume::State& state) REQUIRES(state.commit_turn) {
  const Buffer block = Buffer::from_heap(kBlockSizeBytes);
  const Bytes bytes = block.first(kBlockSizeBytes);
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  const auto place = state.ring->place(kBlockSizeBytes);
  return place && write_device(*state.device, state.geometry.journal_offset_bytes + *place, bytes);
}

}  // namespace

// The block is a part of the chain like any other, and not durable before the next flush: lost with
// the power it leaves the log as it was. What it says was true before it was written.
void Volume::record_durable() {
  State& s = *state_;
  MutexLock turn(s.commit_turn);
  // A checkpoint is due from here on, and says the same.
  if (s.ring->used_bytes() > s.ring->size_bytes() / 2) return;
  std::uint64_t durable_upto = 0;
  {
    MutexLock lock(s.mutex);
    // What is recorded counts on being in the next block, and that one will say it.
    const bool is_idle = s.recorded.count == 0 && s.durable_upto == s.published_upto;
    if (!is_idle || s.durable_upto <= s.noted_upto || !s.check_writable()) return;
    durable_upto = s.noted_upto = s.durable_upto;  // tried once, whatever becomes of it
    ++s.next_sequence;
  }
  const auto written = append_empty_block(s, durable_upto);
  if (!written) {
    s.stop_if_lost(written.error().os_errno);
    FaultRecord fault{.time_ns = 0,
                      .operation = "journal",
                      .key = {},
                      .slot = {},
                      .os_errno = to_errno(written.error()),
                      .action = "the note that all is durable was left out"};
    if (written.error().code == Errc::kNoSpace || erase_head(s)) {
      s.note_fault(std::move(fault));
    } else {
      fault.action = "writes stopped";
      s.stop_writes("stopped: the journal could not be written", std::move(fault));
    }
  }
  MutexLock lock(s.mutex);
  if (!written) {
    --s.next_sequence;
  } else {
    s.published_upto = s.noted_upto = durable_upto + 1;
  }
}

}  // namespace kvslot
