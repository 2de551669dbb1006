// Asks sysfs what a file is on, and what that is made of.
#include "core/submission.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace kvslot {
namespace {

namespace fs = std::filesystem;

constexpr int kStackDepthMax = 8;  // of device-mapper and md devices

// `device` is a directory of a disk or a partition below /sys/devices.
bool is_local(const fs::path& device, int depth) {
  if (depth == 0 || device.string().find("/block/nbd") != std::string::npos) return false;
  std::error_code error;
  for (fs::directory_iterator below(device / "slaves", error); below != fs::directory_iterator();
       below.increment(error)) {
    const fs::path target = fs::canonical(below->path(), error);
    if (error || !is_local(target, depth - 1)) return false;
  }
  return true;
}

}  // namespace

bool takes_requests_at_once(int fd) {
  struct stat status{};
  if (::fstat(fd, &status) < 0) return false;
  const dev_t device = S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev;
  const std::string number = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  std::error_code error;
  const fs::path found = fs::canonical("/sys/dev/block/" + number, error);
  return !error && is_local(found, kStackDepthMax);
}

}  // namespace kvslot
