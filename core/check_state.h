// What a store says, by object id, as the check rebuilds it: nodes in one array, names and extents
// in two more, so that a million keys take little memory. Nothing of it is trusted; judging it is
// the business of core/check_tree.cc, core/check_slots.cc and core/check_values.cc.
//
// Filled by core/check_load.*.
#pragma once

#include <tsl/robin_map.h>

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/records.h"

namespace kvslot {

// A name on one line of text: control bytes and backslashes as escapes.
void append_escaped(std::string& text, std::string_view name);

struct CheckedNode {
  std::uint64_t object = 0;  // 0: removed, the place may be used again
  std::uint64_t parent = 0;
  std::uint64_t cookie = 0;  // place in the listing of its directory; never 0
  std::uint64_t size_bytes = 0;
  std::uint64_t name_at = 0;     // in the names
  std::uint64_t extents_at = 0;  // in the extents
  std::uint32_t extent_count = 0;
  std::uint8_t name_bytes = 0;
  NodeKind kind = NodeKind::kFile;
};

// An extent that a journal block wrote: its bytes may not have survived.
struct TailExtent {
  std::uint64_t sequence = 0;
  ObjectId object = ObjectId::kNone;
  Extent extent;
};

// What of a node there is nothing to check in.
struct NodeExtras {
  Attributes attributes;
  Xattrs xattrs;
};

// Threads: one thread at a time.
class CheckedState {
 public:
  explicit CheckedState(std::uint32_t window_size_bytes, bool keeps_extras = false)
      : window_size_bytes_(window_size_bytes), keeps_extras_(keeps_extras) {
    clear();
  }
  void clear();
  // `sequence` of the journal block; 0 for records of a checkpoint, whose values were flushed.
  void apply(Record record, std::uint64_t sequence);
  // Everything up to this block was flushed.
  void forget_tail_upto(std::uint64_t sequence);

  static constexpr std::uint32_t kNowhere = 0xffffffff;
  [[nodiscard]] std::uint32_t find(std::uint64_t object) const;  // kNowhere when there is none
  [[nodiscard]] std::span<const CheckedNode> nodes() const { return nodes_; }
  [[nodiscard]] std::string_view name(const CheckedNode& node) const;
  [[nodiscard]] std::span<const Extent> extents(const CheckedNode& node) const;
  [[nodiscard]] std::string target(const CheckedNode& node) const;  // of a symbolic link
  // Null where no record told, or none are kept.
  [[nodiscard]] const NodeExtras* extras(const CheckedNode& node) const;
  [[nodiscard]] bool owns(const TailExtent& tail) const;
  [[nodiscard]] const std::deque<TailExtent>& tail() const { return tail_; }
  [[nodiscard]] const std::vector<SlotRun>& quarantined() const { return quarantined_; }
  // The key for people: quoted, on one line; "?/" in front where the way to the root is broken.
  [[nodiscard]] std::string quoted_key(const CheckedNode& node) const;

 private:
  void apply_body(SetNode& record, std::uint64_t sequence);
  void apply_body(MoveNode& record, std::uint64_t sequence);
  void apply_body(RemoveNode& record, std::uint64_t sequence);
  void apply_body(SetAttributes& record, std::uint64_t sequence);
  void apply_body(SetXattrs& record, std::uint64_t sequence);
  void apply_body(PatchContent& record, std::uint64_t sequence);
  void apply_body(QuarantineSlots& record, std::uint64_t sequence);

  [[nodiscard]] CheckedNode& make_node(std::uint64_t object, NodeKind kind);
  void set_name(CheckedNode& node, std::uint64_t parent, std::uint64_t cookie,
                std::string_view name);
  void set_content(CheckedNode& node, std::uint64_t size_bytes, std::span<const Extent> extents);
  void note_extents(ObjectId object, std::span<const Extent> extents, std::uint64_t sequence);
  void compact_extents();
  [[nodiscard]] NodeExtras* known_extras(ObjectId object);

  const std::uint32_t window_size_bytes_;
  const bool keeps_extras_;
  std::vector<CheckedNode> nodes_;  // the root first
  std::vector<std::uint32_t> unused_;
  tsl::robin_map<std::uint64_t, std::uint32_t> by_object_;
  std::vector<char> names_;
  tsl::robin_map<std::uint64_t, std::string> targets_;  // by object
  tsl::robin_map<std::uint64_t, NodeExtras> extras_;    // by object
  std::vector<Extent> extents_;
  std::uint64_t dead_extents_ = 0;  // of extents_, those that no node names
  std::deque<TailExtent> tail_;     // in order of sequence
  std::vector<SlotRun> quarantined_;
};

}  // namespace kvslot
