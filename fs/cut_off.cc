// See cut_off.h.
#include "fs/cut_off.h"

#include <fmt/core.h>
#include <kvslot/admin.h>
#include <kvslot/device.h>

namespace kvslot {

std::optional<std::string> explain_cut_off(const std::string& device_path) {
  // The mount that could not open it may still hold the device.
  const auto device = open_file_device(device_path, {.read_only = true, .exclusive = false});
  if (!device) return std::nullopt;
  const auto info = read_store_info(**device);
  if (!info) return std::nullopt;
  const std::uint64_t is_bytes = (*device)->info().size_bytes;
  const std::uint64_t was_bytes = info->geometry.size_bytes;
  if (was_bytes <= is_bytes) return std::nullopt;
  return fmt::format(
      "is shorter than when it was formatted: {} of {} bytes; bring it back to its full size, or "
      "mount it with -o ro and copy what it holds",
      is_bytes, was_bytes);
}

}  // namespace kvslot
