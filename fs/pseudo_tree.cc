// The control directory: which paths there are, their node numbers, and what opening them gives.
// See pseudo_tree.h; the step before is fs/operations, the step after fs/pseudo_handles (reading)
// and fs/pseudo_render (the texts).
//
// Node numbers: kPseudoNodeFirst, a tag from bit 41 on, and 32 bits that say which one.
#include "fs/pseudo_tree.h"

#include <fmt/core.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include "fs/mount_options.h"
#include "fs/pseudo_control.h"
#include "fs/pseudo_handles.h"
#include "fs/pseudo_render.h"
#include "fs/pseudo_scrub.h"

namespace kvslot {
namespace {

enum class Tag : std::uint8_t { kFixed = 0, kKey = 1, kSlot = 2 };  // node's low bits: see Place
constexpr unsigned kTagShift = 41;
constexpr std::uint64_t kTagMask = 0x1F;

// The entries of `.kvslot`, in the order of its listing; a node's low bits are 1 + its position.
enum class Fixed : std::uint8_t {
  kBatches,
  kCheckpoint,
  kConfig,
  kDeadline,
  kErrors,
  kFlush,
  kIndex,
  kInflight,
  kJournal,
  kKeys,
  kScrub,
  kSlotDirectory,
  kSlots,
  kStats,
};
constexpr std::array<std::string_view, 14> kFixedNames = {
    "batches",  "checkpoint", "config", "deadline", "errors", "flush", "index",
    "inflight", "journal",    "key",    "scrub",    "slot",   "slots", "stats"};

constexpr std::uint64_t node_number(Tag tag, std::uint32_t low) {
  return kPseudoNodeFirst | (std::uint64_t{std::to_underlying(tag)} << kTagShift) | low;
}

// `.kvslot/key` is the root directory's mirror, so it needs no number of its own.
constexpr std::uint64_t node_number(Fixed fixed) {
  if (fixed == Fixed::kKeys) return node_number(Tag::kKey, std::to_underlying(NodeId::kRoot));
  return node_number(Tag::kFixed, 1U + std::to_underlying(fixed));
}

// What a node number stands for.
struct Place {
  enum class Kind : std::uint8_t { kControlDirectory, kFixed, kKey, kSlot };
  Kind kind = Kind::kControlDirectory;
  Fixed fixed = Fixed::kBatches;
  NodeId key = NodeId::kNone;  // a file or directory of the volume
  SlotId slot{};
};

// Whether it shows names, sizes or checksums of keys, which permissions of directories may hide.
bool tells_names(const Place& place) {
  if (place.kind != Place::Kind::kFixed) return place.kind != Place::Kind::kControlDirectory;
  switch (place.fixed) {
    case Fixed::kErrors:
    case Fixed::kIndex:
    case Fixed::kInflight:
    case Fixed::kKeys:
    case Fixed::kSlotDirectory:
    case Fixed::kSlots:
      return true;
    default:
      return false;
  }
}

Result<Place> place_of(std::uint64_t node) {
  const auto low = static_cast<std::uint32_t>(node);
  const auto tag = static_cast<std::uint8_t>((node >> kTagShift) & kTagMask);
  if (node < kPseudoNodeFirst || node != node_number(static_cast<Tag>(tag), low)) {
    return fail(Errc::kNotFound, "pseudo-file: node number");
  }
  if (node == kControlDirectoryNode) return Place{};
  if (tag == std::to_underlying(Tag::kFixed) && low <= kFixedNames.size()) {
    return Place{.kind = Place::Kind::kFixed, .fixed = static_cast<Fixed>(low - 1)};
  }
  if (tag == std::to_underlying(Tag::kKey)) {
    return Place{.kind = Place::Kind::kKey, .key = static_cast<NodeId>(low)};
  }
  if (tag == std::to_underlying(Tag::kSlot)) {
    return Place{.kind = Place::Kind::kSlot, .slot = static_cast<SlotId>(low)};
  }
  return fail(Errc::kNotFound, "pseudo-file: node number");
}

bool is_directory(Fixed fixed) { return fixed == Fixed::kKeys || fixed == Fixed::kSlotDirectory; }
bool is_control(Fixed fixed) {
  return fixed == Fixed::kCheckpoint || fixed == Fixed::kDeadline || fixed == Fixed::kFlush ||
         fixed == Fixed::kScrub;
}
bool is_unbounded(Fixed fixed) { return fixed == Fixed::kIndex || fixed == Fixed::kSlots; }

ControlAction action_of(Fixed fixed) {
  return fixed == Fixed::kCheckpoint ? ControlAction::kCheckpoint : ControlAction::kFlush;
}

PseudoNode directory_node(std::uint64_t node) {
  return {.node = node, .is_directory = true, .mode = 0555, .size_bytes = 0};
}

// The number that a name under slot/ gives: decimal, without leading zeros.
Result<SlotId> parse_slot(std::string_view name, std::uint32_t slot_count) {
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = error == std::errc{} && end == name.data() + name.size();
  const bool is_canonical = name.size() == 1 || !name.starts_with('0');
  if (!is_number || !is_canonical || number >= slot_count) {
    return fail(Errc::kNotFound, "pseudo-file: no such slot");
  }
  return static_cast<SlotId>(number);
}

}  // namespace

struct PseudoTree::State {
  State(Volume& the_volume, PseudoTreeHooks the_hooks)
      : volume(the_volume),
        hooks(std::move(the_hooks)),
        runner(the_volume),
        scrub(the_volume, hooks.scrub_bytes_per_second) {}

  [[nodiscard]] LiveNodeInfo live(NodeId node) const {
    return hooks.live_node ? hooks.live_node(node) : LiveNodeInfo{};
  }
  [[nodiscard]] Result<NodeInfo> linked_node(NodeId node) const;
  [[nodiscard]] std::string render(Fixed fixed);
  [[nodiscard]] std::unique_ptr<PseudoHandle> open_control_file(Fixed fixed);
  [[nodiscard]] Result<std::string> render_key_of(NodeId node);
  [[nodiscard]] Result<std::string> render_bounded(const Place& place);
  [[nodiscard]] Result<PseudoNode> describe(std::uint64_t node, const Place& place);
  [[nodiscard]] Result<PseudoNode> stat_file(std::uint64_t node, const Place& place);
  [[nodiscard]] Result<std::unique_ptr<PseudoHandle>> open_slot(std::uint64_t node, SlotId slot);
  [[nodiscard]] Result<std::vector<PseudoEntry>> list_keys(NodeId directory, std::uint64_t cookie,
                                                           std::size_t count_max) const;

  Volume& volume;
  const PseudoTreeHooks hooks;
  const std::shared_ptr<SnapshotSizes> sizes = std::make_shared<SnapshotSizes>();
  ControlRunner runner;
  ScrubRunner scrub;
};

// A node number is reused once its node is gone, so a number that was looked up may name nothing.
Result<NodeInfo> PseudoTree::State::linked_node(NodeId node) const {
  auto info = volume.stat(node);
  if (info && !info->linked) return fail(Errc::kNotFound, "pseudo-file: key was removed");
  return info;
}

std::string PseudoTree::State::render(Fixed fixed) {
  const Inspector& inspector = volume.inspector();
  switch (fixed) {
    case Fixed::kBatches:
      return render_batches(inspector);
    case Fixed::kConfig:
      return render_config(volume, hooks.config ? hooks.config() : ConfigLines{});
    case Fixed::kErrors:
      return render_errors(inspector);
    case Fixed::kInflight:
      return render_inflight(inspector, hooks.live_node);
    case Fixed::kJournal:
      return render_journal(inspector);
    case Fixed::kStats:
      return render_stats(inspector, hooks.stats ? hooks.stats() : std::vector<Stat>{});
    case Fixed::kCheckpoint:
    case Fixed::kFlush:
      return runner.text(action_of(fixed));
    case Fixed::kDeadline:
      return fmt::format("#seconds\n{}\n", hooks.deadline_seconds ? hooks.deadline_seconds() : 0);
    case Fixed::kScrub:
      return scrub.text();
    case Fixed::kIndex:
    case Fixed::kSlots:
    case Fixed::kKeys:
    case Fixed::kSlotDirectory:
      break;
  }
  return {};
}

std::unique_ptr<PseudoHandle> PseudoTree::State::open_control_file(Fixed fixed) {
  if (fixed == Fixed::kScrub) {
    return open_control(render(fixed), [this](std::string_view word) -> Result<void> {
      if (word == "1") return scrub.start();
      if (word != "0") return fail(Errc::kInvalid, "scrub: write 1 to run, 0 to stop");
      scrub.stop();
      return {};
    });
  }
  if (fixed == Fixed::kDeadline) {
    return open_control(render(fixed), [this](std::string_view word) -> Result<void> {
      std::uint32_t seconds = 0;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), seconds);
      const bool is_number = error == std::errc{} && end == word.data() + word.size();
      if (!is_number || seconds > kDeadlineSecondsMax)
        return fail(Errc::kInvalid, "deadline: write a number of seconds, 0 for none");
      if (hooks.set_deadline_seconds) hooks.set_deadline_seconds(seconds);
      return {};
    });
  }
  return open_control(runner, action_of(fixed));
}

Result<std::string> PseudoTree::State::render_key_of(NodeId node) {
  if (const auto info = linked_node(node); !info) return fail(info);
  const auto record = volume.inspector().node(node);
  if (!record) return fail(record);
  return render_key(volume, *record, live(node));
}

Result<std::string> PseudoTree::State::render_bounded(const Place& place) {
  if (place.kind == Place::Kind::kFixed) return render(place.fixed);
  if (place.kind == Place::Kind::kKey) return render_key_of(place.key);
  const auto record = volume.inspector().slot(place.slot);
  if (!record) return fail(record);
  return render_slot(*record, slot_check_needed(volume, *record));
}

// The true size is what a reader gets: of the newest open snapshot, or of a rendering made now.
Result<PseudoNode> PseudoTree::State::stat_file(std::uint64_t node, const Place& place) {
  PseudoNode result{.node = node};
  if (place.kind == Place::Kind::kFixed && is_control(place.fixed)) result.mode = 0600;
  if (place.kind == Place::Kind::kFixed && is_unbounded(place.fixed)) return result;
  const auto text = render_bounded(place);
  if (!text) return fail(text);
  result.size_bytes = sizes->size_bytes(node).value_or(text->size());
  return result;
}

Result<std::unique_ptr<PseudoHandle>> PseudoTree::State::open_slot(std::uint64_t node,
                                                                   SlotId slot) {
  const auto record = volume.inspector().slot(slot);
  if (!record) return fail(record);
  const SlotCheck needed = slot_check_needed(volume, *record);
  std::string text = render_slot(*record, needed);
  if (needed == SlotCheck::kNone) return open_snapshot(std::move(text), node, sizes);
  auto complete = [this, slot, found = *record] {
    return render_slot(found, check_slot(volume, slot, found));
  };
  return open_late_snapshot(std::move(text), std::move(complete), node, sizes);
}

Result<std::vector<PseudoEntry>> PseudoTree::State::list_keys(NodeId directory,
                                                              std::uint64_t cookie,
                                                              std::size_t count_max) const {
  auto found = volume.list(directory, cookie, count_max);
  if (!found) return fail(found);
  std::vector<PseudoEntry> entries;
  entries.reserve(found->size());
  for (DirectoryEntry& entry : *found) {
    entries.push_back({.name = std::move(entry.name),
                       .node = node_number(Tag::kKey, std::to_underlying(entry.node)),
                       .is_directory = entry.kind == NodeKind::kDirectory,
                       .cookie = entry.cookie});
  }
  return entries;
}

PseudoTree::PseudoTree(Volume& volume, PseudoTreeHooks hooks)
    : state_(std::make_unique<State>(volume, std::move(hooks))) {}

PseudoTree::~PseudoTree() = default;

void PseudoTree::close() { state_->scrub.close(); }

Result<PseudoNode> PseudoTree::lookup(std::uint64_t directory, std::string_view name) {
  const auto place = place_of(directory);
  if (!place) return fail(place);
  if (place->kind == Place::Kind::kControlDirectory) {
    for (std::size_t i = 0; i < kFixedNames.size(); ++i) {
      if (kFixedNames[i] == name) return stat(node_number(static_cast<Fixed>(i)));
    }
    return fail(Errc::kNotFound, "pseudo-file: no such name");
  }
  if (place->kind == Place::Kind::kKey) {
    const auto info = state_->volume.lookup(place->key, name);
    if (!info) return fail(info);
    return stat(node_number(Tag::kKey, std::to_underlying(info->node)));
  }
  if (place->kind == Place::Kind::kFixed && place->fixed == Fixed::kSlotDirectory) {
    const auto slot = parse_slot(name, state_->volume.geometry().slot_count);
    if (!slot) return fail(slot);
    return stat(node_number(Tag::kSlot, std::to_underlying(*slot)));
  }
  return fail(Errc::kWrongKind, "pseudo-file: not a directory", ENOTDIR);
}

Result<PseudoNode> PseudoTree::State::describe(std::uint64_t node, const Place& place) {
  switch (place.kind) {
    case Place::Kind::kControlDirectory:
      return directory_node(node);
    case Place::Kind::kFixed:
      if (is_directory(place.fixed)) return directory_node(node);
      break;
    case Place::Kind::kKey: {
      const auto info = linked_node(place.key);
      if (!info) return fail(info);
      if (info->kind == NodeKind::kDirectory) return directory_node(node);
      break;
    }
    case Place::Kind::kSlot:
      break;
  }
  return stat_file(node, place);
}

Result<PseudoNode> PseudoTree::stat(std::uint64_t node) {
  const auto place = place_of(node);
  if (!place) return fail(place);
  auto result = state_->describe(node, *place);
  if (result && state_->hooks.names_are_private && tells_names(*place)) result->mode &= 0700;
  return result;
}

Result<std::vector<PseudoEntry>> PseudoTree::list(std::uint64_t directory, std::uint64_t cookie,
                                                  std::size_t count_max) {
  const auto place = place_of(directory);
  if (!place) return fail(place);
  if (place->kind == Place::Kind::kKey) return state_->list_keys(place->key, cookie, count_max);
  std::vector<PseudoEntry> entries;
  if (place->kind == Place::Kind::kControlDirectory) {
    for (std::size_t i = cookie; i < kFixedNames.size() && entries.size() < count_max; ++i) {
      const auto fixed = static_cast<Fixed>(i);
      entries.push_back({.name = std::string(kFixedNames[i]),
                         .node = node_number(fixed),
                         .is_directory = is_directory(fixed),
                         .cookie = i + 1});
    }
    return entries;
  }
  // slot/ is reachable by number only: one name a slot would make every recursive tool read the
  // whole device.
  if (place->kind == Place::Kind::kFixed && place->fixed == Fixed::kSlotDirectory) return entries;
  return fail(Errc::kWrongKind, "pseudo-file: not a directory", ENOTDIR);
}

Result<std::unique_ptr<PseudoHandle>> PseudoTree::open(std::uint64_t node, bool for_writing) {
  const auto place = place_of(node);
  if (!place) return fail(place);
  const bool is_fixed = place->kind == Place::Kind::kFixed;
  if (is_fixed && is_control(place->fixed)) return state_->open_control_file(place->fixed);
  if (for_writing) return fail(Errc::kReadOnly, "pseudo-file: only read", EACCES);
  const auto attributes = stat(node);
  if (!attributes) return fail(attributes);
  if (attributes->is_directory) return fail(Errc::kWrongKind, "pseudo-file: directory", EISDIR);
  const Inspector& inspector = state_->volume.inspector();
  if (is_fixed && place->fixed == Fixed::kIndex)
    return open_index(inspector, state_->hooks.live_node);
  if (is_fixed && place->fixed == Fixed::kSlots) return open_slots(inspector);
  if (place->kind == Place::Kind::kSlot) return state_->open_slot(node, place->slot);
  auto text = state_->render_bounded(*place);
  if (!text) return fail(text);
  return open_snapshot(std::move(*text), node, state_->sizes);
}

}  // namespace kvslot
