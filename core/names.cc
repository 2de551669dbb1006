// Names: lookup, create, remove, rename, attributes. Answered from memory; what changed is
// recorded, in order, for the next block.
//
// Shadows. A file that was never committed does not exist in the stored tree. When it takes the
// name of a stored one (rename over it), the stored one stays there, hidden, until the new file's
// first commit removes it in the same block: a crash leaves the old value or the new, never none.
// If the new file loses the name first, the hidden one is removed then.
//
// A file in the middle of its first commit (kStoring) is treated as unstored; what happened to its
// name meanwhile is recorded when the commit publishes (core/batch.cc).
#include <algorithm>
#include <cerrno>

#include "core/state.h"

namespace kvslot {
namespace {

std::uint32_t raw(NodeId node) { return static_cast<std::uint32_t>(node); }

Result<void> check_name(std::string_view name) {
  if (name.size() > kNameSizeBytesMax)
    return fail(Errc::kTooLarge, "a component of a key has at most 255 bytes", ENAMETOOLONG);
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string_view::npos ||
      name.find('\0') != std::string_view::npos)
    return fail(Errc::kInvalid, "not a name", EINVAL);
  return {};
}

Result<void> check_key(std::string_view key) {
  if (key.empty()) return fail(Errc::kInvalid, "an empty key", EINVAL);
  if (key.substr(0, key.find('/')) == kReservedName)
    return fail(Errc::kInvalid, "the name .kvslot is reserved", EPERM);
  for (std::size_t start = 0; start != std::string_view::npos;) {
    const std::size_t slash = key.find('/', start);
    if (auto ok = check_name(key.substr(start, slash - start)); !ok) return ok;
    start = slash == std::string_view::npos ? slash : slash + 1;
  }
  return {};
}

Result<void> check_directory(const Index& index, NodeId node) {
  if (!index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
  if (index.kind(node) != NodeKind::kDirectory)
    return fail(Errc::kWrongKind, "not a directory", ENOTDIR);
  return {};
}

// A directory in which something can be made.
Result<void> check_living_directory(const Index& index, NodeId node) {
  if (auto ok = check_directory(index, node); !ok) return ok;
  if (node != NodeId::kRoot && !index.is_linked(node))
    return fail(Errc::kNotFound, "the directory was removed", ENOENT);
  return {};
}

void touch_directory(Volume::State& state, NodeId directory, TimestampNs now)
    REQUIRES(state.mutex) {
  Attributes attributes = state.index.attributes(directory);
  attributes.mtime_ns = now;
  attributes.ctime_ns = now;
  state.index.set_attributes(directory, attributes);
  state.recorded.touched.insert(directory);
}

void stamp_ctime(Index& index, NodeId node, TimestampNs now) {
  Attributes attributes = index.attributes(node);
  attributes.ctime_ns = now;
  index.set_attributes(node, attributes);
}

}  // namespace

Result<NodeInfo> Volume::lookup(NodeId parent, std::string_view name, bool hold) {
  if (name.size() > kNameSizeBytesMax)
    return fail(Errc::kTooLarge, "a component of a key has at most 255 bytes", ENAMETOOLONG);
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (auto ok = check_directory(s.index, parent); !ok) return fail(ok);
  const NodeId node = s.index.find(parent, name);
  if (node == NodeId::kNone) return fail(Errc::kNotFound, "no such key", ENOENT);
  if (hold) s.hold_locked(node, 1);
  return s.info_of(node);
}

Result<NodeInfo> Volume::stat(NodeId node) const {
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (!s.index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
  return s.info_of(node);
}

namespace {

Result<NodeId> find_node(Volume::State& state, std::string_view key) REQUIRES(state.mutex) {
  const auto place = state.place_of(key, false, {});
  if (!place) return fail(place);
  if (place->node == NodeId::kNone) return fail(Errc::kNotFound, "no such key", ENOENT);
  return place->node;
}

}  // namespace

Result<NodeInfo> Volume::find(std::string_view key) const {
  State& s = *state_;
  MutexLock lock(s.mutex);
  const auto node = find_node(s, key);
  if (!node) return fail(node);
  return s.info_of(*node);
}

Result<NodeInfo> Volume::find_and_hold(std::string_view key) {
  State& s = *state_;
  MutexLock lock(s.mutex);
  const auto node = find_node(s, key);
  if (!node) return fail(node);
  s.hold_locked(*node, 1);
  return s.info_of(*node);
}

void Volume::hold(NodeId node, std::uint64_t count) {
  MutexLock lock(state_->mutex);
  state_->hold_locked(node, count);
}

void Volume::release(NodeId node, std::uint64_t count) {
  MutexLock lock(state_->mutex);
  state_->release_locked(node, count);
}

void Volume::State::hold_locked(NodeId node, std::uint64_t count) { holds[raw(node)] += count; }

void Volume::State::release_locked(NodeId node, std::uint64_t count) {
  const auto held = holds.find(raw(node));
  KVSLOT_CHECK(held != holds.end() && held->second >= count, "a hold is released once");
  if ((held.value() -= count) != 0) return;
  holds.erase(held);
  drop_if_unheld(node);
}

void Volume::State::drop_if_unheld(NodeId node) {
  if (holds.contains(raw(node)) || index.is_linked(node) || index.is_shadowed(node) ||
      node == NodeId::kRoot)
    return;
  std::uint64_t sequence = 0;
  if (const auto orphan = orphans.find(raw(node)); orphan != orphans.end()) {
    sequence = orphan->second;
    orphans.erase(orphan);
  }
  Extent scratch;
  doom_extents(index.extents(node, scratch), sequence);
  index.erase(node);
  update_checkpoint_reserve();
  reclaim();
}

NodeInfo Volume::State::info_of(NodeId node) const {
  NodeInfo info;
  info.node = node;
  info.linked = index.is_linked(node) || node == NodeId::kRoot;
  info.parent = index.is_linked(node) ? index.parent(node) : NodeId::kNone;
  info.id = index.object(node);
  info.kind = index.kind(node);
  info.attributes = index.attributes(node);
  info.size_bytes = index.size_bytes(node);
  info.stored = index.stored(node) == StoredState::kStored;
  if (info.kind == NodeKind::kDirectory) {
    info.subdirectory_count = index.subdirectory_count(node);
  } else if (index.extent_count(node) == 1) {
    Extent scratch;
    info.allocated_bytes = std::uint64_t{slots_of(index.extents(node, scratch)[0].size_bytes)} *
                           geometry.slot_size_bytes;
  } else if (index.extent_count(node) > 1) {
    Extent scratch;
    for (const SlotRun run : runs_of(index.extents(node, scratch)))
      info.allocated_bytes += std::uint64_t{run.count} * geometry.slot_size_bytes;
  }
  return info;
}

Result<NodeId> Volume::State::add_node(NodeId parent, std::string_view name, NodeKind kind,
                                       const Attributes& attributes, std::string_view target) {
  if (auto ok = admit_image_bytes(node_record_bytes(name.size(), target.size(), nullptr, 1)); !ok)
    return fail(ok);
  const auto object = ObjectId{next_object++};
  const bool is_file = kind == NodeKind::kFile;
  const NodeId node =
      index.add(object, kind, attributes, is_file ? StoredState::kUnstored : StoredState::kStored);
  if (!target.empty()) index.set_target(node, std::string(target));
  index.link(node, parent, name);
  if (!is_file) record(SetNode{index.image(node)});
  touch_directory(*this, parent, attributes.ctime_ns);
  update_checkpoint_reserve();
  return node;
}

Result<NodeInfo> Volume::create(NodeId parent, std::string_view name, NodeKind kind,
                                const Attributes& attributes, std::string_view target, bool hold) {
  if (auto ok = check_name(name); !ok) return fail(ok);
  if (kind == NodeKind::kSymlink && (target.empty() || target.size() > kSymlinkSizeBytesMax))
    return fail(Errc::kTooLarge, "a symbolic link has 1 to 4095 bytes", ENAMETOOLONG);
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (auto ok = s.admit_record(); !ok) return fail(ok);
  if (auto ok = check_living_directory(s.index, parent); !ok) return fail(ok);
  if (s.index.find(parent, name) != NodeId::kNone)
    return fail(Errc::kExists, "the name is taken", EEXIST);
  const auto node = s.add_node(parent, name, kind, s.with_times(attributes), target);
  if (!node) return fail(node);
  if (hold) s.hold_locked(*node, 1);
  const NodeInfo info = s.info_of(*node);
  lock.unlock();
  // A new file touches its directory only, which can wait for the file's own commit.
  if (kind != NodeKind::kFile) announce_records();
  return info;
}

Result<Volume::State::Place> Volume::State::place_of(std::string_view key, bool make_directories,
                                                     const Attributes& attributes) {
  Place place{.directory = NodeId::kRoot, .name = {}, .node = NodeId::kRoot};
  // All of the key is judged before anything is made for a part of it.
  if (auto ok = check_key(key); !ok) return fail(ok);
  while (true) {
    const std::size_t slash = key.find('/');
    place.name = key.substr(0, slash);
    place.node = index.find(place.directory, place.name);
    if (slash == std::string_view::npos) return place;
    key.remove_prefix(slash + 1);
    if (place.node == NodeId::kNone) {
      if (!make_directories) return fail(Errc::kNotFound, "no such key", ENOENT);
      Attributes of_directory = attributes;
      of_directory.mode |= (of_directory.mode & 0444) >> 2;  // who may read it may enter it
      const auto made =
          add_node(place.directory, place.name, NodeKind::kDirectory, of_directory, {});
      if (!made) return fail(made);
      place.node = *made;
    }
    if (index.kind(place.node) != NodeKind::kDirectory)
      return fail(Errc::kWrongKind, "a component of the key is a file", ENOTDIR);
    place.directory = place.node;
  }
}

void Volume::State::end_shadow(NodeId node) {
  const auto shadow = shadows.find(raw(node));
  if (shadow == shadows.end()) return;
  const NodeId hidden = shadow->second;
  shadows.erase(shadow);
  end_shadow(hidden);  // a file in its first commit may hide another: at most one a file in flight
  record(RemoveNode{index.object(hidden)});
  index.unlink(hidden);
  orphans[raw(hidden)] = next_sequence;
  drop_if_unheld(hidden);
}

void Volume::State::unhide(NodeId node) {
  const auto below = shadows.find(raw(node));
  const NodeId hidden = below == shadows.end() ? NodeId::kNone : below->second;
  if (below != shadows.end()) shadows.erase(below);
  for (auto shadow = shadows.begin(); shadow != shadows.end(); ++shadow) {
    if (shadow->second != node) continue;
    if (hidden != NodeId::kNone) {
      shadow.value() = hidden;
    } else {
      shadows.erase(shadow);
    }
    break;
  }
  index.unlink(node);
  orphans[raw(node)] = 0;
  drop_if_unheld(node);
}

void Volume::State::retire(NodeId node) {
  const StoredState stored = index.stored(node);
  end_shadow(node);
  index.unlink(node);
  stamp_ctime(index, node, now());
  if (stored == StoredState::kStored) record(RemoveNode{index.object(node)});
  // A file in its first commit is removed from the stored tree by that commit's publication.
  orphans[raw(node)] = stored == StoredState::kUnstored ? 0 : next_sequence;
  drop_if_unheld(node);
}

Result<void> Volume::remove(NodeId parent, std::string_view name, RemoveKind kind) {
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (auto ok = s.admit_record(); !ok) return ok;
  if (auto ok = check_directory(s.index, parent); !ok) return ok;
  const NodeId node = s.index.find(parent, name);
  if (node == NodeId::kNone) return fail(Errc::kNotFound, "no such key", ENOENT);
  const bool is_directory = s.index.kind(node) == NodeKind::kDirectory;
  if (kind == RemoveKind::kDirectory && !is_directory)
    return fail(Errc::kWrongKind, "not a directory", ENOTDIR);
  if (kind == RemoveKind::kNotDirectory && is_directory)
    return fail(Errc::kWrongKind, "a directory", EISDIR);
  if (is_directory && !s.index.is_empty(node))
    return fail(Errc::kWrongKind, "the directory is not empty", ENOTEMPTY);
  s.retire(node);
  touch_directory(s, parent, s.now());
  s.counters.removes.fetch_add(1, std::memory_order_relaxed);
  lock.unlock();
  announce_records();
  return {};
}

namespace {

struct Ends {
  NodeId from, to, source, target;
  std::string_view to_name;
};

Result<void> check_replace(const Index& index, const Ends& ends) {
  const bool source_is_directory = index.kind(ends.source) == NodeKind::kDirectory;
  if (source_is_directory && index.is_within(ends.to, ends.source))
    return fail(Errc::kInvalid, "a directory cannot move into itself", EINVAL);
  if (ends.target == NodeId::kNone) return {};
  const bool target_is_directory = index.kind(ends.target) == NodeKind::kDirectory;
  if (source_is_directory && !target_is_directory)
    return fail(Errc::kWrongKind, "not a directory", ENOTDIR);
  if (!source_is_directory && target_is_directory)
    return fail(Errc::kWrongKind, "a directory", EISDIR);
  if (target_is_directory && !index.is_empty(ends.target))
    return fail(Errc::kWrongKind, "the directory is not empty", ENOTEMPTY);
  return {};
}

}  // namespace

// Gives a linked node another name. The stored tree follows at once for a stored node.
static void move_node(Volume::State& s, NodeId node, NodeId to, std::string_view name,
                      std::uint64_t cookie) REQUIRES(s.mutex) {
  const std::string kept(name);  // `name` may be the node's own
  if (s.index.is_linked(node)) s.index.unlink(node);
  s.index.link(node, to, kept, cookie);
  stamp_ctime(s.index, node, s.now());
  if (s.index.stored(node) != StoredState::kStored) return;
  const std::uint64_t place = s.index.cookie(node);
  s.record(MoveNode{.object = s.index.object(node),
                    .parent = s.index.object(to),
                    .cookie = place == static_cast<std::uint64_t>(s.index.object(node)) ? 0 : place,
                    .ctime_ns = s.index.attributes(node).ctime_ns,
                    .name = kept});
}

static void replace_node(Volume::State& s, const Ends& ends) REQUIRES(s.mutex) {
  // The entry keeps its place in the listing, so that a reader meets the name exactly once. A node
  // that took the place of another must not fall back to its own: that may have been taken too.
  const std::uint64_t own_place = static_cast<std::uint64_t>(s.index.object(ends.source));
  std::uint64_t cookie = 0;
  if (ends.target != NodeId::kNone) {
    cookie = s.index.cookie(ends.target);
  } else if (s.index.cookie(ends.source) != own_place) {
    cookie = s.next_object++;
  }
  s.end_shadow(ends.source);  // the name it leaves is now free in the stored tree too
  if (ends.target != NodeId::kNone) {
    const bool hides = s.index.stored(ends.source) != StoredState::kStored;
    const auto inherited = s.shadows.find(raw(ends.target));
    if (hides && s.index.stored(ends.target) != StoredState::kUnstored) {
      s.index.shadow(ends.target);
      s.shadows[raw(ends.source)] = ends.target;
    } else if (hides && inherited != s.shadows.end()) {
      // One uncommitted file replaces another: the stored one below stays hidden by the new.
      const NodeId hidden = inherited->second;
      s.shadows.erase(inherited);
      s.shadows[raw(ends.source)] = hidden;
      s.retire(ends.target);
    } else {
      s.retire(ends.target);
    }
  }
  move_node(s, ends.source, ends.to, ends.to_name, cookie);
}

static void exchange_nodes(Volume::State& s, const Ends& ends) REQUIRES(s.mutex) {
  const std::string source_name(s.index.name(ends.source));
  const std::uint64_t source_cookie = s.index.cookie(ends.source);
  const std::uint64_t target_cookie = s.index.cookie(ends.target);
  s.end_shadow(ends.source);
  s.end_shadow(ends.target);
  s.index.unlink(ends.source);
  s.index.unlink(ends.target);
  move_node(s, ends.source, ends.to, ends.to_name, target_cookie);
  move_node(s, ends.target, ends.from, source_name, source_cookie);
}

Result<void> Volume::rename(NodeId from, std::string_view from_name, NodeId to,
                            std::string_view to_name, RenameMode mode) {
  if (auto ok = check_name(to_name); !ok) return ok;
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (auto ok = s.admit_record(); !ok) return ok;
  if (auto ok = check_directory(s.index, from); !ok) return ok;
  if (auto ok = check_living_directory(s.index, to); !ok) return ok;
  Ends ends{.from = from,
            .to = to,
            .source = s.index.find(from, from_name),
            .target = s.index.find(to, to_name),
            .to_name = to_name};
  if (ends.source == NodeId::kNone) return fail(Errc::kNotFound, "no such key", ENOENT);
  if (mode == RenameMode::kNoReplace && ends.target != NodeId::kNone)
    return fail(Errc::kExists, "the name is taken", EEXIST);
  if (mode == RenameMode::kExchange && ends.target == NodeId::kNone)
    return fail(Errc::kNotFound, "no such key", ENOENT);
  if (ends.source == ends.target) return {};
  if (to_name.size() > from_name.size())
    if (auto ok = s.admit_image_bytes(to_name.size() - from_name.size()); !ok) return ok;
  if (mode == RenameMode::kExchange) {
    if (s.index.is_within(to, ends.source) || s.index.is_within(from, ends.target))
      return fail(Errc::kInvalid, "a directory cannot move into itself", EINVAL);
    exchange_nodes(s, ends);
  } else {
    if (auto ok = check_replace(s.index, ends); !ok) return ok;
    replace_node(s, ends);
  }
  const TimestampNs now = s.now();
  touch_directory(s, from, now);
  if (to != from) touch_directory(s, to, now);
  s.update_checkpoint_reserve();
  s.counters.renames.fetch_add(1, std::memory_order_relaxed);
  lock.unlock();
  announce_records();
  return {};
}

Result<NodeInfo> Volume::set_attributes(NodeId node, const AttributeChange& change) {
  State& s = *state_;
  MutexLock lock(s.mutex);
  const bool waits = change.record && change.waits;
  if (auto ok = waits ? s.admit_record() : s.check_writable(); !ok) return fail(ok);
  if (!s.index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
  Attributes attributes = s.index.attributes(node);
  attributes.mode = change.mode.value_or(attributes.mode);
  attributes.uid = change.uid.value_or(attributes.uid);
  attributes.gid = change.gid.value_or(attributes.gid);
  attributes.atime_ns = change.atime_ns.value_or(attributes.atime_ns);
  attributes.mtime_ns = change.mtime_ns.value_or(attributes.mtime_ns);
  attributes.ctime_ns = change.ctime_ns.value_or(attributes.ctime_ns);
  s.index.set_attributes(node, attributes);
  const bool recorded = change.record && s.index.stored(node) == StoredState::kStored &&
                        (s.index.is_linked(node) || node == NodeId::kRoot);
  if (recorded) s.record(SetAttributes{s.index.object(node), attributes});
  const NodeInfo info = s.info_of(node);
  lock.unlock();
  if (recorded) announce_records();
  return info;
}

Result<std::string> Volume::symlink_target(NodeId node) const {
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (!s.index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
  if (s.index.kind(node) != NodeKind::kSymlink)
    return fail(Errc::kWrongKind, "not a symbolic link", EINVAL);
  return s.index.target(node);
}

Result<std::vector<DirectoryEntry>> Volume::list(NodeId directory, std::uint64_t cookie,
                                                 std::size_t count_max) const {
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (auto ok = check_directory(s.index, directory); !ok) return fail(ok);
  std::vector<DirectoryEntry> entries;
  for (const NodeId node : s.index.list(directory, cookie, count_max))
    entries.push_back({.name = std::string(s.index.name(node)),
                       .node = node,
                       .id = s.index.object(node),
                       .kind = s.index.kind(node),
                       .cookie = s.index.cookie(node)});
  return entries;
}

}  // namespace kvslot
