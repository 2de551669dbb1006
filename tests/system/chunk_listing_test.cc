// How programs find out what is in a directory of chunks, and how much room there is: batches of
// entries while others come and go, every name that there can be, sizes, free space.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/chunk.h"
#include "tests/support/chunk_programs.h"
#include "tests/support/client_place.h"

namespace kvslot::testing {
namespace {

struct Seen {
  int count = 0;
  unsigned char type = DT_UNKNOWN;
};

// All entries but `.` and `..`, by getdents64 with little room at a time.
std::map<std::string, Seen> list(const std::string& directory, std::size_t room_bytes) {
  struct Entry {
    std::uint64_t ino;
    std::int64_t offset;
    std::uint16_t size;
    std::uint8_t type;
  };
  constexpr std::size_t kNameOffset = 19;
  std::map<std::string, Seen> seen;
  const ClientFile file(directory, O_RDONLY | O_DIRECTORY);
  EXPECT_EQ(file.error(), 0);
  std::vector<char> room(room_bytes);
  for (long size = 0;
       (size = ::syscall(SYS_getdents64, file.fd(), room.data(), room.size())) > 0;) {
    for (long at = 0; at < size;) {
      Entry entry{};
      std::memcpy(&entry, room.data() + at, kNameOffset);
      const std::string name = room.data() + at + kNameOffset;
      at += entry.size;
      if (name == "." || name == "..") continue;
      ++seen[name].count;
      seen[name].type = entry.type;
    }
  }
  return seen;
}

int put_small(const std::string& path) {
  ClientFile file(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.error() != 0) return file.error();
  const int written = file.write(make_chunk(1, 100).bytes());
  return first_failure({written, file.close()});
}

class ChunkListingTest : public ClientPlaceTest {};

TEST_P(ChunkListingTest, WhatStaysIsListedOnceWithItsTypeWhateverComesAndGoes) {
  ClientPlace place(GetParam(), "64M", "rw");
  constexpr int kStaying = 300;
  for (int i = 0; i < kStaying; ++i) {
    const std::string path = place.path("stays" + std::to_string(i));
    const int outcome = i % 3 == 0   ? put_small(path)
                        : i % 3 == 1 ? outcome_of(::mkdir(path.c_str(), 0755))
                                     : outcome_of(::symlink("target", path.c_str()));
    ASSERT_EQ(outcome, 0);
  }
  std::atomic<bool> is_over = false;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; !is_over; ++round) {
        const std::string path = place.path("goes" + std::to_string(thread * 100 + round % 50));
        EXPECT_EQ(put_small(path + ".tmp"), 0);
        EXPECT_EQ(rename_file(path + ".tmp", path), 0);
        if (round % 3 != 0) {
          EXPECT_EQ(remove_file(path), 0);
        }
      }
    });
  }
  for (int pass = 0; pass < 6; ++pass) {
    const auto seen = list(place.root(), pass % 2 == 0 ? 1024 : 32768);
    for (int i = 0; i < kStaying; ++i) {
      const auto found = seen.find("stays" + std::to_string(i));
      ASSERT_NE(found, seen.end()) << i;
      EXPECT_EQ(found->second.count, 1) << i;
      EXPECT_EQ(found->second.type, i % 3 == 0 ? DT_REG : i % 3 == 1 ? DT_DIR : DT_LNK) << i;
    }
  }
  is_over = true;
  threads.clear();
  place.expect_sound();
}

// 255 bytes, each that a name may have in each place once.
std::string long_name(unsigned first) {
  std::string name;
  for (unsigned i = 0; name.size() < 255; ++i) {
    const char byte = static_cast<char>((first + i) % 256);
    if (byte != '/' && byte != '\0') name += byte;
  }
  return name;
}

TEST_P(ChunkListingTest, NamesOf255BytesOfAnyKindAreWrittenRenamedListedAndRemoved) {
  ClientPlace place(GetParam(), "64M", "rw");
  ASSERT_EQ(make_directories(place.path("dir/tmp")), 0);
  for (unsigned first = 0; first < 256; ++first) {
    const std::string name = long_name(first);
    if (first == 0 || first == '/') continue;  // the same as the next
    ASSERT_EQ(put_small(place.path("dir/tmp/" + name)), 0) << first;
    ASSERT_EQ(rename_file(place.path("dir/tmp/" + name), place.path("dir/" + name)), 0) << first;
  }
  if (place.store() != nullptr) place.store()->remount();
  auto seen = list(place.path("dir"), 4096);
  EXPECT_EQ(seen.erase("tmp"), 1U);
  EXPECT_EQ(seen.size(), 254U);
  for (const auto& [name, entry] : seen) {
    EXPECT_EQ(name, long_name(static_cast<unsigned char>(name[0])));
    EXPECT_EQ(entry.count, 1);
    EXPECT_EQ(entry.type, DT_REG);
    EXPECT_EQ(size_of(place.path("dir/" + name)), 100);
    EXPECT_EQ(remove_file(place.path("dir/" + name)), 0);
  }
  EXPECT_EQ(put_small(place.path(long_name(1) + "x")), ENAMETOOLONG);
  EXPECT_EQ(::rmdir(place.path("dir/tmp").c_str()), 0);
  EXPECT_EQ(::rmdir(place.path("dir").c_str()), 0) << "nothing else is left";
  place.expect_sound();
}

// What the store needs for its own checkpoints grows with what is in it, by a few slots.
void expect_free(const ClientPlace& place, std::uint64_t blocks) {
  EXPECT_LE(place.free_blocks(), blocks);
  EXPECT_GE(place.free_blocks() + 6, blocks);
}

// As at the start of Mooncake: all files below, their sizes, and how much room there is.
TEST_P(ChunkListingTest, TheSpaceThatIsFreeIsTrueToAFewSlotsBeforeAndAfter) {
  ClientPlace place(GetParam(), "64M", "rw");
  const ProgramKind* kind = nullptr;
  for (const ProgramKind& each : program_kinds()) {
    if (each.name == "MooncakeFiles") kind = &each;
  }
  ASSERT_NE(kind, nullptr);
  std::string reason;
  const auto program = kind->make(place.path("mooncake"), reason);
  ASSERT_EQ(program->start(), 0);
  place.settle();
  const std::uint64_t before = place.free_blocks();
  constexpr std::uint64_t kChunks = 40;
  for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    const ChunkBuffer bytes = make_chunk(chunk, 20'000 + chunk * 4095);
    ASSERT_EQ(program->put(std::to_string(chunk), bytes.bytes()), 0);
  }
  place.settle();
  std::uint64_t files = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t blocks = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(place.path("mooncake"))) {
    if (!entry.is_regular_file()) continue;
    struct stat status{};
    EXPECT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(entry.file_size(), static_cast<std::uint64_t>(status.st_size));
    EXPECT_GE(status.st_blocks * 512, status.st_size);
    ++files;
    size_bytes += entry.file_size();
    blocks += static_cast<std::uint64_t>(status.st_blocks) / 8;
  }
  EXPECT_EQ(files, kChunks);
  EXPECT_EQ(size_bytes, kChunks * 20'000 + kChunks * (kChunks - 1) / 2 * 4095);
  if (place.store() != nullptr) {
    expect_free(place, before - blocks);
    EXPECT_EQ(std::filesystem::space(place.root()).available, place.free_blocks() * 4096);
    place.store()->remount();
    expect_free(place, before - blocks);
  }
  for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    EXPECT_EQ(program->remove(std::to_string(chunk)), 0);
  }
  place.settle();
  if (place.store() != nullptr) expect_free(place, before);
  place.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Places, ChunkListingTest, ::testing::ValuesIn(client_places()),
                         name_of_place);

}  // namespace
}  // namespace kvslot::testing
