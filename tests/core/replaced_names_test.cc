// Files that take each other's name while their first commits are being written: one name has one
// file, in memory and on the device.
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/check_report.h"
#include "tests/support/engine.h"
#include "tests/support/interleaving_device.h"

namespace kvslot::testing {
namespace {

class ReplacedNames : public ::testing::Test {
 protected:
  ReplacedNames() : device_(make_device(64 * kMiB)) {
    open();
    EXPECT_TRUE(put_key(*volume_, "hot", "old"));
  }
  void open() {
    auto volume = Volume::open(
        std::make_unique<InterleavingDevice>(
            device_, [this](const PausedCall&) { std::exchange(meanwhile_, [] {})(); }),
        {.inline_checkpoints = false, .seed = 7});
    ASSERT_TRUE(volume) << volume.error().step;
    volume_ = std::move(*volume);
  }
  void create(const std::string& name) {
    EXPECT_TRUE(volume_->create(NodeId::kRoot, name, NodeKind::kFile, {})) << name;
  }
  void rename(const std::string& from, const std::string& to) {
    EXPECT_TRUE(volume_->rename(NodeId::kRoot, from, NodeId::kRoot, to, RenameMode::kReplace))
        << from << " to " << to;
  }
  void remove(const std::string& name) {
    EXPECT_TRUE(volume_->remove(NodeId::kRoot, name, RemoveKind::kNotDirectory)) << name;
  }
  // Each file gets its own name for a value, all in one batch; while it is written, `meanwhile`
  // happens.
  void commit(const std::vector<std::string>& names, std::function<void()> meanwhile) {
    std::vector<ContentChange> changes;
    for (const std::string& name : names) {
      const auto found = volume_->find(name);
      ASSERT_TRUE(found) << name;
      changes.push_back(change_for_put(*volume_, {}, bytes_of(name)));
      changes.back().node = found->node;
    }
    meanwhile_ = std::move(meanwhile);
    volume_->commit(changes);
  }
  // What is shown, and what power loss leaves once all is flushed; empty where there is no such
  // name.
  void expect_hot(const std::string& value) {
    EXPECT_EQ(read_key(*volume_, "hot").value_or(""), value);
    volume_->commit({});
    ASSERT_TRUE(volume_->flush());
    expect_slots_accounted(*volume_);
    volume_.reset();
    device_ = device_->survivor(1, CrashMode::kNone);
    const CheckReport report = check(*device_);
    EXPECT_FALSE(report.damaged) << text_of(report);
    open();
    if (volume_ != nullptr) {
      EXPECT_EQ(read_key(*volume_, "hot").value_or(""), value) << "after power loss";
    }
  }

  std::shared_ptr<SimulatedDevice> device_;
  std::function<void()> meanwhile_ = [] {};
  std::unique_ptr<Volume> volume_;
};

TEST_F(ReplacedNames, TwoOfOneBatchReplaceAStoredFileOneAfterTheOther) {
  create("first");
  create("second");
  commit({"second", "first"}, [this] {
    rename("first", "hot");
    rename("second", "hot");
  });
  expect_hot("second");
}

TEST_F(ReplacedNames, ThreeOfOneBatchReplaceAStoredFileInEachOrder) {
  std::vector<std::string> order{"a", "b", "c"};
  do {
    for (const std::string& name : order) create(name);
    commit(order, [this] {
      for (const char* const name : {"a", "b", "c"}) rename(name, "hot");
    });
    expect_hot("c");
    ASSERT_FALSE(HasFailure()) << order[0] << order[1] << order[2];
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(ReplacedNames, NothingComesBackOfWhatTheLastOneHidWhenItIsRemoved) {
  create("first");
  create("second");
  commit({"first"}, [this] {
    rename("first", "hot");
    rename("second", "hot");
    remove("hot");
  });
  expect_hot("");
}

TEST_F(ReplacedNames, NothingComesBackOfWhatTheLastOneHidWhenItMovesOn) {
  create("first");
  create("second");
  commit({"first"}, [this] {
    rename("first", "hot");
    rename("second", "hot");
    rename("hot", "away");
  });
  EXPECT_TRUE(put_key(*volume_, "hot", "new"));
  expect_hot("new");
}

TEST_F(ReplacedNames, NothingComesBackWhenTheNameIsTakenAgainMeanwhile) {
  for (const char* const name : {"first", "second", "third"}) create(name);
  commit({"first"}, [this] {
    rename("first", "hot");
    rename("second", "hot");
    remove("hot");
    rename("third", "hot");
  });
  commit({"hot"}, [] {});
  expect_hot("hot");
}

}  // namespace
}  // namespace kvslot::testing
