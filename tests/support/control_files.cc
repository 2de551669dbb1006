// See control_files.h.
#include "tests/support/control_files.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace kvslot::testing {

pid_t server_of(const std::string& mount_point) {
  std::ifstream config(mount_point + "/.kvslot/config");
  for (std::string line; std::getline(config, line);) {
    if (line.starts_with("pid\t")) return std::stoi(line.substr(4));
  }
  ADD_FAILURE() << "no pid in " << mount_point << "/.kvslot/config";
  return -1;
}

MountStats stats_of(const std::string& mount_point) {
  MountStats stats;
  std::ifstream file(mount_point + "/.kvslot/stats");
  for (std::string line; std::getline(file, line);) {
    const std::size_t tab = line.find('\t');
    if (!line.starts_with('#')) stats[line.substr(0, tab)] = std::stoull(line.substr(tab + 1));
  }
  return stats;
}

std::uint64_t stat_of(const std::string& mount_point, const std::string& name) {
  const MountStats stats = stats_of(mount_point);
  const auto found = stats.find(name);
  if (found != stats.end()) return found->second;
  ADD_FAILURE() << "no " << name << " in " << mount_point << "/.kvslot/stats";
  return 0;
}

std::vector<StoredExtent> extents_of(const std::string& mount_point, const std::string& key) {
  std::vector<StoredExtent> extents;
  std::ifstream file(mount_point + "/.kvslot/key/" + key);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what;
    std::uint64_t offset_in_value = 0;
    StoredExtent extent;
    if (words >> what >> offset_in_value >> extent.size_bytes >> extent.device_offset_bytes &&
        what == "extent") {
      extents.push_back(extent);
    }
  }
  return extents;
}

}  // namespace kvslot::testing
