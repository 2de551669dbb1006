// The wall clock is set while a store is mounted: times follow it, and nothing waits for it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>

#include "tests/support/command.h"
#include "tests/support/control_files.h"
#include "tests/support/mount_guard.h"
#include "tests/support/patience.h"
#include "tests/support/proc_files.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::run_kvslot;
using testing::run_shell;
using testing::yield_until;

constexpr std::int64_t kYear = 365 * 24 * 3600;

class ClockTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = testing::why_no_mount(); !why.empty()) GTEST_SKIP() << why;
    set_clock(0);
    testing::expect_ok(run_kvslot({"format", image_, "--size", "16M"}));
  }
  // From now on the daemon's clock is off by so much.
  void set_clock(std::int64_t seconds) {
    shift_ = seconds;
    std::ofstream file(clock_, std::ios::binary | std::ios::in | std::ios::out);
    if (!file.is_open()) file.open(clock_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&seconds), sizeof seconds);
  }
  void mount() {
    const auto mounted = run_shell(
        "ASAN_OPTIONS=$ASAN_OPTIONS:verify_asan_link_order=0 KVSLOT_CLOCK_SHIFT=\"$1\" "
        "LD_PRELOAD=\"$2\" exec \"$3\" mount \"$4\" \"$5\" -o commit=1,$6",
        {clock_, KVSLOT_SHIFTED_CLOCK, KVSLOT_BINARY, image_, mount_.path(), GetParam()});
    testing::expect_mounted(mounted, mount_.path());
  }
  void unmount() { testing::expect_ok(run_kvslot({"unmount", mount_.path()})); }
  void shell(const std::string& script) {
    const auto result = run_shell("cd \"$1\" || exit 1\n" + script, {mount_.path()});
    EXPECT_EQ(result.exit_code, 0) << script << "\n" << result.err;
  }
  void expect_time_is_now(std::int64_t time, const std::string& what) const {
    constexpr std::int64_t kSlack = 24 * 3600;  // how long a test may take at most
    EXPECT_LT(std::abs(time - (std::time(nullptr) + shift_)), kSlack) << what;
  }
  void expect_now(const std::string& name) const {
    struct stat status{};
    ASSERT_EQ(::stat(mount_.path(name).c_str(), &status), 0);
    expect_time_is_now(status.st_mtime, name + ", mtime");
    expect_time_is_now(status.st_ctime, name + ", ctime");
  }

  // All that waits for something or notes a time.
  void use_everything() {
    shell("echo new >new; echo more >>old; echo x >gone; touch touched; mkdir dir; mv new dir/new");
    for (const char* const name : {"dir/new", "old", "touched", "dir"}) expect_now(name);
    shell("rm gone; sync old; sync .");
    // Nobody asks for this flush.
    const std::uint64_t flushes = testing::stat_of(mount_.path(), "flushes");
    shell("echo unsynced >unsynced");
    yield_until([&] { return testing::stat_of(mount_.path(), "flushes") != flushes; });
    shell("echo 1 >.kvslot/checkpoint; echo 1 >.kvslot/scrub");
    for (const char* const name : {".kvslot/checkpoint", ".kvslot/scrub"}) {
      yield_until([&] { return testing::text_of(mount_.path(name)).contains("done\t"); });
    }
    EXPECT_EQ(testing::text_of(mount_.path("dir/new")), "new\n");
    shell("rm -r dir touched unsynced");
  }

  testing::TempDir directory_;
  const std::string image_ = directory_.path("store.img");
  const std::string clock_ = directory_.path("clock");
  const testing::MountGuard mount_{directory_.path("mnt")};
  std::int64_t shift_ = 0;
};

TEST_P(ClockTest, SetBackAndForwardItChangesTimesAndNothingElse) {
  mount();
  shell("echo old >old; sync old");
  expect_now("old");
  for (const std::int64_t shift : {-kYear, 20 * kYear, std::int64_t{0}}) {
    SCOPED_TRACE(::testing::Message() << "clock off by " << shift << " seconds");
    set_clock(shift);
    use_everything();
    expect_now("old");
  }
  set_clock(-2 * kYear);
  shell("echo last >last; sync last");
  unmount();
  EXPECT_EQ(run_kvslot({"fsck", image_}).exit_code, 0);
  mount();  // by a clock from before the store was made
  expect_now("last");
  use_everything();
  unmount();
  EXPECT_EQ(run_kvslot({"fsck", image_}).exit_code, 0);
  EXPECT_EQ(run_kvslot({"get", image_, "last"}).out, "last\n");
}

INSTANTIATE_TEST_SUITE_P(Transports, ClockTest,
                         ::testing::Values("transport=dev", "transport=auto"),
                         [](const auto& tested) {
                           return std::string(tested.param).substr(sizeof "transport=" - 1);
                         });

}  // namespace
}  // namespace kvslot
