// Runs tables of tool cases on a store and on ext4, and compares. For tests/system only: it mounts.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/ext4_mount.h"
#include "tests/support/mounted_store.h"
#include "tests/support/tool_case.h"
#include "tests/support/uring_transport.h"

namespace kvslot::testing {

// The parameter is the transport. One store serves all cases of a test, so that they are quick. The
// short form runs every second case over one transport and the rest over the other; the long one,
// with $KVSLOT_TOOL_ROUNDS, all of them over both. $KVSLOT_TOOL_CASE names one case to run alone,
// and shows what came of it.
class ComparedTools : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_mount(); !why.empty()) GTEST_SKIP() << why;
    const std::string transport = GetParam();
    if (const std::string why = why_no_uring_transport(); transport == "uring" && !why.empty()) {
      GTEST_SKIP() << why;
    }
    ext4_ = std::make_unique<Ext4Mount>(kSizeBytes);
    if (!ext4_->why_not().empty()) GTEST_SKIP() << ext4_->why_not();
    store_ = std::make_unique<MountedStore>("1G", "allow_other,transport=" + transport);
  }

  // Each case here and there, compared; the trees once more after the store was mounted again, in
  // which it is checked.
  void compare(std::span<const ToolCase> cases) {
    const char* const only = std::getenv("KVSLOT_TOOL_CASE");
    std::vector<Ran> ran;
    std::string skipped;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const ToolCase& tools = cases[i];
      if (only != nullptr ? tools.name != only : !is_my_turn(i)) continue;
      if (const std::string tool = missing_tool(tools); !tool.empty()) {
        skipped += tools.name + ": no " + tool + "\n";
        continue;
      }
      ran.push_back(compare_one(tools));
      if (only != nullptr) std::cout << ran.back().outcome;
    }
    store_->expect_sound();
    store_->mount();
    for (const Ran& one : ran) {
      const std::string tree = tree_of(one.place);
      EXPECT_TRUE(one.outcome.ends_with(tree))
          << one.place.directory << " is another one after it was mounted again:\n"
          << difference_of(one.outcome.substr(one.outcome.find("---- tree\n")), tree);
    }
    if (!skipped.empty()) GTEST_SKIP() << "these cases, the others ran:\n" << skipped;
  }

  [[nodiscard]] MountedStore& store() { return *store_; }
  [[nodiscard]] const std::string& ext4_root() const { return ext4_->root(); }
  [[nodiscard]] ToolPlace place_on_store(const std::string& name) const {
    return place_in(store_->root(), "store", name);
  }
  [[nodiscard]] ToolPlace place_on_ext4(const std::string& name) const {
    return place_in(ext4_->root(), "ext4", name);
  }

  static constexpr const char* kProgramsFolder = KVSLOT_SOURCE_DIR "/tests/system/tools";

 private:
  static constexpr std::uintmax_t kSizeBytes = 1 << 30;
  struct Ran {
    ToolPlace place;
    std::string outcome;
  };

  [[nodiscard]] ToolPlace place_in(const std::string& root, const std::string& kind,
                                   const std::string& name) const {
    return {.directory = root + "/" + name,
            .outside = outside_.path(name + "." + kind),
            .on_ext4 = ext4_->root() + "/beside_" + kind + "/" + name,
            .programs = kProgramsFolder};
  }

  static bool is_my_turn(std::size_t index) {
    if (std::getenv("KVSLOT_TOOL_ROUNDS") != nullptr || !why_no_uring_transport().empty())
      return true;
    return (index % 2 == 0) == (std::string(GetParam()) == "uring");
  }

  Ran compare_one(const ToolCase& tools) {
    const ToolPlace on_store = place_on_store(tools.name);
    const ToolPlace on_ext4 = place_on_ext4(tools.name);
    std::string reference;
    std::jthread there([&] { reference = outcome_of(tools, on_ext4); });
    Ran ran{.place = on_store, .outcome = outcome_of(tools, on_store)};
    there.join();
    std::string complaint;
    const auto expected = expected_on_store(tools, reference, &complaint);
    if (!expected) {
      ADD_FAILURE() << tools.name << ": " << complaint;
    } else if (*expected != ran.outcome) {
      ADD_FAILURE() << tools.name << " differs from ext4; alone: KVSLOT_TOOL_CASE=" << tools.name
                    << "\n"
                    << difference_of(*expected, ran.outcome);
    }
    return ran;
  }

  TempDir outside_;
  std::unique_ptr<Ext4Mount> ext4_;
  std::unique_ptr<MountedStore> store_;
};

}  // namespace kvslot::testing
