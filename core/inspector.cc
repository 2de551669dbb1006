// What the engine knows, copied out under the state lock in bounded portions.
#include <algorithm>
#include <cerrno>

#include "core/state.h"

namespace kvslot {

const char* to_string(InflightState state) {
  switch (state) {
    case InflightState::kReserved:
      return "reserved";
    case InflightState::kSubmitted:
      return "submitted";
    case InflightState::kWritten:
      return "written";
    case InflightState::kFlushing:
      return "flushing";
  }
  return "?";
}

const char* to_string(SlotState state) {
  switch (state) {
    case SlotState::kFree:
      return "free";
    case SlotState::kReserved:
      return "reserved";
    case SlotState::kWriting:
      return "writing";
    case SlotState::kLive:
      return "live";
    case SlotState::kDoomed:
      return "doomed";
    case SlotState::kQuarantined:
      return "quarantined";
  }
  return "?";
}

namespace {

constexpr std::uint32_t kSlotsTogether = 1 << 16;  // inspected under one set of locks
constexpr std::uint32_t kNodesPerLock = 1 << 14;

std::uint64_t get(const std::atomic<std::uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

class StateInspector : public Inspector {
 public:
  explicit StateInspector(Volume::State& state) : state_(state) {}

  std::vector<Stat> stats() const override {
    std::vector<Stat> all;
    add_state_stats(all);
    add_counter_stats(all);
    add_device_stats(all);
    return all;
  }

  std::vector<BatchRecord> batches() const override {
    MutexLock lock(state_.mutex);
    return {state_.batches.begin(), state_.batches.end()};
  }

  std::vector<InflightRecord> inflight() const override {
    const auto now = std::chrono::steady_clock::now();
    MutexLock lock(state_.mutex);
    std::vector<InflightRecord> records;
    const auto add = [&](const InflightTable::Entry& entry, InflightState state) {
      state_.mutex.assert_held();
      const auto age = std::chrono::duration_cast<std::chrono::microseconds>(now - entry.since);
      records.push_back({.key = state_.index.path(entry.node),
                         .node = entry.node,
                         .batch = entry.batch,
                         .slots = entry.slots,
                         .bytes = entry.bytes,
                         .state = state,
                         .age_us = static_cast<std::uint64_t>(age.count()),
                         .waiters = entry.waiters});
    };
    for (const InflightTable::Entry& entry : state_.inflight.published()) {
      const bool is_there =
          state_.index.is_valid(entry.node) && state_.index.object(entry.node) == entry.object;
      if (is_there && entry.batch <= state_.flushing_upto) add(entry, InflightState::kFlushing);
    }
    for (const InflightTable::Entry& entry : state_.inflight.entries()) add(entry, entry.state);
    return records;
  }

  std::vector<FaultRecord> faults() const override {
    MutexLock lock(state_.mutex);
    return {state_.faults.begin(), state_.faults.end()};
  }

  void report_fault(FaultRecord fault) override { state_.note_fault(std::move(fault)); }

  void on_stopped(std::function<void(const FaultRecord& fault)> callback) override {
    std::optional<FaultRecord> stopped;
    {
      MutexLock lock(state_.mutex);
      for (const FaultRecord& fault : state_.faults)
        if (fault.is_lasting) stopped = fault;
      state_.on_stopped = callback;
    }
    if (stopped && callback) callback(*stopped);
  }

  JournalInfo journal() const override {
    MutexLock lock(state_.mutex);
    JournalInfo info = state_.journal_info;
    info.next_sequence = state_.next_sequence;
    info.durable_upto = state_.durable_upto;
    info.published_upto = state_.published_upto;
    return info;
  }

  std::vector<NodeRecord> nodes(std::uint32_t& cursor, std::size_t count_max) const override {
    std::vector<NodeRecord> records;
    cursor = std::max(cursor, 1u);
    // A long stretch without files must neither end the listing nor hold the lock.
    for (bool more = true; more && records.empty();) {
      MutexLock lock(state_.mutex);
      const std::uint32_t limit = state_.index.node_limit();
      const std::uint32_t end = std::min(limit, cursor + kNodesPerLock);
      for (; cursor < end && records.size() < count_max; ++cursor) {
        const auto node = static_cast<NodeId>(cursor);
        if (state_.index.is_valid(node) && state_.index.is_linked(node) &&
            state_.index.kind(node) != NodeKind::kDirectory)
          records.push_back(describe(node));
      }
      more = cursor < limit;
    }
    return records;
  }

  Result<NodeRecord> node(NodeId node) const override {
    MutexLock lock(state_.mutex);
    if (!state_.index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
    NodeRecord record = describe(node);
    Extent scratch;
    const auto extents = state_.index.extents(node, scratch);
    record.extents.assign(extents.begin(), extents.end());
    record.runs = state_.runs_of(extents);
    return record;
  }

  std::string path_of(NodeId node) const override {
    MutexLock lock(state_.mutex);
    return state_.index.is_valid(node) ? state_.index.path(node) : std::string();
  }

  std::vector<SlotRecord> slots(std::uint32_t& cursor) const override {
    const std::uint32_t count = state_.geometry.slot_count;
    std::vector<SlotRecord> records;
    // The last run of a stretch may go on behind it, so it is left for the next call, or, when it
    // is all there is, followed to its end.
    while (cursor < count && records.size() < 2) {
      const std::uint32_t end = std::min(count, cursor + kSlotsTogether);
      for (SlotRecord& record : describe_slots(cursor, end)) {
        if (!records.empty() && is_same(records.back(), record)) {
          records.back().run.count += record.run.count;
        } else {
          records.push_back(std::move(record));
        }
      }
      cursor = end;
    }
    if (cursor < count && records.size() > 1) {
      cursor = static_cast<std::uint32_t>(records.back().run.first);
      records.pop_back();
    }
    return records;
  }

  Result<SlotRecord> slot(SlotId slot) const override {
    const auto number = static_cast<std::uint32_t>(slot);
    if (number >= state_.geometry.slot_count) return fail(Errc::kNotFound, "no such slot", ENOENT);
    // The run may begin before the slot and go on behind it; one stretch around it is enough.
    const std::uint32_t first = number / kSlotsTogether * kSlotsTogether;
    const std::uint32_t end = std::min(state_.geometry.slot_count, first + kSlotsTogether);
    for (const SlotRecord& record : describe_slots(first, end)) {
      const auto start = static_cast<std::uint32_t>(record.run.first);
      if (number >= start && number < start + record.run.count) return record;
    }
    return fail(Errc::kNotFound, "no such slot", ENOENT);
  }

  std::uint64_t index_memory_bytes() const override {
    MutexLock lock(state_.mutex);
    return state_.index.memory_bytes();
  }

  std::uint64_t node_count() const override {
    MutexLock lock(state_.mutex);
    return state_.index.node_count();
  }

 private:
  NodeRecord describe(NodeId node) const REQUIRES(state_.mutex) {
    NodeRecord record;
    record.key = state_.index.path(node);
    record.node = node;
    record.id = state_.index.object(node);
    record.kind = state_.index.kind(node);
    record.attributes = state_.index.attributes(node);
    record.size_bytes = state_.index.size_bytes(node);
    record.stored = state_.index.stored(node) == StoredState::kStored;
    Extent scratch;
    const auto extents = state_.index.extents(node, scratch);
    record.extent_count = static_cast<std::uint32_t>(extents.size());
    for (const Extent& extent : extents) record.sequence = std::max(record.sequence, extent.stamp);
    for (const SlotRun run : state_.runs_of(extents)) record.slots += run.count;
    if (!extents.empty()) record.first_slot = state_.slot_of(extents.front().device_block);
    if (extents.size() == 1) record.checksum = extents.front().checksum;
    for (std::size_t i = 0; extents.size() > 1 && i < extents.size(); ++i)
      record.checksum = record.checksum * 0x9e3779b97f4a7c15 + extents[i].checksum;
    const auto held = state_.holds.find(static_cast<std::uint32_t>(node));
    record.holds = held == state_.holds.end() ? 0 : held->second;
    return record;
  }

  static bool is_same(const SlotRecord& a, const SlotRecord& b) {
    return a.state == b.state && a.owner == b.owner && a.owner_is_key == b.owner_is_key &&
           a.piece == b.piece;
  }

  // --- Slots of a stretch. Owners are found by walking the index once for each stretch, so the
  // memory does not grow with the store; the walk holds the lock for a portion at a time.

  struct Painted {
    SlotState state = SlotState::kReserved;
    std::uint32_t owner = 0;  // node, or one of the kOwner numbers
    std::uint32_t piece = 0;
  };
  static constexpr std::uint32_t kOwnerCheckpoint = UINT32_MAX;

  static void paint(std::vector<Painted>& stretch, std::uint32_t first, SlotRun run,
                    Painted painted) {
    const std::uint32_t from = std::max(static_cast<std::uint32_t>(run.first), first);
    const std::uint64_t to =
        std::min<std::uint64_t>(std::uint64_t{static_cast<std::uint32_t>(run.first)} + run.count,
                                std::uint64_t{first} + stretch.size());
    for (std::uint64_t slot = from; slot < to; ++slot) stretch[slot - first] = painted;
  }

  void paint_states(std::vector<Painted>& stretch, std::uint32_t first) const
      REQUIRES(state_.mutex) {
    for (std::uint32_t i = 0; i < stretch.size(); ++i)
      if (state_.slots.is_free(first + i)) stretch[i].state = SlotState::kFree;
    for (const auto& marked : state_.slots.marked())
      paint(stretch, first, marked.run, {.state = marked.state});
    for (const auto* runs : {&state_.checkpoint_runs, &state_.previous_runs})
      for (const SlotRun run : *runs)
        paint(stretch, first, run, {.state = SlotState::kLive, .owner = kOwnerCheckpoint});
    for (const auto& [stamp, runs] : state_.placed)
      for (const SlotRun run : runs) paint(stretch, first, run, {.state = SlotState::kWriting});
  }

  void paint_nodes(std::vector<Painted>& stretch, std::uint32_t first, std::uint32_t from,
                   std::uint32_t to) const REQUIRES(state_.mutex) {
    for (std::uint32_t number = from; number < to; ++number) {
      const auto node = static_cast<NodeId>(number);
      if (!state_.index.is_valid(node)) continue;
      Extent scratch;
      for (const Extent& extent : state_.index.extents(node, scratch))
        for (const SlotRun run : state_.runs_of({&extent, 1}))
          paint(stretch, first, run,
                {.state = SlotState::kLive,
                 .owner = number,
                 .piece = static_cast<std::uint32_t>(state_.window_of(extent))});
    }
  }

  [[nodiscard]] bool is_key(const Painted& painted) const REQUIRES(state_.mutex) {
    const auto node = static_cast<NodeId>(painted.owner);
    return painted.owner != 0 && painted.owner != kOwnerCheckpoint && state_.index.is_valid(node) &&
           state_.index.is_linked(node);
  }

  [[nodiscard]] std::string owner_name(const Painted& painted) const REQUIRES(state_.mutex) {
    if (painted.owner == 0) return {};
    if (painted.owner == kOwnerCheckpoint) return "#checkpoint";
    const auto node = static_cast<NodeId>(painted.owner);
    if (!state_.index.is_valid(node)) return {};
    if (!state_.index.is_linked(node))
      return "#unlinked " + std::to_string(static_cast<std::uint64_t>(state_.index.object(node)));
    return state_.index.path(node);
  }

  std::vector<SlotRecord> describe_slots(std::uint32_t first, std::uint32_t end) const {
    std::vector<Painted> stretch(end - first);
    std::vector<SlotRecord> records;
    std::uint32_t next = 1;
    MutexLock lock(state_.mutex);
    while (next < state_.index.node_limit()) {
      const std::uint32_t to = std::min(next + kNodesPerLock, state_.index.node_limit());
      paint_nodes(stretch, first, next, to);
      next = to;
      lock.unlock();
      lock.lock();
    }
    // States last and at once: what moved during the walk is then right in state if not in owner.
    paint_states(stretch, first);
    for (std::uint32_t i = 0; i < stretch.size(); ++i) {
      const Painted& painted = stretch[i];
      const bool same =
          i != 0 && stretch[i - 1].state == painted.state &&
          (painted.state == SlotState::kFree ||
           (stretch[i - 1].owner == painted.owner && stretch[i - 1].piece == painted.piece));
      if (same) {
        ++records.back().run.count;
        continue;
      }
      const bool owned = painted.state == SlotState::kLive;
      records.push_back({.run = {SlotId{first + i}, 1},
                         .state = painted.state,
                         .owner = owned ? owner_name(painted) : std::string(),
                         .owner_is_key = owned && is_key(painted),
                         .piece = owned ? painted.piece : 0});
    }
    return records;
  }

  // --- Numbers.

  void add_state_stats(std::vector<Stat>& all) const {
    MutexLock lock(state_.mutex);
    std::uint64_t checkpoint_slots = 0;
    for (const auto* runs : {&state_.checkpoint_runs, &state_.previous_runs})
      for (const SlotRun run : *runs) checkpoint_slots += run.count;
    const std::uint64_t used = state_.geometry.slot_count - state_.slots.free_count();
    const auto gauge = [&](const char* name, const char* help, std::uint64_t value) {
      all.push_back({name, help, value, false});
    };
    gauge("nodes", "files, directories and symbolic links", state_.index.node_count() - 1);
    gauge("slots_total", "slots of the device", state_.geometry.slot_count);
    gauge("slots_free", "slots that can be taken now", state_.slots.free_count());
    gauge("slots_live", "slots of values, current or still open",
          used - state_.slots.doomed_count() - state_.slots.quarantined_count() - checkpoint_slots);
    gauge("slots_doomed", "slots that become free with the next flush",
          state_.slots.doomed_count());
    gauge("slots_reserved", "free slots promised to values being written",
          state_.slots.reserved_count());
    gauge("slots_quarantined", "slots that failed a write", state_.slots.quarantined_count());
    gauge("slots_checkpoint", "slots of checkpoints", checkpoint_slots);
    gauge("slots_checkpoint_reserve", "free slots kept for the next checkpoint",
          state_.slots.checkpoint_reserve());
    gauge(
        "bytes_live", "bytes of slots_live",
        (used - state_.slots.doomed_count() - state_.slots.quarantined_count() - checkpoint_slots) *
            state_.geometry.slot_size_bytes);
    gauge("index_memory_bytes", "memory of the index, everything counted",
          state_.index.memory_bytes());
    gauge("nodes_held", "nodes that the kernel or a handle refers to", state_.holds.size());
    gauge("nodes_unlinked", "removed nodes that are still held", state_.orphans.size());
    gauge("puts_inflight", "puts between reservation and publication",
          state_.inflight.entries().size());
    gauge("recorded_bytes", "namespace changes that wait for the next block",
          state_.recorded.bytes.size());
    gauge("unflushed_bytes", "written since the last flush", state_.unflushed_bytes);
    gauge("journal_used_bytes", "of the journal ring", state_.journal_info.used_bytes);
    gauge("journal_size_bytes", "of the journal ring", state_.geometry.journal_size_bytes);
    gauge("readers", "reads under way", state_.readers.size());
    gauge("waiting_calls", "calls that wait for reads to end, or for a block to take their names",
          state_.waiting_calls);
    gauge("recovery_us", "time that opening took", state_.recovery_us);
    gauge("recovered_nodes", "nodes found when opened", state_.recovered_nodes);
    gauge("read_only", "1 when writes are refused",
          state_.options.read_only || state_.read_only_reason != nullptr ? 1 : 0);
  }

  void add_counter_stats(std::vector<Stat>& all) const {
    const Counters& c = state_.counters;
    const auto counter = [&](const char* name, const char* help, std::uint64_t value) {
      all.push_back({name, help, value, true});
    };
    counter("puts", "values published", get(c.puts));
    counter("gets", "reads of values", get(c.gets));
    counter("removes", "names removed", get(c.removes));
    counter("renames", "names changed", get(c.renames));
    counter("batches", "journal blocks written", get(c.batches));
    counter("batched_keys", "keys in these batches", get(c.batched_keys));
    counter("commit_locks", "state lock acquisitions of batches", get(c.commit_locks));
    counter("data_requests", "writes of values after merging", get(c.data_requests));
    counter("value_bytes_written", "bytes of values written", get(c.value_bytes_written));
    counter("value_bytes_read", "bytes of values read", get(c.value_bytes_read));
    counter("journal_bytes", "bytes of journal blocks written", get(c.journal_bytes));
    counter("flushes", "flushes of the device", get(c.flushes));
    counter("flush_failures", "flushes that failed", get(c.flush_failures));
    counter("checkpoints", "checkpoints written", get(c.checkpoints));
    counter("checkpoint_bytes", "bytes of checkpoints written", get(c.checkpoint_bytes));
    counter("write_failures", "extents that could not be written", get(c.write_failures));
    counter("rewrites", "puts written again elsewhere", get(c.rewrites));
    counter("checksum_failures", "reads whose bytes did not match twice", get(c.checksum_failures));
    counter("read_failures", "reads of values that the device failed", get(c.read_failures));
    counter("scrubs", "passes of the scrub that began", get(c.scrubs));
    counter("scrubbed_extents", "pieces of values that the scrub verified",
            get(c.scrubbed_extents));
    counter("scrubbed_bytes", "bytes of them", get(c.scrubbed_bytes));
    counter("scrub_corrupt", "pieces that the scrub found damaged", get(c.scrub_corrupt));
    counter("scrub_unreadable", "pieces that the scrub could not read", get(c.scrub_unreadable));
    counter("rereads", "reads repeated after a mismatch", get(c.rereads));
    counter("no_space", "requests refused for lack of space", get(c.no_space));
  }

  void add_device_stats(std::vector<Stat>& all) const {
    const DeviceCounters d = state_.device->counters();
    all.push_back({"device_reads", "read requests completed", d.reads, true});
    all.push_back({"device_writes", "write requests completed", d.writes, true});
    all.push_back({"device_read_bytes", "bytes read", d.read_bytes, true});
    all.push_back({"device_written_bytes", "bytes written", d.written_bytes, true});
    all.push_back({"device_batches", "batches of requests", d.batches, true});
    all.push_back({"device_submissions", "system calls for transfers", d.submissions, true});
    all.push_back({"device_flushes", "flushes carried out", d.flushes, true});
    all.push_back({"device_retries", "requests submitted again", d.retries, true});
    all.push_back({"device_short_transfers", "transfers resumed", d.short_transfers, true});
    all.push_back({"queue_depth", "requests under way", d.queue_depth, false});
    all.push_back(
        {"queue_depth_max", "most requests under way since open", d.queue_depth_max, false});
    all.push_back({"device_timeouts", "calls of the device given up", d.timeouts, true});
    all.push_back({"device_overdue", "of them, those it still holds", d.overdue, false});
    all.push_back({"staging_bytes", "staging memory in use", state_.pool.used_bytes(), false});
    all.push_back({"staging_bytes_max", "most staging memory in use since open",
                   state_.pool.used_bytes_max(), false});
    all.push_back(
        {"staging_size_bytes", "staging memory reserved", state_.pool.size_bytes(), false});
  }

  Volume::State& state_;
};

}  // namespace

std::unique_ptr<Inspector> make_inspector(Volume::State& state) {
  return std::make_unique<StateInspector>(state);
}

}  // namespace kvslot
