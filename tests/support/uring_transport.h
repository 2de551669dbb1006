// Whether a mount can be served over io_uring here. For tests/system only.
#pragma once

#include <fstream>
#include <string>

namespace kvslot::testing {

// Why `-o transport=uring` would be refused; empty where it would not.
[[nodiscard]] inline std::string why_no_uring_transport() {
  if (!KVSLOT_FUSE_RINGS_ARE_SOUND) return "this libfuse has no rings, or ones that are not used";
  std::ifstream file("/sys/module/fuse/parameters/enable_uring");
  std::string value;
  if (!(file >> value)) return "this kernel has no FUSE over io_uring";
  if (value == "Y" || value == "1") return {};
  return "/sys/module/fuse/parameters/enable_uring is " + value;
}

}  // namespace kvslot::testing
