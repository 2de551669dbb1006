// Programs that transfer many pieces at once: NIXL's batches over each asynchronous interface, and
// arenas of which random parts are written and read, Mooncake's under a name and Dynamo's without.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/async_engines.h"
#include "tests/support/chunk.h"
#include "tests/support/client_calls.h"
#include "tests/support/client_place.h"

namespace kvslot::testing {
namespace {

constexpr std::size_t kPieceBytes = 8192;

class ArenaClientsTest : public ClientPlaceTest {
 protected:
  [[nodiscard]] bool is_store() const { return GetParam() != "directory"; }
};

// Pieces of several files, in no order, so that files are written from their end as well.
struct Batch {
  std::vector<std::unique_ptr<ClientFile>> files;
  std::vector<AsyncTransfer> transfers;
};

Batch make_batch(const ClientPlace& place, int flags, bool is_write, MutableChunk memory) {
  constexpr std::size_t kFiles = 4;
  Batch batch;
  for (std::size_t i = 0; i < kFiles; ++i) {
    batch.files.push_back(std::make_unique<ClientFile>(place.path("nixl" + std::to_string(i)),
                                                       O_RDWR | O_CREAT | O_NOATIME | flags));
    EXPECT_EQ(batch.files.back()->error(), 0);
  }
  for (std::size_t at = 0; at < memory.size(); at += kPieceBytes) {
    const std::size_t piece = at / kPieceBytes;
    const std::span<std::byte> bytes =
        memory.subspan(at, std::min(kPieceBytes, memory.size() - at));
    if (is_write) fill_chunk(piece, bytes);
    batch.transfers.push_back({.fd = batch.files[piece % kFiles]->fd(),
                               .is_write = is_write,
                               .offset = piece / kFiles * kPieceBytes,
                               .bytes = bytes});
  }
  std::shuffle(batch.transfers.begin(), batch.transfers.end(), std::mt19937_64(1));
  return batch;
}

void expect_pieces(MutableChunk memory) {
  for (std::size_t at = 0; at < memory.size(); at += kPieceBytes) {
    const std::size_t size = std::min(kPieceBytes, memory.size() - at);
    EXPECT_TRUE(is_chunk(at / kPieceBytes, memory.subspan(at, size))) << at / kPieceBytes;
  }
}

TEST_P(ArenaClientsTest, BatchesOf64AndADepthOf256AreCarriedOutWhole) {
  ClientPlace place(GetParam(), "64M", "rw");
  constexpr std::size_t kBytes = 300 * kPieceBytes - 4096;
  // Pointers that direct transfers to a disk would refuse.
  const std::size_t skew_bytes = is_store() ? 28 : 0;
  for (const AsyncKind kind :
       {AsyncKind::kLibaio, AsyncKind::kUring, AsyncKind::kUringRegistered, AsyncKind::kPosixAio}) {
    std::string reason;
    const auto engine = make_async_engine(kind, reason);
    if (engine == nullptr) continue;  // the machine has none
    for (const int flags : {0, O_DIRECT, O_DIRECT | O_DSYNC}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(kind)) + " " + std::to_string(flags));
      if (flags == (O_DIRECT | O_DSYNC) && kind != AsyncKind::kLibaio) continue;  // each is flushed
      const ChunkBuffer written(kBytes, skew_bytes);
      Batch writes = make_batch(place, flags, true, written.bytes());
      int outcome = engine->run(writes.transfers);
      EXPECT_EQ(outcome, 0) << describe_outcome(outcome);
      const ChunkBuffer found(kBytes, skew_bytes);
      Batch reads = make_batch(place, flags, false, found.bytes());
      outcome = engine->run(reads.transfers);
      EXPECT_EQ(outcome, 0) << describe_outcome(outcome);
      expect_pieces(found.bytes());
      EXPECT_EQ(size_of(place.path("nixl0")), std::int64_t{75 * kPieceBytes});
      EXPECT_EQ(size_of(place.path("nixl3")), std::int64_t{75 * kPieceBytes - 4096});
      for (const char* const name : {"nixl0", "nixl1", "nixl2", "nixl3"}) {
        EXPECT_EQ(remove_file(place.path(name)), 0);
      }
    }
  }
  place.expect_sound();
}

// Threads that each have parts of an arena: write, read back, and say what they wrote last.
constexpr std::size_t kParts = 8;
constexpr std::size_t kPartBytes = 2 << 20;
constexpr std::size_t kArenaBytes = kParts * kPartBytes;
constexpr std::size_t kCellBytes = 40'000;
constexpr std::size_t kCells = kPartBytes / kCellBytes;

using Seeds = std::vector<std::uint64_t>;  // of each cell; 0: never written

void use_part(const ClientFile& file, std::size_t part, int operations, bool syncs, Seeds& seeds) {
  std::mt19937_64 random(part);
  for (int i = 0; i < operations; ++i) {
    const std::size_t cell = random() % kCells;
    const std::uint64_t offset = part * kPartBytes + cell * kCellBytes;
    seeds[cell] = random() | 1;
    EXPECT_EQ(file.pwritev(make_chunk(seeds[cell], kCellBytes).bytes(), offset, 15'000), 0);
    const std::size_t other = random() % kCells;
    const ChunkBuffer found(kCellBytes);
    EXPECT_EQ(file.preadv(found.bytes(), part * kPartBytes + other * kCellBytes, 9'000), 0);
    if (seeds[other] != 0) {
      EXPECT_TRUE(is_chunk(seeds[other], found.bytes()));
    }
    if (syncs && i % 8 == 7) {
      EXPECT_EQ(::fdatasync(file.fd()), 0);
    }
  }
}

void use_arena(const ClientFile& file, int operations, bool syncs, std::vector<Seeds>& seeds) {
  seeds.resize(kParts, Seeds(kCells));
  std::vector<std::jthread> threads;
  for (std::size_t part = 0; part < kParts; ++part) {
    threads.emplace_back([&, part] { use_part(file, part, operations, syncs, seeds[part]); });
  }
}

void expect_arena(const ClientFile& file, const std::vector<Seeds>& seeds) {
  for (std::size_t part = 0; part < kParts; ++part) {
    for (std::size_t cell = 0; cell < kCells; ++cell) {
      const ChunkBuffer found(kCellBytes);
      EXPECT_EQ(file.pread(found.bytes(), part * kPartBytes + cell * kCellBytes), 0);
      const bool is_right =
          seeds[part][cell] != 0
              ? is_chunk(seeds[part][cell], found.bytes())
              : std::ranges::all_of(found.bytes(), [](std::byte b) { return b == std::byte{0}; });
      EXPECT_TRUE(is_right) << part << "/" << cell;
    }
  }
}

// As the offset allocator saves where everything is.
int save_meta(const ClientPlace& place, ConstChunk meta) {
  ClientFile file(place.path("arena.meta.tmp"), O_WRONLY | O_CREAT | O_TRUNC);
  if (file.error() != 0) return file.error();
  const int written =
      first_failure({file.write(meta), outcome_of(::fsync(file.fd())), file.close(),
                     rename_file(place.path("arena.meta.tmp"), place.path("arena.meta"))});
  const ClientFile directory(place.root(), O_RDONLY | O_DIRECTORY);
  return first_failure({written, outcome_of(::fsync(directory.fd()))});
}

TEST_P(ArenaClientsTest, AnArenaIsReservedWholeWrittenAtRandomAndOutlivesTheDaemon) {
  ClientPlace place(GetParam(), "64M", "staging=8M");
  const std::uint64_t before = place.free_blocks();
  std::vector<Seeds> seeds;
  {
    ClientFile arena(place.path("arena"), O_RDWR | O_CREAT | O_TRUNC);
    if (is_store()) {
      EXPECT_EQ(outcome_of(::fallocate(arena.fd(), 0, 0, 1LL << 30)), ENOSPC) << "and at once";
      EXPECT_EQ(place.free_blocks(), before);
    }
    ASSERT_EQ(outcome_of(::fallocate(arena.fd(), 0, 0, kArenaBytes)), 0);
    EXPECT_EQ(size_of(place.path("arena")), std::int64_t{kArenaBytes});
    EXPECT_LE(place.free_blocks() + kArenaBytes / 4096, before) << "nobody else gets it";
    ClientFile rest(place.path("rest"), O_RDWR | O_CREAT);
    if (is_store()) {
      const auto free_bytes = static_cast<off_t>(place.free_blocks() * 4096);
      EXPECT_EQ(outcome_of(::fallocate(rest.fd(), 0, 0, free_bytes - (1 << 20))), 0);
    }
    use_arena(arena, 24, true, seeds);
    EXPECT_EQ(::fdatasync(arena.fd()), 0);
    EXPECT_EQ(save_meta(place, make_chunk(1, 5000).bytes()), 0);
    if (place.store() != nullptr) place.store()->kill_and_remount();
  }
  ClientFile arena(place.path("arena"), O_RDWR);
  ASSERT_EQ(arena.error(), 0);
  EXPECT_EQ(size_of(place.path("arena")), std::int64_t{kArenaBytes});
  expect_arena(arena, seeds);
  ChunkBuffer meta(5000);
  EXPECT_EQ(ClientFile(place.path("arena.meta"), O_RDONLY).read(meta.bytes()), 0);
  EXPECT_TRUE(is_chunk(1, meta.bytes()));
  EXPECT_EQ(arena.close(), 0);
}

// A temporary file that is removed while it is open, reserved, and used past the page cache.
TEST_P(ArenaClientsTest, AnArenaWithoutANameIsUsedDirectlyAndGivesItsSpaceBack) {
  ClientPlace place(GetParam(), "64M", "staging=8M");
  place.settle();
  const std::uint64_t before = place.free_blocks();
  {
    std::string pattern = place.path("kvbm-XXXXXX");
    const int made = ::mkostemp(pattern.data(), O_CLOEXEC);
    ASSERT_GE(made, 0);
    EXPECT_EQ(::close(made), 0);
    // Pieces that are not of whole pages go past the page cache only here.
    const ClientFile arena(pattern, is_store() ? O_RDWR | O_DIRECT : O_RDWR);
    ASSERT_EQ(arena.error(), 0);
    ASSERT_EQ(remove_file(pattern), 0);
    ASSERT_EQ(outcome_of(::fallocate(arena.fd(), 0, 0, kArenaBytes)), 0);
    EXPECT_LE(place.free_blocks() + kArenaBytes / 4096, before);
    std::vector<Seeds> seeds;
    use_arena(arena, 24, false, seeds);
    expect_arena(arena, seeds);
  }
  place.settle();
  if (is_store()) {
    EXPECT_EQ(place.free_blocks(), before);
  }
  place.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Places, ArenaClientsTest, ::testing::ValuesIn(client_places()),
                         name_of_place);

}  // namespace
}  // namespace kvslot::testing
