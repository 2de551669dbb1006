// The index: entries in chunks that never move, names in shards, directories in order.
#include "core/index.h"

#include <kvslot/check.h>
#include <xxh_x86dispatch.h>

#include <algorithm>
#include <cstring>

namespace kvslot {

// 72 bytes; see the head of index.h before adding to it.
struct Index::Entry {
  std::uint64_t object : 48;
  std::uint64_t mode : 12;
  std::uint64_t kind : 2;
  std::uint64_t linked : 1;
  std::uint64_t used : 1;
  std::uint64_t stamp : 48;  // of the inline extent
  std::uint64_t stored : 2;
  std::uint64_t has_extra : 1;
  std::uint64_t has_extent : 1;  // one extent, from offset 0, of all size_bytes
  std::uint64_t shadowed : 1;
  std::uint64_t spare : 11;
  std::uint64_t checksum;  // of the inline extent
  TimestampNs atime_ns, mtime_ns, ctime_ns;
  std::uint32_t uid, gid;
  std::uint32_t parent;  // NodeId, or the next free entry
  NameArena::Ref name;
  std::uint32_t size_bytes;    // of a value of at most one extent
  std::uint32_t device_block;  // of the inline extent
};

// What few nodes have.
struct Index::Extra {
  std::uint64_t size_bytes = 0;
  bool holds_content = false;  // size and extents are here, not in the entry
  std::uint64_t cookie = 0;    // where it is not the object id
  std::vector<Extent> extents;
  std::string target;
  Xattrs xattrs;
  [[nodiscard]] bool is_plain() const {
    return !holds_content && cookie == 0 && target.empty() && xattrs.empty();
  }
  [[nodiscard]] std::uint64_t memory_bytes() const {
    return sizeof *this + 32 + extents.capacity() * sizeof(Extent) + target.capacity() +
           xattrs.capacity() * sizeof(Xattrs::value_type) + xattrs_bytes(xattrs);
  }
};

struct Index::Directory {
  DirectoryOrder order;
  std::uint32_t subdirectory_count = 0;
};

namespace {

constexpr float kShardLoadMax = 0.85f;
constexpr std::uint64_t kId48Max = (std::uint64_t{1} << 48) - 1;

std::uint32_t raw(NodeId node) { return static_cast<std::uint32_t>(node); }

std::size_t hash_of(NodeId directory, std::string_view name) {
  return XXH3_64bits_withSeed(name.data(), name.size(), raw(directory));
}

}  // namespace

std::size_t Index::NameHash::operator()(std::uint32_t node) const {
  const Entry& e = index->entry(static_cast<NodeId>(node));
  return hash_of(static_cast<NodeId>(e.parent), index->names_.get(e.name));
}
std::size_t Index::NameHash::operator()(const NameKey& key) const {
  return hash_of(key.directory, key.name);
}
bool Index::NameEqual::operator()(const NameKey& key, std::uint32_t node) const {
  const Entry& e = index->entry(static_cast<NodeId>(node));
  return e.parent == raw(key.directory) && index->names_.get(e.name) == key.name;
}

Index::Index() {
  static_assert(sizeof(Entry) == 72);
  clear();
}

void Index::clear() {
  chunks_.clear();
  node_limit_ = 1;
  free_head_ = 0;
  node_count_ = 0;
  total_image_bytes_ = 0;
  names_ = {};
  directories_.clear();
  extras_.clear();
  extras_bytes_ = 0;
  shards_.clear();
  shards_.reserve(kShardCount);
  for (std::size_t i = 0; i < kShardCount; ++i) {
    shards_.emplace_back(0, NameHash{this}, NameEqual{this});
    shards_.back().max_load_factor(kShardLoadMax);
  }
}

Index::~Index() = default;

Index::Entry& Index::entry(NodeId node) const {
  return chunks_[raw(node) / kEntriesPerChunk][raw(node) % kEntriesPerChunk];
}

Index::Directory& Index::directory(NodeId node) const {
  return *directories_.find(raw(node)).value();
}

Index::Shard& Index::shard(std::size_t hash) const { return shards_[(hash >> 32) % kShardCount]; }

const Index::Extra* Index::find_extra(NodeId node) const {
  return entry(node).has_extra ? extras_.find(raw(node)).value().get() : nullptr;
}

Index::Extra& Index::extra(NodeId node) {
  Entry& e = entry(node);
  if (!e.has_extra) {
    e.has_extra = 1;
    auto fresh = std::make_unique<Extra>();
    extras_.insert({raw(node), std::move(fresh)});
  }
  return *extras_.find(raw(node)).value();
}

void Index::drop_extra_if_plain(NodeId node) {
  const Extra* existing = find_extra(node);
  if (existing == nullptr || !existing->is_plain()) return;
  extras_.erase(raw(node));
  entry(node).has_extra = 0;
}

template <typename Mutation>
void Index::mutate(NodeId node, Mutation mutation) {
  const Extra* before = find_extra(node);
  extras_bytes_ -= before == nullptr ? 0 : before->memory_bytes();
  total_image_bytes_ -= image_bytes(node);
  mutation(entry(node));
  drop_extra_if_plain(node);
  total_image_bytes_ += image_bytes(node);
  const Extra* after = find_extra(node);
  extras_bytes_ += after == nullptr ? 0 : after->memory_bytes();
}

NodeId Index::add(ObjectId object, NodeKind kind, const Attributes& attributes,
                  StoredState stored) {
  std::uint32_t number = free_head_;
  if (number != 0) {
    free_head_ = entry(static_cast<NodeId>(number)).parent;
  } else {
    number = node_limit_++;
    if (number / kEntriesPerChunk >= chunks_.size())
      chunks_.push_back(std::make_unique<Entry[]>(kEntriesPerChunk));
  }
  const auto node = static_cast<NodeId>(number);
  KVSLOT_CHECK(static_cast<std::uint64_t>(object) <= kId48Max, "object ids have 48 bits");
  Entry& e = entry(node);
  e = Entry{};
  e.used = 1;
  e.object = static_cast<std::uint64_t>(object) & kId48Max;
  e.kind = static_cast<std::uint64_t>(kind) & 3;
  e.stored = static_cast<std::uint64_t>(stored) & 3;
  set_attributes(node, attributes);
  if (kind == NodeKind::kDirectory) directories_.insert({number, std::make_unique<Directory>()});
  ++node_count_;
  total_image_bytes_ += image_bytes(node);
  return node;
}

void Index::erase(NodeId node) {
  Entry& e = entry(node);
  KVSLOT_CHECK(e.used && !e.linked, "only unlinked nodes are erased");
  if (const Extra* existing = find_extra(node)) {
    extras_bytes_ -= existing->memory_bytes();
    total_image_bytes_ -= image_bytes(node);
    extras_.erase(raw(node));
    e.has_extra = 0;
  } else {
    total_image_bytes_ -= image_bytes(node);
  }
  directories_.erase(raw(node));
  names_.remove(e.name);
  e = Entry{};
  e.parent = free_head_;
  free_head_ = raw(node);
  --node_count_;
}

bool Index::is_valid(NodeId node) const {
  return raw(node) != 0 && raw(node) < node_limit_ && entry(node).used;
}

ObjectId Index::object(NodeId node) const { return static_cast<ObjectId>(entry(node).object); }
NodeKind Index::kind(NodeId node) const { return static_cast<NodeKind>(entry(node).kind); }
StoredState Index::stored(NodeId node) const {
  return static_cast<StoredState>(entry(node).stored);
}
void Index::set_stored(NodeId node, StoredState stored) {
  entry(node).stored = static_cast<std::uint64_t>(stored) & 3;
}

Attributes Index::attributes(NodeId node) const {
  const Entry& e = entry(node);
  return {.mode = static_cast<std::uint32_t>(e.mode),
          .uid = e.uid,
          .gid = e.gid,
          .atime_ns = e.atime_ns,
          .mtime_ns = e.mtime_ns,
          .ctime_ns = e.ctime_ns};
}

void Index::set_attributes(NodeId node, const Attributes& attributes) {
  Entry& e = entry(node);
  e.mode = attributes.mode & 07777;
  e.uid = attributes.uid;
  e.gid = attributes.gid;
  e.atime_ns = attributes.atime_ns;
  e.mtime_ns = attributes.mtime_ns;
  e.ctime_ns = attributes.ctime_ns;
}

NodeId Index::find(NodeId dir, std::string_view name) const {
  const NameKey key{dir, name};
  const std::size_t hash = hash_of(dir, name);
  const Shard& names = shard(hash);
  const auto found = names.find(key, hash);
  return found == names.end() ? NodeId::kNone : static_cast<NodeId>(*found);
}

void Index::link(NodeId node, NodeId dir, std::string_view name, std::uint64_t cookie) {
  KVSLOT_CHECK(!entry(node).linked, "a node has one name");
  mutate(node, [&](Entry& e) {
    names_.remove(e.name);
    e.shadowed = 0;
    e.parent = raw(dir);
    e.name = names_.add(name);
    const bool own_cookie = cookie == 0 || cookie == e.object;
    if (!own_cookie || e.has_extra) extra(node).cookie = own_cookie ? 0 : cookie;
    e.linked = 1;
  });
  shard(hash_of(dir, name)).insert(raw(node));
  directory(dir).order.insert(raw(node), cookie_of());
  if (kind(node) == NodeKind::kDirectory) ++directory(dir).subdirectory_count;
}

void Index::detach(NodeId node) {
  Entry& e = entry(node);
  KVSLOT_CHECK(e.linked, "only linked nodes are unlinked");
  const auto dir = static_cast<NodeId>(e.parent);
  shard(hash_of(dir, names_.get(e.name))).erase(raw(node));
  directory(dir).order.erase(raw(node), cookie_of());
  if (kind(node) == NodeKind::kDirectory) --directory(dir).subdirectory_count;
  e.linked = 0;
}

void Index::unlink(NodeId node) {
  if (entry(node).linked) detach(node);
  mutate(node, [&](Entry& e) {
    e.shadowed = 0;
    names_.remove(e.name);
    e.name = NameArena::kEmpty;
    e.parent = 0;
  });
}

void Index::shadow(NodeId node) {
  detach(node);
  entry(node).shadowed = 1;
}

bool Index::is_linked(NodeId node) const { return entry(node).linked; }
bool Index::is_shadowed(NodeId node) const { return entry(node).shadowed; }
NodeId Index::parent(NodeId node) const { return static_cast<NodeId>(entry(node).parent); }
std::string_view Index::name(NodeId node) const { return names_.get(entry(node).name); }

std::uint64_t Index::cookie(NodeId node) const {
  const Extra* existing = find_extra(node);
  return existing != nullptr && existing->cookie != 0 ? existing->cookie : entry(node).object;
}

bool Index::is_empty(NodeId dir) const { return directory(dir).order.count() == 0; }
std::uint32_t Index::subdirectory_count(NodeId dir) const {
  return directory(dir).subdirectory_count;
}

std::vector<NodeId> Index::list(NodeId dir, std::uint64_t cookie, std::size_t count_max) const {
  std::vector<std::uint32_t> numbers;
  directory(dir).order.list(cookie, count_max, cookie_of(), numbers);
  std::vector<NodeId> nodes;
  nodes.reserve(numbers.size());
  for (const std::uint32_t number : numbers) nodes.push_back(static_cast<NodeId>(number));
  return nodes;
}

bool Index::is_within(NodeId node, NodeId ancestor) const {
  while (node != NodeId::kNone && node != ancestor) node = parent(node);
  return node == ancestor;
}

std::string Index::path(NodeId node) const {
  std::vector<std::string_view> components;
  while (node != NodeId::kNone && node != NodeId::kRoot) {
    components.push_back(name(node));
    node = parent(node);
  }
  std::string path;
  for (auto component = components.rbegin(); component != components.rend(); ++component) {
    if (!path.empty()) path += '/';
    path += *component;
  }
  return path;
}

std::uint64_t Index::size_bytes(NodeId node) const {
  const Extra* existing = find_extra(node);
  if (existing != nullptr && existing->holds_content) return existing->size_bytes;
  if (existing != nullptr && !existing->target.empty()) return existing->target.size();
  return entry(node).size_bytes;
}

std::size_t Index::extent_count(NodeId node) const {
  const Extra* existing = find_extra(node);
  if (existing != nullptr && existing->holds_content) return existing->extents.size();
  return entry(node).has_extent;
}

std::span<const Extent> Index::extents(NodeId node, Extent& scratch) const {
  const Extra* existing = find_extra(node);
  if (existing != nullptr && existing->holds_content) return existing->extents;
  const Entry& e = entry(node);
  if (!e.has_extent) return {};
  scratch = Extent{.file_block = 0,
                   .size_bytes = e.size_bytes,
                   .device_block = e.device_block,
                   .stamp = e.stamp,
                   .checksum = e.checksum};
  return {&scratch, 1};
}

void Index::set_content(NodeId node, std::uint64_t size_bytes, std::vector<Extent> extents) {
  mutate(node, [&](Entry& e) {
    const bool fits_entry = (size_bytes == 0 && extents.empty()) ||
                            (extents.size() == 1 && extents[0].file_block == 0 &&
                             extents[0].size_bytes == size_bytes && extents[0].stamp <= kId48Max);
    e.has_extent = 0;
    e.size_bytes = 0;
    if (fits_entry) {
      if (e.has_extra) {
        Extra& more = extra(node);
        more.holds_content = false;
        more.extents = {};
      }
      if (extents.empty()) return;
      e.has_extent = 1;
      e.size_bytes = static_cast<std::uint32_t>(size_bytes);
      e.device_block = extents[0].device_block;
      e.stamp = extents[0].stamp & kId48Max;
      e.checksum = extents[0].checksum;
      return;
    }
    Extra& more = extra(node);
    more.holds_content = true;
    more.size_bytes = size_bytes;
    more.extents = std::move(extents);
    more.extents.shrink_to_fit();
  });
}

const std::string& Index::target(NodeId node) const {
  static const std::string kNone;
  const Extra* existing = find_extra(node);
  return existing == nullptr ? kNone : existing->target;
}

void Index::set_target(NodeId node, std::string target) {
  mutate(node, [&](Entry&) { extra(node).target = std::move(target); });
}

const Xattrs& Index::xattrs(NodeId node) const {
  static const Xattrs kNone;
  const Extra* existing = find_extra(node);
  return existing == nullptr ? kNone : existing->xattrs;
}

void Index::set_xattrs(NodeId node, Xattrs xattrs) {
  mutate(node, [&](Entry&) { extra(node).xattrs = std::move(xattrs); });
}

NodeImage Index::image(NodeId node) const {
  NodeImage image;
  image.object = object(node);
  const NodeId dir = parent(node);
  image.parent = dir == NodeId::kNone ? ObjectId::kNone : object(dir);
  image.kind = kind(node);
  image.attributes = attributes(node);
  image.size_bytes = image.kind == NodeKind::kFile ? size_bytes(node) : 0;
  const std::uint64_t place = cookie(node);
  image.cookie = place == static_cast<std::uint64_t>(image.object) ? 0 : place;
  image.name = std::string(name(node));
  image.target = target(node);
  image.xattrs = xattrs(node);
  Extent scratch;
  const auto all = extents(node, scratch);
  image.extents.assign(all.begin(), all.end());
  return image;
}

bool Index::is_checkpointed(NodeId node) const {
  const Entry& e = entry(node);
  return e.used && (e.linked || e.shadowed || node == NodeId::kRoot) &&
         stored(node) == StoredState::kStored;
}

std::uint64_t Index::image_bytes(NodeId node) const {
  const Extra* existing = find_extra(node);
  return node_record_bytes(name(node).size(), existing == nullptr ? 0 : existing->target.size(),
                           existing == nullptr ? nullptr : &existing->xattrs, extent_count(node));
}

std::uint64_t Index::memory_bytes() const {
  std::uint64_t bytes = sizeof *this + chunks_.capacity() * sizeof chunks_[0] +
                        chunks_.size() * kEntriesPerChunk * sizeof(Entry) + names_.memory_bytes() +
                        extras_bytes_;
  constexpr std::uint64_t kShardBucketBytes = 8;  // distance, flag, node
  constexpr std::uint64_t kMapBucketBytes = 24;
  for (const Shard& names : shards_) bytes += names.bucket_count() * kShardBucketBytes;
  bytes += (extras_.bucket_count() + directories_.bucket_count()) * kMapBucketBytes;
  for (const auto& [number, dir] : directories_) bytes += dir->order.memory_bytes() + 32;
  return bytes;
}

}  // namespace kvslot
