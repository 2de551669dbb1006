// The life of a Volume (open, close), its space, and the helpers its parts share.
#include <kvslot/volume.h>
#include <sys/random.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

#include "core/checkpoint_layout.h"
#include "core/device_io.h"
#include "core/state.h"
#include "core/superblocks.h"

namespace kvslot {

TimestampNs wall_clock_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return TimestampNs{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  while (::getrandom(&value, sizeof value, 0) != sizeof value) {
  }
  return value;
}

Volume::Volume(std::unique_ptr<State> state) : state_(std::move(state)) {
  state_->volume = this;
  state_->inspector = make_inspector(*state_);
}

Volume::~Volume() = default;

Result<std::unique_ptr<Volume>> Volume::open(std::unique_ptr<Device> device,
                                             const VolumeOptions& options) {
  const auto superblock =
      read_superblock(*device, options.read_only ? CutOff::kAllowed : CutOff::kRefused);
  if (!superblock) return fail(superblock);
  if (superblock->geometry.logical_block_size_bytes < device->info().logical_block_size_bytes &&
      device->info().logical_block_size_bytes > kBlockSizeBytes)
    return fail(Errc::kInvalid, "the device's logical blocks are larger than 4096 bytes", EINVAL);
  VolumeOptions effective = options;
  effective.read_only |= superblock->read_only_compatible_features != 0;
  auto state = std::make_unique<State>(std::move(device), effective, superblock->geometry);
  {
    MutexLock checkpoint_lock(state->checkpoint_mutex);
    state->superblock = *superblock;
  }
  std::unique_ptr<Volume> volume(new Volume(std::move(state)));
  if (auto recovered = recover(*volume->state_); !recovered) return fail(recovered);
  return volume;
}

namespace {

// A checkpoint, unless the one there is says everything already.
Result<void> close_cleanly(Volume::State& state) REQUIRES(state.checkpoint_mutex) {
  if (auto recorded = commit_recorded(state); !recorded) return fail(recorded);
  bool unchanged = false;
  {
    MutexLock turn(state.commit_turn);
    unchanged = state.ring->head() == state.superblock.current.replay_from;
  }
  if (!unchanged) {
    auto written = run_checkpoint(state, true);
    // Where bad slots or a full device leave no room for it, the journal says the same: the next
    // opening replays it.
    if (!written && written.error().code == Errc::kNoSpace)
      return state.volume->flush_until(UINT64_MAX);
    return written;
  }
  if (state.superblock.clean) return {};
  Superblock next = state.superblock;
  next.clean = true;
  next.sequence = sequence_after(next);
  return state.switch_superblock(next);
}

}  // namespace

Result<void> Volume::close() {
  State& s = *state_;
  {
    MutexLock lock(s.mutex);
    if (s.closed) return {};
  }
  MutexLock checkpoint_lock(s.checkpoint_mutex);
  {
    MutexLock lock(s.mutex);
    if (s.closed) return {};
    // From here on nothing is recorded or reserved, so that nothing follows the clean mark.
    s.closing = true;
    s.recorded_drained.notify_all();
  }
  Result<void> outcome;
  if (!is_read_only()) outcome = close_cleanly(s);
  MutexLock lock(s.mutex);
  s.closed = true;
  // What stopped writes may have lost what was acknowledged as written: the last chance to say so.
  if (s.read_only_reason != nullptr) return fail(Errc::kReadOnly, s.read_only_reason, EROFS);
  return outcome;
}

Result<void> Volume::checkpoint() {
  State& s = *state_;
  MutexLock checkpoint_lock(s.checkpoint_mutex);
  {
    MutexLock lock(s.mutex);
    if (auto ok = s.check_writable(); !ok) return ok;
  }
  return run_checkpoint(s, false);
}

Result<void> Volume::flush() { return flush_until(commit({}, "flush")); }

bool Volume::has_recorded() const {
  MutexLock lock(state_->mutex);
  return state_->recorded.count != 0;
}

bool Volume::has_room_to_record() const {
  MutexLock lock(state_->mutex);
  return state_->recorded.size_bytes() <= state_->recorded_bytes_max();
}

std::uint64_t Volume::unflushed_bytes() const {
  MutexLock lock(state_->mutex);
  return state_->unflushed_bytes;
}

void Volume::on_recorded(std::function<void()> callback) {
  MutexLock lock(state_->mutex);
  state_->on_recorded = std::move(callback);
  state_->recorded_drained.notify_all();  // who waits commits by itself where nobody is told
}

void Volume::announce_records() {
  std::function<void()> callback;
  {
    MutexLock lock(state_->mutex);
    callback = state_->on_recorded;
  }
  if (callback) callback();
}

Result<void> Volume::State::admit_record() {
  while (recorded.size_bytes() > recorded_bytes_max() && check_writable()) {
    if (recorded_refused) return fail(Errc::kNoSpace, "the journal has no room", ENOSPC);
    if (on_recorded) {
      ++waiting_calls;
      recorded_drained.wait(mutex);
      --waiting_calls;
      continue;
    }
    mutex.unlock();
    volume->commit({}, "full");
    mutex.lock();
  }
  return check_writable();
}

namespace {

std::uint64_t slots_in(const std::vector<SlotRun>& runs) {
  std::uint64_t slots = 0;
  for (const SlotRun run : runs) slots += run.count;
  return slots;
}

// The slots of the checkpoint before are in hand for the next one. How many there are that this one
// does not need, and a put may have.
std::uint64_t spare_slots(const Volume::State& s) REQUIRES(s.mutex) {
  if (s.checkpoint_running || s.is_superblock_uncertain) return 0;
  const std::uint64_t in_hand = slots_in(s.previous_runs);
  return in_hand - std::min(in_hand, s.checkpoint_slots(0));
}

bool give_up_previous_for_space(Volume::State& s) REQUIRES(s.mutex) {
  if (spare_slots(s) == 0) return false;
  s.give_up_previous();
  s.update_checkpoint_reserve();
  return true;
}

}  // namespace

Result<void> Volume::reserve_slots(std::uint32_t count) {
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (auto ok = s.check_writable(); !ok) return ok;
  if (!s.has_available(count)) {
    s.counters.no_space.fetch_add(1, std::memory_order_relaxed);
    return fail(Errc::kNoSpace, "slots", ENOSPC);
  }
  if (auto ok = s.slots.reserve(count); !ok) return ok;
  s.update_checkpoint_reserve();
  return {};
}

void Volume::unreserve_slots(std::uint32_t count) {
  MutexLock lock(state_->mutex);
  state_->slots.unreserve(count);
  state_->update_checkpoint_reserve();
}

SpaceInfo Volume::space() const {
  State& s = *state_;
  MutexLock lock(s.mutex);
  const std::uint64_t per_slot = s.geometry.blocks_per_slot();
  const std::uint64_t free_slots = s.slots.available_count() + spare_slots(s);
  SpaceInfo info;
  info.total_blocks = std::uint64_t{s.geometry.slot_count} * per_slot;
  info.free_blocks = free_slots * per_slot;
  info.nodes = s.index.node_count();
  // A node costs a part of a slot in the checkpoints; this is the estimate for short names.
  info.nodes_free = free_slots * s.geometry.slot_size_bytes / 512;
  return info;
}

const Geometry& Volume::geometry() const { return state_->geometry; }
const Device& Volume::device() const { return *state_->device; }
BufferPool& Volume::buffers() { return state_->pool; }
Inspector& Volume::inspector() { return *state_->inspector; }

bool Volume::is_read_only() const {
  MutexLock lock(state_->mutex);
  return state_->options.read_only || state_->read_only_reason != nullptr;
}

Result<void> Volume::State::check_writable() const {
  if (closing) return fail(Errc::kBusy, "the store is closed", ESHUTDOWN);
  return check_recordable();
}

Result<void> Volume::State::check_recordable() const {
  if (closed) return fail(Errc::kBusy, "the store is closed", ESHUTDOWN);
  if (read_only_reason != nullptr) return fail(Errc::kReadOnly, read_only_reason, EROFS);
  if (options.read_only) return fail(Errc::kReadOnly, "opened read-only", EROFS);
  return {};
}

void Volume::State::stop_writes(const char* reason, FaultRecord fault) {
  fault.is_lasting = true;
  std::function<void(const FaultRecord&)> callback;
  {
    MutexLock lock(mutex);
    if (read_only_reason != nullptr) return;
    read_only_reason = reason;
    recorded_drained.notify_all();
    callback = on_stopped;
  }
  note_fault(fault);
  if (callback) callback(fault);
}

void Volume::State::stop_if_lost(int os_errno) {
  if (!is_device_lost(os_errno)) return;
  const bool is_silent = os_errno == ETIMEDOUT;
  stop_writes(
      is_silent ? "stopped: the device did not answer in time" : "stopped: the device is gone",
      {.time_ns = 0,
       .operation = "device",
       .key = {},
       .slot = {},
       .os_errno = os_errno,
       .action = is_silent ? "no answer in time: read-only until opened again; reads are tried"
                           : "gone: read-only until opened again; what was synced is there"});
}

void Volume::State::run(std::span<IoRequest> requests) {
  device->run(requests);
  for (const IoRequest& request : requests) stop_if_lost(request.error);
}

Attributes Volume::State::with_times(Attributes attributes) const {
  if (attributes.ctime_ns == 0) attributes.ctime_ns = now();
  if (attributes.mtime_ns == 0) attributes.mtime_ns = attributes.ctime_ns;
  if (attributes.atime_ns == 0) attributes.atime_ns = attributes.mtime_ns;
  return attributes;
}

void Volume::State::note_fault(FaultRecord fault) {
  if (fault.time_ns == 0) fault.time_ns = now();
  MutexLock lock(mutex);
  faults.push_back(std::move(fault));
  if (faults.size() > kFaultsKept)
    faults.erase(std::ranges::find(faults, false, &FaultRecord::is_lasting));
}

void Volume::State::record(const Record& change) {
  encode_record(recorded.bytes, change);
  ++recorded.count;
}

RecordedChanges Volume::State::take_recorded() {
  RecordedChanges taken = std::move(recorded);
  recorded = {};
  for (const NodeId directory : taken.touched) {
    if (!index.is_valid(directory) || index.kind(directory) != NodeKind::kDirectory) continue;
    encode_record(taken.bytes, SetAttributes{index.object(directory), index.attributes(directory)});
    ++taken.count;
  }
  taken.touched.clear();
  recorded_drained.notify_all();
  return taken;
}

namespace {

// A checkpoint much larger than the next one will be holds space that was given back.
bool is_outgrown(const std::vector<SlotRun>& runs, std::uint64_t next_slots) {
  return slots_in(runs) > 2 * next_slots + 8;
}

}  // namespace

bool Volume::wants_checkpoint() const {
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (s.checkpoint_running || s.read_only_reason != nullptr) return false;
  return s.journal_info.used_bytes > s.geometry.journal_size_bytes / 2 ||
         is_outgrown(s.checkpoint_runs, s.checkpoint_slots(0));
}

std::uint64_t Volume::State::checkpoint_slots(std::uint64_t more_bytes) const {
  const std::uint64_t in_chunk =
      std::min<std::uint64_t>(geometry.slot_size_bytes, kChunkSizeBytesMax) - kChunkHeaderBytes;
  const std::uint64_t bytes =
      index.total_image_bytes() + more_bytes +
      (std::uint64_t{slots.reserved_count()} + unindexed_extents) * kExtentRecordBytes +
      slots.quarantined().size() * kRecordBytesMax;
  const std::uint64_t chunks = units_of(bytes, in_chunk) + 1;
  return chunks + units_of(chunks, kManifestEntriesMax) + 1;
}

std::uint32_t Volume::State::checkpoint_slots_needed(std::uint64_t more_bytes) const {
  const std::uint64_t needed = checkpoint_slots(more_bytes);
  const std::uint64_t in_hand = checkpoint_taken + slots_in(previous_runs);
  return needed <= in_hand ? 0 : static_cast<std::uint32_t>(needed - in_hand);
}

void Volume::State::update_checkpoint_reserve() {
  if (!checkpoint_running && !is_superblock_uncertain &&
      is_outgrown(previous_runs, checkpoint_slots(0)))
    give_up_previous();
  slots.set_checkpoint_reserve(checkpoint_slots_needed(0));
}

void Volume::State::give_up_previous() {
  for (const SlotRun run : previous_runs) slots.give_back(run);
  previous_runs.clear();
  journal_info.previous = {};
}

bool Volume::State::has_available(std::uint64_t slot_count) {
  if (slot_count > slots.available_count()) give_up_previous_for_space(*this);
  return slot_count <= slots.available_count();
}

Result<void> Volume::State::admit_image_bytes(std::uint64_t more_bytes) {
  const auto is_short = [&]() REQUIRES(mutex) {
    const std::uint64_t have = std::uint64_t{slots.free_count()} + slots.doomed_count();
    return std::uint64_t{checkpoint_slots_needed(more_bytes)} + slots.reserved_count() > have;
  };
  if (is_short() && (!give_up_previous_for_space(*this) || is_short())) {
    counters.no_space.fetch_add(1, std::memory_order_relaxed);
    return fail(Errc::kNoSpace, "no room to checkpoint another key", ENOSPC);
  }
  return {};
}

void Volume::State::doom_extents(std::span<const Extent> extents, std::uint64_t sequence) {
  for (const SlotRun run : runs_of(extents)) slots.doom(run, sequence, reader_ticket);
}

void Volume::State::reclaim() { slots.reclaim(durable_upto, oldest_reader()); }

}  // namespace kvslot
