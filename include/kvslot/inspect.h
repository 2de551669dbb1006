// What the engine knows about itself, in the form that pseudo-files, the command line and tests
// read. Nothing here waits for the device.
#pragma once

#include <kvslot/error.h>
#include <kvslot/options.h>
#include <kvslot/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvslot {

// One number of the engine; `stats`, `metrics` and the command line print the same ones.
struct Stat {
  const char* name;  // lower_case with its unit last: "bytes_live"
  const char* help;  // one line
  std::uint64_t value;
  bool is_counter;  // only ever grows while mounted
};

struct BatchRecord {
  std::uint64_t id = 0;    // sequence of its journal block
  std::uint32_t keys = 0;  // contents published
  std::uint64_t value_bytes = 0;
  std::uint32_t data_requests = 0;  // to the device, after merging
  std::uint32_t merged_writes = 0;  // extents that shared a request with a neighbour
  std::uint32_t journal_bytes = 0;
  std::uint32_t records = 0;  // namespace records that left with it
  std::uint64_t reserve_us = 0, write_us = 0, flush_us = 0, publish_us = 0;
  const char* reason = "";  // idle, full, fsync, direct, flush
  std::uint32_t failures = 0;
};

// A put is written once the device took it, and in flight until readers see it. It is listed again
// while a flush is under way that makes it durable.
enum class InflightState : std::uint8_t { kReserved, kSubmitted, kWritten, kFlushing };
[[nodiscard]] const char* to_string(InflightState state);

struct InflightRecord {
  std::string key;
  NodeId node = NodeId::kNone;
  std::uint64_t batch = 0;
  std::uint32_t slots = 0;
  std::uint64_t bytes = 0;
  InflightState state = InflightState::kReserved;
  std::uint64_t age_us = 0;
  std::uint32_t waiters = 0;  // callers of the engine that wait for it
};

enum class SlotState : std::uint8_t { kFree, kReserved, kWriting, kLive, kDoomed, kQuarantined };
[[nodiscard]] const char* to_string(SlotState state);

struct SlotRecord {
  SlotRun run;
  SlotState state = SlotState::kFree;
  std::string owner;  // key, or "#checkpoint", "#unlinked <object id>", or empty
  bool owner_is_key = false;
  std::uint32_t piece = 0;  // window of the owner's value that the run's first slot holds
};

struct NodeRecord {
  std::string key;
  NodeId node = NodeId::kNone;
  ObjectId id = ObjectId::kNone;
  NodeKind kind = NodeKind::kFile;
  Attributes attributes;
  std::uint64_t size_bytes = 0;
  std::uint64_t sequence = 0;  // stamp of the newest extent
  std::uint64_t checksum = 0;  // of the only extent; of all checksums where there are several
  std::uint32_t slots = 0;
  std::optional<SlotId> first_slot;
  std::vector<SlotRun> runs;    // only from node(); empty in listings
  std::vector<Extent> extents;  // likewise
  std::uint32_t extent_count = 0;
  std::uint64_t holds = 0;
  bool stored = true;  // false: dirty, never committed
};

struct CheckpointInfo {
  std::uint64_t sequence = 0;
  std::uint64_t size_bytes = 0;
  TimestampNs written_ns = 0;  // 0: none
};

struct JournalInfo {
  std::uint64_t size_bytes = 0, used_bytes = 0;
  std::uint64_t head_offset_bytes = 0, tail_offset_bytes = 0;  // within the ring
  std::uint64_t next_sequence = 0, durable_upto = 0, published_upto = 0;
  std::uint64_t epoch = 0;
  CheckpointInfo current, previous;
};

struct FaultRecord {
  TimestampNs time_ns = 0;
  std::string operation;  // "read", "write", "flush", ...
  std::string key;
  std::optional<SlotId> slot;
  int os_errno = 0;
  std::string action;       // what was done about it
  bool is_lasting = false;  // listed however many come after it
};

// Threads: thread-safe.
class Inspector {
 public:
  virtual ~Inspector() = default;
  virtual std::vector<Stat> stats() const = 0;
  virtual std::vector<BatchRecord> batches() const = 0;  // oldest first, at most 256
  virtual std::vector<InflightRecord> inflight() const = 0;
  virtual std::vector<FaultRecord> faults() const = 0;  // oldest first, at most 256
  virtual void report_fault(FaultRecord fault) = 0;
  // Called once (from any thread, under no lock) when a fault stops writes; at once if one did.
  virtual void on_stopped(std::function<void(const FaultRecord& fault)> callback) = 0;
  virtual JournalInfo journal() const = 0;

  // Files (not directories) from node number `cursor` on, at most count_max; advances the cursor.
  // Empty when done. A node that exists all the time appears exactly once.
  virtual std::vector<NodeRecord> nodes(std::uint32_t& cursor, std::size_t count_max) const = 0;
  virtual Result<NodeRecord> node(NodeId node) const = 0;  // with runs and extents
  virtual std::string path_of(NodeId node) const = 0;

  // Runs from slot number `cursor` on, adjacent slots of one state and owner together; advances
  // the cursor; empty when done. Consecutive calls cover every slot exactly once.
  virtual std::vector<SlotRecord> slots(std::uint32_t& cursor) const = 0;
  virtual Result<SlotRecord> slot(SlotId slot) const = 0;

  // Memory of the index, every table and name counted, in bytes; and the number of nodes.
  virtual std::uint64_t index_memory_bytes() const = 0;
  virtual std::uint64_t node_count() const = 0;
};

}  // namespace kvslot
