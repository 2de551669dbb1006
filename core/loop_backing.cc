// Asks sysfs, which names the backing file of every loop device.
#include "core/loop_backing.h"

#include <sys/sysmacros.h>

#include <filesystem>
#include <fstream>
#include <system_error>

namespace kvslot {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::string loop_device_over(const struct stat& file) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/block", error)) {
    const std::string backing = first_line(entry.path() / "loop/backing_file");
    struct stat status{};
    const bool is_same = !backing.empty() && ::stat(backing.c_str(), &status) == 0 &&
                         status.st_dev == file.st_dev && status.st_ino == file.st_ino;
    if (is_same) return "/dev/" + entry.path().filename().string();
  }
  return {};
}

std::string backing_file_of(const struct stat& device) {
  const std::string number =
      std::to_string(major(device.st_rdev)) + ":" + std::to_string(minor(device.st_rdev));
  const std::string backing = first_line("/sys/dev/block/" + number + "/loop/backing_file");
  struct stat status{};
  return ::stat(backing.c_str(), &status) == 0 && S_ISREG(status.st_mode) ? backing : std::string();
}

}  // namespace kvslot
