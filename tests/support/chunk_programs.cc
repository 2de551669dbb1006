// See chunk_programs.h.
#include "tests/support/chunk_programs.h"

#include <fcntl.h>

#include <cstdio>
#include <string_view>

namespace kvslot::testing {

int ChunkProgram::close_after(ClientFile& file, int written) {
  const int closed = file.close();
  return written == 0 || (written == kShort && closed != 0) ? closed : written;
}

int ChunkProgram::publish(ClientFile& file, int written, const std::string& temporary,
                          const std::string& final_path) {
  int outcome = close_after(file, written);
  if (outcome == 0) outcome = rename_file(temporary, final_path);
  if (outcome != 0) (void)remove_file(temporary);
  return outcome;
}

const std::vector<ProgramKind>& program_kinds() {
  static const std::vector<ProgramKind> kinds = [] {
    std::vector<ProgramKind> all;
    for (const auto& group : {lmcache_kinds(), vllm_kinds(), nixl_kinds(), other_kinds()}) {
      all.insert(all.end(), group.begin(), group.end());
    }
    return all;
  }();
  return kinds;
}

std::string flat_name(const std::string& key, const std::string& by) {
  std::string name;
  for (const char letter : key) {
    if (letter == '/')
      name += by;
    else
      name += letter;
  }
  return name;
}

std::uint64_t hash_of(const std::string& key) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : key) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  return hash ^ (hash >> 29);
}

std::string hex_of(std::uint64_t number) {
  char text[17];
  (void)std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

int direct_if_aligned(std::size_t size_bytes) {
  return size_bytes % kPageBytes == 0 ? O_DIRECT : 0;
}

}  // namespace kvslot::testing
