// See hostile_image.h.
#include "tests/support/hostile_image.h"

#include <gtest/gtest.h>
#include <kvslot/admin.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/superblocks.h"
#include "tests/support/check_report.h"
#include "tests/support/engine.h"

namespace kvslot::testing {
namespace {

constexpr std::uint64_t kImageBytes = 16 * kMiB;
constexpr std::uint64_t kFreeBlocksSampled = 4;

std::unique_ptr<SimulatedDevice> copy_of(const SimulatedDevice& device) {
  return device.survivor(1, CrashMode::kAll);
}

// A value with a hole: two windows, one block each.
void put_sparse(Volume& volume, std::string_view key) {
  ContentChange change;
  change.key = key;
  change.whole = true;
  change.size_bytes = volume.geometry().window_size_bytes() + 100;
  change.writes.push_back({.window = 0, .size_bytes = 4096, .data = Buffer::from_heap(4096)});
  change.writes.push_back({.window = 1, .size_bytes = 100, .data = Buffer::from_heap(4096)});
  for (const WindowWrite& write : change.writes)
    std::fill_n(write.data.data(), write.size_bytes, std::byte{0x5a});
  volume.commit({&change, 1});
  EXPECT_TRUE(change.result);
}

void build_first_half(Volume& volume) {
  EXPECT_TRUE(put_key(volume, "a/small", value_of(1, 100)));
  EXPECT_TRUE(put_key(volume, "a/two", value_of(2, 5000)));
  EXPECT_TRUE(put_key(volume, "block", value_of(3, 4096)));
  EXPECT_TRUE(put_key(volume, "overwritten", value_of(4, 200)));
  EXPECT_TRUE(put_key(volume, "removed", value_of(5, 200)));
  put_sparse(volume, "sparse");
  const auto link = volume.create(NodeId::kRoot, "link", NodeKind::kSymlink, {}, "a/small");
  EXPECT_TRUE(link);
  EXPECT_TRUE(
      volume.set_xattr(volume.find("block")->node, "user.name", "value", Volume::XattrMode::kAny));
  EXPECT_TRUE(volume.checkpoint());
}

}  // namespace

HostileImage::HostileImage(End end, std::uint64_t seed) {
  auto device = make_device(kImageBytes, 4096, {.seed = seed});
  SimulatedDevice& raw = *device;
  auto opened = Volume::open(std::move(device), {.seed = seed});
  EXPECT_TRUE(opened);
  Volume& volume = **opened;
  geometry_ = volume.geometry();
  build_first_half(volume);
  remember(volume, true);
  earlier_ = copy_of(raw);
  EXPECT_TRUE(put_key(volume, "overwritten", value_of(6, 300)));
  EXPECT_TRUE(put_key(volume, "b/late", value_of(7, 6000)));
  remember(volume, true);
  EXPECT_TRUE(volume.checkpoint());
  states_.clear();
  remember(volume, true);
  EXPECT_TRUE(put_key(volume, "logged", value_of(8, 500)));
  remember(volume, false);
  EXPECT_TRUE(volume.flush());
  states_.back() = *take_snapshot(volume);
  const std::size_t flushed = states_.size() - 1;
  EXPECT_TRUE(volume.remove(NodeId::kRoot, "removed", RemoveKind::kNotDirectory));
  EXPECT_TRUE(
      volume.rename(NodeId::kRoot, "block", NodeId::kRoot, "renamed", RenameMode::kReplace));
  EXPECT_TRUE(put_key(volume, "overwritten", value_of(9, 400)));
  noted_ = flushed;  // in the block of this put
  remember(volume, false);
  EXPECT_TRUE(put_key(volume, "last", value_of(10, 700)));
  remember(volume, false);
  if (end == End::kClosed) {
    EXPECT_TRUE(volume.close());
    states_ = {*take_snapshot(volume)};
    noted_ = 0;
  }
  device_ = copy_of(raw);
  const std::vector<std::byte> zeros(kBlockSizeBytes);
  std::uint64_t free_blocks = 0;
  for (std::uint64_t block = 0; block < kImageBytes / kBlockSizeBytes; ++block) {
    const bool is_used = read_block(block) != zeros;
    const bool is_sampled = !is_used && block % 97 == 0 && free_blocks++ < kFreeBlocksSampled;
    if (is_used || is_sampled) blocks_.push_back(block);
  }
}

void HostileImage::remember(Volume& volume, bool is_flushed) {
  EXPECT_TRUE(!is_flushed || volume.flush());
  auto snapshot = take_snapshot(volume);
  ASSERT_TRUE(snapshot);
  for (const auto& [key, entry] : *snapshot)
    if (entry.value) values_[key].insert(*entry.value);
  states_.push_back(std::move(*snapshot));
}

std::vector<std::byte> HostileImage::read_block(std::uint64_t block) const {
  std::vector<std::byte> bytes(kBlockSizeBytes);
  device_->peek(block * kBlockSizeBytes, bytes);
  return bytes;
}

void HostileImage::write_block(std::uint64_t block, ConstBytes bytes) {
  device_->poke(block * kBlockSizeBytes, bytes);
}

struct HostileImage::Opened {
  std::optional<Snapshot> snapshot;  // nothing: refused
  std::size_t faults = 0;
  std::string step;
};

HostileImage::Opened HostileImage::open(std::unique_ptr<SimulatedDevice> device,
                                        bool read_only) const {
  auto volume = Volume::open(std::move(device), {.read_only = read_only, .seed = 3});
  if (!volume) return {.snapshot = {}, .step = volume.error().step};
  Opened opened;
  opened.snapshot = take_snapshot(**volume);
  EXPECT_TRUE(opened.snapshot) << "a store that opens can be listed";
  opened.faults = (*volume)->inspector().faults().size();
  return opened;
}

// A state that the store had, and nothing missing in silence.
void HostileImage::expect_known(const Opened& opened, bool is_damaged,
                                const std::string& what) const {
  if (!opened.snapshot) {
    EXPECT_TRUE(is_damaged) << what << ": refused (" << opened.step << "), but checks as clean";
    return;
  }
  for (const auto& [key, entry] : *opened.snapshot) {
    const auto known = values_.find(key);
    EXPECT_TRUE(!entry.value || (known != values_.end() && known->second.contains(*entry.value)))
        << what << ": '" << key << "' has bytes that nobody wrote";
  }
  EXPECT_TRUE(is_damaged || unreadable(*opened.snapshot).empty())
      << what << ": a value cannot be read, but checks as clean";
  std::size_t index = states_.size();
  while (index > 0 && !difference(states_[index - 1], *opened.snapshot, true).empty()) --index;
  if (index == 0) {
    ADD_FAILURE() << what << ": a state that the store never had: "
                  << difference(states_.back(), *opened.snapshot, true);
  } else if (index - 1 < noted_) {
    EXPECT_TRUE(is_damaged && opened.faults > 0) << what << ": what was flushed is gone in silence";
  }
}

void HostileImage::judge_closing(std::unique_ptr<SimulatedDevice> device, bool is_damaged,
                                 bool is_forged, const Opened& as_read,
                                 const std::string& what) const {
  SimulatedDevice& raw = *device;
  std::optional<Snapshot> before;
  std::unique_ptr<SimulatedDevice> left;
  {
    auto volume = Volume::open(std::move(device), {});  // a random epoch: see below
    if (!volume) {
      EXPECT_TRUE(is_damaged) << what << ": refused (" << volume.error().step
                              << "), but checks as clean";
      return;
    }
    before = take_snapshot(**volume);
    ASSERT_TRUE(before) << what;
    EXPECT_EQ(as_read.snapshot ? difference(*as_read.snapshot, *before) : "", "")
        << what << ": opened for writing";
    if (!is_forged) {
      const bool is_known = std::any_of(
          states_.begin() + static_cast<std::ptrdiff_t>(noted_), states_.end(),
          [&](const Snapshot& state) { return difference(state, *before, true).empty(); });
      EXPECT_TRUE(is_known) << what << ": opened for writing without what was flushed";
    }
    if (!(*volume)->close()) return;
    left = raw.survivor(1, CrashMode::kNone);
  }
  const auto report = check_device(*left, {});
  ASSERT_TRUE(report) << what;
  EXPECT_TRUE(is_damaged || !report->damaged) << what << "\n" << text_of(*report);
  const Opened again = open(std::move(left), true);
  ASSERT_TRUE(again.snapshot) << what << ": does not open again: " << again.step;
  EXPECT_EQ(difference(*before, *again.snapshot), "") << what << ": after closing";
}

void HostileImage::judge_both(const std::string& what, const SimulatedDevice& device,
                              bool is_forged) const {
  const auto copy = copy_of(device);
  const auto report = check_device(*copy, {});
  const bool is_damaged = !report || report->damaged;
  const Opened as_read = open(copy_of(device), true);
  if (!is_forged) {
    expect_known(as_read, is_damaged, what);
  } else {
    EXPECT_TRUE(is_damaged || as_read.snapshot)
        << what << ": refused (" << as_read.step << "), but checks as clean";
    EXPECT_TRUE(is_damaged || !as_read.snapshot || unreadable(*as_read.snapshot).empty())
        << what << ": a value cannot be read, but checks as clean";
  }
  judge_closing(copy_of(device), is_damaged, is_forged, as_read, what);
}

void HostileImage::judge(const std::string& what, const SimulatedDevice& device) const {
  judge_both(what, device, false);
}

void HostileImage::judge_forged(const std::string& what) const { judge_both(what, *device_, true); }

}  // namespace kvslot::testing
