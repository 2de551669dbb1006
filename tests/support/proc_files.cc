// See proc_files.h.
#include "tests/support/proc_files.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace kvslot::testing {
namespace {

std::uint64_t entries_of(const std::string& directory) {
  std::error_code ignored;
  std::uint64_t count = 0;
  for (auto at = std::filesystem::directory_iterator(directory, ignored);
       at != std::filesystem::directory_iterator(); at.increment(ignored)) {
    ++count;
  }
  return count;
}

}  // namespace

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::map<std::string, std::string> fields_of(const std::string& path) {
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

bool is_mounted(const std::string& directory) {
  std::error_code gone;  // also where the mount is dead: then the name is taken as it is
  const std::filesystem::path canonical = std::filesystem::canonical(directory, gone);
  const std::string wanted = " " + (gone ? directory : canonical.string()) + " ";
  return text_of("/proc/self/mounts").find(wanted) != std::string::npos;
}

ProcessUsage usage_of(pid_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  auto status = fields_of(process + "/status");
  return {.resident_kib = std::strtoull(status["VmRSS"].c_str(), nullptr, 10),
          .threads = std::strtoull(status["Threads"].c_str(), nullptr, 10),
          .descriptors = entries_of(process + "/fd")};
}

}  // namespace kvslot::testing
