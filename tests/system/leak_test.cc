// What was in slots and buffers before never shows: not to readers, and not behind the end of a
// value on the device.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/control_files.h"
#include "tests/support/descriptor.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"

namespace kvslot {
namespace {

using testing::Descriptor;
using testing::extents_of;
using testing::MountedStore;
using testing::StoredExtent;

constexpr std::size_t kPageSizeBytes = 4096;
constexpr std::string_view kSecret = "KVSECRET";

// The whole pages of a file as a mapping shows them: what lies behind its end, too.
std::string mapped(const std::string& path) {
  const Descriptor fd(path, O_RDONLY);
  const off_t end = ::lseek(fd, 0, SEEK_END);
  if (end <= 0) return {};
  const std::size_t size =
      (static_cast<std::size_t>(end) + kPageSizeBytes - 1) / kPageSizeBytes * kPageSizeBytes;
  void* const pages = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  EXPECT_NE(pages, MAP_FAILED);
  std::string content(static_cast<const char*>(pages), size);
  ::munmap(pages, size);
  return content;
}

// 'x' where something was written, zeros elsewhere.
struct Expected {
  const char* name;
  std::string content;
};

std::vector<Expected> make_files(const MountedStore& store) {
  const auto zeros = [](std::size_t size) { return std::string(size, '\0'); };
  const auto written = [](std::size_t size) { return std::string(size, 'x'); };
  const auto open = [&](const char* name) {
    return Descriptor(store.path(name), O_RDWR | O_CREAT);
  };
  open("short").write_at(0, written(10));
  open("sparse").write_at(300'000, written(1));
  {
    const Descriptor fd = open("cut");
    fd.write_at(0, written(140'000));
    EXPECT_EQ(::fsync(fd), 0);
    EXPECT_EQ(::ftruncate(fd, 131'080), 0);
    EXPECT_EQ(::ftruncate(fd, 150'000), 0);
  }
  {
    const Descriptor fd = open("cut and committed");
    fd.write_at(0, written(9000));
    EXPECT_EQ(::ftruncate(fd, 10), 0);
    EXPECT_EQ(::fsync(fd), 0);
    EXPECT_EQ(::ftruncate(fd, 9000), 0);
  }
  EXPECT_EQ(::fallocate(open("reserved"), 0, 0, 200'000), 0);
  {
    const Descriptor fd = open("reserved and written");
    EXPECT_EQ(::fallocate(fd, 0, 0, 200'000), 0);
    fd.write_at(100'000, written(1));
  }
  {
    const Descriptor fd = open("punched");
    fd.write_at(0, written(300'000));
    EXPECT_EQ(::fsync(fd), 0);
    EXPECT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5000, 280'000), 0);
  }
  return {{"short", written(10)},
          {"sparse", zeros(300'000) + 'x'},
          {"cut", written(131'080) + zeros(150'000 - 131'080)},
          {"cut and committed", written(10) + zeros(8990)},
          {"reserved", zeros(200'000)},
          {"reserved and written", zeros(100'000) + 'x' + zeros(99'999)},
          {"punched", written(5000) + zeros(280'000) + written(15'000)}};
}

void expect_files(const MountedStore& store, const std::vector<Expected>& files) {
  for (const Expected& file : files) {
    EXPECT_TRUE(store.content(file.name) == file.content) << file.name;
    const std::string pages = mapped(store.path(file.name));
    EXPECT_TRUE(pages.starts_with(file.content)) << file.name << ", mapped";
    EXPECT_EQ(pages.find_first_not_of('\0', file.content.size()), std::string::npos)
        << file.name << ", mapped, behind its end";
  }
}

// Behind the value's bytes its last block has zeros, and a trailer that names it (LAYOUT.md).
void expect_clean_slack(const std::string& image, std::uint64_t offset, std::uint64_t size,
                        const std::string& key) {
  const std::uint64_t padded = (size + kPageSizeBytes - 1) / kPageSizeBytes * kPageSizeBytes;
  std::string slack(padded - size, '?');
  std::ifstream file(image, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset + size));
  file.read(slack.data(), std::ssize(slack));
  ASSERT_EQ(file.gcount(), std::ssize(slack)) << key;
  const std::size_t trailer = 64 + key.size();
  if (slack.size() >= trailer) {
    EXPECT_EQ(slack.substr(slack.size() - trailer, key.size()), key);
    slack.resize(slack.size() - trailer);
  }
  EXPECT_EQ(slack.find_first_not_of('\0'), std::string::npos) << key << " at " << offset;
}

// Numbers of the image's blocks that have the secret.
std::set<std::uint64_t> blocks_with_secret(const std::string& image) {
  std::set<std::uint64_t> found;
  std::ifstream file(image, std::ios::binary);
  std::string block(kPageSizeBytes, '\0');
  for (std::uint64_t number = 0; file.read(block.data(), std::ssize(block)); ++number) {
    if (block.find(kSecret) != std::string::npos) found.insert(number);
  }
  return found;
}

// The secret was in all of the staging memory, and in all slots: what is stored next is put behind
// what was stored last, so two rounds of most of the store come by everywhere. Returns the blocks.
std::set<std::uint64_t> spread_secret(MountedStore& store) {
  constexpr std::size_t kMebibyte = 1 << 20;
  constexpr int kFiles = 12;
  std::string secrets;
  while (secrets.size() < kMebibyte) secrets += kSecret;
  std::set<std::uint64_t> blocks;
  for (int round = 0; round < 2; ++round) {
    {
      std::vector<std::unique_ptr<Descriptor>>
          files;  // what is open stays in memory while there is any
      for (int i = 0; i < kFiles; ++i) {
        files.push_back(std::make_unique<Descriptor>(store.path("secret" + std::to_string(i)),
                                                     O_WRONLY | O_CREAT | O_TRUNC));
        EXPECT_EQ(files.back()->write(secrets), std::ssize(secrets));
      }
    }
    store.shell("sync $M");
    blocks = blocks_with_secret(store.outside("store.img"));
    EXPECT_GE(blocks.size(), kFiles * kMebibyte / kPageSizeBytes);
    store.shell("rm $M/secret*");
    store.wait_until_removed_files_are_gone();
  }
  EXPECT_GE(store.stat("staging_bytes_max"), 7 * kMebibyte);
  store.shell("echo 1 >$M/.kvslot/checkpoint");
  return blocks;
}

using Leak = testing::MountTest;

TEST_F(Leak, OldBytesOfSlotsAndBuffersShowNowhere) {
  MountedStore store("16M", "staging=8M,allow_other");
  const std::set<std::uint64_t> had_secret = spread_secret(store);

  const std::vector<Expected> files = make_files(store);
  expect_files(store, files);
  store.shell("sync $M");
  store.kill_and_remount();
  expect_files(store, files);

  std::vector<std::pair<std::string, StoredExtent>> extents;
  for (const Expected& file : files) {
    for (const auto& extent : extents_of(store.root(), file.name)) {
      extents.emplace_back(file.name, extent);
      const std::uint64_t end = extent.device_offset_bytes + extent.size_bytes;
      EXPECT_TRUE(had_secret.contains((end - 1) / kPageSizeBytes)) << file.name << " hides nothing";
    }
  }
  EXPECT_GE(extents.size(), files.size() - 1);  // "reserved" has none
  store.expect_sound();
  for (const auto& [key, extent] : extents) {
    expect_clean_slack(store.outside("store.img"), extent.device_offset_bytes, extent.size_bytes,
                       key);
  }
}

}  // namespace
}  // namespace kvslot
