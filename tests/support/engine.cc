#include "tests/support/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
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

namespace {

class SlotSums {
 public:
  explicit SlotSums(Volume& volume) : volume_(volume) {}

  // What does not add up, a line each.
  std::string faults() {
    list_slots();
    expect(next_, volume_.geometry().slot_count, "slots listed");
    expect(counts_[SlotState::kReserved], 0, "slots that nobody owns");
    expect(counts_[SlotState::kWriting], 0, "slots being written");
    expect(counts_[SlotState::kFree], stat_of(volume_, "slots_free"), "free slots");
    expect(counts_[SlotState::kLive] - checkpoint_, stat_of(volume_, "slots_live"), "live slots");
    expect(counts_[SlotState::kDoomed], stat_of(volume_, "slots_doomed"), "doomed slots");
    expect(checkpoint_, stat_of(volume_, "slots_checkpoint"), "slots of checkpoints");
    expect(stat_of(volume_, "slots_reserved"), 0, "slots_reserved");
    expect(stat_of(volume_, "puts_inflight"), 0, "puts_inflight");
    return std::exchange(faults_, {});
  }

 private:
  void list_slots() {
    std::uint32_t cursor = 0;
    while (true) {
      const auto records = volume_.inspector().slots(cursor);
      if (records.empty()) return;
      for (const SlotRecord& record : records) {
        expect(static_cast<std::uint32_t>(record.run.first), next_, "first slot, without a gap");
        next_ += record.run.count;
        counts_[record.state] += record.run.count;
        if (record.owner == "#checkpoint") checkpoint_ += record.run.count;
        if (record.state == SlotState::kLive) expect(record.owner.empty(), false, "without owner");
      }
    }
  }
  void expect(std::uint64_t found, std::uint64_t wanted, const char* what) {
    if (found == wanted) return;
    faults_ += std::to_string(found) + " and not " + std::to_string(wanted) + " " + what + "\n";
  }

  Volume& volume_;
  std::map<SlotState, std::uint64_t> counts_;
  std::uint64_t checkpoint_ = 0;
  std::uint32_t next_ = 0;
  std::string faults_;
};

}  // namespace

void expect_slots_accounted(Volume& volume) {
  expect_no_faults_at_rest([&volume] { return SlotSums(volume).faults(); });
}

void expect_no_faults_at_rest(const std::function<std::string()>& find_faults) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::string faults = find_faults();
  while (!faults.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
    faults = find_faults();
  }
  EXPECT_EQ(faults, "");
}

StoreHarness::StoreHarness(std::uint64_t size_bytes, std::uint32_t slot_size_bytes,
                           const SimulatedDeviceOptions& options) {
  open(make_device(size_bytes, slot_size_bytes, options));
}

StoreHarness::StoreHarness(std::unique_ptr<SimulatedDevice> device) { open(std::move(device)); }

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
