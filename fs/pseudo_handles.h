// Open pseudo-files: a snapshot of a bounded one, a cursor over an unbounded one.
// Made by fs/pseudo_tree; read by fs/operations.
#pragma once

#include <kvslot/mutex.h>
#include <kvslot/volume.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "fs/pseudo_tree.h"

namespace kvslot {

// The size of the newest open snapshot of each node, so that fstat(2) after open(2) tells what a
// reader is going to get.
// Threads: thread-safe.
class SnapshotSizes {
 public:
  void opened(std::uint64_t node, std::uint64_t size_bytes);
  void closed(std::uint64_t node);
  [[nodiscard]] std::optional<std::uint64_t> size_bytes(std::uint64_t node) const;

 private:
  struct Open {
    std::uint64_t count = 0;
    std::uint64_t size_bytes = 0;
  };
  mutable Mutex mutex_;
  std::map<std::uint64_t, Open> open_ GUARDED_BY(mutex_);
};

// Text rendered at open.
std::unique_ptr<PseudoHandle> open_snapshot(std::string text, std::uint64_t node,
                                            std::shared_ptr<SnapshotSizes> sizes);

// A snapshot whose text is as long as `text` but needs the device: `complete` makes it at the
// first read.
std::unique_ptr<PseudoHandle> open_late_snapshot(std::string text,
                                                 std::function<std::string()> complete,
                                                 std::uint64_t node,
                                                 std::shared_ptr<SnapshotSizes> sizes);

// Lines made as they are read, in memory that does not grow with the number of records.
std::unique_ptr<PseudoHandle> open_index(const Inspector& inspector,
                                         std::function<LiveNodeInfo(NodeId)> live_node);
std::unique_ptr<PseudoHandle> open_slots(const Inspector& inspector);

}  // namespace kvslot
