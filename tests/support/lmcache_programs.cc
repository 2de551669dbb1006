// LMCache's four ways to keep chunks in a directory; see chunk_programs.h.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tests/support/chunk_programs.h"

namespace kvslot::testing {
namespace {

constexpr std::size_t kHeaderBytes = 28;

// The remote `fs://`: a header and a payload, in Python; all processes share the temporary name.
class FsConnector final : public ChunkProgram {
 public:
  using ChunkProgram::ChunkProgram;

  int put(const std::string& key, ConstChunk chunk) override {
    const std::string temporary = stem_of(key) + ".tmp";
    if (const int error = make_directories(directory()); error != 0) return error;
    ClientFile file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (file.error() != 0) return file.error();
    int written = file.look_as_python();
    if (written == 0) written = file.write(chunk.first(kHeaderBytes));
    if (written == 0) written = file.write(chunk.subspan(kHeaderBytes));
    return publish(file, written, temporary, path_of(key));
  }

  // Python's buffer takes a block of st_blksize bytes for the header; the rest goes past it.
  int get(const std::string& key, MutableChunk chunk) override {
    if (!has(key)) return ENOENT;
    const ClientFile file(path_of(key), O_RDONLY);
    if (file.error() != 0) return file.error();
    if (const int error = file.look_as_python(); error != 0) return error;
    const std::size_t head = std::min(chunk.size(), kPageBytes);
    return first_failure({file.read(chunk.first(head)), file.read(chunk.subspan(head))});
  }
  std::string path_of(const std::string& key) const override { return stem_of(key) + ".data"; }

 private:
  [[nodiscard]] std::string stem_of(const std::string& key) const {
    return in_directory(flat_name(key, "-"));
  }
};

// Straight to the final name, without O_TRUNC where it is direct.
class LocalDisk final : public ChunkProgram {
 public:
  using ChunkProgram::ChunkProgram;

  int start() override {
    struct statvfs status{};
    if (const int error = make_directories(directory()); error != 0) return error;
    if (::statvfs(directory().c_str(), &status) != 0) return errno;
    return status.f_bsize == kPageBytes ? 0 : EINVAL;
  }
  int put(const std::string& key, ConstChunk chunk) override {
    const int direct = direct_if_aligned(chunk.size());
    ClientFile file(path_of(key), O_WRONLY | O_CREAT | (direct != 0 ? direct : O_TRUNC));
    if (file.error() != 0) return file.error();
    const int written = file.write(chunk);
    return close_after(file, written);
  }
  int get(const std::string& key, MutableChunk chunk) override {
    const ClientFile file(path_of(key), O_RDONLY | direct_if_aligned(chunk.size()));
    return file.error() != 0 ? file.error() : file.read(chunk);
  }
  std::string path_of(const std::string& key) const override {
    return in_directory(flat_name(key, "-") + ".pt");
  }
};

// The second level: skips what is there, one write, and a temporary name in a directory beside.
class FsLevelTwo final : public ChunkProgram {
 public:
  using ChunkProgram::ChunkProgram;

  int start() override { return make_directories(in_directory("tmp")); }
  int put(const std::string& key, ConstChunk chunk) override {
    if (has(key)) return 0;
    const std::string temporary = in_directory("tmp/" + name_of(key));
    const int direct = direct_if_aligned(chunk.size());
    ClientFile file(temporary, O_WRONLY | O_CREAT | (direct != 0 ? direct : O_TRUNC));
    if (file.error() != 0) return file.error();
    const int written = file.write(chunk);
    return publish(file, written, temporary, path_of(key));
  }
  int get(const std::string& key, MutableChunk chunk) override {
    const ClientFile file(path_of(key), O_RDONLY);
    if (file.error() != 0) return file.error();
    // The head, so that the kernel reads ahead; then all.
    const int head = file.pread(chunk.first(std::min(chunk.size(), kPageBytes)), 0);
    return first_failure({head, file.read(chunk)});
  }
  int remove(const std::string& key) override {
    const int error = remove_file(path_of(key));
    return error == ENOENT ? 0 : error;
  }
  std::string path_of(const std::string& key) const override { return in_directory(name_of(key)); }

 private:
  static std::string name_of(const std::string& key) {
    return flat_name(key, "-SEP-") + "@0x00000003@0@" + hex_of(hash_of(key)) + ".data";
  }
};

// The same in C++: loops, direct or not.
class FsNative final : public ChunkProgram {
 public:
  using ChunkProgram::ChunkProgram;

  int put(const std::string& key, ConstChunk chunk) override {
    const std::string temporary =
        path_of(key) + "." + std::to_string(::gettid()) + ".tmp";  // one for each worker
    ClientFile file(temporary, O_CREAT | O_WRONLY | O_TRUNC | direct_if_aligned(chunk.size()));
    if (file.error() != 0) return file.error();
    const int written = file.write_loop(chunk);
    return publish(file, written, temporary, path_of(key));
  }
  int get(const std::string& key, MutableChunk chunk) override {
    const ClientFile file(path_of(key), O_RDONLY | direct_if_aligned(chunk.size()));
    return file.error() != 0 ? file.error() : file.read(chunk);
  }
  std::string path_of(const std::string& key) const override {
    return in_directory(flat_name(key, "-SEP-") + "@0x00000003@" + hex_of(hash_of(key)) + ".data");
  }
};

}  // namespace

std::vector<ProgramKind> lmcache_kinds() {
  return {kind_of<FsConnector>("LmcacheFsConnector", Publishing::kSharedTemporary),
          kind_of<LocalDisk>("LmcacheLocalDisk", Publishing::kInPlace),
          kind_of<FsLevelTwo>("LmcacheLevelTwo", Publishing::kSkips),
          kind_of<FsNative>("LmcacheNative", Publishing::kRename)};
}

}  // namespace kvslot::testing
