// See value_input.h. A small value is one put. A large one is written window by window into slots
// that nothing names yet, and one commit then makes them the value.
#include "fs/cli/value_input.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "fs/text.h"

namespace kvslot::cli {
namespace {

constexpr std::size_t kSmallSizeBytesMax = 16 * kMiB;
constexpr std::size_t kPieceSizeBytes = 8 * kMiB;  // of a large value, on its way at once

using Outcome = std::expected<void, InputFailure>;

std::unexpected<InputFailure> source_failed() {
  return std::unexpected(InputFailure{
      .is_source = true, .error = {.code = Errc::kIo, .os_errno = errno, .step = "read"}});
}

std::unexpected<InputFailure> store_failed(const Error& error) {
  return std::unexpected(InputFailure{.is_source = false, .error = error});
}

// Fills the target as far as the descriptor goes.
std::expected<std::size_t, InputFailure> read_up_to(int fd, Bytes target) {
  std::size_t done = 0;
  while (done < target.size()) {
    const ssize_t count = ::read(fd, target.data() + done, target.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return source_failed();
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

// A value under way into slots. Unless commit() succeeds, everything is as before when it is gone.
class LargeValue {
 public:
  explicit LargeValue(Volume& volume) : volume_(volume) {}
  ~LargeValue() {
    if (is_committed_) return;
    volume_.discard_placed(placed_);
    for (auto made = made_.rbegin(); made != made_.rend(); ++made) {
      (void)volume_.remove(made->parent, made->name, made->kind);  // nothing more can be done
    }
  }
  LargeValue(const LargeValue&) = delete;
  LargeValue& operator=(const LargeValue&) = delete;

  // Finds the key's file, or makes it and its directories.
  Result<void> open(std::string_view key) {
    const auto there = volume_.find(key);  // judges all of the key before anything is made
    if (!there && there.error().code != Errc::kNotFound) return fail(there);
    NodeId directory = NodeId::kRoot;
    for (std::size_t slash = 0; (slash = key.find('/')) != std::string_view::npos;) {
      const auto next = find_or_make(directory, key.substr(0, slash), NodeKind::kDirectory);
      if (!next) return fail(next);
      directory = next->node;
      key.remove_prefix(slash + 1);
    }
    const auto file = find_or_make(directory, key, NodeKind::kFile);
    if (!file) return fail(file);
    node_ = file->node;
    return {};
  }

  [[nodiscard]] std::uint32_t window_size_bytes() const {
    return volume_.geometry().window_size_bytes();
  }

  // Adds a window to the next write; all but the last are full.
  void add(Buffer data, std::size_t size_bytes) {
    writes_.push_back({.window = window_count_++,
                       .size_bytes = static_cast<std::uint32_t>(size_bytes),
                       .data = std::move(data)});
    size_bytes_ += size_bytes;
    pending_bytes_ += size_bytes;
  }

  [[nodiscard]] bool is_piece_full() const { return pending_bytes_ >= kPieceSizeBytes; }

  // Writes what was added.
  Result<void> place() {
    pending_bytes_ = 0;
    if (writes_.empty()) return {};
    ContentChange change = new_change();
    change.place_only = true;
    change.writes = std::exchange(writes_, {});
    volume_.commit({&change, 1});
    std::ranges::move(change.placed, std::back_inserter(placed_));
    return change.result;
  }

  Result<void> commit() {
    ContentChange change = new_change();
    change.whole = true;
    change.placed = placed_;
    volume_.commit({&change, 1});
    is_committed_ = change.result.has_value();
    return change.result;
  }

 private:
  struct Made {
    NodeId parent;
    std::string name;
    RemoveKind kind;
  };

  [[nodiscard]] ContentChange new_change() const {
    ContentChange change;
    change.node = node_;
    change.size_bytes = size_bytes_;
    return change;
  }

  Result<NodeInfo> find_or_make(NodeId parent, std::string_view name, NodeKind kind) {
    auto found = volume_.lookup(parent, name);
    if (found && found->kind != kind) return fail(Errc::kWrongKind, "key: another kind is there");
    if (found || found.error().code != Errc::kNotFound) return found;
    const TimestampNs now = wall_clock_ns();
    const Attributes attributes{.mode = kind == NodeKind::kDirectory ? 0755U : 0644U,
                                .uid = ::geteuid(),
                                .gid = ::getegid(),
                                .atime_ns = now,
                                .mtime_ns = now,
                                .ctime_ns = now};
    auto made = volume_.create(parent, name, kind, attributes);
    if (!made) return made;
    made_.push_back({.parent = parent,
                     .name = std::string(name),
                     .kind = kind == NodeKind::kDirectory ? RemoveKind::kDirectory
                                                          : RemoveKind::kNotDirectory});
    return made;
  }

  Volume& volume_;
  NodeId node_ = NodeId::kNone;
  std::uint64_t size_bytes_ = 0;
  std::uint32_t window_count_ = 0;
  std::size_t pending_bytes_ = 0;
  std::vector<WindowWrite> writes_;
  std::vector<PlacedWindow> placed_;
  std::vector<Made> made_;
  bool is_committed_ = false;
};

// The bytes that were read already, then what the descriptor still holds.
class Source {
 public:
  Source(ConstBytes head, int fd) : head_(head), fd_(fd) {}

  std::expected<std::size_t, InputFailure> fill(Bytes target) {
    const std::size_t count = std::min(head_.size(), target.size());
    std::ranges::copy(head_.first(count), target.begin());
    head_ = head_.subspan(count);
    const auto more = read_up_to(fd_, target.subspan(count));
    if (!more) return more;
    return count + *more;
  }

 private:
  ConstBytes head_;
  int fd_;
};

Outcome store_large(Volume& volume, const std::string& key, Source source) {
  LargeValue value(volume);
  if (const auto opened = value.open(key); !opened) return store_failed(opened.error());
  const std::size_t window_size_bytes = value.window_size_bytes();
  for (bool is_at_end = false; !is_at_end;) {
    Buffer window = volume.buffers().take_or_heap(window_size_bytes);
    const auto filled = source.fill(window.first(window_size_bytes));
    if (!filled) return std::unexpected(filled.error());
    is_at_end = *filled < window_size_bytes;
    if (*filled > 0) value.add(std::move(window), *filled);
    if (!is_at_end && !value.is_piece_full()) continue;
    if (const auto placed = value.place(); !placed) return store_failed(placed.error());
  }
  const auto committed = value.commit();
  return committed ? Outcome{} : store_failed(committed.error());
}

}  // namespace

std::expected<void, InputFailure> store_value(Store& store, const std::string& key, int fd) {
  std::vector<std::byte> head(kSmallSizeBytesMax);
  const auto read = read_up_to(fd, head);
  if (!read) return std::unexpected(read.error());
  if (*read == head.size()) return store_large(store.volume(), key, Source(head, fd));
  const auto stored = store.put(key, std::span(head).first(*read));
  return stored ? Outcome{} : store_failed(stored.error());
}

}  // namespace kvslot::cli
