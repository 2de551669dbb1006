// The smallest store there is, empty.
#pragma once

#include <kvslot/options.h>

#include <cstdint>
#include <memory>

#include "tests/support/simulated_device.h"

namespace kvslot::testing {

inline constexpr std::uint64_t kFuzzImageBytes = 16 * kMiB;

// Formats one; the same for the same slot size.
[[nodiscard]] std::unique_ptr<SimulatedDevice> format_image(std::uint32_t slot_size_bytes = 4096);

// A copy of one with slots of 4 KiB, which is formatted once.
[[nodiscard]] std::unique_ptr<SimulatedDevice> formatted_image();

}  // namespace kvslot::testing
