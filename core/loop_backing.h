// Loop devices show one file as a block device: two names for the same bytes, and no lock on one
// of them is seen through the other. Used by core/file_device.cc, so that both ends refuse.
#pragma once

#include <sys/stat.h>

#include <string>

namespace kvslot {

// The loop device ("/dev/loop3") that shows this file, or empty.
[[nodiscard]] std::string loop_device_over(const struct stat& file);

// The file behind a loop device, or empty for any other device or a file that is gone.
[[nodiscard]] std::string backing_file_of(const struct stat& device);

}  // namespace kvslot
