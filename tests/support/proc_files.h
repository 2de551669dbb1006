// What /proc tells of a process and of what is mounted. For tests/system.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

namespace kvslot::testing {

// What a file has, to its end; empty where there is none.
[[nodiscard]] std::string text_of(const std::string& path);

// The `name:value` lines of a file.
[[nodiscard]] std::map<std::string, std::string> fields_of(const std::string& path);

[[nodiscard]] bool is_mounted(const std::string& directory);

struct ProcessUsage {
  std::uint64_t resident_kib = 0;
  std::uint64_t threads = 0;
  std::uint64_t descriptors = 0;
};
[[nodiscard]] ProcessUsage usage_of(pid_t pid);

}  // namespace kvslot::testing
