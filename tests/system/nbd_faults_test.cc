// Network block devices below a mount that refuse requests, delay them, or fail them by lot. What
// was acknowledged is right, what failed said so.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/mount_guard.h"
#include "tests/support/real_faults.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tree_content.h"

namespace kvslot::testing {
namespace {

class NbdFaults : public RealFaults {};

// nbdkit behind nbdfuse: a file whose writes and reads fail while a trigger exists.
class NbdDevice {
 public:
  NbdDevice(const TempDir& directory, const Words& filters)
      : guard_(directory.path("nbd")), path_(guard_.path("nbd")) {
    Words words = {"nbdfuse", guard_.path(), "--command", "nbdkit", "-s", "--exit-with-parent"};
    for (const std::string& filter : filters) {
      if (!filter.contains('=')) words.push_back("--filter=" + filter);
    }
    words.insert(words.end(), {"file", directory.path("below.img")});
    for (const std::string& filter : filters) {
      if (filter.contains('=')) words.push_back(filter);
    }
    server_ = std::make_unique<BackgroundCommand>(words);
    while (!std::filesystem::exists(path_) && server_->is_running()) ::sched_yield();
  }
  ~NbdDevice() { (void)run_command({"fusermount3", "-u", "-z", guard_.path()}); }
  NbdDevice(const NbdDevice&) = delete;
  NbdDevice& operator=(const NbdDevice&) = delete;
  [[nodiscard]] bool is_there() const { return std::filesystem::exists(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  MountGuard guard_;
  std::string path_;
  std::unique_ptr<BackgroundCommand> server_;
};

bool has_nbd() { return run_shell("command -v nbdkit && command -v nbdfuse").exit_code == 0; }

TEST_F(NbdFaults, ADiskThatRefusesWritesFailsThemAndKeepsWhatItHas) {
  if (!has_nbd()) GTEST_SKIP() << "no nbdkit or nbdfuse; scripts/install_deps.sh --test";
  (void)directory_.make_image("below.img", 64 * kMebibyte);
  const std::string trigger = directory_.path("trigger");
  const NbdDevice disk(directory_, {"error", "error-pwrite=EIO", "error-pwrite-rate=100%",
                                    "error-pwrite-file=" + trigger});
  ASSERT_TRUE(disk.is_there());
  format(disk.path());
  mount(disk.path());
  for (int i = 0; i < 8; ++i) put_durably("good" + std::to_string(i), 100000);
  std::ofstream(trigger) << "";
  EXPECT_EQ(write_durably(mount_.path("bad"), value_of("bad", 100000)), EIO);
  expect_durable();  // reads go on
  std::filesystem::remove(trigger);
  kill();
  mount(disk.path());
  expect_durable();
  put_durably("bad", 100000);
  unmount();
  expect_sound(disk.path());
}

TEST_F(NbdFaults, ADiskThatRefusesReadsGivesNoOtherBytes) {
  if (!has_nbd()) GTEST_SKIP() << "no nbdkit or nbdfuse; scripts/install_deps.sh --test";
  (void)directory_.make_image("below.img", 64 * kMebibyte);
  const std::string trigger = directory_.path("trigger");
  const NbdDevice disk(directory_, {"error", "delay", "error-pread=EIO", "error-pread-rate=100%",
                                    "error-pread-file=" + trigger, "rdelay=1ms", "wdelay=1ms"});
  ASSERT_TRUE(disk.is_there());
  format(disk.path());
  mount(disk.path());
  for (int i = 0; i < 8; ++i) put_durably("key" + std::to_string(i), 100000);
  unmount();
  mount(disk.path());
  std::ofstream(trigger) << "";
  const TreeContent refused = read_tree(mount_.path());
  EXPECT_TRUE(refused.files.empty());
  EXPECT_NE(refused.failures, "");
  std::filesystem::remove(trigger);
  expect_durable();
  unmount();
  expect_sound(disk.path());
}

// Requests that fail by lot: in the middle of a batch, a block of the journal, a checkpoint.
class FlakyDisk : public RealFaults, public ::testing::WithParamInterface<const char*> {
 protected:
  // Rewrites 15 keys over and over, as long as the store takes writes.
  void put_under_faults(int life) {
    for (int i = 0; i < 45; ++i) {
      const std::string key = "key" + std::to_string(i % 15);
      std::string value = value_of(key + "/" + std::to_string(life * 100 + i),
                                   static_cast<std::size_t>(500 + i * 3000));
      const int error = write_durably(mount_.path(key), value);
      if (error == 0) {
        durable_[key] = std::move(value);
        failed_[key].clear();
        continue;
      }
      failed_[key].push_back(std::move(value));
      EXPECT_TRUE(error == EIO || error == EROFS) << std::strerror(error);
      if (error != EROFS) continue;
      EXPECT_EQ(run_shell("grep -q '^[0-9]' \"$1/.kvslot/errors\"", {mount_.path()}).exit_code, 0);
      return;
    }
  }
  // What was durable, or what came after it and failed, up to where it failed.
  void expect_one_of_the_values(const TreeContent& found) const {
    for (const auto& [key, bytes] : found.files) {
      const auto durable = durable_.find(key);
      if (durable != durable_.end() && durable->second == bytes) continue;
      const auto failed = failed_.find(key);
      EXPECT_TRUE(failed != failed_.end() &&
                  std::ranges::any_of(failed->second,
                                      [&](const auto& value) { return value.starts_with(bytes); }))
          << key << ", " << bytes.size() << " bytes";
    }
  }

  std::map<std::string, std::vector<std::string>> failed_;  // since the durable value
};

TEST_P(FlakyDisk, KeepsWhatItSaidIsDurable) {
  if (!has_nbd()) GTEST_SKIP() << "no nbdkit or nbdfuse; scripts/install_deps.sh --test";
  (void)directory_.make_image("below.img", 64 * kMebibyte);
  const std::string trigger = directory_.path("trigger");
  const NbdDevice disk(directory_, {"error", "error=EIO", "error-rate=" + std::string(GetParam()),
                                    "error-file=" + trigger});
  ASSERT_TRUE(disk.is_there());
  format(disk.path());
  for (int life = 0; life < 2; ++life) {
    mount(disk.path());
    std::ofstream(trigger) << "";
    put_under_faults(life);
    expect_one_of_the_values(read_tree(mount_.path()));  // what cannot be read is left out
    std::filesystem::remove(trigger);
    kill();
    mount(disk.path());
    const TreeContent found = read_tree(mount_.path());
    EXPECT_EQ(found.failures, "");
    expect_one_of_the_values(found);
    for (const auto& [key, value] : durable_) EXPECT_TRUE(found.files.contains(key)) << key;
    unmount();
    expect_sound(disk.path());
  }
}

INSTANTIATE_TEST_SUITE_P(Rates, FlakyDisk, ::testing::Values("2%", "20%"), [](const auto& tested) {
  return "Percent" + std::string(tested.param, std::strlen(tested.param) - 1);
});

}  // namespace
}  // namespace kvslot::testing
