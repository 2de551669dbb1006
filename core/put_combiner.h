// Synchronous puts of many threads become one commit. The first to come leads: it commits what has
// gathered, its own included, on its own thread; those who come meanwhile wait, and the first of
// them leads next. A single thread never waits for another.
//
// Step before: core/store.cc. Step after: Volume::commit.
#pragma once

#include <kvslot/mutex.h>
#include <kvslot/volume.h>

#include <span>
#include <vector>

namespace kvslot {

// Threads: thread-safe.
class PutCombiner {
 public:
  explicit PutCombiner(Volume& volume) : volume_(volume) {}

  // Returns when every change has its result and, if asked, is durable; a failed flush is the
  // result of every change it concerns.
  void run(std::span<ContentChange> changes, Durability durability);

  // Calls that have come and will be part of the next commit.
  [[nodiscard]] std::size_t waiting_count() const;

 private:
  struct Waiting {
    std::span<ContentChange> changes;
    Durability durability;
    bool done = false;
  };
  void lead(std::vector<Waiting*> group) EXCLUDES(mutex_);

  Volume& volume_;
  mutable Mutex mutex_;
  Condition changed_;
  std::vector<Waiting*> waiting_ GUARDED_BY(mutex_);
  bool has_leader_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvslot
