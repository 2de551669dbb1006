// A million keys: what opening costs the processor, and what the index costs in memory.
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/engine.h"
#include "tests/support/temp_dir.h"

namespace kvslot::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kKeyCount = 20'000;
constexpr bool kIsMeasured = false;  // sanitized code is slow by design
#else
constexpr std::size_t kKeyCount = 1'000'000;
constexpr bool kIsMeasured = true;
#endif
// Opening costs at most so many times what the standard library takes to sort the same names into
// a map. Seconds would measure the machine, and what else it does. (It is less than one map: what
// shows here is a recovery that does something several times, or for each pair of keys.)
constexpr double kTimesAMapMax = 8.0;
constexpr std::uint64_t kNameBytes = 16;

// A file device that does not write values: a million of them would only heat the disk.
class ValuelessDevice final : public BorrowedDevice {
 public:
  ValuelessDevice(std::shared_ptr<Device> device, std::uint64_t slots_offset_bytes)
      : BorrowedDevice(std::move(device)), slots_offset_bytes_(slots_offset_bytes) {}
  void run(std::span<IoRequest> requests) override {
    for (IoRequest& request : requests) {
      const bool is_value =
          request.op == IoOp::kWrite && request.offset_bytes >= slots_offset_bytes_;
      if (!is_value) BorrowedDevice::run({&request, 1});
    }
  }

 private:
  const std::uint64_t slots_offset_bytes_;
};

std::string name_of(std::size_t i) {
  std::string name(kNameBytes, '0');
  std::snprintf(name.data(), name.size() + 1, "key-%012zu", i);
  return name;
}

void put_all(Volume& volume, std::size_t count) {
  constexpr std::size_t kTogether = 1000;
  for (std::size_t first = 0; first < count; first += kTogether) {
    std::vector<std::string> names;
    std::vector<ContentChange> changes;
    for (std::size_t i = first; i < first + kTogether; ++i) names.push_back(name_of(i));
    for (const std::string& name : names)
      changes.push_back(change_for_put(volume, name, bytes_of("value")));
    volume.commit(changes);
    for (const ContentChange& change : changes) ASSERT_TRUE(change.result);
  }
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// What this machine takes, now, to put the names into a map, in an order that is not theirs.
double cpu_seconds_of_a_map() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kKeyCount; ++i) names.push_back(name_of(i));
  std::ranges::shuffle(names, std::mt19937_64{1});
  const double start = cpu_seconds();
  std::map<std::string, std::array<std::byte, 64>> map;
  for (const std::string& name : names) map.try_emplace(name);
  return cpu_seconds() - start;
}

struct Opened {
  std::unique_ptr<Volume> volume;
  double cpu_seconds = 0;
};

Opened open_and_measure(std::unique_ptr<Device> device, const char* what) {
  const double start = cpu_seconds();
  auto volume = Volume::open(std::move(device), {.seed = 1});
  Opened opened{.volume = nullptr, .cpu_seconds = cpu_seconds() - start};
  EXPECT_TRUE(volume) << volume.error().step;
  if (!volume) return opened;
  opened.volume = std::move(*volume);
  std::printf("recovery of %zu keys from the %s: %.2f s, %.2f s of it on the processor\n",
              kKeyCount, what, static_cast<double>(stat_of(*opened.volume, "recovery_us")) / 1e6,
              opened.cpu_seconds);
  return opened;
}

TEST(RecoverySpeed, AMillionKeysOpenInTheTimeOfAFewMapsAndCostUnderAHundredBytesEach) {
  const TempDir folder;
  // Sparse; so large that the journal, a sixty-fourth, holds everything.
  const std::string image = folder.make_image("million.img", 64 * kGiB);
  const auto open_image = [&] {
    auto device = open_file_device(image, {});
    EXPECT_TRUE(device) << device.error().step;
    return std::move(*device);
  };
  auto raw = open_image();
  const auto geometry = format_device(*raw, {});
  ASSERT_TRUE(geometry) << geometry.error().step;
  {
    auto device = std::make_unique<ValuelessDevice>(std::move(raw), geometry->slots_offset_bytes);
    auto volume = Volume::open(std::move(device), {});
    ASSERT_TRUE(volume) << volume.error().step;
    put_all(**volume, kKeyCount);
    // A block that says that all values were flushed: recovery need not look for them.
    ASSERT_TRUE((*volume)->flush());
    ASSERT_TRUE((*volume)->create(NodeId::kRoot, "end", NodeKind::kDirectory, {}));
    ASSERT_TRUE((*volume)->flush());
    ASSERT_EQ(stat_of(**volume, "checkpoints"), 0U);
  }
  auto from_journal = open_and_measure(open_image(), "journal");
  ASSERT_TRUE(from_journal.volume);
  EXPECT_EQ(stat_of(*from_journal.volume, "nodes"), kKeyCount + 1);
  ASSERT_TRUE(from_journal.volume->close());
  from_journal.volume.reset();

  auto from_checkpoint = open_and_measure(open_image(), "checkpoint");
  ASSERT_TRUE(from_checkpoint.volume);
  EXPECT_EQ(stat_of(*from_checkpoint.volume, "nodes"), kKeyCount + 1);
  EXPECT_TRUE(from_checkpoint.volume->find(name_of(kKeyCount / 2)));
  const std::uint64_t memory = from_checkpoint.volume->inspector().index_memory_bytes();
  const double each = static_cast<double>(memory) / static_cast<double>(kKeyCount) - kNameBytes;
  std::printf("index memory: %.1f bytes a key besides its name\n", each);
  if (!kIsMeasured) return;
  EXPECT_LE(each, 96.0);
  const double of_a_map = cpu_seconds_of_a_map();
  std::printf("a map of the names: %.2f s on the processor\n", of_a_map);
  EXPECT_LT(from_journal.cpu_seconds, kTimesAMapMax * of_a_map);
  EXPECT_LT(from_checkpoint.cpu_seconds, kTimesAMapMax * of_a_map);
}

}  // namespace
}  // namespace kvslot::testing
