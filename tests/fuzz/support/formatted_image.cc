// See formatted_image.h.
#include "tests/fuzz/support/formatted_image.h"

#include <kvslot/admin.h>

#include "tests/fuzz/support/require.h"

namespace kvslot::testing {

std::unique_ptr<SimulatedDevice> format_image(std::uint32_t slot_size_bytes) {
  auto device = std::make_unique<SimulatedDevice>(
      SimulatedDeviceOptions{.size_bytes = kFuzzImageBytes, .seed = 1});
  FormatOptions options;
  options.slot_size_bytes = slot_size_bytes;
  options.seed = 7;
  require(format_device(*device, options).has_value(), "an image can be formatted");
  return device;
}

std::unique_ptr<SimulatedDevice> formatted_image() {
  static const auto device = format_image();
  return device->survivor(1, CrashMode::kAll);
}

}  // namespace kvslot::testing
