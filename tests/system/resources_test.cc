// What a daemon uses does not grow with what it has done, and it does nothing while nobody asks.
//
// Long forms: KVSLOT_RESOURCES_OPENS, KVSLOT_RESOURCES_CREATES, KVSLOT_RESOURCES_LIVES.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>

#include "tests/support/command.h"
#include "tests/support/control_files.h"
#include "tests/support/descriptor.h"
#include "tests/support/dropped_caches.h"
#include "tests/support/environment.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"
#include "tests/support/patience.h"
#include "tests/support/proc_files.h"

namespace kvslot {
namespace {

using testing::MountedStore;
using testing::MountStats;
using testing::number_from;
using testing::ProcessUsage;
using testing::server_of;
using testing::stats_of;
using testing::usage_of;
using testing::yield_until;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsCounted = false;  // freed memory is kept for a while, to find its users
#else
constexpr bool kMemoryIsCounted = true;
#endif

void expect_slots_add_up(MountStats stats) {
  const std::uint64_t total = stats["slots_total"];
  std::uint64_t sum = 0;
  for (const char* const state :
       {"slots_free", "slots_live", "slots_doomed", "slots_quarantined", "slots_checkpoint"}) {
    EXPECT_LE(stats[state], total) << state;
    sum += stats[state];
  }
  EXPECT_EQ(sum, total);
  EXPECT_LE(stats["slots_reserved"] + stats["slots_checkpoint_reserve"], total);
}

void put(const std::string& path, const std::string& bytes) {
  ASSERT_EQ(testing::write_file(path, bytes, 0), 0) << path;
}

class ResourcesTest : public testing::MountTest {
 protected:
  // Until nothing is held any more but what was held before, and all is on the device. What does
  // not come about here ends with the time that a test has.
  static void settle(MountedStore& store, std::uint64_t nodes, std::uint64_t held) {
    yield_until([&] {
      sync(store);
      const MountStats stats = stats_of(store.root());
      expect_slots_add_up(stats);
      return stats.at("nodes_held") <= held &&
             std::ranges::all_of(std::array{"open_handles", "dirty_files", "nodes_unlinked",
                                            "slots_reserved", "slots_doomed", "staging_bytes"},
                                 [&](const char* const name) { return stats.at(name) == 0; });
    });
    EXPECT_EQ(stats_of(store.root()).at("nodes"), nodes);
  }

  static void sync(const MountedStore& store) {
    const int fd = ::open(store.root().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    EXPECT_EQ(::fsync(fd), 0);
    ::close(fd);
  }

  // What memory grows by and is no leak: pages of stacks and heaps that are touched for the first
  // time, and new threads. How many there are depends on the machine; how long a test runs decides
  // how small a leak shows beside them.
  static void expect_no_growth_of_memory(const ProcessUsage& first, const ProcessUsage& second) {
    constexpr std::uint64_t kSlackKib = 4096;
    constexpr std::uint64_t kThreadKib = 1024;
    if (!kMemoryIsCounted) return;
    const std::uint64_t threads = second.threads - std::min(first.threads, second.threads);
    EXPECT_LE(second.resident_kib, first.resident_kib + kSlackKib + threads * kThreadKib);
  }

  // Runs `cycle` count times to get warm, and twice more; the last time nothing may grow.
  static void expect_no_growth(MountedStore& store, std::uint64_t count,
                               const std::function<void(std::uint64_t)>& cycle) {
    constexpr std::uint64_t kThreadDescriptors = 4;
    const pid_t server = server_of(store.root());
    const MountStats before = stats_of(store.root());
    ProcessUsage first, second;
    std::uint64_t first_index_bytes = 0;
    for (int part = 0; part < 3; ++part) {
      for (std::uint64_t i = 0; i < count / 3; ++i) cycle(i);
      settle(store, before.at("nodes"), before.at("nodes_held") + 8);
      first = part == 1 ? usage_of(server) : first;
      first_index_bytes =
          part == 1 ? stats_of(store.root())["index_memory_bytes"] : first_index_bytes;
    }
    second = usage_of(server);
    const std::uint64_t threads = second.threads - std::min(first.threads, second.threads);
    EXPECT_LE(second.descriptors, first.descriptors + threads * kThreadDescriptors);
    EXPECT_LE(stats_of(store.root())["index_memory_bytes"], first_index_bytes * 17 / 16);
    expect_no_growth_of_memory(first, second);
    std::printf("[ resident ] %lu KiB after %lu, %lu KiB after %lu; %lu descriptors\n",
                first.resident_kib, count * 2 / 3, second.resident_kib, count, second.descriptors);
  }
};

TEST_F(ResourcesTest, OpeningAndClosingLeavesNothing) {
  MountedStore store("32M", "staging=8M");
  constexpr std::uint64_t kFiles = 64;
  for (std::uint64_t i = 0; i < kFiles; ++i) {
    put(store.path(std::to_string(i)), std::string(5000, 'x'));
  }
  expect_no_growth(store, number_from("KVSLOT_RESOURCES_OPENS", 1500), [&](std::uint64_t i) {
    const std::string path = store.path(std::to_string(i % kFiles));
    if (i % 8 == 0) return put(path, std::to_string(i));
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (i % 8 == 1 ? O_DIRECT : 0));
    ASSERT_GE(fd, 0);
    alignas(4096) static char bytes[8192];
    EXPECT_EQ(::read(fd, bytes, sizeof bytes), 5000);
    ::close(fd);
  });
  store.expect_sound();
}

TEST_F(ResourcesTest, CreatingAndRemovingLeavesNothing) {
  MountedStore store("32M", "staging=8M");
  put(store.path("kept"), "kept");
  ASSERT_EQ(::mkdir(store.path("dir").c_str(), 0755), 0);
  expect_no_growth(store, number_from("KVSLOT_RESOURCES_CREATES", 1500), [&](std::uint64_t i) {
    const std::string path = store.path("dir/a name of some length " + std::to_string(i));
    put(path, std::to_string(i));
    if (i % 16 == 0) {
      const std::string other = path + " moved";
      EXPECT_EQ(::setxattr(path.c_str(), "user.note", "x", 1, 0), 0);
      EXPECT_EQ(::rename(path.c_str(), other.c_str()), 0);
      EXPECT_EQ(::symlink("somewhere", path.c_str()), 0);
      EXPECT_EQ(::unlink(other.c_str()), 0);
    }
    EXPECT_EQ(::unlink(path.c_str()), 0);
  });
  store.expect_sound();
}

TEST_F(ResourcesTest, NodesAreForgottenWithTheKernelsCaches) {
  MountedStore store("32M", "staging=8M");
  constexpr std::uint64_t kFiles = 2000;
  store.shell(
      "mkdir $M/a $M/b; for d in a b; do for i in $(seq 1000); do echo $i >$M/$d/$i; done; "
      "done; sync $M");
  const pid_t server = server_of(store.root());
  const auto round = [&] {
    const std::uint64_t forgotten = store.stat("fuse_forgets");
    store.shell("find $M -ls >$T/list");
    yield_until([&] {
      EXPECT_TRUE(testing::drop_caches_of(store.root()));
      return store.stat("nodes_held") < kFiles / 20;
    });
    EXPECT_GE(store.stat("fuse_forgets"), forgotten + kFiles * 19 / 20);
    return usage_of(server);
  };
  (void)round();
  const ProcessUsage first = round();
  expect_no_growth_of_memory(first, round());
  EXPECT_EQ(store.stat("nodes"), kFiles + 2);
}

// The sums of `.kvslot/slots`, by state.
MountStats listed_slots(const MountedStore& store) {
  MountStats listed;
  std::istringstream lines(store.content(".kvslot/slots"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, count, state, owner;
    if (line.starts_with('#')) continue;
    words >> first >> count >> state >> owner;
    listed[owner == "#checkpoint" ? "checkpoint" : state] += std::stoull(count);
  }
  return listed;
}

// Whether no slot has changed its state since.
bool is_quiet_since(const MountedStore& store, const MountStats& before) {
  return std::ranges::all_of(stats_of(store.root()), [&](const auto& stat) {
    const bool tells = stat.first.starts_with("slots_") || stat.first == "device_writes";
    return !tells || before.at(stat.first) == stat.second;
  });
}

bool is_checkpointing(const MountedStore& store) {
  const std::string state = store.content(".kvslot/checkpoint");
  return state.find("waiting") != std::string::npos || state.find("running") != std::string::npos;
}

TEST_F(ResourcesTest, SlotsAddUpAtAllTimes) {
  MountedStore store("16M", "staging=8M");
  testing::BackgroundCommand churn(
      {"/bin/sh", "-c",
       "cd \"$1\" || exit 1; echo ready; while [ ! -e stop ]; do "
       "head -c 3000000 /dev/zero >big; head -c 200000 /dev/zero >small; sync small; rm -f big; "
       "echo 1 >.kvslot/checkpoint; mv small old; done 2>/dev/null",
       "sh", store.root()});
  ASSERT_EQ(churn.read_line(), "ready");
  std::uint64_t batches = 0;
  const std::uint64_t start = stats_of(store.root())["batches"];
  for (int i = 0; !HasFailure() && (i < 300 || batches < start + 50); ++i) {
    const MountStats stats = stats_of(store.root());
    expect_slots_add_up(stats);
    batches = stats.at("batches");
  }
  ASSERT_NO_FATAL_FAILURE(put(store.path("stop"), ""));
  EXPECT_EQ(churn.wait(), 0);

  // With nothing under way the list of slots says the same. A checkpoint may still be.
  store.shell("sync $M");
  MountStats stats, listed;
  yield_until([&] {
    stats = stats_of(store.root());
    listed = listed_slots(store);
    return !is_checkpointing(store) && is_quiet_since(store, stats);
  });
  for (const char* const state : {"free", "live", "doomed", "quarantined", "checkpoint"}) {
    EXPECT_EQ(listed[state], stats.at(std::string("slots_") + state)) << state;
  }
  store.expect_sound();
}

// Overwrites all files; how many of the writes found no space.
int overwrite(const MountedStore& store, int files, std::size_t size_bytes, char byte) {
  const std::string bytes(size_bytes, byte);
  int refused = 0;
  for (int i = 0; i < files; ++i) {
    const int fd =
        ::open(store.path(std::to_string(i)).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    EXPECT_TRUE(fd >= 0 || errno == ENOSPC);
    const ssize_t count = fd < 0 ? -1 : ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == ENOSPC) ++refused;
    EXPECT_TRUE(count == std::ssize(bytes) || (count < 0 && errno == ENOSPC)) << errno;
    if (fd >= 0) ::close(fd);
  }
  return refused;
}

// A day in small: a store that is full most of the time, mounted, churned, killed and mounted
// again.
TEST_F(ResourcesTest, ManyLivesOfAFullStoreLoseNoSlot) {
  MountedStore store("16M", "staging=8M");
  constexpr int kFiles = 30;
  constexpr std::size_t kSizeBytes = 700'000;  // a third more than there is space for
  const std::uint64_t lives = number_from("KVSLOT_RESOURCES_LIVES", 2);
  for (std::uint64_t life = 0; life < lives && !HasFailure(); ++life) {
    SCOPED_TRACE(::testing::Message() << "life " << life);
    EXPECT_GT(overwrite(store, kFiles, kSizeBytes, 'a'), 0);
    for (const char byte : {'b', 'c', 'd'}) {
      (void)overwrite(store, kFiles, kSizeBytes / 2, byte);
      store.shell("cd $M; rm -f *[05]; sync .; echo 1 >.kvslot/checkpoint");
      expect_slots_add_up(stats_of(store.root()));
    }
    if (life % 2 == 0) {
      store.kill_and_remount();
    } else {
      store.remount();
    }
    expect_slots_add_up(stats_of(store.root()));
    store.shell("cd $M; cat * >/dev/null; rm -f *; sync .");
    settle(store, 0, 8);
    EXPECT_EQ(stats_of(store.root())["slots_live"], 0U);
    EXPECT_EQ(stats_of(store.root())["slots_quarantined"], 0U);
  }
  store.expect_sound();
}

// Switches of each thread, and the time they had.
std::map<std::string, std::string> activity_of(pid_t server) {
  std::map<std::string, std::string> activity;
  const std::string process = "/proc/" + std::to_string(server);
  for (const auto& task : std::filesystem::directory_iterator(process + "/task")) {
    auto status = testing::fields_of(task.path() / "status");
    std::istringstream stat(testing::text_of(task.path() / "stat"));
    std::string word, times;
    for (int field = 1; stat >> word; ++field) {
      if (field == 14 || field == 15) times += " " + word;  // names here have no spaces
    }
    activity[task.path().filename()] = status["voluntary_ctxt_switches"] + times;
  }
  return activity;
}

// Until a daemon has slept through two commit intervals: a timer would show in every pair of them,
// and what the kernel still brings (a forgotten inode, a late release) ends.
TEST_F(ResourcesTest, AnIdleDaemonSleeps) {
  constexpr auto kTwoIntervals = std::chrono::seconds(2);
  constexpr int kTriesMax = 100;  // other tests may make the kernel forget inodes again and again
  MountedStore ring("16M", "commit=1");
  MountedStore device("16M", "commit=1,transport=dev");
  std::map<pid_t, std::string> awake;
  for (MountedStore* store : {&ring, &device}) {
    store->shell(
        "for i in 1 2 3 4 5 6; do head -c 100000 /dev/zero >$M/$i & done; wait; sync $M; "
        "cat $M/* >/dev/null; cat $M/.kvslot/stats >/dev/null; echo y >$M/unsynced");
    awake[server_of(store->root())] = store->root();
  }
  for (int i = 0; i < kTriesMax && !awake.empty(); ++i) {
    std::map<pid_t, std::map<std::string, std::string>> before;
    for (const auto& [server, root] : awake) before[server] = activity_of(server);
    std::this_thread::sleep_for(kTwoIntervals);  // that nothing happens takes time to see
    std::erase_if(awake,
                  [&](const auto& each) { return activity_of(each.first) == before[each.first]; });
  }
  for (const auto& [server, root] : awake) ADD_FAILURE() << "never idle: " << root;
}

}  // namespace
}  // namespace kvslot
