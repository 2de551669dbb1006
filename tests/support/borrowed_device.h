// Devices that pass on what they are asked, for tests that keep the device below or change a call.
#pragma once

#include <kvslot/device.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace kvslot::testing {

// A device that somebody else keeps, so that it outlives the store on it.
// Threads: as the device below.
class BorrowedDevice : public Device {
 public:
  explicit BorrowedDevice(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  void run(std::span<IoRequest> requests) override { device_->run(requests); }
  [[nodiscard]] Result<void> flush() override { return device_->flush(); }
  void discard(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    device_->discard(offset_bytes, size_bytes);
  }
  [[nodiscard]] const DeviceInfo& info() const override { return device_->info(); }
  [[nodiscard]] DeviceCounters counters() const override { return device_->counters(); }

 protected:
  const std::shared_ptr<Device> device_;
};

}  // namespace kvslot::testing
