// NIXL, Mooncake, SGLang and the cache of the Hugging Face hub; see chunk_programs.h.
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>

#include "tests/support/async_engines.h"
#include "tests/support/chunk_programs.h"

namespace kvslot::testing {
namespace {

// NIXL's POSIX backend: the caller's path, and a batch of transfers into it.
class NixlPosix final : public ChunkProgram {
 public:
  NixlPosix(const std::string& directory, std::unique_ptr<AsyncEngine> engine)
      : ChunkProgram(directory), engine_(std::move(engine)) {}

  int put(const std::string& key, ConstChunk chunk) override {
    ClientFile file(path_of(key), O_RDWR | O_CREAT | O_NOATIME | direct_if_aligned(chunk.size()));
    if (file.error() != 0) return file.error();
    auto* const start = const_cast<std::byte*>(chunk.data());
    const int written = run(file.fd(), true, {start, chunk.size()});
    return close_after(file, written);
  }
  int get(const std::string& key, MutableChunk chunk) override {
    struct stat status{};
    if (::stat(path_of(key).c_str(), &status) != 0) return errno;
    if (status.st_size != static_cast<off_t>(chunk.size())) return kShort;
    const ClientFile file(path_of(key), O_RDWR | direct_if_aligned(chunk.size()));
    return file.error() != 0 ? file.error() : run(file.fd(), false, chunk);
  }
  std::string path_of(const std::string& key) const override {
    return in_directory(flat_name(key, "_"));
  }

 private:
  static constexpr std::size_t kPieceBytes = 4 * kPageBytes;
  int run(int fd, bool is_write, MutableChunk chunk) {
    std::vector<AsyncTransfer> transfers;
    for (std::size_t at = 0; at < chunk.size(); at += kPieceBytes) {
      transfers.push_back({.fd = fd,
                           .is_write = is_write,
                           .offset = at,
                           .bytes = chunk.subspan(at, std::min(kPieceBytes, chunk.size() - at))});
    }
    const std::lock_guard lock(mutex_);
    return engine_->run(transfers);
  }

  std::mutex mutex_;
  const std::unique_ptr<AsyncEngine> engine_;
};

ProgramKind nixl_kind(std::string name, AsyncKind kind) {
  return {
      std::move(name), Publishing::kPieces,
      [kind](const std::string& directory, std::string& reason) -> std::unique_ptr<ChunkProgram> {
        auto engine = make_async_engine(kind, reason);
        if (engine == nullptr) return nullptr;
        return std::make_unique<NixlPosix>(directory, std::move(engine));
      }};
}

// Mooncake's file for a key, in hashed directories, under its final name.
class MooncakeFiles final : public ChunkProgram {
 public:
  using ChunkProgram::ChunkProgram;

  int put(const std::string& key, ConstChunk chunk) override {
    const std::string path = path_of(key);
    if (const int error = make_directories(path.substr(0, path.rfind('/'))); error != 0) {
      return error;
    }
    ClientFile file(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (file.error() != 0) return file.error();
    const int written = file.pwritev(chunk, 0, chunk.size() / 3 + 1);
    return close_after(file, written);
  }
  int get(const std::string& key, MutableChunk chunk) override {
    const ClientFile file(path_of(key), O_RDONLY | direct_if_aligned(chunk.size()));
    if (file.error() != 0) return file.error();
    return file.preadv(chunk, 0, (chunk.size() / 3 / kPageBytes + 1) * kPageBytes);
  }
  std::string path_of(const std::string& key) const override {
    const std::string hash = hex_of(hash_of(key));
    return in_directory(std::string(1, hash[0]) + "/" + hash[1] + "/" + flat_name(key, "_"));
  }
};

// SGLang's file backend: numpy's tofile, which duplicates the descriptor, reserves where the array
// is large, and writes whole blocks before the rest; and an unbuffered readinto.
class SglangFiles final : public ChunkProgram {
 public:
  using ChunkProgram::ChunkProgram;

  int put(const std::string& key, ConstChunk chunk) override {
    if (has(key)) return 0;
    ClientFile file(path_of(key), O_WRONLY | O_CREAT | O_TRUNC);
    if (file.error() != 0) return file.error();
    int outcome = file.look_as_python();
    if (outcome != 0) return outcome;
    outcome = write_duplicate(::dup(file.fd()), chunk);
    if (outcome == 0 && ::lseek(file.fd(), static_cast<off_t>(chunk.size()), SEEK_SET) < 0) {
      outcome = errno;
    }
    return close_after(file, outcome);
  }
  int get(const std::string& key, MutableChunk chunk) override {
    const ClientFile file(path_of(key), O_RDONLY);
    return file.error() != 0 ? file.error() : file.read(chunk);
  }
  std::string path_of(const std::string& key) const override {
    return in_directory(flat_name(key, "-") + "_meta-llama_0_1.bin");
  }

 private:
  static constexpr std::size_t kReservedBytesMin = 16 << 20;
  static int write_duplicate(int fd, ConstChunk chunk) {
    if (fd < 0) return errno;
    const auto reserved = static_cast<off_t>(chunk.size());
    int outcome = 0;
    if (chunk.size() >= kReservedBytesMin &&
        ::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, reserved) != 0 && errno == ENOSPC) {
      outcome = ENOSPC;
    }
    const std::size_t blocks = chunk.size() / kPageBytes * kPageBytes;
    for (const ConstChunk part : {chunk.first(blocks), chunk.subspan(blocks)}) {
      if (outcome != 0 || part.empty()) continue;
      const ssize_t count = ::write(fd, part.data(), part.size());
      if (count < 0) outcome = errno;
      if (count >= 0 && static_cast<std::size_t>(count) != part.size()) outcome = kShort;
    }
    const int closed = outcome_of(::close(fd));
    return outcome == 0 || (outcome == kShort && closed != 0) ? closed : outcome;
  }
};

// The hub's cache: a locked download that is appended to, a blob named by its hash, and a relative
// symbolic link that leads to it. Removing takes both away.
class HubCache final : public ChunkProgram {
 public:
  using ChunkProgram::ChunkProgram;

  int start() override {
    for (const char* const name : {"blobs", "snapshots/main", ".locks", "probe"}) {
      if (const int error = make_directories(in_directory(name)); error != 0) return error;
    }
    const std::string probe = in_directory("probe/link");
    (void)remove_file(probe);
    return first_failure({outcome_of(::symlink("target", probe.c_str())), remove_file(probe),
                          outcome_of(::rmdir(in_directory("probe").c_str()))});
  }
  int put(const std::string& key, ConstChunk chunk) override {
    const std::string lock_path = in_directory(".locks/" + flat_name(key, "--") + ".lock");
    const ClientFile lock(lock_path, O_RDWR | O_CREAT | O_TRUNC);
    if (lock.error() != 0) return lock.error();
    if (::flock(lock.fd(), LOCK_EX) != 0) return errno;
    const std::string blob = blob_path(key);
    const std::string incomplete = blob + ".incomplete";
    (void)remove_file(incomplete);
    ClientFile file(incomplete, O_WRONLY | O_CREAT | O_APPEND);
    if (file.error() != 0) return file.error();
    int written = file.look_as_python();
    for (std::size_t at = 0; at < chunk.size() && written == 0; at += kPartBytes) {
      written = file.write(chunk.subspan(at, std::min(kPartBytes, chunk.size() - at)));
    }
    if (written == 0) written = outcome_of(::fchmod(file.fd(), 0644));
    const int published = publish(file, written, incomplete, blob);
    if (published != 0) return published;
    const std::string target = "../../blobs/" + hex_of(hash_of(key));
    const int linked = outcome_of(::symlink(target.c_str(), path_of(key).c_str()));
    return linked == EEXIST ? 0 : linked;
  }
  int get(const std::string& key, MutableChunk chunk) override {
    return read_mapped(path_of(key), 0, chunk);
  }
  int remove(const std::string& key) override {
    return first_failure({remove_file(path_of(key)), remove_file(blob_path(key))});
  }
  std::string path_of(const std::string& key) const override {
    return in_directory("snapshots/main/" + flat_name(key, "--"));
  }

 private:
  static constexpr std::size_t kPartBytes = 64 << 10;
  [[nodiscard]] std::string blob_path(const std::string& key) const {
    return in_directory("blobs/" + hex_of(hash_of(key)));
  }
};

}  // namespace

std::vector<ProgramKind> nixl_kinds() {
  return {nixl_kind("NixlLibaio", AsyncKind::kLibaio), nixl_kind("NixlUring", AsyncKind::kUring),
          nixl_kind("NixlPosixAio", AsyncKind::kPosixAio)};
}

std::vector<ProgramKind> other_kinds() {
  return {kind_of<MooncakeFiles>("MooncakeFiles", Publishing::kInPlace),
          kind_of<SglangFiles>("SglangFiles", Publishing::kSkips),
          kind_of<HubCache>("HubCache", Publishing::kRename)};
}

}  // namespace kvslot::testing
