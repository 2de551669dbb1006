// Snapshots and cursors. See pseudo_handles.h; the step after is fs/pseudo_render.
#include "fs/pseudo_handles.h"

#include <algorithm>
#include <utility>

#include "fs/pseudo_render.h"

namespace kvslot {
namespace {

// Records asked of the engine at once: bounds how long it holds its lock, and the memory here.
constexpr std::size_t kRecordsPerStepMax = 256;

std::string part_of(const std::string& text, std::uint64_t offset_bytes, std::size_t size_bytes) {
  return offset_bytes >= text.size() ? std::string() : text.substr(offset_bytes, size_bytes);
}

class SnapshotHandle : public PseudoHandle {
 public:
  SnapshotHandle(std::string text, std::function<std::string()> complete, std::uint64_t node,
                 std::shared_ptr<SnapshotSizes> sizes)
      : text_(std::move(text)),
        complete_(std::move(complete)),
        node_(node),
        sizes_(std::move(sizes)) {
    sizes_->opened(node_, text_.size());
  }
  ~SnapshotHandle() override { sizes_->closed(node_); }
  [[nodiscard]] bool waits_for_device() const override { return complete_ != nullptr; }
  SnapshotHandle(const SnapshotHandle&) = delete;
  SnapshotHandle& operator=(const SnapshotHandle&) = delete;

  Result<std::string> read(std::uint64_t offset_bytes, std::size_t size_bytes) override {
    if (complete_) text_ = std::exchange(complete_, nullptr)();
    return part_of(text_, offset_bytes, size_bytes);
  }

 private:
  std::string text_;
  std::function<std::string()> complete_;  // empty once it ran
  const std::uint64_t node_;
  const std::shared_ptr<SnapshotSizes> sizes_;
};

// Serves any offset of a text that is made step by step and of which only a window is kept.
class CursorHandle : public PseudoHandle {
 public:
  Result<std::string> read(std::uint64_t offset_bytes, std::size_t size_bytes) override {
    if (offset_bytes < window_offset_bytes_) start_again();
    drop_before(offset_bytes);
    while (!is_done_ && offset_bytes + size_bytes > window_offset_bytes_ + window_.size()) {
      const std::string step = next();
      is_done_ = step.empty();
      window_ += step;
      drop_before(offset_bytes);
    }
    return offset_bytes < window_offset_bytes_ + window_.size()
               ? part_of(window_, offset_bytes - window_offset_bytes_, size_bytes)
               : std::string();
  }

 protected:
  explicit CursorHandle(std::string_view header) : header_(header), window_(header) {}
  virtual void restart() = 0;
  virtual std::string next() = 0;  // some lines; empty when there are no more

 private:
  void start_again() {
    restart();
    window_ = header_;
    window_offset_bytes_ = 0;
    is_done_ = false;
  }

  // Keeps the bytes from the offset on: a reader that asks for the same range again gets it.
  void drop_before(std::uint64_t offset_bytes) {
    const std::uint64_t passed = offset_bytes - window_offset_bytes_;
    const std::size_t count = std::min<std::uint64_t>(passed, window_.size());
    window_.erase(0, count);
    window_offset_bytes_ += count;
  }

  const std::string_view header_;
  std::string window_;
  std::uint64_t window_offset_bytes_ = 0;
  bool is_done_ = false;
};

class IndexHandle : public CursorHandle {
 public:
  IndexHandle(const Inspector& inspector, std::function<LiveNodeInfo(NodeId)> live_node)
      : CursorHandle(kIndexHeader), inspector_(inspector), live_node_(std::move(live_node)) {}

 private:
  void restart() override { cursor_ = 0; }
  std::string next() override {
    std::string lines;
    for (const NodeRecord& record : inspector_.nodes(cursor_, kRecordsPerStepMax)) {
      lines += render_index_line(record, live_node_ ? live_node_(record.node) : LiveNodeInfo{});
    }
    return lines;
  }

  const Inspector& inspector_;
  const std::function<LiveNodeInfo(NodeId)> live_node_;
  std::uint32_t cursor_ = 0;
};

class SlotsHandle : public CursorHandle {
 public:
  explicit SlotsHandle(const Inspector& inspector)
      : CursorHandle(kSlotsHeader), inspector_(inspector) {}

 private:
  void restart() override { cursor_ = 0; }
  std::string next() override {
    std::string lines;
    for (const SlotRecord& record : inspector_.slots(cursor_)) lines += render_slots_line(record);
    return lines;
  }

  const Inspector& inspector_;
  std::uint32_t cursor_ = 0;
};

}  // namespace

void SnapshotSizes::opened(std::uint64_t node, std::uint64_t size_bytes) {
  const MutexLock lock(mutex_);
  Open& open = open_[node];
  ++open.count;
  open.size_bytes = size_bytes;
}

void SnapshotSizes::closed(std::uint64_t node) {
  const MutexLock lock(mutex_);
  const auto found = open_.find(node);
  if (found != open_.end() && --found->second.count == 0) open_.erase(found);
}

std::optional<std::uint64_t> SnapshotSizes::size_bytes(std::uint64_t node) const {
  const MutexLock lock(mutex_);
  const auto found = open_.find(node);
  if (found == open_.end()) return std::nullopt;
  return found->second.size_bytes;
}

std::unique_ptr<PseudoHandle> open_snapshot(std::string text, std::uint64_t node,
                                            std::shared_ptr<SnapshotSizes> sizes) {
  return open_late_snapshot(std::move(text), nullptr, node, std::move(sizes));
}

std::unique_ptr<PseudoHandle> open_late_snapshot(std::string text,
                                                 std::function<std::string()> complete,
                                                 std::uint64_t node,
                                                 std::shared_ptr<SnapshotSizes> sizes) {
  return std::make_unique<SnapshotHandle>(std::move(text), std::move(complete), node,
                                          std::move(sizes));
}

std::unique_ptr<PseudoHandle> open_index(const Inspector& inspector,
                                         std::function<LiveNodeInfo(NodeId)> live_node) {
  return std::make_unique<IndexHandle>(inspector, std::move(live_node));
}

std::unique_ptr<PseudoHandle> open_slots(const Inspector& inspector) {
  return std::make_unique<SlotsHandle>(inspector);
}

}  // namespace kvslot
