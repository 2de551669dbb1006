// Keys and values: what include/kvslot/store.h promises, over a device in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/store.h>

#include <string>
#include <vector>

#include "core/state.h"
#include "tests/support/engine.h"
#include "tests/support/temp_dir.h"

namespace kvslot::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StoreTest : public ::testing::Test {
 protected:
  Store& store() { return harness_.store(); }

  Result<void> put(std::string_view key, std::string_view value) {
    return store().put(key, bytes_of(value));
  }
  PutOutcome put_all(const std::vector<std::pair<std::string, std::string>>& pairs,
                     const PutOptions& options = {}) {
    std::vector<Put> puts;
    for (const auto& [key, value] : pairs) puts.push_back({key, bytes_of(value)});
    return store().put_many(puts, options);
  }
  std::string get(std::string_view key) {
    const auto value = store().get(key);
    return value ? *value : std::string("<") + to_string(value.error().code) + ">";
  }
  std::vector<std::string> keys() {
    std::vector<std::string> all;
    const auto listed = store().list();
    EXPECT_TRUE(listed);
    for (const ListedKey& key : *listed) all.push_back(key.key);
    return all;
  }

  StoreHarness harness_;
};

TEST_F(StoreTest, TenKeysComeBackInTheOrderAskedFor) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (int i = 0; i < 10; ++i) {
    const auto n = static_cast<std::uint64_t>(i);
    pairs.emplace_back("key" + std::to_string(i), value_of(n, 1000 * (n + 1)));
  }
  const PutOutcome outcome = put_all(pairs);
  EXPECT_THAT(words_of(outcome.results), Each("ok"));
  EXPECT_EQ(outcome.stored.size(), 10U);
  std::vector<std::string_view> names;
  for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair) names.push_back(pair->first);
  const auto values = store().get_many(names);
  ASSERT_EQ(values.size(), 10U);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(values[i], pairs[9 - i].second);
}

TEST_F(StoreTest, PolicyKeepLeavesStoredKeysAloneAndReportsOnlyNewOnes) {
  std::vector<std::pair<std::string, std::string>> first, second;
  for (int i = 0; i < 5; ++i) first.emplace_back("old" + std::to_string(i), "first");
  EXPECT_THAT(words_of(put_all(first).results), Each("ok"));
  for (int i = 0; i < 5; ++i) {
    second.emplace_back("old" + std::to_string(i), "second");
    second.emplace_back("new" + std::to_string(i), "second");
  }
  harness_.device().clear_calls();
  const PutOutcome outcome = put_all(second, {.policy = PutPolicy::kKeep});
  EXPECT_THAT(words_of(outcome.results), Each("ok"));
  EXPECT_THAT(outcome.stored, ElementsAre("new0", "new1", "new2", "new3", "new4"));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(get("old" + std::to_string(i)), "first");
    EXPECT_EQ(get("new" + std::to_string(i)), "second");
  }
  // Five values and one journal block at most: old values were not written again.
  EXPECT_LE(harness_.device().calls().front().size_bytes, 6U * kBlockSizeBytes);
}

TEST_F(StoreTest, PolicyReplaceGivesTheNewValue) {
  EXPECT_TRUE(put("key", "old"));
  const PutOutcome outcome = put_all({{"key", "new"}});
  EXPECT_THAT(words_of(outcome.results), Each("ok"));
  EXPECT_THAT(outcome.stored, IsEmpty());
  EXPECT_EQ(get("key"), "new");
}

TEST_F(StoreTest, OfAKeyStoredTwiceInOneCallTheLastWinsAndBothSucceed) {
  const PutOutcome outcome = put_all({{"a", "1"}, {"b", "2"}, {"a", "3"}});
  EXPECT_THAT(words_of(outcome.results), ElementsAre("ok", "ok", "ok"));
  EXPECT_EQ(outcome.stored.size(), 2U) << "a key is newly stored once";
  EXPECT_EQ(get("a"), "3");
  EXPECT_EQ(get("b"), "2");
}

TEST_F(StoreTest, ABadKeyFailsAloneAndSaysWhy) {
  ASSERT_TRUE(store().volume().create(NodeId::kRoot, "folder", NodeKind::kDirectory, {}));
  ASSERT_TRUE(put("file", "x"));
  const PutOutcome outcome = put_all({{"good1", "1"},
                                      {"", "bad"},
                                      {"a//b", "bad"},
                                      {"../x", "bad"},
                                      {"a/..", "bad"},
                                      {"./x", "bad"},
                                      {"/x", "bad"},
                                      {"x/", "bad"},
                                      {std::string("n\0l", 3), "bad"},
                                      {std::string(256, 'n'), "bad"},
                                      {"folder", "bad"},
                                      {"file/below", "bad"},
                                      {".kvslot/x", "bad"},
                                      {"made/for/", "bad"},
                                      {std::string(255, 'n'), "good"},
                                      {"good2", "2"}});
  EXPECT_THAT(
      words_of(outcome.results),
      ElementsAre("ok", to_string(Errc::kInvalid), to_string(Errc::kInvalid),
                  to_string(Errc::kInvalid), to_string(Errc::kInvalid), to_string(Errc::kInvalid),
                  to_string(Errc::kInvalid), to_string(Errc::kInvalid), to_string(Errc::kInvalid),
                  to_string(Errc::kTooLarge), to_string(Errc::kWrongKind),
                  to_string(Errc::kWrongKind), to_string(Errc::kInvalid), to_string(Errc::kInvalid),
                  "ok", "ok"));
  EXPECT_FALSE(store().volume().find("made")) << "made for a key that is none";
  EXPECT_EQ(get("good1"), "1");
  EXPECT_EQ(get("good2"), "2");
  EXPECT_EQ(get("file"), "x");
}

TEST_F(StoreTest, AValueThatDoesNotFitFailsAlone) {
  const std::string large(34 * kMiB, 'l');
  const PutOutcome outcome = put_all({{"a", "1"},
                                      {"first", large},
                                      {"second", large},
                                      {"huge", std::string(65 * kMiB, 'h')},
                                      {"c", "3"}});
  EXPECT_THAT(words_of(outcome.results),
              ElementsAre("ok", "ok", to_string(Errc::kNoSpace), to_string(Errc::kTooLarge), "ok"));
  EXPECT_THAT(outcome.stored, ElementsAre("a", "first", "c"));
  EXPECT_TRUE(get("first") == large);
  EXPECT_FALSE(store().contains("second"));
  EXPECT_FALSE(store().contains("huge"));
  expect_slots_accounted(store().volume());
}

TEST_F(StoreTest, RemovedKeysAreGoneAndTheOthersStay) {
  put_all({{"a", "1"}, {"b/c", "2"}, {"b/d", "3"}});
  const std::vector<std::string_view> doomed{"a", "b/c", "missing", "b"};
  EXPECT_THAT(words_of(store().remove_many(doomed)),
              ElementsAre("ok", "ok", to_string(Errc::kNotFound), to_string(Errc::kWrongKind)));
  EXPECT_THAT(keys(), ElementsAre("b/d"));
}

TEST_F(StoreTest, RenameReplacesItsTargetAndMakesMissingDirectories) {
  put_all({{"a", "1"}, {"b", "2"}});
  EXPECT_TRUE(store().rename("a", "b"));
  EXPECT_EQ(get("b"), "1");
  EXPECT_FALSE(store().contains("a"));
  EXPECT_TRUE(store().rename("b", "x/y/z"));
  EXPECT_THAT(keys(), ElementsAre("x/y/z"));
  EXPECT_EQ(store().rename("missing", "q").error().code, Errc::kNotFound);
  harness_.reopen();
  EXPECT_EQ(get("x/y/z"), "1");
}

TEST_F(StoreTest, ListSortsWithinEachDirectoryAndHonoursThePrefix) {
  put_all({{"b", "1"}, {"a/2", "22"}, {"a/1", "1"}, {"c/d/e", ""}, {"a1", "x"}});
  EXPECT_THAT(keys(), ElementsAre("a/1", "a/2", "a1", "b", "c/d/e"));
  const auto below = store().list("a");
  ASSERT_TRUE(below);
  ASSERT_EQ(below->size(), 2U);
  EXPECT_EQ((*below)[1].key, "a/2");
  EXPECT_EQ((*below)[1].size_bytes, 2U);
  EXPECT_EQ(store().list("missing").error().code, Errc::kNotFound);
}

TEST_F(StoreTest, ExistsAnswersForFilesOnlyAndInOrder) {
  put_all({{"a/b", "1"}});
  const std::vector<std::string_view> names{"a/b", "a", "c", "", "a/b/c"};
  EXPECT_THAT(store().exists_many(names), ElementsAre(true, false, false, false, false));
  EXPECT_TRUE(store().contains("a/b"));
  EXPECT_FALSE(store().exists_inflight("a/b"));
  EXPECT_THAT(store().exists_inflight_many(names), Each(false));
}

TEST_F(StoreTest, GetIntoBuffersTellsSizesAndLeavesSmallBuffersUntouched) {
  const std::string large = value_of(7, 200'000);
  put_all({{"a", "abc"}, {"large", large}, {"empty", ""}});
  std::vector<std::byte> fits(3), roomy(300'000, std::byte{0xee}), small(100, std::byte{0xee}),
      none;
  const std::vector<std::string_view> names{"a", "large", "large", "empty", "missing"};
  const std::vector<Bytes> targets{fits, roomy, small, none, fits};
  const auto sizes = store().get_many_into(names, targets);
  ASSERT_EQ(sizes.size(), 5U);
  EXPECT_EQ(sizes[0], 3U);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(fits.data()), 3), "abc");
  EXPECT_EQ(sizes[1], large.size());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(roomy.data()), large.size()), large);
  EXPECT_EQ(roomy[large.size()], std::byte{0xee});
  EXPECT_EQ(sizes[2].error().code, Errc::kTooLarge);
  EXPECT_THAT(small, Each(std::byte{0xee}));
  EXPECT_EQ(sizes[3], 0U);
  EXPECT_EQ(sizes[4].error().code, Errc::kNotFound);
}

TEST_F(StoreTest, ManyReadsGoOutTogether) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (int i = 0; i < 128; ++i) pairs.emplace_back("k" + std::to_string(i), std::string(5000, 'v'));
  put_all(pairs);
  std::vector<std::string_view> names;
  for (const auto& pair : pairs) names.push_back(pair.first);
  harness_.device().clear_calls();
  for (const auto& value : store().get_many(names)) EXPECT_TRUE(value);
  ASSERT_EQ(harness_.device().calls().size(), 1U);
  EXPECT_GE(harness_.device().counters().queue_depth_max, 64U);
}

// One lock to reserve N, one submission to write N, one lock to publish N.
TEST(StoreBatch, LocksAndSubmissionsDoNotGrowWithTheNumberOfKeys) {
  StoreHarness harness(512 * kMiB);  // its journal holds a thousand records in one block
  for (const std::size_t count : {1U, 10U, 100U, 1000U}) {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (std::size_t i = 0; i < count; ++i)
      pairs.emplace_back(std::to_string(count) + "/" + std::to_string(i), value_of(i, 3000));
    const std::uint64_t locks = harness.stat("commit_locks");
    const std::uint64_t batches = harness.stat("batches");
    harness.device().clear_calls();
    std::vector<Put> puts;
    for (const auto& [key, value] : pairs) puts.push_back({key, bytes_of(value)});
    EXPECT_THAT(words_of(harness.store().put_many(puts).results), Each("ok"));
    std::size_t runs = 0, flushes = 0;
    for (const DeviceCall& call : harness.device().calls()) {
      runs += call.kind == DeviceCall::Kind::kRun ? 1 : 0;
      flushes += call.kind == DeviceCall::Kind::kFlush ? 1 : 0;
    }
    EXPECT_EQ(harness.stat("commit_locks") - locks, 2U) << count << " keys";
    EXPECT_EQ(harness.stat("batches") - batches, 1U) << count << " keys";
    EXPECT_EQ(runs, 1U) << count << " keys";
    EXPECT_EQ(flushes, 1U) << count << " keys";
  }
}

TEST_F(StoreTest, ABatchOverItsBoundsTakesOneLockPairAndOneSubmissionForEachPart) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::size_t i = 0; i < 2 * kBatchKeysMax + 1; ++i)
    pairs.emplace_back(std::to_string(i), "v");
  const std::uint64_t locks = harness_.stat("commit_locks");
  const std::uint64_t batches = harness_.stat("batches");
  harness_.device().clear_calls();
  EXPECT_THAT(words_of(put_all(pairs).results), Each("ok"));
  const std::uint64_t parts = harness_.stat("batches") - batches;
  EXPECT_GE(parts, 3U);
  EXPECT_EQ(harness_.stat("commit_locks") - locks, 2 * parts);
  EXPECT_EQ(harness_.device().calls().size(), parts + 1) << "and one flush";
}

TEST_F(StoreTest, AFlushCoversWhatWasMerelyWritten) {
  put_all({{"a", "1"}, {"b", "2"}}, {.durability = Durability::kWritten});
  EXPECT_TRUE(store().remove("b"));
  EXPECT_TRUE(store().flush());
  harness_.crash();
  EXPECT_THAT(keys(), ElementsAre("a"));
}

TEST_F(StoreTest, CallsAfterCloseFailAndCloseTwiceIsOne) {
  EXPECT_TRUE(put("a", "1"));
  EXPECT_TRUE(store().close());
  EXPECT_TRUE(store().close());
  EXPECT_EQ(put("b", "2").error().code, Errc::kBusy);
  EXPECT_EQ(store().remove("a").error().code, Errc::kBusy);
  EXPECT_EQ(store().checkpoint().error().code, Errc::kBusy);
}

// Sizes around every boundary, in each slot size, before and after a restart.
class StoreSizesTest : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(StoreSizesTest, ValuesOfEverySizeComeBackBeforeAndAfterARestart) {
  StoreHarness harness(256 * kMiB, GetParam());
  const std::vector<std::size_t> sizes{0,    1,     511,    512,        4095,        4096,
                                       4097, 65537, 131072, 131072 + 1, 1024 * 1024, 5 * kMiB + 3};
  std::vector<std::string> names, values;
  for (const std::size_t size : sizes) {
    names.push_back("size" + std::to_string(size));
    values.push_back(value_of(size + 1, size));
  }
  std::vector<Put> puts;
  for (std::size_t i = 0; i < sizes.size(); ++i) puts.push_back({names[i], bytes_of(values[i])});
  EXPECT_THAT(words_of(harness.store().put_many(puts).results), Each("ok"));
  const std::vector<std::string_view> asked(names.begin(), names.end());
  for (const bool restarted : {false, true}) {
    if (restarted) harness.reopen();
    const auto read = harness.store().get_many(asked);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      EXPECT_TRUE(read[i] == values[i]) << names[i] << (restarted ? " after the restart" : "");
    expect_slots_accounted(harness.volume());
  }
}

INSTANTIATE_TEST_SUITE_P(SlotSizes, StoreSizesTest,
                         ::testing::Values(4096, 65536, 1 << 20, 4 << 20));

TEST(StoreList, GoesAsDeepAsDirectoriesNest) {
  constexpr int kDepth = 20'000;
  StoreHarness harness;
  NodeId at = NodeId::kRoot;
  for (int i = 0; i < kDepth; ++i) {
    const auto made = harness.volume().create(at, "d", NodeKind::kDirectory, {});
    ASSERT_TRUE(made) << made.error().step;
    at = made->node;
    ASSERT_TRUE(i % 100 != 0 || harness.store().flush());
  }
  ASSERT_TRUE(harness.volume().create(at, "file", NodeKind::kFile, {}));
  ASSERT_TRUE(harness.store().put("other", bytes_of("value")));
  const auto keys = harness.store().list();
  ASSERT_TRUE(keys);
  ASSERT_EQ(keys->size(), 2U);
  EXPECT_EQ((*keys)[0].key.size(), 2U * kDepth + 4);
  EXPECT_EQ((*keys)[1].key, "other");
}

TEST(StoreHolds, OnlyFilesHaveValuesAndNoneIsLargerThanItsPlacesCanBeNamed) {
  StoreHarness harness;
  const auto directory = harness.volume().create(NodeId::kRoot, "d", NodeKind::kDirectory, {});
  ASSERT_TRUE(directory);
  ContentChange change;
  change.node = directory->node;
  harness.volume().commit({&change, 1});
  EXPECT_EQ(change.result.error().code, Errc::kWrongKind);
  change = {};
  change.key = "key";
  change.size_bytes = (std::uint64_t{16} << 40) + 1;
  harness.volume().commit({&change, 1});
  EXPECT_EQ(change.result.error().code, Errc::kTooLarge);
  EXPECT_FALSE(harness.volume().find("key"));
}

}  // namespace
}  // namespace kvslot::testing
