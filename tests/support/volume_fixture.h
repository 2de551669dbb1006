// A store over a device in memory that crashes and is opened again.
#pragma once

#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "tests/support/engine.h"

namespace kvslot::testing {

class VolumeTest : public ::testing::Test {
 protected:
  explicit VolumeTest(std::uint64_t size_bytes = 16 * kMiB) { open(make_device(size_bytes)); }

  void open(std::unique_ptr<SimulatedDevice> device) {
    const auto opened = try_open(std::move(device));
    ASSERT_TRUE(opened) << opened.error().step;
  }
  Result<void> try_open(std::unique_ptr<SimulatedDevice> device,
                        const VolumeOptions& options = {.seed = 1}) {
    volume_.reset();
    device_ = std::move(device);
    auto volume = Volume::open(std::make_unique<BorrowedDevice>(device_), options);
    if (!volume) return fail(volume);
    volume_ = std::move(*volume);
    return {};
  }
  void crash(CrashMode mode = CrashMode::kNone) { open(device_->survivor(5, mode)); }
  [[nodiscard]] std::uint64_t stat(std::string_view name) { return stat_of(*volume_, name); }

  std::shared_ptr<SimulatedDevice> device_;
  std::unique_ptr<Volume> volume_;
};

}  // namespace kvslot::testing
