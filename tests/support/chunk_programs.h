// How programs that keep KV-cache chunks as files put, find, read and remove them, call by call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/chunk.h"
#include "tests/support/client_calls.h"

namespace kvslot::testing {

// Threads: thread-safe; several objects on one directory are several processes of the program.
// What returns an int returns what client_calls.h says.
class ChunkProgram {
 public:
  explicit ChunkProgram(std::string directory) : directory_(std::move(directory)) {}
  virtual ~ChunkProgram() = default;
  ChunkProgram(const ChunkProgram&) = delete;
  ChunkProgram& operator=(const ChunkProgram&) = delete;

  // Looks at the directory and finds out what can be done in it.
  [[nodiscard]] virtual int start() { return make_directories(directory_); }
  // Stores a chunk, as a new one or in place of another of its size. Leaves no temporary file
  // where it fails.
  [[nodiscard]] virtual int put(const std::string& key, ConstChunk chunk) = 0;
  // Fills all of `chunk`; kShort where there is less.
  [[nodiscard]] virtual int get(const std::string& key, MutableChunk chunk) = 0;
  [[nodiscard]] virtual bool has(const std::string& key) { return exists(path_of(key)); }
  [[nodiscard]] virtual int remove(const std::string& key) { return remove_file(path_of(key)); }
  [[nodiscard]] virtual std::string path_of(const std::string& key) const = 0;

 protected:
  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] std::string in_directory(const std::string& name) const {
    return directory_ + "/" + name;
  }
  // A call that did only a part tells nothing of why; the close after it does.
  [[nodiscard]] static int close_after(ClientFile& file, int written);
  // What all that publish by a rename do at the end: close, rename; or away with it.
  [[nodiscard]] static int publish(ClientFile& file, int written, const std::string& temporary,
                                   const std::string& final_path);

 private:
  std::string directory_;
};

// How a chunk is put in the place of another.
enum class Publishing {
  kRename,           // a reader finds one of the two, whole
  kSharedTemporary,  // the same, unless two processes write it at once
  kSkips,            // not at all: the first one stays
  kInPlace,          // in one call; a reader may find anything
  kPieces,           // in several; what fails leaves some of both
};

struct ProgramKind {
  std::string name;
  Publishing publishing;
  // Null, with a reason, where the machine has not what it takes.
  std::function<std::unique_ptr<ChunkProgram>(const std::string& directory, std::string& reason)>
      make;
};
[[nodiscard]] const std::vector<ProgramKind>& program_kinds();

// The groups of them, in a file each.
[[nodiscard]] std::vector<ProgramKind> lmcache_kinds();
[[nodiscard]] std::vector<ProgramKind> vllm_kinds();
[[nodiscard]] std::vector<ProgramKind> nixl_kinds();
[[nodiscard]] std::vector<ProgramKind> other_kinds();

template <typename Program>
ProgramKind kind_of(std::string name, Publishing publishing) {
  return {std::move(name), publishing, [](const std::string& directory, std::string&) {
            return std::make_unique<Program>(directory);
          }};
}

// A key as a name: every `/` becomes `by`.
[[nodiscard]] std::string flat_name(const std::string& key, const std::string& by);
[[nodiscard]] std::uint64_t hash_of(const std::string& key);
[[nodiscard]] std::string hex_of(std::uint64_t number);
// The flag where a transfer of that size can be direct in units of f_bsize.
[[nodiscard]] int direct_if_aligned(std::size_t size_bytes);

}  // namespace kvslot::testing
