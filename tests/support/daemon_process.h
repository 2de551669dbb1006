// What /proc tells of the process that serves a mount.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <system_error>

namespace kvslot::testing {

// What a file has, to its end; empty where there is none.
[[nodiscard]] inline std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The `name:value` lines of a file of /proc.
[[nodiscard]] inline std::map<std::string, std::string> fields_of(const std::string& path) {
  std::map<std::string, std::string> fields;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    const std::size_t value = line.find_first_not_of(" \t", colon + 1);
    if (colon != std::string::npos && value != std::string::npos) {
      fields[line.substr(0, colon)] = line.substr(value);
    }
  }
  return fields;
}

[[nodiscard]] inline pid_t server_of(const std::string& mount_point) {
  std::ifstream config(mount_point + "/.kvslot/config");
  for (std::string line; std::getline(config, line);) {
    if (line.starts_with("pid\t")) return std::stoi(line.substr(4));
  }
  ADD_FAILURE() << "no pid in " << mount_point << "/.kvslot/config";
  return -1;
}

[[nodiscard]] inline std::size_t entries_of(const std::string& directory) {
  std::error_code ignored;
  std::size_t count = 0;
  for (auto at = std::filesystem::directory_iterator(directory, ignored);
       at != std::filesystem::directory_iterator(); at.increment(ignored)) {
    ++count;
  }
  return count;
}

struct ProcessUsage {
  std::uint64_t resident_kib = 0;
  std::uint64_t threads = 0;
  std::uint64_t descriptors = 0;
};

[[nodiscard]] inline ProcessUsage usage_of(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  auto status = fields_of(process + "/status");
  return {.resident_kib = std::strtoull(status["VmRSS"].c_str(), nullptr, 10),
          .threads = std::strtoull(status["Threads"].c_str(), nullptr, 10),
          .descriptors = entries_of(process + "/fd")};
}

}  // namespace kvslot::testing
