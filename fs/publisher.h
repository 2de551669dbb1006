// Takes the live content of files to the batcher and brings the results back: one commit at a
// time for each file, later requests coalesced into the next one.
//
// Step before: fs/filesystem (flush, fsync, release). Step after: Batcher::submit.
#pragma once

#include <kvslot/batcher.h>
#include <kvslot/error.h>
#include <kvslot/volume.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "fs/live_files.h"
#include "fs/reader_pool.h"

namespace kvslot {

inline constexpr std::uint64_t kSpillAboveBytes = 8 * kMiB;  // of one file's dirty windows
inline constexpr std::uint64_t kSpillBytesMax = 16 * kMiB;   // in one change
// Dirty windows that a commit may carry. What is above goes to the device before it, unpublished,
// so that the commit's record fits the journal however large the file is.
inline constexpr std::uint64_t kCommitBytesMax = 8 * kMiB;

// Threads: thread-safe. Never waits for the device on its caller's thread.
class Publisher {
 public:
  Publisher(Volume& volume, Batcher& batcher, ReaderPool& pool, LiveFiles& files);

  // Commits what the file holds now. The waiter's `done` is called from another thread or, where
  // there is nothing to wait for, from this one.
  //   owns     keeps the file: the handle that names it may be released as soon as `done` is called
  void commit(LiveFileRef file, CommitWaiter waiter);
  // The same without anybody waiting; what goes wrong is kept for the next flush or fsync.
  void commit(const LiveFileRef& file);

  // Goes back to the stored value, as soon as nothing of the file is in flight.
  void abandon(const LiveFileRef& file);

  // Commits every dirty file and makes everything before this call durable.
  void sync_all(Done done);

  // Sends complete windows ahead when the file holds many, or memory is short.
  void spill_if_large(const LiveFileRef& file);
  // Sends ahead whatever any file can spare. Returns whether something is on its way now.
  bool spill_anything();

  // Whether a write has to wait (see park) for a commit of the file that cannot begin otherwise,
  // because new windows come as fast as the dirty ones go to the device. Under the file's lock.
  [[nodiscard]] static bool is_commit_starved(LiveFile& file);

  // False after several spills in a row failed: waiting for memory would be waiting for ever.
  [[nodiscard]] bool can_spill() const { return failed_spills_ < 8; }

  // Called (from any thread but the one that serves a request) after memory was given back.
  void on_memory(std::function<void()> callback) { on_memory_ = std::move(callback); }
  [[nodiscard]] std::uint64_t in_flight() const { return in_flight_; }
  // Changes that were sent until now, and those of them that came back: in this order, or near it.
  [[nodiscard]] std::uint64_t flights() const { return ended_flights_ + in_flight_; }
  [[nodiscard]] std::uint64_t ended_flights() const { return ended_flights_; }
  [[nodiscard]] std::uint64_t commits() const { return commits_; }
  [[nodiscard]] std::uint64_t spills() const { return spills_; }

 private:
  // Who is to be told what, collected under the lock and called without it.
  struct Outcome {
    std::vector<CommitWaiter> waiters;
    Result<void> result;
    void add(std::vector<CommitWaiter>& from) {
      for (CommitWaiter& waiter : from) waiters.push_back(std::move(waiter));
      from.clear();
    }
  };

  void start(const LiveFileRef& file);
  void end_flight();
  void post_prepare(const LiveFileRef& file);
  void prepare(const LiveFileRef& file);
  Result<void> complete_windows(LiveFile& file);
  void complete_and_spill(const LiveFileRef& file);
  void submit(const LiveFileRef& file);
  void send_spill(const LiveFileRef& file, ContentChange change);
  Durability admit_waiters(LiveFile& file, Outcome& outcome);
  void record_times(LiveFile& file);
  void give_up(const LiveFileRef& file, const Error& error);
  void spill(const LiveFileRef& file, bool all);
  void submitted(const LiveFileRef& file, ContentChange change);
  void revert(LiveFile& file);
  void settle(LiveFile& file, const ContentChange& change, Outcome& outcome);
  void keep_error(LiveFile& file, const Error& error);
  void tell(Outcome outcome);
  bool is_linked(NodeId node) const;
  Result<void> read_base(LiveFile& file, const MissingBase& missing);
  void report(NodeId node, const Error& error, const char* action);

  Volume& volume_;
  Batcher& batcher_;
  ReaderPool& pool_;
  LiveFiles& files_;
  std::function<void()> on_memory_;
  std::atomic<std::uint64_t> in_flight_ = 0;  // changes, and windows being completed for one
  std::atomic<std::uint64_t> ended_flights_ = 0;
  std::atomic<std::uint64_t> commits_ = 0;
  std::atomic<std::uint64_t> spills_ = 0;
  std::atomic<std::uint64_t> failed_spills_ = 0;  // in a row
};

}  // namespace kvslot
