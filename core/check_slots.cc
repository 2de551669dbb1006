// Judges where the values of a rebuilt state lie, and who owns which slot.
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "core/check_values.h"

namespace kvslot {
namespace {

constexpr std::size_t kContestedMax = 256;  // slots whose owners are looked up

// Threads: one thread at a time.
class SlotCheck {
 public:
  SlotCheck(const CheckedState& state, const Geometry& geometry,
            std::span<const SlotRun> checkpoint_runs, Findings& findings)
      : state_(state),
        geometry_(geometry),
        checkpoint_runs_(checkpoint_runs),
        findings_(findings),
        first_block_(geometry.slots_offset_bytes / kBlockSizeBytes),
        taken_((std::size_t{geometry.slot_count} + 63) / 64) {}

  void run(CheckReport& report) {
    for (const CheckedNode& node : state_.nodes()) check_extents(node);
    merge_quarantined();
    for_each_claim([&](std::uint64_t first, std::uint64_t end, const CheckedNode*, const char*) {
      for (std::uint64_t slot = first; slot < end; ++slot) take(static_cast<std::uint32_t>(slot));
    });
    if (!contested_.empty()) name_owners();
    for (const std::uint64_t word : taken_)
      report.slots_used += static_cast<std::uint64_t>(std::popcount(word));
    report.slots_free = geometry_.slot_count - report.slots_used;
  }

 private:
  // `node` owns the slots, or whoever `other` says.
  using OnClaim = std::function<void(std::uint64_t first, std::uint64_t end,
                                     const CheckedNode* node, const char* other)>;

  [[nodiscard]] std::uint64_t end_block(const Extent& extent) const {
    return extent.device_block + units_of(extent.size_bytes, kBlockSizeBytes);
  }
  [[nodiscard]] std::uint64_t window_of(const Extent& extent) const {
    return std::uint64_t{extent.file_block} * kBlockSizeBytes / geometry_.window_size_bytes();
  }
  [[nodiscard]] bool is_inside(const Extent& extent) const {
    const std::uint64_t blocks = std::uint64_t{geometry_.slot_count} * geometry_.blocks_per_slot();
    return extent.device_block >= first_block_ && end_block(extent) <= first_block_ + blocks;
  }
  [[nodiscard]] std::uint64_t slot_of(std::uint64_t block) const {
    return (block - first_block_) / geometry_.blocks_per_slot();
  }

  void check_extents(const CheckedNode& node) {
    const Extent* before = nullptr;
    const auto extents = state_.extents(node);
    for (const Extent& extent : extents) {
      const std::uint64_t start = std::uint64_t{extent.file_block} * kBlockSizeBytes;
      const std::uint64_t end = start + extent.size_bytes;
      const auto complain = [&](std::string_view what) {
        findings_.error(
            fmt::format("{}: bytes {} to {} {}", state_.quoted_key(node), start, end, what));
      };
      if (!is_inside(extent))
        complain(
            fmt::format("are said to be at block {} of the device, which is outside of the "
                        "slots: they are lost, and the store does not open",
                        extent.device_block));
      if (end > node.size_bytes)
        complain(fmt::format("lie past the value's size of {} bytes", node.size_bytes));
      if ((end - 1) / geometry_.window_size_bytes() != window_of(extent))
        complain("cross a window boundary: a change of either window would lose them");
      if (before != nullptr &&
          std::uint64_t{before->file_block} * kBlockSizeBytes + before->size_bytes > start)
        complain("overlap the bytes before them: which of the two is right cannot be told");
      before = &extent;
    }
  }

  void merge_quarantined() {
    std::vector<SlotRun> runs;
    for (const SlotRun run : state_.quarantined()) {
      const auto first = static_cast<std::uint32_t>(run.first);
      if (std::uint64_t{first} + run.count > geometry_.slot_count) {
        findings_.repairable(
            fmt::format("the quarantined slots from {} on, {} of them, reach past the "
                        "last slot",
                        first, run.count));
        continue;
      }
      runs.push_back(run);
    }
    std::sort(runs.begin(), runs.end());
    for (const SlotRun run : runs) {
      const auto first = static_cast<std::uint32_t>(run.first);
      const std::uint32_t merged_end =
          quarantined_.empty()
              ? 0
              : static_cast<std::uint32_t>(quarantined_.back().first) + quarantined_.back().count;
      if (quarantined_.empty() || first > merged_end) {
        quarantined_.push_back(run);
      } else {
        quarantined_.back().count += std::max(first + run.count, merged_end) - merged_end;
      }
    }
  }

  void for_each_claim(const OnClaim& on_claim) const {
    for (const CheckedNode& node : state_.nodes()) claims_of(node, on_claim);
    const auto all = [&](std::span<const SlotRun> runs, const char* owner) {
      for (const SlotRun run : runs) {
        const auto first = static_cast<std::uint32_t>(run.first);
        on_claim(first, std::uint64_t{first} + run.count, nullptr, owner);
      }
    };
    all(checkpoint_runs_, "the checkpoint");
    all(quarantined_, "the quarantine");
  }

  // Extents of one window may share a slot, one behind the other; nothing else may.
  void claims_of(const CheckedNode& node, const OnClaim& on_claim) const {
    const Extent* before = nullptr;
    for (const Extent& extent : state_.extents(node)) {
      if (!is_inside(extent)) continue;
      std::uint64_t first = slot_of(extent.device_block);
      const std::uint64_t end = slot_of(end_block(extent) - 1) + 1;
      const bool shares = before != nullptr && window_of(*before) == window_of(extent) &&
                          extent.device_block >= end_block(*before) &&
                          slot_of(end_block(*before) - 1) == first;
      if (shares) ++first;
      on_claim(first, end, &node, nullptr);
      before = &extent;
    }
  }

  void take(std::uint32_t slot) {
    std::uint64_t& word = taken_[slot / 64];
    const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
    if ((word & bit) != 0) {
      if (contested_.size() < kContestedMax) {
        contested_.push_back(slot);
      } else {
        ++contested_more_;
      }
    }
    word |= bit;
  }

  // A second look at all claims, for the slots that somebody owned already.
  void name_owners() {
    std::sort(contested_.begin(), contested_.end());
    contested_.erase(std::unique(contested_.begin(), contested_.end()), contested_.end());
    std::vector<std::vector<std::string>> owners(contested_.size());
    for_each_claim(
        [&](std::uint64_t first, std::uint64_t end, const CheckedNode* node, const char* other) {
          auto at = std::lower_bound(contested_.begin(), contested_.end(), first);
          for (; at != contested_.end() && *at < end; ++at)
            owners[static_cast<std::size_t>(at - contested_.begin())].push_back(
                node != nullptr ? state_.quoted_key(*node) : other);
        });
    for (std::size_t i = 0; i < contested_.size(); ++i) report_owners(contested_[i], owners[i]);
    if (contested_more_ != 0)
      findings_.error(fmt::format("{} more slots have two owners", contested_more_));
  }

  void report_owners(std::uint32_t slot, const std::vector<std::string>& owners) {
    std::string list;
    for (std::size_t i = 0; i < owners.size(); ++i)
      list += (i == 0 ? "" : i + 1 == owners.size() ? " and " : ", ") + owners[i];
    if (owners.back() == "the quarantine") {
      findings_.repairable(fmt::format(
          "slot {} is quarantined after a failed write, but owned too: {}", slot, list));
    } else {
      findings_.error(
          fmt::format("slot {} is owned twice, by {}: at most one of them has its "
                      "bytes, and the store does not open",
                      slot, list));
    }
  }

  const CheckedState& state_;
  const Geometry& geometry_;
  const std::span<const SlotRun> checkpoint_runs_;
  Findings& findings_;
  const std::uint64_t first_block_;
  std::vector<std::uint64_t> taken_;  // one bit a slot
  std::vector<SlotRun> quarantined_;  // in order, none twice
  std::vector<std::uint32_t> contested_;
  std::uint64_t contested_more_ = 0;
};

}  // namespace

void check_slots(const CheckedState& state, const Geometry& geometry,
                 std::span<const SlotRun> checkpoint_runs, Findings& findings,
                 CheckReport& report) {
  SlotCheck(state, geometry, checkpoint_runs, findings).run(report);
}

}  // namespace kvslot
