// Extended attributes of nodes: part of the index, recorded whole.
#include <algorithm>
#include <cerrno>

#include "core/state.h"

namespace kvslot {
namespace {

auto find_xattr(Xattrs& xattrs, std::string_view name) {
  return std::find_if(xattrs.begin(), xattrs.end(),
                      [&](const auto& entry) { return entry.first == name; });
}

// Stores a changed set and records it for a node that the stored tree knows.
void replace_xattrs(Volume::State& s, NodeId node, Xattrs xattrs) REQUIRES(s.mutex) {
  Attributes attributes = s.index.attributes(node);
  attributes.ctime_ns = s.now();
  s.index.set_attributes(node, attributes);
  s.index.set_xattrs(node, xattrs);
  s.update_checkpoint_reserve();
  if (s.index.stored(node) == StoredState::kStored &&
      (s.index.is_linked(node) || node == NodeId::kRoot))
    s.record(SetXattrs{s.index.object(node), attributes.ctime_ns, std::move(xattrs)});
}

}  // namespace

Result<std::string> Volume::xattr(NodeId node, std::string_view name) const {
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (!s.index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
  for (const auto& [key, value] : s.index.xattrs(node))
    if (key == name) return value;
  return fail(Errc::kNotFound, "no such attribute", ENODATA);
}

Result<std::vector<std::string>> Volume::list_xattrs(NodeId node) const {
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (!s.index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
  std::vector<std::string> names;
  for (const auto& [key, value] : s.index.xattrs(node)) names.push_back(key);
  return names;
}

Result<void> Volume::set_xattr(NodeId node, std::string_view name, std::string_view value,
                               XattrMode mode) {
  if (name.empty() || name.size() > kNameSizeBytesMax)
    return fail(Errc::kTooLarge, "an attribute's name has 1 to 255 bytes", ERANGE);
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (auto ok = s.admit_record(); !ok) return ok;
  if (!s.index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
  Xattrs xattrs = s.index.xattrs(node);
  const auto found = find_xattr(xattrs, name);
  if (mode == XattrMode::kCreate && found != xattrs.end())
    return fail(Errc::kExists, "the attribute exists", EEXIST);
  if (mode == XattrMode::kReplace && found == xattrs.end())
    return fail(Errc::kNotFound, "no such attribute", ENODATA);
  if (found != xattrs.end()) {
    found->second = std::string(value);
  } else {
    xattrs.emplace_back(name, value);
  }
  if (xattrs_bytes(xattrs) > kXattrSizeBytesMax)
    return fail(Errc::kNoSpace, "all attributes of a key have at most 64 KiB", ENOSPC);
  if (auto ok = s.admit_image_bytes(name.size() + value.size() + 8); !ok) return ok;
  replace_xattrs(s, node, std::move(xattrs));
  lock.unlock();
  announce_records();
  return {};
}

Result<void> Volume::remove_xattr(NodeId node, std::string_view name) {
  State& s = *state_;
  MutexLock lock(s.mutex);
  if (auto ok = s.admit_record(); !ok) return ok;
  if (!s.index.is_valid(node)) return fail(Errc::kNotFound, "no such node", ENOENT);
  Xattrs xattrs = s.index.xattrs(node);
  const auto found = find_xattr(xattrs, name);
  if (found == xattrs.end()) return fail(Errc::kNotFound, "no such attribute", ENODATA);
  xattrs.erase(found);
  replace_xattrs(s, node, std::move(xattrs));
  lock.unlock();
  announce_records();
  return {};
}

}  // namespace kvslot
