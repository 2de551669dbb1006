// Puts a batch on the device: checksums, merging of neighbours, the journal block, one submission,
// and what is done about extents that cannot be written.
//
// Step before: Batch::reserve. Step after: Batch::publish. No lock is held but the commit turn.
#pragma once

#include <cstdint>
#include <vector>

#include "core/batch.h"

namespace kvslot {

// Threads: one thread at a time, the holder of the commit turn.
class BatchWriter {
 public:
  BatchWriter(Volume::State& state, JournalRing& ring, Batch& batch)
      : state_(state), ring_(ring), batch_(batch) {}

  // Writes values and journal block. Changes that could not be written have their error set; the
  // others and the block are on the device (not flushed) when this returns.
  //   errors   the block itself could not be written: nothing of the batch counts
  Result<void> write();

  [[nodiscard]] const BatchRecord& measured() const { return measured_; }
  [[nodiscard]] std::uint64_t journal_bytes() const { return block_bytes_; }

 private:
  // Extents that go out in one request.
  struct Stretch {
    std::vector<PlannedExtent*> extents;
    std::vector<iovec> segments;
    std::uint32_t first_block = 0;
    std::uint32_t next_block = 0;
    std::uint64_t bytes = 0;
  };

  void prepare(PlannedChange& planned);
  void collect(bool only_failed, bool merge);
  void add(PlannedExtent& extent, bool merge);
  [[nodiscard]] Result<void> encode_block();
  [[nodiscard]] bool erase_block();
  [[nodiscard]] Result<void> repeat_failed();
  void append_block_requests(std::vector<IoRequest>& requests);
  // Runs what was collected, with the block when it has to be written; false: the block failed.
  [[nodiscard]] bool run(bool with_block);
  void run_data() { static_cast<void>(run(false)); }
  [[nodiscard]] bool any_failed() const;
  void report(const PlannedChange& planned, const char* action);
  void retry_elsewhere();
  void drop_failed();

  Volume::State& state_;
  JournalRing& ring_;
  Batch& batch_;
  BatchRecord measured_;
  std::vector<Stretch> stretches_;
  Buffer block_;
  std::uint64_t block_offset_ = 0;  // in the ring
  std::uint64_t block_bytes_ = 0;
  bool is_block_there_ = false;  // the device took a form of the block
  int block_error_ = 0;          // of the last attempt
  int lost_error_ = 0;           // set: the device is lost, and nothing more is tried
  JournalHeader header_;
  std::vector<iovec> block_segments_;
};

}  // namespace kvslot
