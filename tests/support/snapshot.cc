// See snapshot.h. Without gtest, as the fuzz targets use it too.
#include "tests/support/snapshot.h"

#include <algorithm>

namespace kvslot::testing {
namespace {

std::string text_of_view(const ReadView& view) {
  std::string text;
  for (const iovec& piece : view.pieces)
    text.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  return text;
}

std::optional<std::string> read_value(Volume& volume, const NodeInfo& info, std::size_t max) {
  const auto front = volume.read(info.node, 0, max);
  if (!front) return std::nullopt;
  std::string text = text_of_view(*front);
  if (info.size_bytes > max) {
    const auto back = volume.read(info.node, info.size_bytes - max, max);
    if (!back) return std::nullopt;
    text += text_of_view(*back);
  }
  return text;
}

bool describe(Volume& volume, const NodeInfo& info, std::size_t value_bytes_max,
              SnapshotEntry& entry) {
  entry.kind = info.kind;
  entry.size_bytes = info.kind == NodeKind::kDirectory ? 0 : info.size_bytes;
  entry.mode = info.attributes.mode;
  entry.mtime_ns = info.attributes.mtime_ns;
  const auto names = volume.list_xattrs(info.node);
  if (!names) return false;
  for (const std::string& name : *names) {
    const auto value = volume.xattr(info.node, name);
    if (!value) return false;
    entry.xattrs.emplace_back(name, *value);
  }
  std::sort(entry.xattrs.begin(), entry.xattrs.end());
  if (info.kind == NodeKind::kSymlink) {
    const auto target = volume.symlink_target(info.node);
    if (!target) return false;
    entry.target = *target;
  }
  if (info.kind == NodeKind::kFile) entry.value = read_value(volume, info, value_bytes_max);
  return true;
}

}  // namespace

std::optional<Snapshot> take_snapshot(Volume& volume, const SnapshotLimits& limits) {
  constexpr std::size_t kEntriesTogether = 64;
  Snapshot snapshot;
  const auto root = volume.stat(NodeId::kRoot);
  if (!root || !describe(volume, *root, limits.value_bytes_max, snapshot[""])) return std::nullopt;
  std::vector<std::pair<NodeId, std::string>> directories = {{NodeId::kRoot, ""}};
  while (!directories.empty()) {
    const auto [directory, prefix] = directories.back();
    directories.pop_back();
    for (std::uint64_t cookie = 0;;) {
      const auto entries = volume.list(directory, cookie, kEntriesTogether);
      if (!entries) return std::nullopt;
      if (entries->empty()) break;
      for (const DirectoryEntry& entry : *entries) {
        if (entry.cookie <= cookie) return std::nullopt;  // a listing that does not advance
        cookie = entry.cookie;
        const std::string key = prefix + entry.name;
        const auto info = volume.lookup(directory, entry.name);
        if (!info || info->node != entry.node) return std::nullopt;
        if (snapshot.size() >= limits.entries_max) return snapshot;
        if (!describe(volume, *info, limits.value_bytes_max, snapshot[key])) return std::nullopt;
        if (info->kind == NodeKind::kDirectory) directories.emplace_back(info->node, key + '/');
      }
    }
  }
  return snapshot;
}

std::vector<std::string> unreadable(const Snapshot& snapshot) {
  std::vector<std::string> keys;
  for (const auto& [key, entry] : snapshot)
    if (entry.kind == NodeKind::kFile && !entry.value) keys.push_back(key);
  return keys;
}

std::string difference(const Snapshot& left, const Snapshot& right, bool forgives_unreadable) {
  for (const auto& [key, entry] : left) {
    const auto found = right.find(key);
    if (found == right.end()) return "'" + key + "' is missing";
    SnapshotEntry other = found->second;
    if (forgives_unreadable && other.kind == NodeKind::kFile && !other.value)
      other.value = entry.value;
    if (entry.value != other.value) return "'" + key + "' has another value";
    if (!(entry == other)) return "'" + key + "' has other attributes";
  }
  for (const auto& [key, entry] : right)
    if (!left.contains(key)) return "'" + key + "' should not be there";
  return {};
}

}  // namespace kvslot::testing
