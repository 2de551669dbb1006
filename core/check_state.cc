// Applies records the way that core/LAYOUT.md "Recovery" says, without a line of recovery's code.
#include "core/check_state.h"

#include <algorithm>

#include "core/layout.h"

namespace kvslot {
namespace {

constexpr std::uint64_t kDeadExtentsMax = 1 << 20;
constexpr int kComponentsShown = 1024;  // a circle of directories would have no end

std::uint64_t raw(ObjectId object) { return static_cast<std::uint64_t>(object); }

}  // namespace

void append_escaped(std::string& text, std::string_view name) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\') {
      text += "\\\\";
    } else if (byte < 0x20 || byte == 0x7f) {
      text += "\\x";
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    } else {
      text += c;
    }
  }
}

void CheckedState::clear() {
  nodes_.clear();
  unused_.clear();
  by_object_.clear();
  names_.clear();
  targets_.clear();
  extras_.clear();
  extents_.clear();
  dead_extents_ = 0;
  tail_.clear();
  quarantined_.clear();
  static_cast<void>(make_node(raw(ObjectId::kRoot), NodeKind::kDirectory));
}

void CheckedState::apply(Record record, std::uint64_t sequence) {
  std::visit([&](auto& body) { apply_body(body, sequence); }, record);
}

void CheckedState::forget_tail_upto(std::uint64_t sequence) {
  while (!tail_.empty() && tail_.front().sequence <= sequence) tail_.pop_front();
}

std::uint32_t CheckedState::find(std::uint64_t object) const {
  const auto found = by_object_.find(object);
  return found == by_object_.end() ? kNowhere : found->second;
}

std::string_view CheckedState::name(const CheckedNode& node) const {
  return {names_.data() + node.name_at, node.name_bytes};
}

std::string CheckedState::target(const CheckedNode& node) const {
  const auto found = targets_.find(node.object);
  return found == targets_.end() ? std::string() : found->second;
}

const NodeExtras* CheckedState::extras(const CheckedNode& node) const {
  const auto found = extras_.find(node.object);
  return found == extras_.end() ? nullptr : &found->second;
}

std::span<const Extent> CheckedState::extents(const CheckedNode& node) const {
  return std::span(extents_).subspan(node.extents_at, node.extent_count);
}

bool CheckedState::owns(const TailExtent& tail) const {
  const std::uint32_t found = find(raw(tail.object));
  if (found == kNowhere) return false;
  const auto content = extents(nodes_[found]);
  const auto at = std::partition_point(content.begin(), content.end(), [&](const Extent& e) {
    return e.file_block < tail.extent.file_block;
  });
  return at != content.end() && *at == tail.extent;
}

std::string CheckedState::quoted_key(const CheckedNode& node) const {
  std::vector<const CheckedNode*> way;
  const CheckedNode* next = &node;
  bool is_whole = false;
  for (int i = 0; i < kComponentsShown; ++i) {
    is_whole = next->object == raw(ObjectId::kRoot);
    if (is_whole) break;
    way.push_back(next);
    const std::uint32_t parent = find(next->parent);
    if (parent == kNowhere) break;
    next = &nodes_[parent];
  }
  if (way.size() == kComponentsShown) way.resize(1);
  std::string text = is_whole ? "'" : "'?/";
  for (std::size_t i = way.size(); i-- > 0;) {
    append_escaped(text, name(*way[i]));
    if (i != 0) text += '/';
  }
  return text += "'";
}

CheckedNode& CheckedState::make_node(std::uint64_t object, NodeKind kind) {
  std::uint32_t place = 0;
  if (unused_.empty()) {
    place = static_cast<std::uint32_t>(nodes_.size());
    nodes_.emplace_back();
  } else {
    place = unused_.back();
    unused_.pop_back();
  }
  by_object_[object] = place;
  nodes_[place] = CheckedNode();
  nodes_[place].object = object;
  nodes_[place].kind = kind;
  return nodes_[place];
}

void CheckedState::set_name(CheckedNode& node, std::uint64_t parent, std::uint64_t cookie,
                            std::string_view name) {
  node.parent = parent;
  node.cookie = cookie == 0 ? node.object : cookie;
  if (name.size() > node.name_bytes) {
    node.name_at = names_.size();
    names_.resize(names_.size() + name.size());
  }
  node.name_bytes = static_cast<std::uint8_t>(name.size());
  std::copy(name.begin(), name.end(), names_.begin() + static_cast<std::ptrdiff_t>(node.name_at));
}

void CheckedState::set_content(CheckedNode& node, std::uint64_t size_bytes,
                               std::span<const Extent> extents) {
  node.size_bytes = size_bytes;
  if (extents.size() > node.extent_count) {
    dead_extents_ += node.extent_count;
    node.extent_count = 0;
    if (dead_extents_ > kDeadExtentsMax && dead_extents_ > extents_.size() / 2) compact_extents();
    node.extents_at = extents_.size();
    extents_.resize(extents_.size() + extents.size());
  } else {
    dead_extents_ += node.extent_count - extents.size();
  }
  node.extent_count = static_cast<std::uint32_t>(extents.size());
  std::copy(extents.begin(), extents.end(),
            extents_.begin() + static_cast<std::ptrdiff_t>(node.extents_at));
}

void CheckedState::compact_extents() {
  std::vector<Extent> kept;
  kept.reserve(extents_.size() - dead_extents_);
  for (CheckedNode& node : nodes_) {
    const auto content = extents(node);
    node.extents_at = kept.size();
    kept.insert(kept.end(), content.begin(), content.end());
  }
  extents_ = std::move(kept);
  dead_extents_ = 0;
}

void CheckedState::note_extents(ObjectId object, std::span<const Extent> extents,
                                std::uint64_t sequence) {
  if (sequence == 0) return;
  for (const Extent& extent : extents) tail_.push_back({sequence, object, extent});
}

void CheckedState::apply_body(SetNode& record, std::uint64_t sequence) {
  const NodeImage& image = record.image;
  note_extents(image.object, image.extents, sequence);
  const std::uint32_t found = find(raw(image.object));
  CheckedNode& node = found == kNowhere ? make_node(raw(image.object), image.kind) : nodes_[found];
  set_content(node, image.size_bytes, image.extents);
  if (!image.target.empty()) targets_[raw(image.object)] = image.target;
  if (keeps_extras_) extras_[raw(image.object)] = {image.attributes, image.xattrs};
  set_name(node, raw(image.parent), image.cookie, image.name);
}

void CheckedState::apply_body(MoveNode& record, std::uint64_t) {
  const std::uint32_t found = find(raw(record.object));
  if (found != kNowhere) set_name(nodes_[found], raw(record.parent), record.cookie, record.name);
}

void CheckedState::apply_body(RemoveNode& record, std::uint64_t) {
  const std::uint32_t found = find(raw(record.object));
  if (found == kNowhere || record.object == ObjectId::kRoot) return;
  by_object_.erase(raw(record.object));
  targets_.erase(raw(record.object));
  extras_.erase(raw(record.object));
  dead_extents_ += nodes_[found].extent_count;
  nodes_[found] = CheckedNode();
  unused_.push_back(found);
}

NodeExtras* CheckedState::known_extras(ObjectId object) {
  const auto found = extras_.find(raw(object));
  return found == extras_.end() ? nullptr : &found.value();
}

void CheckedState::apply_body(SetAttributes& record, std::uint64_t) {
  if (NodeExtras* const extras = known_extras(record.object))
    extras->attributes = record.attributes;
}

void CheckedState::apply_body(SetXattrs& record, std::uint64_t) {
  if (NodeExtras* const extras = known_extras(record.object))
    extras->xattrs = std::move(record.xattrs);
}

void CheckedState::apply_body(PatchContent& record, std::uint64_t sequence) {
  const std::uint32_t found = find(raw(record.object));
  if (found == kNowhere) return;
  if (NodeExtras* const extras = known_extras(record.object))
    extras->attributes = record.attributes;
  std::vector<Extent> content;
  std::vector<std::uint32_t> windows;
  for (const auto& window : record.windows) {
    note_extents(record.object, window.extents, sequence);
    windows.push_back(window.window);
    content.insert(content.end(), window.extents.begin(), window.extents.end());
  }
  std::sort(windows.begin(), windows.end());
  const std::uint64_t window_blocks = window_size_bytes_ / kBlockSizeBytes;
  for (const Extent& old : extents(nodes_[found])) {
    const bool is_past = std::uint64_t{old.file_block} * kBlockSizeBytes >= record.size_bytes;
    if (!is_past && !std::binary_search(windows.begin(), windows.end(),
                                        static_cast<std::uint32_t>(old.file_block / window_blocks)))
      content.push_back(old);
  }
  std::sort(content.begin(), content.end(),
            [](const Extent& a, const Extent& b) { return a.file_block < b.file_block; });
  set_content(nodes_[found], record.size_bytes, content);
}

void CheckedState::apply_body(QuarantineSlots& record, std::uint64_t) {
  quarantined_.push_back(record.run);
}

}  // namespace kvslot
