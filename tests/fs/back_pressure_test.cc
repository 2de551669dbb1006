// A device that does not keep up: writers wait, memory stays bounded, everybody else goes on.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/fs/filesystem_fixture.h"
#include "tests/support/patience.h"

namespace kvslot::testing {
namespace {

constexpr std::uint64_t kStagingBytes = 8 * kMiB;

class BackPressureTest : public ::testing::Test {
 protected:
  // Answers as they come; none may come twice, and all have come when the test is over.
  struct Answers {
    std::atomic<std::size_t> count = 0, failed = 0, no_space = 0;
    void take(const Result<void>& result) {
      const int error = errno_of(result);
      if (error == ENOSPC) ++no_space;
      if (error != 0) ++failed;
      ++count;
    }
    // Also where the test has failed: they come all the same.
    void wait_for(std::size_t wanted) const {
      const auto end = std::chrono::steady_clock::now() + kPatience;
      while (count < wanted && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      EXPECT_GE(count, wanted);
    }
  };

  void begin_write(const Handle& handle, std::uint64_t offset, const std::string& text) {
    ++asked_;
    store_.fs().write(*handle, offset, bytes_of(text), {},
                      [this](Result<void> result) { answers_.take(result); });
  }
  void begin_copy(const Handle& from, const Handle& to, std::uint64_t to_offset,
                  std::uint64_t size) {
    ++asked_;
    store_.fs().copy(*from, 0, *to, to_offset, size, [this](Result<std::uint64_t> copied) {
      answers_.take(copied ? Result<void>() : fail(copied));
    });
  }
  [[nodiscard]] std::size_t buffered_bytes() {
    std::size_t sum = 0;
    for (const LiveFileRef& file : store_.fs().files().all()) {
      MutexLock lock(file->mutex);
      sum += file->content.buffered_bytes();
    }
    return sum;
  }
  [[nodiscard]] std::uint64_t parked() { return store_.fs().counters().parked_writes; }

  Answers answers_;  // outlives who gives them
  LiveStore store_{64 * kMiB, 4096, kStagingBytes};
  std::size_t asked_ = 0;
};

TEST_F(BackPressureTest, WritersWaitAndOthersAreServed) {
  Handle stored = store_.create("stored");
  EXPECT_TRUE(store_.write(stored, 0, "stored bytes"));
  EXPECT_TRUE(store_.fsync(stored));
  store_.device().hold(OperationKind::kWrite);

  const std::string text = value_of(1, kMiB);
  std::vector<Handle> handles;
  for (int i = 0; i < 20; ++i) {
    handles.push_back(store_.create("f" + std::to_string(i)));
    begin_write(handles.back(), 0, text);
  }
  EXPECT_GT(parked(), 0U);
  EXPECT_LT(answers_.count, asked_);
  EXPECT_LE(buffered_bytes(), kStagingBytes);

  // None of these needs the device to take a write.
  EXPECT_EQ(store_.content(stored), "stored bytes");
  EXPECT_EQ(store_.read(handles[0], 0, 100).value_or(""), text.substr(0, 100));
  EXPECT_TRUE(store_.fs().make(NodeId::kRoot, "dir", NodeKind::kDirectory, 0755, {}));
  EXPECT_TRUE(store_.rename("dir", "renamed"));
  EXPECT_EQ(store_.fs().list(NodeId::kRoot, 0, 100)->size(), 22U);
  EXPECT_FALSE(store_.volume().inspector().stats().empty());
  EXPECT_LE(buffered_bytes(), kStagingBytes);

  store_.device().release();
  answers_.wait_for(asked_);
  EXPECT_EQ(answers_.failed, 0U);
  for (Handle& handle : handles) {
    EXPECT_TRUE(store_.content(handle) == text);
    EXPECT_TRUE(store_.close(std::move(handle)));
  }
  EXPECT_TRUE(store_.close(std::move(stored)));
}

// Reads that a device answers faster than writes must not pile up as copies.
TEST_F(BackPressureTest, CopiesWaitAsWritesDo) {
  const std::string text = value_of(2, 4 * kMiB);
  Handle source = store_.create("source");
  EXPECT_TRUE(store_.write(source, 0, text));
  EXPECT_TRUE(store_.fsync(source));
  Handle target = store_.create("target");
  store_.device().hold(OperationKind::kWrite);

  std::uint64_t copies = 0;
  while (parked() == 0 && copies < 8) {
    begin_copy(source, target, copies++ * text.size(), text.size());
    yield_until([&] { return answers_.count == asked_ || parked() > 0; });
    EXPECT_LE(buffered_bytes(), kStagingBytes);
  }
  EXPECT_GT(parked(), 0U);

  store_.device().release();
  answers_.wait_for(asked_);
  EXPECT_EQ(answers_.failed, 0U);
  // A copy may end early, and says so; what it says it copied is there.
  EXPECT_EQ(store_.read(target, 0, kMiB).value_or(""), text.substr(0, kMiB));
  EXPECT_TRUE(store_.close(std::move(source)));
  EXPECT_TRUE(store_.close(std::move(target)));
}

TEST_F(BackPressureTest, PunchesWaitAsWritesDo) {
  constexpr std::size_t kWindowBytes = 128 * kKiB;
  std::string text = value_of(4, 16 * kMiB);
  Handle handle = store_.create("f");
  for (std::size_t at = 0; at < text.size(); at += kMiB) {
    EXPECT_TRUE(store_.write(handle, at, text.substr(at, kMiB)));
  }
  EXPECT_TRUE(store_.fsync(handle));
  store_.device().hold(OperationKind::kWrite);

  // Each makes most of a window dirty that was not.
  for (std::size_t at = 100'000; at < text.size(); at += kWindowBytes) {
    ++asked_;
    store_.fs().allocate(*handle, Filesystem::Allocate::kPunchHole, at, 1000,
                         [this](Result<void> result) { answers_.take(result); });
    text.replace(at, 1000, 1000, '\0');
  }
  EXPECT_GT(parked(), 0U);
  EXPECT_LE(buffered_bytes(), kStagingBytes);

  store_.device().release();
  answers_.wait_for(asked_);
  EXPECT_EQ(answers_.failed, 0U);
  EXPECT_TRUE(store_.content(handle) == text);
  EXPECT_TRUE(store_.close(std::move(handle)));
  store_.reopen();
  EXPECT_TRUE(store_.content("f") == text);
}

// Beyond the bound whoever writes waits as well, and no write fails for lack of memory.
TEST_F(BackPressureTest, WhatWaitsIsBoundedToo) {
  constexpr std::uint64_t kWritesMax = 256 / 4;  // MiB that are kept, in writes
  constexpr std::uint64_t kWrites = 70;
  store_.device().hold(OperationKind::kWrite);
  const std::string text = value_of(3, 4 * kMiB);
  Handle handle = store_.create("f");
  std::atomic<std::uint64_t> begun = 0;
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < kWrites; ++i, ++begun) begin_write(handle, i * text.size(), text);
  });
  yield_until(
      [&] { return parked() >= kWritesMax || answers_.failed > 0 || answers_.count == kWrites; });
  EXPECT_GE(parked(), kWritesMax);
  EXPECT_LE(begun, kWritesMax + kStagingBytes / text.size());
  EXPECT_EQ(answers_.failed, 0U);
  EXPECT_LE(buffered_bytes(), kStagingBytes);

  store_.device().release();
  writer.join();
  answers_.wait_for(asked_);
  EXPECT_GT(answers_.no_space, 0U);  // there were more bytes than space
  EXPECT_EQ(answers_.failed, answers_.no_space);
  EXPECT_EQ(store_.read(handle, 0, 100).value_or(""), text.substr(0, 100));
  ASSERT_TRUE(store_.truncate(handle->file->node, 0));
  EXPECT_TRUE(store_.sync());
  EXPECT_TRUE(store_.write(handle, 0, text));  // nothing stays counted
  EXPECT_TRUE(store_.close(std::move(handle)));
}

// A transport that keeps the bytes itself is not held up.
TEST_F(BackPressureTest, WhatItsCallerKeepsIsNotBounded) {
  store_.device().hold(OperationKind::kWrite);
  const std::string text = value_of(5, kMiB);
  Handle handle = store_.create("f");
  constexpr std::uint64_t kWrites = 300;
  for (std::uint64_t i = 0; i < kWrites; ++i) {
    ++asked_;
    store_.fs().write(*handle, i % 20 * text.size(), bytes_of(text), {.keeps_bytes = true},
                      [this](Result<void> result) { answers_.take(result); });
  }
  EXPECT_LT(answers_.count, asked_);
  store_.device().release();
  answers_.wait_for(asked_);
  EXPECT_EQ(answers_.failed, 0U);
  EXPECT_TRUE(store_.read(handle, 19 * text.size(), text.size()).value_or("") == text);
  EXPECT_TRUE(store_.close(std::move(handle)));
}

// Whoever ends a mount does not wait for the device.
TEST_F(BackPressureTest, NobodyWaitsForRoomAtTheEnd) {
  store_.device().hold(OperationKind::kWrite);
  constexpr std::uint64_t kWritesMax = 256 / 4;
  constexpr std::uint64_t kWrites = 80;
  const std::string text = value_of(6, 4 * kMiB);
  Handle handle = store_.create("f");
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < kWrites; ++i) begin_write(handle, i % 4 * text.size(), text);
  });
  yield_until(
      [&] { return parked() >= kWritesMax || answers_.failed > 0 || answers_.count == kWrites; });
  EXPECT_GE(parked(), kWritesMax);
  store_.fs().parked().end_waiting();
  writer.join();
  store_.device().release();
  answers_.wait_for(asked_);
  EXPECT_EQ(answers_.failed, 0U);
  EXPECT_TRUE(store_.close(std::move(handle)));
}

class FullStoreTest : public BackPressureTest {
 protected:
  // A store that one file fills, which is removed and held as the kernel does. Returns it.
  NodeId remove_what_fills() {
    Handle handle = store_.create("full");
    const std::string text = value_of(7, kMiB);
    for (std::uint64_t at = 0; store_.write(handle, at, text); at += text.size()) {
    }
    EXPECT_TRUE(store_.fsync(handle));
    const NodeId node = handle->file->node;
    EXPECT_EQ(errno_of(store_.close(std::move(handle))), ENOSPC);
    EXPECT_TRUE(store_.unlink("full"));
    return node;
  }
};

TEST_F(FullStoreTest, ThereAWriteWaitsForARemovedFileToBeForgotten) {
  store_.fs().parked().set_parting_wait(std::chrono::hours(24));
  const NodeId node = remove_what_fills();
  const std::uint64_t parked_before = parked();
  Handle handle = store_.create("new");
  const std::string text = value_of(8, 2 * kMiB);
  begin_write(handle, 0, text);
  ++asked_;
  store_.fs().allocate(*handle, Filesystem::Allocate::kReserve, 0, 4 * kMiB,
                       [this](Result<void> result) { answers_.take(result); });
  EXPECT_EQ(parked(), parked_before + 2);
  EXPECT_EQ(answers_.count, 0U);
  store_.fs().forget(node, 1);
  answers_.wait_for(asked_);
  EXPECT_EQ(answers_.failed, 0U);
  EXPECT_TRUE(store_.content(handle).starts_with(text));
  EXPECT_TRUE(store_.close(std::move(handle)));
}

TEST_F(FullStoreTest, ThereAWriteWaitsForARemovedFileToBeReleased) {
  const NodeId node = remove_what_fills();
  Handle open = store_.open(node, {});
  store_.fs().forget(node, 1);
  Handle handle = store_.create("new");
  const std::string text = value_of(9, 2 * kMiB);
  EXPECT_EQ(errno_of(store_.write(handle, 0, text)), ENOSPC);
  store_.fs().parked().set_parting_wait(std::chrono::hours(24));
  EXPECT_TRUE(store_.flush(open));  // close(2) has returned, RELEASE is on its way
  begin_write(handle, 0, text);
  EXPECT_EQ(answers_.count, 0U);
  store_.fs().release(std::move(open));
  answers_.wait_for(asked_);
  EXPECT_EQ(answers_.failed, 0U);
  EXPECT_TRUE(store_.close(std::move(handle)));
}

// A commit that ends, say: what it wakes may run before it lets go of the file.
TEST_F(FullStoreTest, ThereAWriteWaitsForWhoeverStillUsesARemovedFile) {
  const NodeId node = remove_what_fills();
  Handle open = store_.open(node, {});
  LiveFileRef used = open->file;
  store_.fs().forget(node, 1);
  store_.fs().release(std::move(open));
  Handle handle = store_.create("new");
  const std::string text = value_of(9, 2 * kMiB);
  store_.fs().parked().set_parting_wait(std::chrono::hours(24));
  const std::uint64_t refused = stat_of(store_.volume(), "no_space");
  begin_write(handle, 0, text);
  // Until it was tried again after it was put aside.
  yield_until(
      [&] { return answers_.count > 0 || stat_of(store_.volume(), "no_space") >= refused + 2; });
  EXPECT_EQ(answers_.count, 0U);
  used.reset();
  answers_.wait_for(asked_);
  EXPECT_EQ(answers_.failed, 0U);
  EXPECT_TRUE(store_.close(std::move(handle)));
}

TEST_F(FullStoreTest, ThereAWriteDoesNotWaitWhereNothingIsHeld) {
  store_.fs().parked().set_parting_wait(std::chrono::hours(24));
  store_.fs().forget(remove_what_fills(), 1);
  Handle handle = store_.create("full");
  const std::string text = value_of(7, kMiB);
  std::uint64_t at = 0;
  while (store_.write(handle, at, text)) at += text.size();
  EXPECT_GT(at, 0U);
  EXPECT_EQ(errno_of(store_.close(std::move(handle))), ENOSPC);
}

TEST_F(BackPressureTest, ThousandsOfOpenWritersAreCheap) {
  constexpr std::size_t kWriters = 5000;
  std::vector<Handle> handles;
  for (std::size_t i = 0; i < kWriters; ++i) {
    handles.push_back(store_.create(std::to_string(i)));
    ASSERT_TRUE(store_.write(handles.back(), 0, std::to_string(i)));
  }
  EXPECT_LE(buffered_bytes(), kStagingBytes);
  for (std::size_t i = 0; i < kWriters; i += 499) {
    EXPECT_EQ(store_.content(handles[i]), std::to_string(i));
  }
  for (Handle& handle : handles) EXPECT_TRUE(store_.close(std::move(handle)));
  EXPECT_TRUE(store_.sync());
  EXPECT_EQ(stat_of(store_.volume(), "slots_reserved"), 0U);
  EXPECT_EQ(stat_of(store_.volume(), "slots_live"), kWriters);
  yield_until([&] { return store_.fs().files().all().empty(); });
}

}  // namespace
}  // namespace kvslot::testing
