// See damage.h.
#include "tests/support/damage.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "core/layout.h"

namespace kvslot::testing {
namespace {

std::string read_block(const std::string& path, std::uint64_t offset_bytes) {
  std::string block(kBlockSizeBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset_bytes));
  file.read(block.data(), static_cast<std::streamsize>(block.size()));
  EXPECT_TRUE(file.good()) << path;
  return block;
}

}  // namespace

void overwrite(const std::string& path, std::uint64_t offset_bytes, const std::string& bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset_bytes));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.flush();
  EXPECT_TRUE(file.good()) << path;
}

void require_newer_version(const std::string& path) {
  for (const std::uint64_t offset : superblock_offsets(std::filesystem::file_size(path))) {
    const std::string block = read_block(path, offset);
    auto superblock = decode_superblock(std::as_bytes(std::span(block)));
    ASSERT_TRUE(superblock.has_value()) << superblock.error().step;
    superblock->incompatible_features |= 1;
    const std::vector<std::byte> changed = encode_superblock(*superblock);
    overwrite(path, offset,
              std::string(reinterpret_cast<const char*>(changed.data()), changed.size()));
  }
}

void garble_superblocks(const std::string& path) {
  constexpr std::uint64_t kBehindSignature = 100;
  for (const std::uint64_t offset : superblock_offsets(std::filesystem::file_size(path))) {
    overwrite(path, offset + kBehindSignature, "garbled");
  }
}

std::uint64_t fingerprint(const std::string& path) {
  std::string content(std::filesystem::file_size(path), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  return checksum_of(std::as_bytes(std::span(content)), content.size());
}

}  // namespace kvslot::testing
