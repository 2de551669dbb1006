// What programs that keep chunks rely on beside single puts and gets: temporary names that two
// processes share, names that one of many may take, files that stay readable when they are replaced
// or removed, sizes that others see at once, attributes, directories that are there before what
// belongs in them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/async_engines.h"
#include "tests/support/chunk.h"
#include "tests/support/chunk_programs.h"
#include "tests/support/client_place.h"
#include "tests/support/client_process.h"

namespace kvslot::testing {
namespace {

constexpr std::size_t kBytes = 65536 + 28;

std::unique_ptr<ChunkProgram> start_program(const ClientPlace& place, const std::string& name) {
  for (const ProgramKind& kind : program_kinds()) {
    if (kind.name != name) continue;
    std::string reason;
    auto program = kind.make(place.path(name), reason);
    EXPECT_EQ(program->start(), 0) << name;
    return program;
  }
  ADD_FAILURE() << "no program " << name;
  return nullptr;
}

class ChunkClientsTest : public ClientPlaceTest {
 protected:
  void SetUp() override {
    ClientPlaceTest::SetUp();
    if (!IsSkipped()) place_ = std::make_unique<ClientPlace>(GetParam(), "64M", "rw");
  }
  [[nodiscard]] std::string path(const std::string& name) const { return place_->path(name); }
  // Transfers of any length can be direct in the store, but not on a disk.
  [[nodiscard]] int direct_flag() const { return place_->store() != nullptr ? O_DIRECT : 0; }
  std::unique_ptr<ClientPlace> place_;
};

// The same bytes for the same key: whoever comes second may lose the temporary file to the first,
// which is an error of rename, and nothing else.
TEST_P(ChunkClientsTest, ProcessesThatShareATemporaryNameLeaveAWholeChunk) {
  constexpr std::uint64_t kKeys = 40;
  for (const char* const name : {"LmcacheFsConnector", "LmcacheLevelTwo"}) {
    const auto program = start_program(*place_, name);
    const auto put_all = [&program] {
      for (std::uint64_t key = 0; key < kKeys; ++key) {
        const int outcome = program->put(std::to_string(key), make_chunk(key, kBytes).bytes());
        if (outcome != 0 && outcome != ENOENT) return 1;
      }
      return 0;
    };
    ClientProcess one(put_all);
    ClientProcess other(put_all);
    EXPECT_EQ(one.wait(), 0) << name;
    EXPECT_EQ(other.wait(), 0) << name;
    for (std::uint64_t key = 0; key < kKeys; ++key) {
      const ChunkBuffer found(kBytes);
      EXPECT_EQ(program->get(std::to_string(key), found.bytes()), 0) << name << " " << key;
      EXPECT_TRUE(is_chunk(key, found.bytes())) << name << " " << key;
      EXPECT_EQ(size_of(program->path_of(std::to_string(key))), std::int64_t{kBytes});
    }
  }
  place_->expect_sound();
}

TEST_P(ChunkClientsTest, OneOfManyThreadsMakesANameAndAllMakeItsDirectories) {
  constexpr int kThreads = 64;
  constexpr int kNames = 10;
  std::atomic<int> made[kNames] = {};
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        for (int name = 0; name < kNames; ++name) {
          const std::string directory = path("a/b" + std::to_string(name) + "/c/d");
          EXPECT_EQ(make_directories(directory), 0);
          const ClientFile file(directory + "/chunk",
                                O_CREAT | O_EXCL | O_WRONLY | O_TRUNC | O_DIRECT);
          EXPECT_TRUE(file.error() == 0 || file.error() == EEXIST) << file.error();
          if (file.error() == 0) ++made[name];
        }
      });
    }
  }
  for (const auto& count : made) EXPECT_EQ(count, 1);
  place_->expect_sound();
}

// Also when nothing of them is in the kernel any more and their space would be used again.
TEST_P(ChunkClientsTest, ReplacedAndRemovedChunksStayReadableForWhoHasThemOpen) {
  const auto program = start_program(*place_, "LmcacheNative");
  constexpr std::size_t kBig = 300'028;
  for (std::uint64_t key = 0; key < 3; ++key) {
    ASSERT_EQ(program->put(std::to_string(key), make_chunk(key, kBig).bytes()), 0);
  }
  const ClientFile replaced(program->path_of("0"), O_RDONLY);
  const ClientFile removed(program->path_of("1"), O_RDONLY | direct_flag());
  ClientFile written(program->path_of("2"), O_RDWR);
  ASSERT_EQ(program->put("0", make_chunk(100, kBig).bytes()), 0);
  ASSERT_EQ(program->remove("1"), 0);
  ASSERT_EQ(program->remove("2"), 0);
  EXPECT_EQ(written.pwrite(make_chunk(200, kBig).bytes(), 0), 0);
  const Descriptor root(place_->root(), O_RDONLY | O_DIRECTORY);
  for (std::uint64_t key = 10; key < 40; ++key) {
    ASSERT_EQ(program->put(std::to_string(key), make_chunk(key, kBig).bytes()), 0);
    if (key % 10 == 0) {
      EXPECT_EQ(::fsync(root), 0);
    }
  }
  for (const int fd : {replaced.fd(), removed.fd(), written.fd()}) {
    EXPECT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  }
  const ChunkBuffer found(kBig);
  EXPECT_EQ(replaced.pread(found.bytes(), 0), 0);
  EXPECT_TRUE(is_chunk(0, found.bytes()));
  EXPECT_EQ(removed.pread(found.bytes(), 0), 0);
  EXPECT_TRUE(is_chunk(1, found.bytes()));
  EXPECT_EQ(written.pread(found.bytes(), 0), 0);
  EXPECT_TRUE(is_chunk(200, found.bytes()));
  EXPECT_EQ(written.close(), 0);
}

int write_in_turns(const std::string& path, Turns& turns, int direct_flag) {
  turns.be_answering();
  const ClientFile file(path, O_RDWR | O_CREAT);
  const ClientFile direct(path, O_WRONLY | direct_flag);
  const ChunkBuffer piece = make_chunk(1, kBytes);
  std::string reason;
  // Not POSIX aio: its threads may be the parent's, which a fork does not copy.
  const auto engine = make_async_engine(AsyncKind::kLibaio, reason);
  if (engine == nullptr) return 9;
  const auto step = [&](int outcome) {
    return outcome == 0 && turns.answer() && turns.wait_to_be_asked();
  };
  if (!turns.wait_to_be_asked()) return 1;
  if (!step(file.write(piece.bytes().first(28)))) return 2;
  if (!step(file.write(piece.bytes()))) return 3;
  if (!step(file.pwritev(piece.bytes(), 1 << 20, 10'000))) return 4;
  if (!step(direct.pwrite(piece.bytes(), 2 << 20))) return 5;
  const AsyncTransfer transfer{
      .fd = direct.fd(), .is_write = true, .offset = 3 << 20, .bytes = piece.bytes()};
  if (!step(engine->run({&transfer, 1}))) return 6;
  if (!step(outcome_of(::ftruncate(file.fd(), 5)))) return 7;
  return turns.answer() ? 0 : 8;
}

TEST_P(ChunkClientsTest, AnotherProcessSeesTheSizeOfAWriteAtOnce) {
  std::string reason;
  if (make_async_engine(AsyncKind::kLibaio, reason) == nullptr) GTEST_SKIP() << reason;
  const std::string chunk = path("growing");
  const ClientFile reader(chunk, O_RDWR | O_CREAT);
  Turns turns;
  ClientProcess writer([&] { return write_in_turns(chunk, turns, direct_flag()); });
  turns.be_asking();
  for (const std::int64_t size :
       {std::int64_t{28}, std::int64_t{28 + kBytes}, std::int64_t{(1 << 20) + kBytes},
        std::int64_t{(2 << 20) + kBytes}, std::int64_t{(3 << 20) + kBytes}, std::int64_t{5}}) {
    ASSERT_TRUE(turns.ask()) << size;
    struct stat by_name{};
    struct stat by_descriptor{};
    EXPECT_EQ(::stat(chunk.c_str(), &by_name), 0);
    EXPECT_EQ(::fstat(reader.fd(), &by_descriptor), 0);
    EXPECT_EQ(by_name.st_size, size);
    EXPECT_EQ(by_descriptor.st_size, size);
    EXPECT_EQ(by_name.st_blksize, 4096);
    EXPECT_EQ(::lseek(reader.fd(), 0, SEEK_END), size);
  }
  ASSERT_TRUE(turns.ask());
  EXPECT_EQ(writer.wait(), 0);
  const ChunkBuffer piece = make_chunk(1, kBytes);
  const ChunkBuffer found(5);
  EXPECT_EQ(reader.pread(found.bytes(), 0), 0);
  EXPECT_TRUE(std::ranges::equal(found.bytes(), piece.bytes().first(5)));
}

TEST_P(ChunkClientsTest, ABatchOfLookupsFindsWhatIsThere) {
  const auto program = start_program(*place_, "VllmTiering");
  constexpr int kKeys = 64;
  for (int key = 0; key < kKeys; key += 2) {
    ASSERT_EQ(program->put(std::to_string(key), make_chunk(1, 100).bytes()), 0);
  }
  const ClientFile directory(place_->root(), O_RDONLY | O_DIRECTORY);
  const std::size_t skipped = place_->root().size() + 1;
  for (int round = 0; round < 2; ++round) {  // what was not there is remembered, and forgotten
    for (int key = 0; key < kKeys; ++key) {
      const std::string name = program->path_of(std::to_string(key)).substr(skipped);
      const int outcome = outcome_of(::faccessat(directory.fd(), name.c_str(), R_OK, 0));
      EXPECT_EQ(outcome, key % 2 == 0 || round > 0 ? 0 : ENOENT) << key;
    }
    for (int key = 1; key < kKeys && round == 0; key += 2) {
      ASSERT_EQ(program->put(std::to_string(key), make_chunk(1, 100).bytes()), 0);
    }
  }
}

TEST_P(ChunkClientsTest, AChecksumGoesWithItsChunkThroughTheRename) {
  const auto program = start_program(*place_, "VllmTieringWithChecksum");
  const std::string final_path = program->path_of("key");
  const auto expect_whole = [&](std::uint64_t seed, std::size_t size) {
    const ChunkBuffer found(size);
    EXPECT_EQ(program->get("key", found.bytes()), 0) << "with its checksum";
    EXPECT_TRUE(is_chunk(seed, found.bytes()));
  };
  ASSERT_EQ(program->put("key", make_chunk(1, kBytes).bytes()), 0);
  ASSERT_EQ(::setxattr(final_path.c_str(), "user.of_the_first", "1", 1, 0), 0);
  expect_whole(1, kBytes);
  ASSERT_EQ(program->put("key", make_chunk(2, 3 * kBytes).bytes()), 0);
  expect_whole(2, 3 * kBytes);
  EXPECT_EQ(::getxattr(final_path.c_str(), "user.of_the_first", nullptr, 0), -1);
  EXPECT_EQ(errno, ENODATA) << "attributes are the file's, not the name's";
  if (place_->store() == nullptr) return;
  {
    const Descriptor root(place_->root(), O_RDONLY | O_DIRECTORY);
    EXPECT_EQ(::fsync(root), 0);
  }
  place_->store()->kill_and_remount();
  expect_whole(2, 3 * kBytes);
}

// A directory counts as a hit as soon as it is there, however little is in it; a file is mapped
// whole as soon as it is closed, and stays so for who has it mapped while it goes away.
TEST_P(ChunkClientsTest, APartOfAPromptIsThereBeforeTheRest) {
  const auto program = start_program(*place_, "VllmExampleConnector");
  const std::string prompt = program->path_of("prompt");
  Turns turns;
  ClientProcess writer([&] {
    turns.be_answering();
    if (!turns.wait_to_be_asked() || ::mkdir(prompt.c_str(), 0755) != 0) return 1;
    if (!turns.answer() || !turns.wait_to_be_asked()) return 2;
    if (program->put("prompt", make_chunk(7, kBytes).bytes()) != 0) return 3;
    return turns.answer() ? 0 : 4;
  });
  turns.be_asking();
  const ChunkBuffer found(kBytes);
  EXPECT_FALSE(program->has("prompt"));
  ASSERT_TRUE(turns.ask());
  EXPECT_TRUE(program->has("prompt"));
  EXPECT_EQ(program->get("prompt", found.bytes()), ENOENT);
  ASSERT_TRUE(turns.ask());
  EXPECT_EQ(program->get("prompt", found.bytes()), 0);
  EXPECT_TRUE(is_chunk(7, found.bytes()));
  EXPECT_EQ(writer.wait(), 0);

  const std::string layer = prompt + "/model.layers.1.self_attn.safetensors";
  const std::int64_t size = size_of(layer);
  ASSERT_GT(size, 0);
  const ClientFile file(layer, O_RDONLY);
  void* const mapped =
      ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_SHARED, file.fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(program->remove("prompt"), 0);
  EXPECT_FALSE(program->has("prompt"));
  const ChunkBuffer again(static_cast<std::size_t>(size));
  EXPECT_EQ(file.pread(again.bytes(), 0), 0);
  EXPECT_EQ(std::memcmp(mapped, again.data(), again.size()), 0);
  EXPECT_EQ(::munmap(mapped, static_cast<std::size_t>(size)), 0);
}

INSTANTIATE_TEST_SUITE_P(Places, ChunkClientsTest, ::testing::ValuesIn(client_places()),
                         name_of_place);

}  // namespace
}  // namespace kvslot::testing
