// Every program that keeps KV-cache chunks as files, as it stores and reads them: all of them at
// once from many threads, and each into a store that is full. KVSLOT_CLIENTS_DIRECTORY=DIR does the
// same in a directory; one on a file system of 16 MiB, for what fills it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/chunk.h"
#include "tests/support/chunk_programs.h"
#include "tests/support/client_place.h"
#include "tests/support/client_process.h"
#include "tests/support/environment.h"

namespace kvslot::testing {
namespace {

constexpr std::size_t kHeaderBytes = 28;
constexpr std::uint64_t kHotSeeds = 1'000'000;

// One program at work, from several threads.
class Worker {
 public:
  // `skew_bytes`: how far from the start of a page its buffers may begin.
  Worker(const ProgramKind& kind, std::unique_ptr<ChunkProgram> program, std::size_t skew_bytes)
      : kind_(kind), program_(std::move(program)), skew_bytes_(skew_bytes) {}

  // Puts, replaces and removes, and finds each time what it put.
  void use_chunks(std::uint64_t thread, std::uint64_t rounds) const {
    for (std::uint64_t seed = thread; seed < thread + rounds * kThreads; seed += kThreads) {
      const std::size_t size = size_of_chunk(seed);
      put(key_of(seed), seed + (replaces() ? 1 : 0), size);
      if (replaces()) put(key_of(seed), seed, size);
      if (kind_.publishing == Publishing::kRename) use_hot_chunk(seed);
      put_and_remove("gone/" + std::to_string(seed), seed, size);
    }
  }
  void use_sizes(bool all) const {
    const bool is_large = hash_of(kind_.name) % 2 == 0;  // to save time, not for every program
    std::vector<std::size_t> sizes{29, 4096, 4097, is_large ? (16 << 20) + kHeaderBytes : 4 << 20};
    for (std::size_t size = 64 << 10; size <= 16 << 20 && all; size *= 2) {
      for (const std::size_t other : {size - 1, size, size + 1, size + kHeaderBytes}) {
        sizes.push_back(other);
      }
    }
    for (const std::size_t size : sizes) put_and_remove("size" + std::to_string(size), size, size);
  }
  void expect_chunks(std::uint64_t rounds) const {
    for (std::uint64_t seed = 0; seed < rounds * kThreads; ++seed) {
      expect_chunk(key_of(seed), seed, size_of_chunk(seed));
    }
  }
  static constexpr std::uint64_t kThreads = 5;

 private:
  [[nodiscard]] bool replaces() const { return kind_.publishing != Publishing::kSkips; }
  void put(const std::string& key, std::uint64_t seed, std::size_t size) const {
    const int outcome = program_->put(key, make_chunk(seed, size, seed % 2 * skew_bytes_).bytes());
    EXPECT_EQ(outcome, 0) << describe_outcome(outcome) << ": put " << key << " of " << size;
    EXPECT_TRUE(program_->has(key)) << key;
    expect_chunk(key, seed, size);
  }
  void put_and_remove(const std::string& key, std::uint64_t seed, std::size_t size) const {
    put(key, seed, size);
    EXPECT_EQ(program_->remove(key), 0) << key;
    EXPECT_FALSE(program_->has(key)) << key;
  }
  void expect_chunk(const std::string& key, std::uint64_t seed, std::size_t size) const {
    const ChunkBuffer found(size, seed % 3 * skew_bytes_);
    const int outcome = program_->get(key, found.bytes());
    EXPECT_EQ(outcome, 0) << describe_outcome(outcome) << ": get " << key << " of " << size;
    EXPECT_TRUE(is_chunk(seed, found.bytes())) << kind_.name << ": " << key << " of " << size;
  }
  // A chunk that all threads replace at once is whole for whoever reads it.
  void use_hot_chunk(std::uint64_t seed) const {
    constexpr std::size_t kHotBytes = 65536 + kHeaderBytes;
    EXPECT_EQ(program_->put("hot", make_chunk(kHotSeeds + seed, kHotBytes).bytes()), 0);
    const ChunkBuffer found(kHotBytes);
    EXPECT_EQ(program_->get("hot", found.bytes()), 0);
    EXPECT_GE(seed_of_chunk(found.bytes()).value_or(0), kHotSeeds) << "a mix of two";
  }
  static std::size_t size_of_chunk(std::uint64_t seed) {
    static constexpr std::size_t kSizes[] = {65536 + kHeaderBytes, 65536, 131072, 100'001};
    return kSizes[seed % std::size(kSizes)];
  }
  static std::string key_of(std::uint64_t seed) {
    return "org/model-" + std::to_string(seed % 3) + "/" + std::to_string(seed);
  }

  const ProgramKind& kind_;
  std::unique_ptr<ChunkProgram> program_;
  std::size_t skew_bytes_;
};

class ChunkProgramsTest : public ClientPlaceTest {};

// 0 where all of it works while a timer interrupts every millisecond.
int use_under_signals(ChunkProgram& program) {
  struct sigaction action{};
  action.sa_handler = [](int) {};  // and no SA_RESTART
  const itimerval often{.it_interval = {0, 1000}, .it_value = {0, 1000}};
  if (::sigaction(SIGALRM, &action, nullptr) != 0) return errno;
  if (::setitimer(ITIMER_REAL, &often, nullptr) != 0) return errno;
  constexpr std::size_t kBytes = 1 << 20;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string key = std::to_string(seed);
    if (program.put(key, make_chunk(seed, kBytes).bytes()) != 0) return 1;
    const ChunkBuffer found(kBytes);
    if (program.get(key, found.bytes()) != 0) return 2;
    if (!is_chunk(seed, found.bytes())) return 3;
  }
  return 0;
}

TEST_P(ChunkProgramsTest, ManyThreadsFindWhatTheyPutAndSoDoesTheNextMount) {
  const std::uint64_t rounds = number_from("KVSLOT_CLIENTS_ROUNDS", 1);
  ClientPlace place(GetParam(), "512M", "rw");
  // Direct transfers from and to any place in memory are for the store alone.
  const std::size_t skew_bytes = place.store() != nullptr ? kHeaderBytes : 0;
  std::vector<Worker> workers;
  for (const ProgramKind& kind : program_kinds()) {
    std::string reason;
    auto program = kind.make(place.path(kind.name), reason);
    if (program == nullptr) continue;  // the machine has no such interface
    ASSERT_EQ(program->start(), 0) << kind.name;
    workers.emplace_back(kind, std::move(program), skew_bytes);
  }
  {
    std::vector<std::jthread> threads;
    for (const Worker& worker : workers) {
      for (std::uint64_t thread = 0; thread < Worker::kThreads; ++thread) {
        threads.emplace_back([&worker, thread, rounds] { worker.use_chunks(thread, rounds); });
      }
      threads.emplace_back([&worker, rounds] { worker.use_sizes(rounds > 1); });
    }
  }
  if (place.store() != nullptr) place.store()->remount();
  for (const Worker& worker : workers) worker.expect_chunks(rounds);
  workers.clear();
  place.expect_sound();
}

TEST_P(ChunkProgramsTest, SignalsCutNothingShort) {
  ClientPlace place(GetParam(), "64M", "rw");
  for (const ProgramKind& kind : program_kinds()) {
    if (kind.name != "LmcacheLevelTwo" && kind.name != "VllmTiering") continue;
    std::string reason;
    const auto program = kind.make(place.path(kind.name), reason);
    ASSERT_EQ(program->start(), 0);
    EXPECT_EQ(ClientProcess([&] { return use_under_signals(*program); }).wait(), 0) << kind.name;
  }
  place.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Places, ChunkProgramsTest, ::testing::ValuesIn(client_places()),
                         name_of_place);

class FullPlaceTest : public ClientPlaceTest {
 protected:
  static constexpr std::size_t kBytes = 300'000 + kHeaderBytes;
  static constexpr off_t kReservedBytes = 9 << 20;
  static std::string key_of(std::uint64_t number) { return "full/" + std::to_string(number); }

  // Puts chunks 0, 1, ... until one does not fit; returns how many did.
  static std::uint64_t fill(ChunkProgram& program, bool place_is_ordinary) {
    for (std::uint64_t number = 0;; ++number) {
      const int outcome = program.put(key_of(number), make_chunk(number, kBytes).bytes());
      if (outcome == 0) continue;
      const bool is_cut = outcome == kShort && place_is_ordinary;
      EXPECT_TRUE(outcome == ENOSPC || is_cut) << describe_outcome(outcome);
      (void)program.remove(key_of(number));  // what there is of it under its final name
      return number;
    }
  }
  static void expect_whole(ChunkProgram& program, std::uint64_t count) {
    for (std::uint64_t number = 0; number < count; ++number) {
      const ChunkBuffer found(kBytes);
      EXPECT_EQ(program.get(key_of(number), found.bytes()), 0) << number;
      EXPECT_TRUE(is_chunk(number, found.bytes())) << number;
    }
  }
};

TEST_P(FullPlaceTest, EveryProgramIsToldAndGoesOnAfterRemovals) {
  ClientPlace place(GetParam(), "16M", "staging=8M");
  // Most of the space is taken, so that little has to be written.
  ClientFile reserved(place.path("reserved"), O_RDWR | O_CREAT);
  ASSERT_EQ(outcome_of(::fallocate(reserved.fd(), 0, 0, kReservedBytes)), 0);
  for (const ProgramKind& kind : program_kinds()) {
    SCOPED_TRACE(kind.name);
    std::string reason;
    const auto program = kind.make(place.path(kind.name), reason);
    if (program == nullptr) continue;
    ASSERT_EQ(program->start(), 0);
    const std::uint64_t count = fill(*program, place.store() == nullptr);
    EXPECT_GT(count, 5U);
    // Copy on write: what is replaced needs space beside the old value, which stays where there is
    // none. An ordinary file system empties first what O_TRUNC opens.
    if (place.store() != nullptr && kind.publishing != Publishing::kSkips &&
        kind.publishing != Publishing::kPieces) {
      const int outcome = program->put(key_of(0), make_chunk(count, kBytes).bytes());
      EXPECT_EQ(outcome, ENOSPC) << describe_outcome(outcome);
    }
    expect_whole(*program, count);
    for (std::uint64_t number = 0; number < count; ++number) {
      EXPECT_EQ(program->remove(key_of(number)), 0);
    }
    place.settle();
    EXPECT_EQ(program->put(key_of(0), make_chunk(0, kBytes).bytes()), 0);
    expect_whole(*program, 1);
    EXPECT_EQ(program->remove(key_of(0)), 0);
    place.settle();
  }
  EXPECT_EQ(reserved.close(), 0);
  place.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Places, FullPlaceTest, ::testing::ValuesIn(client_places()),
                         name_of_place);

}  // namespace
}  // namespace kvslot::testing
