// Trees and large values survive unmounting and SIGKILL. Real daemon, real mount, real image; kills
// at random under a mixed load are in kill_test.cc.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/control_files.h"
#include "tests/support/daemon_process.h"
#include "tests/support/descriptor.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/patience.h"
#include "tests/support/proc_files.h"
#include "tests/support/temp_dir.h"

namespace kvslot::testing {
namespace {

class Durability : public MountTest {
 protected:
  void format(const std::string& size) {
    expect_ok(run_kvslot({"format", image_, "--size", size}));
  }
  void mount(const std::string& options = "rw") {
    expect_mounted(run_mount(image_, mount_.path(), options), mount_.path());
  }
  void unmount() { expect_ok(run_kvslot({"unmount", mount_.path()})); }
  void kill_daemon() { DaemonProcess(mount_.path()).kill(); }

  TempDir directory_;
  MountGuard mount_{directory_.path("mnt")};
  const std::string image_ = directory_.path("store.img");
};

// A tree that is on every machine that has built this: some hundred files of all sizes and depths.
constexpr const char* kTree = "/usr/include/c++";

TEST_F(Durability, ATreeSurvivesUnmountAndKillAndGivesItsSpaceBack) {
  const auto copy = [&](const std::string& name) {
    expect_ok(run_command({"cp", "-a", kTree, mount_.path(name)}));
  };
  const auto expect_copy = [&](const std::string& name) {
    expect_ok(run_command({"diff", "-r", "--no-dereference", kTree, mount_.path(name)}));
  };
  format("512M");
  mount();
  const std::uint64_t used_before = stat_of(mount_.path(), "slots_live");
  copy("first");
  expect_copy("first");
  unmount();
  mount();
  expect_copy("first");
  copy("second");
  expect_ok(run_command({"sync", mount_.path()}));
  kill_daemon();
  mount();
  expect_copy("first");
  expect_copy("second");
  expect_ok(run_shell("rm -rf \"$1\"/* && sync \"$1\"", {mount_.path()}));
  // The kernel lets go of removed files when it gets to it.
  yield_until([&] { return stat_of(mount_.path(), "slots_live") == used_before; });
  unmount();
  expect_ok(run_kvslot({"fsck", image_}));
}

TEST_F(Durability, AValueLargerThanTheStagingMemorySurvives) {
  format("100M");
  mount("staging=16M");
  // Sparse in no block, and different in each.
  expect_ok(run_shell("seq 1 10000000 | head -c 64M | tee \"$1/large\" | sha256sum >\"$2/sum\"",
                      {mount_.path(), directory_.path()}));
  EXPECT_LE(stat_of(mount_.path(), "staging_bytes_max"), 16U << 20);
  const auto same = [&] {
    const auto sum = run_shell("sha256sum <\"$1/large\"", {mount_.path()});
    EXPECT_EQ(sum.out, text_of(directory_.path("sum")));
  };
  same();
  unmount();
  mount("staging=16M");
  same();
  // There is no room for two.
  EXPECT_NE(run_shell("cp \"$1/large\" \"$1/copy\"", {mount_.path()}).exit_code, 0);
  expect_ok(run_shell("rm \"$1/copy\"; sync \"$1\"", {mount_.path()}));
  kill_daemon();
  mount();
  same();
  unmount();
  expect_ok(run_kvslot({"fsck", image_}));
}

TEST_F(Durability, BytesBehindTheFirst4GiBSurvive) {
  constexpr off_t kPlace = (off_t{5} << 30) - 1000;
  const std::string bytes = std::string(3000, 'a') + std::string(200'000, 'b');
  const auto expect_there = [&] {
    const Descriptor file(mount_.path("far"), O_RDONLY);
    EXPECT_EQ(::lseek(file, 0, SEEK_END), kPlace + std::ssize(bytes));
    EXPECT_TRUE(file.read(bytes.size(), kPlace) == bytes);
    EXPECT_EQ(file.read(3, 1000), std::string(3, '\0'));
    EXPECT_EQ(file.read(3, kPlace - (off_t{4} << 30)), std::string(3, '\0'));
  };
  format("64M");
  mount();
  {
    const Descriptor file(mount_.path("far"), O_WRONLY | O_CREAT);
    file.write_at(kPlace, bytes);
    EXPECT_EQ(::fsync(file), 0);
  }
  expect_there();
  kill_daemon();
  mount();
  expect_there();
  unmount();
  expect_ok(run_kvslot({"fsck", image_}));
}

// How many keys a batch has depends on the machine, so the figure is printed here; that puts which
// come while the device is busy share a batch is held still and asserted in tests/core.
TEST_F(Durability, EveryPutOfSixteenWritersIsInSomeBatch) {
  constexpr int kWriters = 16;
  constexpr int kPuts = 20;  // of each
  format("64M");
  mount();
  std::vector<std::jthread> writers;
  std::atomic<int> failures = 0;
  for (int t = 0; t < kWriters; ++t)
    writers.emplace_back([&, t] {
      for (int i = 0; i < kPuts; ++i)
        if (write_durably(mount_.path("w" + std::to_string(t) + "-" + std::to_string(i)),
                          std::string(4096, 'x')) != 0)
          ++failures;
    });
  writers.clear();
  EXPECT_EQ(failures, 0);
  EXPECT_GE(stat_of(mount_.path(), "batched_keys"), std::uint64_t{kWriters * kPuts});
  const auto average = run_shell(
      "awk 'NR > 1 && $2 > 0 {k += $2; n++} END {printf \"%.1f\", k / n}' \"$1/.kvslot/batches\"",
      {mount_.path()});
  std::printf("keys a batch: %s\n", average.out.c_str());
  unmount();
}

}  // namespace
}  // namespace kvslot::testing
