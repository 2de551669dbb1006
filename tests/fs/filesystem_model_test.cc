// Random operations on a few files against strings in memory, with power losses: the live view is
// the model's, and what a crash leaves is what the last commit point made durable, or newer. What
// somebody else left in the staging buffers reaches neither a reader nor the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/fs/filesystem_fixture.h"

namespace kvslot::testing {
namespace {

constexpr std::size_t kFiles = 4;
constexpr std::size_t kSizeMax = 700'000;
constexpr std::uint64_t kSecret = 0x5445'5243'4553'564b;  // "KVSECRET"

struct ModelFile {
  std::string live;
  std::vector<std::string> since_durable;  // states that a commit may have stored; [0] is durable
  bool exists = false;                     // durably
};

class FilesystemModel {
 public:
  FilesystemModel(unsigned seed, std::uint32_t slot_size_bytes)
      : random_(seed), store_(64 * kMiB, slot_size_bytes, 8 * kMiB) {}

  void run(int steps) {
    open_all();
    for (int step = 0; step < steps && !::testing::Test::HasFatalFailure(); ++step) {
      if (step % 4 == 0) fill_free_buffers();
      do_step();
    }
    check_all();
    close_all();
    store_.reopen();
    for (std::size_t i = 0; i < kFiles; ++i)
      EXPECT_TRUE(store_.content(name(i)) == files_[i].live) << name(i);
    expect_no_secret_on_device();
  }

 private:
  static std::string name(std::size_t i) { return "file" + std::to_string(i); }
  std::size_t pick(std::size_t limit) { return random_() % limit; }

  // As the values of other files leave them.
  void fill_free_buffers() {
    constexpr std::size_t kCount = 6;
    std::array<Buffer, kCount> buffers;
    for (Buffer& buffer : buffers) buffer = store_.volume().buffers().take(128 * kKiB);
    for (Buffer& buffer : buffers) {
      for (std::size_t at = 0; at < buffer.capacity(); at += sizeof kSecret) {
        std::memcpy(buffer.data() + at, &kSecret, sizeof kSecret);
      }
    }
  }
  void expect_no_secret_on_device() {
    std::vector<std::uint64_t> words(kMiB / sizeof(std::uint64_t));
    for (std::uint64_t offset = 0; offset < store_.device().info().size_bytes; offset += kMiB) {
      store_.device().peek(offset, std::as_writable_bytes(std::span(words)));
      const auto found = std::ranges::find(words, kSecret);
      EXPECT_EQ(found, words.end())
          << "a stale buffer is on the device at "
          << offset + static_cast<std::uint64_t>(found - words.begin()) * sizeof kSecret;
      if (found != words.end()) return;
    }
  }

  void open_all() {
    for (std::size_t i = 0; i < kFiles; ++i) {
      handles_[i] = store_.exists(name(i)) ? store_.open(name(i)) : store_.create(name(i));
    }
  }
  void close_all() {
    for (Handle& handle : handles_) {
      if (!handle) continue;
      EXPECT_TRUE(store_.close(std::move(handle)));
    }
  }

  void do_step() {
    const std::size_t which = pick(kFiles);
    switch (pick(16)) {
      case 0:
        return fsync(which);
      case 1:
        return flush(which);
      case 2:
        return truncate(which);
      case 3:
        return punch(which);
      case 4:
        return reopen_handle(which);
      case 5:
        return check(which);
      case 6:
        return pick(6) == 0 ? crash() : sync();
      case 7:
        store_.fs().publisher().spill_anything();
        return;
      default:
        return write(which);
    }
  }

  void write(std::size_t which) {
    ModelFile& file = files_[which];
    const std::size_t size = pick(3) == 0 ? pick(200'000) + 1 : pick(5000) + 1;
    const std::size_t offset = pick(3) == 0 ? file.live.size() : pick(kSizeMax - size);
    const std::string text = value_of(random_(), size);
    ASSERT_TRUE(store_.write(handles_[which], offset, text));
    if (file.live.size() < offset + size) file.live.resize(offset + size);
    file.live.replace(offset, size, text);
    if (file.live.size() > kSizeMax * 2) truncate(which);
  }

  void truncate(std::size_t which) {
    const std::size_t size = pick(4) == 0 ? 0 : pick(kSizeMax);
    ASSERT_TRUE(store_.truncate(handles_[which]->file->node, size));
    files_[which].live.resize(size);
  }

  void punch(std::size_t which) {
    ModelFile& file = files_[which];
    const std::size_t offset = pick(kSizeMax);
    const std::size_t size = pick(300'000) + 1;
    ASSERT_TRUE(store_.allocate(handles_[which], Filesystem::Allocate::kPunchHole, offset, size));
    if (offset >= file.live.size()) return;
    const std::size_t length = std::min(size, file.live.size() - offset);
    file.live.replace(offset, length, length, '\0');
  }

  void note_commit(std::size_t which) { files_[which].since_durable.push_back(files_[which].live); }
  void note_durable(std::size_t which) {
    files_[which].since_durable = {files_[which].live};
    files_[which].exists = true;
  }

  void flush(std::size_t which) {
    ASSERT_TRUE(store_.flush(handles_[which]));
    note_commit(which);
  }
  void fsync(std::size_t which) {
    ASSERT_TRUE(store_.fsync(handles_[which]));
    note_durable(which);
  }
  void sync() {
    ASSERT_TRUE(store_.sync());
    for (std::size_t i = 0; i < kFiles; ++i) note_durable(i);
  }
  void reopen_handle(std::size_t which) {
    ASSERT_TRUE(store_.close(std::move(handles_[which])));
    note_commit(which);
    const bool truncates = pick(3) == 0;
    handles_[which] = store_.open(name(which), {.writes = true, .truncates = truncates});
    if (truncates) files_[which].live.clear();
  }

  void check(std::size_t which) {
    const std::string seen = store_.content(handles_[which]);
    ASSERT_EQ(seen.size(), files_[which].live.size());
    ASSERT_TRUE(seen == files_[which].live)
        << "first difference at "
        << std::mismatch(seen.begin(), seen.end(), files_[which].live.begin()).first - seen.begin();
    ASSERT_EQ(store_.status(handles_[which]->file->node).info.size_bytes, seen.size());
  }
  void check_all() {
    for (std::size_t i = 0; i < kFiles; ++i) check(i);
  }

  // Nothing is under way when power goes: what was flushed but not fsynced is there or not.
  void crash() {
    for (Handle& handle : handles_) store_.fs().release(std::move(handle));
    for (std::size_t i = 0; i < kFiles; ++i) note_commit(i);
    store_.crash(pick(2) == 0 ? CrashMode::kNone : CrashMode::kPrefix);
    for (std::size_t i = 0; i < kFiles; ++i) {
      ModelFile& file = files_[i];
      if (!store_.exists(name(i))) {
        ASSERT_FALSE(file.exists) << name(i) << " was durable and is gone";
        file.live.clear();
      } else {
        const std::string left = store_.content(name(i));
        ASSERT_TRUE(std::ranges::find(file.since_durable, left) != file.since_durable.end())
            << name(i) << " has bytes that no commit point left";
        file.live = left;
      }
      file.since_durable = {file.live};
    }
    open_all();
  }

  std::mt19937 random_;
  LiveStore store_;
  std::array<ModelFile, kFiles> files_;
  std::array<Handle, kFiles> handles_;
};

class FilesystemModelTest : public ::testing::TestWithParam<std::tuple<unsigned, std::uint32_t>> {};

TEST_P(FilesystemModelTest, TheLiveViewAndEveryCrashAreAsTheModelSays) {
  const auto [seed, slot_size_bytes] = GetParam();
  SCOPED_TRACE(::testing::Message() << "seed " << seed << ", slots of " << slot_size_bytes);
  FilesystemModel(seed, slot_size_bytes).run(250);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FilesystemModelTest,
                         ::testing::Combine(::testing::Range(1U, 13U),
                                            ::testing::Values(4096U, 65536U, 1048576U)));

}  // namespace
}  // namespace kvslot::testing
