// The tree of names: (directory, name) -> node, and what is known about each node. In memory, at
// most 96 bytes a file besides its name. Knows nothing of devices, journals, or locks: the caller
// (core/state.h) guards it with the state lock.
//
// Memory of a file: Entry 72, its place in a hash shard 8 to 14, in its directory's order 4 to 8,
// its name and 1 to 4 bytes. Values over one extent add an Extra.
#pragma once

#include <kvslot/error.h>
#include <kvslot/types.h>
#include <tsl/robin_map.h>
#include <tsl/robin_set.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/directory_order.h"
#include "core/name_arena.h"
#include "core/records.h"

namespace kvslot {

// How far a file's first commit has come. Records name only nodes that are not kUnstored.
enum class StoredState : std::uint8_t { kUnstored, kStoring, kStored };

// Threads: one thread at a time.
class Index {
 public:
  Index();
  ~Index();
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  // --- Nodes.
  // A node without a name; link() gives it one.
  NodeId add(ObjectId object, NodeKind kind, const Attributes& attributes, StoredState stored);
  // Forgets an unlinked node. Its slots are the caller's business.
  void erase(NodeId node);
  [[nodiscard]] bool is_valid(NodeId node) const;

  [[nodiscard]] ObjectId object(NodeId node) const;
  [[nodiscard]] NodeKind kind(NodeId node) const;
  [[nodiscard]] Attributes attributes(NodeId node) const;
  void set_attributes(NodeId node, const Attributes& attributes);
  [[nodiscard]] StoredState stored(NodeId node) const;
  void set_stored(NodeId node, StoredState stored);

  // --- Names. A linked node is found by find(); an unlinked one keeps parent and name when it
  // was shadowed (hidden by a file that has not been committed), and none when it was removed.
  [[nodiscard]] NodeId find(NodeId directory, std::string_view name) const;
  void link(NodeId node, NodeId directory, std::string_view name, std::uint64_t cookie = 0);
  void unlink(NodeId node);
  void shadow(NodeId node);  // unlinks, but remembers parent and name for checkpoints
  [[nodiscard]] bool is_linked(NodeId node) const;
  [[nodiscard]] bool is_shadowed(NodeId node) const;
  [[nodiscard]] NodeId parent(NodeId node) const;
  [[nodiscard]] std::string_view name(NodeId node) const;
  [[nodiscard]] std::uint64_t cookie(NodeId node) const;
  [[nodiscard]] bool is_empty(NodeId directory) const;
  [[nodiscard]] std::uint32_t subdirectory_count(NodeId directory) const;
  // Nodes of a directory with cookies above `cookie`, in order.
  [[nodiscard]] std::vector<NodeId> list(NodeId directory, std::uint64_t cookie,
                                         std::size_t count_max) const;
  // Whether `node` is `ancestor` or below it.
  [[nodiscard]] bool is_within(NodeId node, NodeId ancestor) const;
  // The key: components joined with '/', without a leading one. Empty for the root.
  [[nodiscard]] std::string path(NodeId node) const;

  // --- Contents.
  [[nodiscard]] std::uint64_t size_bytes(NodeId node) const;
  [[nodiscard]] std::size_t extent_count(NodeId node) const;
  // The only extent, or those of a larger value; `scratch` backs the former.
  [[nodiscard]] std::span<const Extent> extents(NodeId node, Extent& scratch) const;
  void set_content(NodeId node, std::uint64_t size_bytes, std::vector<Extent> extents);
  [[nodiscard]] const std::string& target(NodeId node) const;
  void set_target(NodeId node, std::string target);
  [[nodiscard]] const Xattrs& xattrs(NodeId node) const;
  void set_xattrs(NodeId node, Xattrs xattrs);

  // --- Whole.
  void clear();
  [[nodiscard]] NodeImage image(NodeId node) const;
  // What a checkpoint holds: linked or shadowed, and stored. A file in its first commit is left to
  // that commit's block, which lies behind the checkpoint's position.
  [[nodiscard]] bool is_checkpointed(NodeId node) const;
  [[nodiscard]] std::uint64_t image_bytes(NodeId node) const;
  // Sum of image_bytes over all nodes, stored or not: what the next checkpoint may need.
  [[nodiscard]] std::uint64_t total_image_bytes() const { return total_image_bytes_; }
  // One past the largest node number in use: for walks by number.
  [[nodiscard]] std::uint32_t node_limit() const { return node_limit_; }
  [[nodiscard]] std::uint64_t node_count() const { return node_count_; }
  [[nodiscard]] std::uint64_t memory_bytes() const;

 private:
  struct Entry;
  struct Extra;
  struct Directory;
  struct NameKey {
    NodeId directory;
    std::string_view name;
  };
  struct NameHash {
    using is_transparent = void;
    const Index* index = nullptr;
    std::size_t operator()(std::uint32_t node) const;
    std::size_t operator()(const NameKey& key) const;
  };
  struct NameEqual {
    using is_transparent = void;
    const Index* index = nullptr;
    bool operator()(std::uint32_t a, std::uint32_t b) const { return a == b; }
    bool operator()(const NameKey& key, std::uint32_t node) const;
    bool operator()(std::uint32_t node, const NameKey& key) const { return (*this)(key, node); }
  };
  using Shard = tsl::robin_set<std::uint32_t, NameHash, NameEqual, std::allocator<std::uint32_t>,
                               false, tsl::rh::mod_growth_policy<std::ratio<3, 2>>>;
  // Growth stops the world for one shard only.
  static constexpr std::size_t kShardCount = 64;
  static constexpr std::size_t kEntriesPerChunk = 4096;

  [[nodiscard]] Entry& entry(NodeId node) const;
  [[nodiscard]] Directory& directory(NodeId node) const;
  Extra& extra(NodeId node);
  [[nodiscard]] const Extra* find_extra(NodeId node) const;
  void drop_extra_if_plain(NodeId node);
  [[nodiscard]] Shard& shard(std::size_t hash) const;
  void detach(NodeId node);
  [[nodiscard]] auto cookie_of() const {
    return [this](std::uint32_t node) { return cookie(static_cast<NodeId>(node)); };
  }
  // Adds what a mutation changes in image_bytes(node).
  template <typename Mutation>
  void mutate(NodeId node, Mutation mutation);

  std::vector<std::unique_ptr<Entry[]>> chunks_;
  std::uint32_t node_limit_ = 1;  // number 0 is nobody's
  std::uint32_t free_head_ = 0;   // threaded through Entry::parent
  std::uint64_t node_count_ = 0;
  std::uint64_t total_image_bytes_ = 0;
  NameArena names_;
  mutable std::vector<Shard> shards_;
  tsl::robin_map<std::uint32_t, std::unique_ptr<Directory>> directories_;
  tsl::robin_map<std::uint32_t, std::unique_ptr<Extra>> extras_;
  std::uint64_t extras_bytes_ = 0;
};

}  // namespace kvslot
