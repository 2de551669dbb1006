#include "tests/support/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "core/put_changes.h"

namespace kvslot::testing {

std::string value_of(std::uint64_t seed, std::size_t size_bytes) {
  std::string value(size_bytes, '\0');
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::size_t i = 0; i < size_bytes; i += sizeof state) {  // splitmix64: values are many
    state += 0x9e3779b97f4a7c15;
    std::uint64_t word = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
    word ^= word >> 31;
    std::memcpy(value.data() + i, &word, std::min(sizeof word, size_bytes - i));
  }
  return value;
}

ConstBytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::unique_ptr<SimulatedDevice> make_device(std::uint64_t size_bytes,
                                             std::uint32_t slot_size_bytes,
                                             const SimulatedDeviceOptions& options) {
  SimulatedDeviceOptions sized = options;
  sized.size_bytes = size_bytes;
  auto device = std::make_unique<SimulatedDevice>(sized);
  const auto geometry = format_device(
      *device,
      {.slot_size_bytes = slot_size_bytes, .label = "test", .seed = options.seed, .clock = [] {
         return TimestampNs{1'000'000'000};
       }});
  EXPECT_TRUE(geometry) << geometry.error().step;
  return device;
}

std::uint64_t stat_of(Volume& volume, std::string_view name) {
  for (const Stat& stat : volume.inspector().stats())
    if (stat.name == name) return stat.value;
  ADD_FAILURE() << "no number is called " << name;
  return 0;
}

std::string text_of(const ReadView& view) {
  std::string text;
  for (const iovec& piece : view.pieces)
    text.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  return text;
}

Result<std::string> read_key(Volume& volume, std::string_view key) {
  const auto node = volume.find(key);
  if (!node) return fail(node);
  const auto view = volume.read(node->node, 0, SIZE_MAX);
  if (!view) return fail(view);
  return text_of(*view);
}

Result<void> put_key(Volume& volume, std::string_view key, std::string_view value,
                     std::uint64_t* sequence) {
  ContentChange change = change_for_put(volume, key, bytes_of(value));
  const std::uint64_t block = volume.commit({&change, 1});
  if (sequence != nullptr) *sequence = block;
  return change.result;
}

void expect_slots_accounted(Volume& volume) {
  std::map<SlotState, std::uint64_t> counts;
  std::uint64_t checkpoint = 0;
  std::uint32_t cursor = 0;
  std::uint32_t next = 0;
  while (true) {
    const auto records = volume.inspector().slots(cursor);
    if (records.empty()) break;
    for (const SlotRecord& record : records) {
      EXPECT_EQ(static_cast<std::uint32_t>(record.run.first), next) << "a gap in the listing";
      next += record.run.count;
      counts[record.state] += record.run.count;
      if (record.owner == "#checkpoint") checkpoint += record.run.count;
      if (record.state == SlotState::kLive) {
        EXPECT_FALSE(record.owner.empty())
            << "slot " << static_cast<std::uint32_t>(record.run.first);
      }
    }
  }
  EXPECT_EQ(next, volume.geometry().slot_count);
  EXPECT_EQ(counts[SlotState::kReserved], 0U) << "slots that nobody owns";
  EXPECT_EQ(counts[SlotState::kWriting], 0U);
  EXPECT_EQ(counts[SlotState::kFree], stat_of(volume, "slots_free"));
  EXPECT_EQ(counts[SlotState::kLive] - checkpoint, stat_of(volume, "slots_live"));
  EXPECT_EQ(counts[SlotState::kDoomed], stat_of(volume, "slots_doomed"));
  EXPECT_EQ(checkpoint, stat_of(volume, "slots_checkpoint"));
  EXPECT_EQ(stat_of(volume, "slots_reserved"), 0U);
  EXPECT_EQ(stat_of(volume, "puts_inflight"), 0U);
}

StoreHarness::StoreHarness(std::uint64_t size_bytes, std::uint32_t slot_size_bytes,
                           const SimulatedDeviceOptions& options) {
  open(make_device(size_bytes, slot_size_bytes, options));
}

StoreHarness::~StoreHarness() = default;

void StoreHarness::open(std::unique_ptr<SimulatedDevice> device) {
  device_ = device.get();
  // Nothing is flushed because time has passed: tests count what reaches the device.
  auto store = Store::open(std::move(device),
                           {.volume = {.seed = 1}, .batcher = {.commit_interval_ms = 3'600'000}});
  ASSERT_TRUE(store) << store.error().step;
  store_ = std::move(*store);
}

void StoreHarness::reopen() {
  const auto closed = store_->close();
  EXPECT_TRUE(closed) << closed.error().step;
  crash();
}

void StoreHarness::crash(CrashMode mode) {
  auto survivor = device_->survivor(1, mode);
  device_->crash_after_operations(0);
  store_.reset();
  open(std::move(survivor));
}

std::vector<std::string> words_of(const std::vector<Result<void>>& results) {
  std::vector<std::string> words;
  for (const auto& result : results)
    words.emplace_back(result ? "ok" : to_string(result.error().code));
  return words;
}

}  // namespace kvslot::testing
