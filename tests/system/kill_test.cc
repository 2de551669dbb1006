// The daemon is killed at random in the middle of a mixed load: what was acknowledged as durable is
// there, every value is whole, every rename is done or not, and the store is sound.
//
// KVSLOT_KILL_ROUNDS   rounds of each test (10); KVSLOT_KILL_SEED   where they begin
// KVSLOT_KEEP          a directory for the image of a round that fails, as the kill left it
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "tests/support/command.h"
#include "tests/support/crash_load.h"
#include "tests/support/daemon_process.h"
#include "tests/support/environment.h"
#include "tests/support/mount_guard.h"
#include "tests/support/mount_test.h"
#include "tests/support/proc_files.h"
#include "tests/support/sparse_copy.h"
#include "tests/support/temp_dir.h"

namespace kvslot::testing {
namespace {

constexpr std::uint64_t kOperationsMax = 150;  // acknowledged before the kill
constexpr std::uint64_t kYieldsMax = 300;      // after the last of them
constexpr int kRoundsOfOneStore = 10;

struct Round {
  std::uint64_t seed = 0;
  std::string options;
  bool is_sync = false;
  std::uint64_t operations = 0;
  std::uint64_t yields = 0;
};

Round plan_round(std::uint64_t seed, const std::string& transport) {
  constexpr const char* kOptions[] = {"rw", "sync", "commit=60", "staging=16M", "sync,staging=16M"};
  std::mt19937_64 generator(seed);
  Round round;
  round.seed = seed;
  round.options = kOptions[generator() % std::size(kOptions)];
  round.is_sync = round.options.starts_with("sync");
  round.options += ",transport=" + transport;
  round.operations = 1 + generator() % kOperationsMax;
  round.yields = generator() % kYieldsMax;
  return round;
}

class Kill : public TransportTest {
 protected:
  void format() const { expect_ok(run_kvslot({"format", image_, "--size", "512M", "--force"})); }
  static void mount(const std::string& image, const MountGuard& where, const std::string& options) {
    expect_mounted(run_mount(image, where.path(), options), where.path());
  }

  // Loads the store until `end_daemon` ends its daemon.
  void run_load(CrashLoad& load, const Round& round,
                const std::function<void(const DaemonProcess&)>& end_daemon) const {
    const DaemonProcess daemon(mount_.path());
    bool has_ended = false;
    load.run([&](std::uint64_t acknowledged) {
      if (acknowledged != round.operations) return;
      has_ended = true;
      for (std::uint64_t i = 0; i < round.yields; ++i) ::sched_yield();
      load.expect_end();
      end_daemon(daemon);
    });
    if (!has_ended) {
      ADD_FAILURE() << "the load ended by itself";
      daemon.signal(SIGKILL);
    }
    daemon.wait_for_end();
  }

  // Mounts what the crash left, compares, and checks the store; leaves it unmounted.
  [[nodiscard]] std::string judge(const CrashLoad& load, const std::string& image,
                                  TreeContent& after) const {
    mount(image, mount_, "rw");
    after = read_tree(mount_.path());
    std::string wrong = load.judge(after);
    if (!wrong.empty()) wrong += text_of(mount_.path(".kvslot/errors"));
    expect_ok(run_kvslot({"unmount", mount_.path()}));
    const CommandResult checked = run_kvslot({"fsck", image});
    if (checked.exit_code != 0) wrong += "fsck: " + checked.out + checked.err;
    return wrong;
  }

  [[nodiscard]] std::string copy_of_image(const std::string& name) const {
    const std::string copy = directory_.path(name);
    copy_sparse(image_, copy);
    return copy;
  }

  [[nodiscard]] std::string report(const Round& round, const std::string& wrong) const {
    std::string text = fmt::format("seed {}, -o {}, killed after {} operations\n{}", round.seed,
                                   round.options, round.operations, wrong);
    text += fmt::format(
        "replay: KVSLOT_KILL_ROUNDS=1 KVSLOT_KILL_SEED={} kvslot_system_tests --gtest_filter={}.{}",
        round.seed, ::testing::UnitTest::GetInstance()->current_test_info()->test_suite_name(),
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    return text;
  }

  // One round over what earlier ones left; false when it found something.
  bool kill_round(const Round& round, TreeContent& content) const {
    mount(image_, mount_, round.options);
    if (HasFailure()) return false;  // there is nothing to load
    CrashLoad load(mount_.path(), {.seed = round.seed, .is_sync = round.is_sync}, content);
    run_load(load, round, [](const DaemonProcess& daemon) { daemon.signal(SIGKILL); });
    const char* const keep = std::getenv("KVSLOT_KEEP");
    const std::string copy = keep == nullptr ? std::string() : copy_of_image("left.img");
    const std::string wrong = judge(load, image_, content);
    if (wrong.empty()) return true;
    if (keep != nullptr) {
      const std::string kept = fmt::format("{}/kill-{}.img", keep, round.seed);
      copy_sparse(copy, kept);
    }
    ADD_FAILURE() << report(round, wrong);
    return false;
  }

  TempDir directory_;
  MountGuard mount_{directory_.path("mnt")};
  const std::string image_ = directory_.path("store.img");
};

TEST_P(Kill, LosesNothingDurableAndLeavesNothingInParts) {
  const std::uint64_t rounds = number_from("KVSLOT_KILL_ROUNDS", 10);
  const std::uint64_t seed = number_from("KVSLOT_KILL_SEED", 20261130);
  TreeContent content;
  for (std::uint64_t i = 0; i < rounds; ++i) {
    if (i % kRoundsOfOneStore == 0) {
      format();
      content = {};
    }
    if (!kill_round(plan_round(seed + i, GetParam()), content)) return;
  }
}

// A copy of the image while the daemon is stopped is what a crash at that moment leaves; so is the
// image itself once the daemon never goes on.
TEST_P(Kill, ACopyOfAStoppedStoreIsACrashImage) {
  const std::uint64_t rounds = (number_from("KVSLOT_KILL_ROUNDS", 10) + 4) / 5;
  const std::uint64_t seed = number_from("KVSLOT_KILL_SEED", 20261201);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    format();
    const Round round = plan_round(seed + i, GetParam());
    mount(image_, mount_, round.options);
    ASSERT_FALSE(HasFailure()) << "there is nothing to load";
    CrashLoad load(mount_.path(), {.seed = round.seed, .is_sync = round.is_sync}, {});
    std::string copy;
    run_load(load, round, [&](const DaemonProcess& daemon) {
      daemon.stop();
      copy = copy_of_image("copy.img");
      daemon.signal(SIGKILL);
    });
    TreeContent after;
    for (const std::string& image : {copy, image_}) {
      const std::string wrong = judge(load, image, after);
      ASSERT_TRUE(wrong.empty()) << image << "\n" << report(round, wrong);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Kill, kTransports, name_of_transport);

}  // namespace
}  // namespace kvslot::testing
