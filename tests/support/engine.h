// Verbs that most tests of the engine need: a formatted device in memory, values, numbers.
#pragma once

#include <kvslot/admin.h>
#include <kvslot/store.h>
#include <kvslot/volume.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/borrowed_device.h"
#include "tests/support/simulated_device.h"

namespace kvslot::testing {

// Bytes that differ for every seed and position.
[[nodiscard]] std::string value_of(std::uint64_t seed, std::size_t size_bytes);
[[nodiscard]] ConstBytes bytes_of(std::string_view text);

// A formatted device in memory, the same for the same arguments.
[[nodiscard]] std::unique_ptr<SimulatedDevice> make_device(
    std::uint64_t size_bytes, std::uint32_t slot_size_bytes = 4096,
    const SimulatedDeviceOptions& options = {});

// One of the numbers of inspect.h; the test fails when there is none of that name.
[[nodiscard]] std::uint64_t stat_of(Volume& volume, std::string_view name);

[[nodiscard]] std::string text_of(const ReadView& view);
[[nodiscard]] Result<std::string> read_key(Volume& volume, std::string_view key);
// Stores one value with a commit of its own; returns the sequence of its block in `sequence`.
Result<void> put_key(Volume& volume, std::string_view key, std::string_view value,
                     std::uint64_t* sequence = nullptr);

// Every slot is free, or has an owner that is a key, a checkpoint or an unlinked file, or waits
// for a flush, or is quarantined; and the counts of `stats` say the same.
void expect_slots_accounted(Volume& volume);
// A checkpoint that a store writes in the background moves slots while they are counted: looks
// again until there are no faults, or nothing but a fault can take so long.
void expect_no_faults_at_rest(const std::function<std::string()>& find_faults);

// A store over a device in memory, which stays at hand.
class StoreHarness {
 public:
  explicit StoreHarness(std::uint64_t size_bytes = 64 * kMiB, std::uint32_t slot_size_bytes = 4096,
                        const SimulatedDeviceOptions& options = {});
  explicit StoreHarness(std::unique_ptr<SimulatedDevice> device);
  ~StoreHarness();

  [[nodiscard]] Store& store() { return *store_; }
  [[nodiscard]] Volume& volume() { return store_->volume(); }
  [[nodiscard]] SimulatedDevice& device() { return *device_; }
  [[nodiscard]] std::uint64_t stat(std::string_view name) { return stat_of(volume(), name); }

  // Closes the store and opens what a power loss right after that leaves.
  void reopen();
  // Loses power and opens what is left.
  void crash(CrashMode mode = CrashMode::kNone);

 private:
  void open(std::unique_ptr<SimulatedDevice> device);
  SimulatedDevice* device_ = nullptr;
  std::unique_ptr<Store> store_;
};

// The results of a put as words: "ok" or the error's code.
[[nodiscard]] std::vector<std::string> words_of(const std::vector<Result<void>>& results);

}  // namespace kvslot::testing
