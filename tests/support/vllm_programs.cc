// vLLM's ways to keep chunks in a directory; see chunk_programs.h.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string_view>

#include "tests/support/chunk_programs.h"

namespace kvslot::testing {
namespace {

constexpr char kChecksumName[] = "user.vllm.crc32";

// The tiering backend: everything direct, a temporary name that nobody else has, one write.
class TieringFs : public ChunkProgram {
 public:
  using ChunkProgram::ChunkProgram;

  int start() override {
    const std::string probe = in_directory(".o_direct_probe_" + std::to_string(::getpid()));
    if (const int error = make_directories(model_directory()); error != 0) return error;
    ClientFile direct(probe, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT);
    if (direct.error() != 0) return direct.error();
    const ChunkBuffer page = make_chunk(0, kPageBytes);
    const int written = direct.write(page.bytes());
    // A disk wants whole blocks; then only chunks of such are direct.
    takes_any_length_ = direct.write(page.bytes().first(100)) == 0;
    const int outcome = first_failure({written, direct.close(), remove_file(probe)});
    if (outcome != 0) return outcome;
    ClientFile config(model_directory() + "/config.json", O_WRONLY | O_CREAT | O_TRUNC);
    const std::string_view text = "{\"block_size\": 16, \"dtype\": \"bfloat16\"}\n";
    const int described = config.write(std::as_bytes(std::span(text)));
    return first_failure({config.error(), described, config.close()});
  }
  int put(const std::string& key, ConstChunk chunk) override {
    const std::string final_path = path_of(key);
    const std::string temporary = final_path + "_" +
                                  hex_of(hash_of(key) ^ ++puts_ ^ std::uint64_t(::getpid()) << 32) +
                                  ".tmp";
    if (const int error = make_directories(parent_of(final_path)); error != 0) return error;
    ClientFile file(temporary, O_CREAT | O_EXCL | O_WRONLY | O_TRUNC | direct_flag(chunk.size()));
    if (file.error() != 0) return file.error();
    int written = file.write(chunk);
    if (written == 0) written = seal(temporary, chunk);
    return publish(file, written, temporary, final_path);
  }
  int get(const std::string& key, MutableChunk chunk) override {
    const ClientFile file(path_of(key), O_RDONLY | direct_flag(chunk.size()));
    if (file.error() != 0) return file.error();
    const int outcome = file.readv(chunk);
    return outcome != 0 ? outcome : check_seal(file.fd(), chunk);
  }
  bool has(const std::string& key) override {
    return ::faccessat(AT_FDCWD, path_of(key).c_str(), R_OK, 0) == 0;
  }
  std::string path_of(const std::string& key) const override {
    const std::string hash = hex_of(hash_of(key));
    return model_directory() + "/" + hash.substr(0, 3) + "/" + hash.substr(3, 2) + "_g0/" + hash +
           ".bin";
  }

 protected:
  virtual int seal(const std::string& /*temporary*/, ConstChunk /*chunk*/) { return 0; }
  virtual int check_seal(int /*fd*/, ConstChunk /*chunk*/) { return 0; }
  [[nodiscard]] std::string model_directory() const {
    return in_directory("meta-llama_0123456789ab_r0");
  }

 private:
  static std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
  [[nodiscard]] int direct_flag(std::size_t size_bytes) const {
    return takes_any_length_ ? O_DIRECT : direct_if_aligned(size_bytes);
  }
  std::atomic<std::uint64_t> puts_ = 0;
  bool takes_any_length_ = false;
};

// With the option that keeps a checksum in an attribute.
class TieringWithChecksum final : public TieringFs {
 public:
  using TieringFs::TieringFs;

  int start() override {
    if (const int error = TieringFs::start(); error != 0) return error;
    char value[1];
    if (::setxattr(model_directory().c_str(), "user.probe", "1", 1, 0) != 0) return errno;
    if (::getxattr(model_directory().c_str(), "user.probe", value, 1) != 1) return errno;
    return outcome_of(::removexattr(model_directory().c_str(), "user.probe"));
  }

 protected:
  int seal(const std::string& temporary, ConstChunk chunk) override {
    const std::string sum = checksum_of(chunk);
    return outcome_of(::setxattr(temporary.c_str(), kChecksumName, sum.data(), sum.size(), 0));
  }
  int check_seal(int fd, ConstChunk chunk) override {
    std::string sum(64, '\0');
    const ssize_t size = ::fgetxattr(fd, kChecksumName, sum.data(), sum.size());
    if (size < 0) return errno;
    sum.resize(static_cast<std::size_t>(size));
    return sum == checksum_of(chunk) ? 0 : EBADMSG;
  }

 private:
  static std::string checksum_of(ConstChunk chunk) {
    return hex_of(
        std::hash<std::string_view>()({reinterpret_cast<const char*>(chunk.data()), chunk.size()}));
  }
};

// The example connector: a directory for a prompt, a safetensors file for a layer, read mapped.
// The directory stands for all of it.
class ExampleConnector final : public ChunkProgram {
 public:
  using ChunkProgram::ChunkProgram;

  int put(const std::string& key, ConstChunk chunk) override {
    if (const int error = make_directories(path_of(key)); error != 0) return error;
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const auto part = part_of(chunk, layer);
      ClientFile file(layer_path(key, layer), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      if (file.error() != 0) return file.error();
      std::string head(sizeof(std::uint64_t), '\0');
      head[0] = static_cast<char>(kHeader.size());
      head += kHeader;
      int written = file.write(std::as_bytes(std::span(head)));
      if (written == 0) written = file.write(part);
      if (const int outcome = close_after(file, written); outcome != 0) return outcome;
    }
    return 0;
  }
  int get(const std::string& key, MutableChunk chunk) override {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const auto part = part_of(chunk, layer);
      const int outcome =
          read_mapped(layer_path(key, layer), sizeof(std::uint64_t) + kHeader.size(),
                      chunk.subspan(std::size_t(part.data() - chunk.data()), part.size()));
      if (outcome != 0) return outcome;
    }
    return 0;
  }
  int remove(const std::string& key) override {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const int error = remove_file(layer_path(key, layer));
      if (error != 0 && error != ENOENT) return error;
    }
    return outcome_of(::rmdir(path_of(key).c_str()));
  }
  std::string path_of(const std::string& key) const override {
    return in_directory(hex_of(hash_of(key)));
  }

 private:
  static constexpr std::size_t kLayers = 2;
  static constexpr std::string_view kHeader =
      "{\"kv_cache\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}     ";
  static_assert(kHeader.size() < 128);
  static ConstChunk part_of(ConstChunk chunk, std::size_t layer) {
    const std::size_t half = chunk.size() / kLayers;
    return layer == 0 ? chunk.first(half) : chunk.subspan(half);
  }
  [[nodiscard]] std::string layer_path(const std::string& key, std::size_t layer) const {
    return path_of(key) + "/model.layers." + std::to_string(layer) + ".self_attn.safetensors";
  }
};

}  // namespace

std::vector<ProgramKind> vllm_kinds() {
  return {kind_of<TieringFs>("VllmTiering", Publishing::kRename),
          kind_of<TieringWithChecksum>("VllmTieringWithChecksum", Publishing::kRename),
          kind_of<ExampleConnector>("VllmExampleConnector", Publishing::kPieces)};
}

}  // namespace kvslot::testing
