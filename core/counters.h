// What the engine counts. Shown by the inspector as `stats`.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvslot {

// Numbers that only ever grow. Written with relaxed order; read for people.
struct Counters {
  std::atomic<std::uint64_t> puts{0}, gets{0}, removes{0}, renames{0}, batches{0}, batched_keys{0};
  std::atomic<std::uint64_t> value_bytes_written{0}, value_bytes_read{0}, journal_bytes{0};
  std::atomic<std::uint64_t> flushes{0}, flush_failures{0}, checkpoints{0}, checkpoint_bytes{0};
  std::atomic<std::uint64_t> write_failures{0}, rewrites{0}, checksum_failures{0}, rereads{0};
  std::atomic<std::uint64_t> read_failures{0}, scrubs{0}, scrubbed_extents{0}, scrubbed_bytes{0};
  std::atomic<std::uint64_t> scrub_corrupt{0}, scrub_unreadable{0};
  std::atomic<std::uint64_t> no_space{0}, commit_locks{0}, data_requests{0}, merged_writes{0};
};

}  // namespace kvslot
