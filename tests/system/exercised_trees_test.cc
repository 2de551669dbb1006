// Random changes of names by several threads, each against a model of its own, over both
// transports: in directories of their own, and in one that all of them share.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/environment.h"
#include "tests/support/exercised_tree.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"

namespace kvslot {
namespace {

using testing::ExercisedTree;
using testing::MountedStore;
using testing::number_from;

constexpr unsigned kThreads = 6;

class ExercisedTrees : public testing::TransportTest {
 protected:
  static std::uint64_t seed() { return number_from("KVSLOT_TREES_SEED", 1); }
  static std::uint64_t steps() { return number_from("KVSLOT_TREES_STEPS", 500); }

  static std::string how_to_replay() {
    return "KVSLOT_TREES_SEED=" + std::to_string(seed()) +
           " KVSLOT_TREES_STEPS=" + std::to_string(steps()) +
           " build/kvslot_system_tests --gtest_filter='*ExercisedTrees*'";
  }
  static void expect_same(const ExercisedTree::Content& found,
                          const std::deque<ExercisedTree>& trees) {
    ExercisedTree::Content expected;
    for (const ExercisedTree& tree : trees) {
      expected.insert(tree.content().begin(), tree.content().end());
    }
    EXPECT_EQ(found, expected);
  }
};

TEST_P(ExercisedTrees, AreWhatTheirModelsAre) {
  SCOPED_TRACE(how_to_replay());
  MountedStore store("64M", transport());
  ASSERT_EQ(::mkdir(store.path(std::string(ExercisedTree::kShared)).c_str(), 0755), 0);
  std::deque<ExercisedTree> trees;
  for (unsigned i = 0; i < kThreads; ++i) {
    trees.emplace_back(store.root(), i, seed() * kThreads + i);
  }
  std::vector<std::thread> threads;
  for (ExercisedTree& tree : trees) {
    threads.emplace_back([&tree] {
      for (std::uint64_t i = 0; i < steps() && !HasFailure(); ++i) tree.step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect_same(ExercisedTree::found_at(store.root()), trees);
  store.remount();
  expect_same(ExercisedTree::found_at(store.root()), trees);
  store.shell("sync $M");
  store.kill_and_remount();
  expect_same(ExercisedTree::found_at(store.root()), trees);
  store.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Transports, ExercisedTrees, testing::kTransports,
                         testing::name_of_transport);

}  // namespace
}  // namespace kvslot
