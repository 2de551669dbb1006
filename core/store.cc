// Keys and values over a Volume: what include/kvslot/store.h promises, with no mechanism of its
// own. Step after: core/put_combiner.* and Volume.
#include <kvslot/clock.h>
#include <kvslot/store.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/put_changes.h"
#include "core/put_combiner.h"

namespace kvslot {

ContentChange change_for_put(Volume& volume, std::string_view key, ConstBytes value) {
  ContentChange change;
  change.key = key;
  change.whole = true;
  change.size_bytes = value.size();
  const std::uint32_t window_bytes = volume.geometry().window_size_bytes();
  for (std::uint32_t window = 0; !value.empty(); ++window) {
    const ConstBytes part = value.first(std::min<std::size_t>(window_bytes, value.size()));
    WindowWrite write{.window = window,
                      .size_bytes = static_cast<std::uint32_t>(part.size()),
                      .data = volume.buffers().take_or_heap(part.size())};
    std::memcpy(write.data.data(), part.data(), part.size());
    change.writes.push_back(std::move(write));
    value = value.subspan(part.size());
  }
  return change;
}

struct Store::Combiner : PutCombiner {
  using PutCombiner::PutCombiner;
};

Store::Store(std::unique_ptr<Volume> volume, const BatcherOptions& options)
    : volume_(std::move(volume)),
      batcher_(std::make_unique<Batcher>(*volume_, options)),
      combiner_(std::make_unique<Combiner>(*volume_)) {}

Store::~Store() {
  if (volume_) static_cast<void>(close());
}

Result<std::unique_ptr<Store>> Store::open(std::unique_ptr<Device> device,
                                           const StoreOptions& options) {
  VolumeOptions of_volume = options.volume;
  of_volume.inline_checkpoints = false;  // the batcher's checkpointer does it
  auto volume = Volume::open(std::move(device), of_volume);
  if (!volume) return fail(volume);
  return std::unique_ptr<Store>(new Store(std::move(*volume), options.batcher));
}

PutOutcome Store::put_many(std::span<const Put> puts, const PutOptions& options) {
  std::vector<ContentChange> changes;
  changes.reserve(puts.size());
  for (const Put& put : puts) {
    changes.push_back(change_for_put(*volume_, put.key, put.value));
    changes.back().keep_existing = options.policy == PutPolicy::kKeep;
  }
  if (!changes.empty()) combiner_->run(changes, options.durability);
  PutOutcome outcome;
  outcome.results.reserve(puts.size());
  for (std::size_t i = 0; i < puts.size(); ++i) {
    outcome.results.push_back(changes[i].result);
    if (changes[i].result && changes[i].newly_stored) outcome.stored.emplace_back(puts[i].key);
  }
  return outcome;
}

Result<void> Store::put(std::string_view key, ConstBytes value, const PutOptions& options) {
  const Put put{key, value};
  return put_many({&put, 1}, options).results.front();
}

std::vector<PutFuture> Store::submit_put_many(AsyncPut put) {
  return batcher_->submit_put_many(std::move(put));
}

namespace {

// The files behind keys.
// They are held, so that their numbers stay theirs while others remove and put.
class FoundKeys {
 public:
  FoundKeys(Volume& volume, std::span<const std::string_view> keys) : volume_(volume) {
    for (const std::string_view key : keys) nodes_.push_back(volume.find_and_hold(key));
  }
  ~FoundKeys() {
    for (const auto& node : nodes_)
      if (node) volume_.release(node->node);
  }
  FoundKeys(const FoundKeys&) = delete;
  FoundKeys& operator=(const FoundKeys&) = delete;
  [[nodiscard]] const Result<NodeInfo>& operator[](std::size_t i) const { return nodes_[i]; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }

 private:
  Volume& volume_;
  std::vector<Result<NodeInfo>> nodes_;
};

std::vector<Result<ReadView>> read_whole(Volume& volume, const FoundKeys& nodes,
                                         std::span<const Bytes> targets) {
  std::vector<Volume::ReadRequest> requests;
  std::vector<std::size_t> origin;
  std::vector<Result<ReadView>> views(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i]) {
      views[i] = std::unexpected(nodes[i].error());
    } else if (nodes[i]->kind != NodeKind::kFile) {
      views[i] = fail(Errc::kWrongKind, "the key is a directory or a symbolic link", EISDIR);
    } else {
      requests.push_back({.node = nodes[i]->node,
                          .offset_bytes = 0,
                          .size_bytes = targets.empty() ? SIZE_MAX : targets[i].size(),
                          .whole = true,
                          .result = {}});
      origin.push_back(i);
    }
  }
  volume.read_many(requests);
  for (std::size_t n = 0; n < requests.size(); ++n)
    views[origin[n]] = std::move(requests[n].result);
  return views;
}

}  // namespace

std::vector<Result<std::string>> Store::get_many(std::span<const std::string_view> keys) {
  const FoundKeys nodes(*volume_, keys);
  std::vector<Result<std::string>> values;
  for (Result<ReadView>& view : read_whole(*volume_, nodes, {})) {
    if (!view) {
      values.push_back(fail(view));
      continue;
    }
    std::string value;
    value.reserve(view->size_bytes);
    for (const iovec& piece : view->pieces)
      value.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    values.push_back(std::move(value));
  }
  return values;
}

Result<std::string> Store::get(std::string_view key) {
  return std::move(get_many({&key, 1}).front());
}

std::vector<Result<std::size_t>> Store::get_many_into(std::span<const std::string_view> keys,
                                                      std::span<const Bytes> targets) {
  const FoundKeys nodes(*volume_, keys);
  std::vector<Result<std::size_t>> sizes;
  std::size_t next = 0;
  for (Result<ReadView>& view : read_whole(*volume_, nodes, targets)) {
    const Bytes target = targets[next++];
    if (!view) {
      sizes.push_back(fail(view));
      continue;
    }
    std::size_t done = 0;
    for (const iovec& piece : view->pieces) {
      std::memcpy(target.data() + done, piece.iov_base, piece.iov_len);
      done += piece.iov_len;
    }
    sizes.push_back(done);
  }
  return sizes;
}

bool Store::contains(std::string_view key) const { return exists_many({&key, 1}).front(); }

std::vector<bool> Store::exists_many(std::span<const std::string_view> keys) const {
  std::vector<bool> found;
  for (const std::string_view key : keys) {
    const auto node = volume_->find(key);
    found.push_back(node && node->kind == NodeKind::kFile);
  }
  return found;
}

bool Store::exists_inflight(std::string_view key) const {
  return exists_inflight_many({&key, 1}).front();
}

std::vector<bool> Store::exists_inflight_many(std::span<const std::string_view> keys) const {
  const auto inflight = volume_->inspector().inflight();
  std::vector<bool> found;
  for (const std::string_view key : keys)
    found.push_back(
        std::any_of(inflight.begin(), inflight.end(), [&](const InflightRecord& record) {
          return record.key == key && record.state != InflightState::kFlushing;
        }));
  return found;
}

namespace {

// A name in a directory that is held.
class SplitKey {
 public:
  SplitKey(Volume& volume, std::string_view name) : volume_(&volume), name_(name) {
    volume.hold(directory_);
  }
  SplitKey(SplitKey&& other) noexcept
      : volume_(std::exchange(other.volume_, nullptr)),
        directory_(other.directory_),
        name_(other.name_) {}
  SplitKey& operator=(SplitKey&&) = delete;
  ~SplitKey() {
    if (volume_ != nullptr) volume_->release(directory_);
  }

  // Goes on to a directory that is held for us, and to the name in it.
  void descend(NodeId held_directory, std::string_view name) {
    volume_->release(std::exchange(directory_, held_directory));
    name_ = name;
  }
  [[nodiscard]] NodeId directory() const { return directory_; }
  [[nodiscard]] std::string_view name() const { return name_; }

 private:
  Volume* volume_;
  NodeId directory_ = NodeId::kRoot;
  std::string_view name_;
};

// The directory of a key, which must exist.
Result<SplitKey> split(Volume& volume, std::string_view key) {
  SplitKey at(volume, key);
  const std::size_t slash = key.rfind('/');
  if (slash == std::string_view::npos) return at;
  const auto directory = volume.find_and_hold(key.substr(0, slash));
  if (!directory) return fail(directory);
  at.descend(directory->node, key.substr(slash + 1));
  return at;
}

// The directory of a key, made as far as it is missing.
Result<SplitKey> split_making(Volume& volume, std::string_view key) {
  SplitKey at(volume, key);
  for (std::size_t slash = at.name().find('/'); slash != std::string_view::npos;
       slash = at.name().find('/')) {
    const std::string_view component = at.name().substr(0, slash);
    auto next = volume.lookup(at.directory(), component, true);
    if (!next && next.error().code == Errc::kNotFound) {
      next =
          volume.create(at.directory(), component, NodeKind::kDirectory, {.mode = 0755}, {}, true);
    }
    if (!next) return fail(next);
    at.descend(next->node, at.name().substr(slash + 1));
    if (next->kind != NodeKind::kDirectory)
      return fail(Errc::kWrongKind, "a component of the key is a file", ENOTDIR);
  }
  return at;
}

}  // namespace

std::vector<Result<void>> Store::remove_many(std::span<const std::string_view> keys) {
  std::vector<Result<void>> results;
  for (const std::string_view key : keys) results.push_back(remove(key));
  return results;
}

Result<void> Store::remove(std::string_view key) {
  const auto at = split(*volume_, key);
  if (!at) return fail(at);
  return volume_->remove(at->directory(), at->name(), RemoveKind::kNotDirectory);
}

Result<void> Store::rename(std::string_view from, std::string_view to) {
  const auto source = split(*volume_, from);
  if (!source) return fail(source);
  if (auto there = volume_->lookup(source->directory(), source->name()); !there) return fail(there);
  // find() judges the whole key, so that a bad one makes no directories.
  if (const auto there = volume_->find(to); !there && there.error().code != Errc::kNotFound)
    return fail(there);
  const auto target = split_making(*volume_, to);
  if (!target) return fail(target);
  return volume_->rename(source->directory(), source->name(), target->directory(), target->name(),
                         RenameMode::kReplace);
}

namespace {

// A directory that is held, and what of it is still to be listed, the first entry last.
struct OpenDirectory {
  NodeId node = NodeId::kNone;
  std::size_t prefix_bytes = 0;  // of the key so far
  bool is_read = false;
  std::vector<DirectoryEntry> entries;
};

Result<std::vector<DirectoryEntry>> entries_backwards(Volume& volume, NodeId directory) {
  constexpr std::size_t kEntriesTogether = 1024;
  std::vector<DirectoryEntry> entries;
  for (std::uint64_t cookie = 0;;) {
    auto some = volume.list(directory, cookie, kEntriesTogether);
    if (!some) return fail(some);
    if (some->empty()) break;
    cookie = some->back().cookie;
    std::move(some->begin(), some->end(), std::back_inserter(entries));
  }
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name > b.name; });
  return entries;
}

// Goes down without recursion: directories nest as deep as somebody likes. `way` holds what its
// caller releases. What is removed meanwhile is left out.
Result<void> list_below(Volume& volume, std::string key, std::vector<OpenDirectory>& way,
                        std::vector<ListedKey>& keys) {
  while (!way.empty()) {
    OpenDirectory& in = way.back();
    key.resize(in.prefix_bytes);
    if (!in.is_read) {
      auto entries = entries_backwards(volume, in.node);
      if (!entries) return fail(entries);
      in.entries = std::move(*entries);
      in.is_read = true;
    }
    if (in.entries.empty()) {
      volume.release(in.node);
      way.pop_back();
      continue;
    }
    const DirectoryEntry entry = std::move(in.entries.back());
    in.entries.pop_back();
    if (entry.kind == NodeKind::kSymlink) continue;
    const auto node = volume.lookup(in.node, entry.name, true);
    if (!node) continue;
    if (!key.empty()) key += '/';
    key += entry.name;
    if (node->kind == NodeKind::kDirectory) {
      way.push_back({.node = node->node, .prefix_bytes = key.size(), .entries = {}});
      continue;
    }
    if (node->kind == NodeKind::kFile) keys.push_back({key, node->size_bytes});
    volume.release(node->node);
  }
  return {};
}

}  // namespace

Result<std::vector<ListedKey>> Store::list(std::string_view prefix) const {
  NodeId directory = NodeId::kRoot;
  if (prefix.empty()) {
    volume_->hold(directory);
  } else {
    const auto node = volume_->find_and_hold(prefix);
    if (!node) return fail(node);
    directory = node->node;
  }
  std::vector<ListedKey> keys;
  std::vector<OpenDirectory> way = {
      {.node = directory, .prefix_bytes = prefix.size(), .entries = {}}};
  const auto listed = list_below(*volume_, std::string(prefix), way, keys);
  for (const OpenDirectory& open : way) volume_->release(open.node);
  if (!listed) return fail(listed);
  return keys;
}

Result<void> Store::flush() { return volume_->flush(); }
Result<void> Store::checkpoint() { return volume_->checkpoint(); }

Result<void> Store::close() {
  batcher_->close();
  return volume_->close();
}

}  // namespace kvslot
