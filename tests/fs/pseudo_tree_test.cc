// Tests fs/pseudo_tree.cc over a store in an image file, without a mount.
#include "fs/pseudo_tree.h"

#include <gtest/gtest.h>
#include <kvslot/admin.h>
#include <kvslot/store.h>

#include <cerrno>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "fs/text.h"
#include "tests/support/engine.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const std::string& text) {
  Lines lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> columns_of(const std::string& line) {
  std::vector<std::string> columns;
  std::istringstream stream(line);
  for (std::string column; std::getline(stream, column, '\t');) columns.push_back(column);
  return columns;
}

class PseudoTreeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string image = directory_.make_image("store.img", 32 * kMiB);
    auto device = open_file_device(image, {.engine = EngineChoice::kPosix});
    ASSERT_TRUE(device.has_value()) << device.error().step;
    const auto formatted = format_device(**device, {.label = "tree"});
    ASSERT_TRUE(formatted.has_value()) << formatted.error().step;
    auto store = Store::open(std::move(*device));
    ASSERT_TRUE(store.has_value()) << store.error().step;
    store_ = std::move(*store);
    tree_ = std::make_unique<PseudoTree>(
        store_->volume(),
        PseudoTreeHooks{.config = [] { return ConfigLines{{"pid", "42"}}; },
                        .stats = [] { return std::vector<Stat>{{"requests", "", 7, true}}; },
                        .live_node = [](NodeId) { return LiveNodeInfo{}; },
                        .deadline_seconds = {},
                        .set_deadline_seconds = {}});
  }
  void TearDown() override {
    tree_.reset();
    if (store_ == nullptr) return;
    EXPECT_TRUE(store_->close().has_value());
  }

  void put(const std::string& key, const std::string& value) {
    const auto stored = store_->put(key, std::as_bytes(std::span(value)));
    ASSERT_TRUE(stored.has_value()) << key << ": " << stored.error().step;
  }

  Result<PseudoNode> find(const std::string& path) {
    PseudoNode found{.node = kControlDirectoryNode, .is_directory = true};
    std::istringstream stream(path);
    for (std::string name; std::getline(stream, name, '/');) {
      const auto next = tree_->lookup(found.node, name);
      if (!next) return next;
      found = *next;
    }
    return found;
  }

  std::unique_ptr<PseudoHandle> open(const std::string& path, bool for_writing = false) {
    const auto node = find(path);
    if (!node) return nullptr;
    auto handle = tree_->open(node->node, for_writing);
    return handle ? std::move(*handle) : nullptr;
  }

  static std::string read_all(PseudoHandle& handle, std::size_t piece_bytes = 4096) {
    std::string text;
    for (;;) {
      const auto part = handle.read(text.size(), piece_bytes);
      if (!part || part->empty()) return text;
      text += *part;
    }
  }

  std::string read(const std::string& path) {
    const auto handle = open(path);
    EXPECT_NE(handle, nullptr) << path;
    return handle == nullptr ? std::string() : read_all(*handle);
  }

  std::map<std::string, std::string> values(const std::string& path) {
    std::map<std::string, std::string> values;
    for (const std::string& line : lines_of(read(path))) {
      const auto columns = columns_of(line);
      if (columns.size() >= 2) values[columns[0]] = columns[1];
    }
    return values;
  }

  testing::TempDir directory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<PseudoTree> tree_;
};

const std::vector<std::string> kBounded = {"batches", "config",     "errors", "inflight", "journal",
                                           "stats",   "checkpoint", "flush",  "deadline", "scrub"};

TEST_F(PseudoTreeTest, EveryListedNameIsFoundUnderTheListedNumber) {
  std::set<std::string> names;
  std::uint64_t cookie = 0;
  for (;;) {  // one at a time, as a small buffer has it
    const auto entries = tree_->list(kControlDirectoryNode, cookie, 1);
    ASSERT_TRUE(entries.has_value());
    if (entries->empty()) break;
    const PseudoEntry& entry = entries->front();
    EXPECT_GT(entry.cookie, cookie);
    cookie = entry.cookie;
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    const auto found = tree_->lookup(kControlDirectoryNode, entry.name);
    ASSERT_TRUE(found.has_value()) << entry.name;
    EXPECT_EQ(found->node, entry.node) << entry.name;
    EXPECT_EQ(found->is_directory, entry.is_directory) << entry.name;
    EXPECT_GE(found->node, kPseudoNodeFirst);
  }
  for (const std::string& name : kBounded) EXPECT_TRUE(names.contains(name)) << name;
  for (const char* name : {"index", "slots", "key", "slot"}) EXPECT_TRUE(names.contains(name));
}

TEST_F(PseudoTreeTest, UnknownNamesAndNumbersAreNotFound) {
  EXPECT_EQ(find("nothing").error().code, Errc::kNotFound);
  EXPECT_EQ(find("key/nothing").error().code, Errc::kNotFound);
  EXPECT_EQ(find("stats/below").error().code, Errc::kWrongKind);
  for (const std::uint64_t node :
       {kPseudoNodeFirst + 999, kPseudoNodeFirst | (std::uint64_t{7} << 41), std::uint64_t{1},
        ~std::uint64_t{0}}) {
    EXPECT_EQ(tree_->stat(node).error().code, Errc::kNotFound) << node;
  }
}

TEST_F(PseudoTreeTest, BoundedFilesStateTheSizeThatAReaderGets) {
  put("a", "one");
  for (const std::string& name : kBounded) {
    const auto handle = open(name);
    ASSERT_NE(handle, nullptr) << name;
    const auto stated = find(name);
    ASSERT_TRUE(stated.has_value()) << name;
    const std::string text = read_all(*handle);
    EXPECT_EQ(stated->size_bytes, text.size()) << name;
    EXPECT_TRUE(text.starts_with('#')) << name;
    EXPECT_TRUE(text.ends_with('\n')) << name;
  }
  EXPECT_EQ(find("index")->size_bytes, 0U);
  EXPECT_EQ(find("slots")->size_bytes, 0U);
}

TEST_F(PseudoTreeTest, EveryLineHasTheColumnsOfItsHeader) {
  put("a/b", std::string(300'000, 'x'));
  for (const char* name : {"batches", "config", "errors", "inflight", "journal", "stats", "index",
                           "slots", "slot/0", "checkpoint"}) {
    const Lines lines = lines_of(read(name));
    ASSERT_FALSE(lines.empty()) << name;
    const std::size_t count = columns_of(lines.front()).size();
    for (const std::string& line : lines) EXPECT_EQ(columns_of(line).size(), count) << line;
  }
}

TEST_F(PseudoTreeTest, ASnapshotStaysWhileTheStoreGoesOn) {
  put("a", "one");
  const auto handle = open("batches");
  ASSERT_NE(handle, nullptr);
  const auto before = handle->read(0, 1 << 20);
  put("b", "two");
  EXPECT_EQ(*handle->read(0, 1 << 20), *before);
  EXPECT_NE(read("batches"), *before);
}

TEST_F(PseudoTreeTest, ConfigAndStatsHoldTheEnginesLinesAndTheMounts) {
  const auto config = values("config");
  EXPECT_EQ(config.at("label"), "tree");
  EXPECT_EQ(config.at("engine"), "posix");
  EXPECT_EQ(config.at("pid"), "42");
  EXPECT_EQ(config.at("slot_size_bytes"), "4096");
  EXPECT_EQ(values("stats").at("requests"), "7");
}

TEST_F(PseudoTreeTest, IndexListsEveryKeyOnceHoweverSlowlyItIsRead) {
  constexpr int kKeys = 1000;
  for (int i = 0; i < kKeys; ++i) put("dir/key" + std::to_string(i), "value");
  const auto handle = open("index");
  ASSERT_NE(handle, nullptr);
  std::string text;
  for (int step = 0;; ++step) {
    const auto part = handle->read(text.size(), 777);
    ASSERT_TRUE(part.has_value());
    if (part->empty()) break;
    text += *part;
    if (step % 8 == 0) put("passing/" + std::to_string(step), "x");
    if (step % 8 == 4) {
      EXPECT_TRUE(store_->remove("passing/" + std::to_string(step - 4)).has_value());
    }
  }
  std::multiset<std::string> keys;
  for (const std::string& line : lines_of(text)) keys.insert(columns_of(line).front());
  for (int i = 0; i < kKeys; ++i) EXPECT_EQ(keys.count("dir/key" + std::to_string(i)), 1U) << i;
}

TEST_F(PseudoTreeTest, UnboundedFilesServeEarlierOffsetsAgain) {
  for (int i = 0; i < 700; ++i) put("key" + std::to_string(i), "value");
  const auto handle = open("index");
  ASSERT_NE(handle, nullptr);
  const std::string text = read_all(*handle);
  EXPECT_EQ(read_all(*handle), text);
  EXPECT_EQ(*handle->read(text.size() - 10, 100), text.substr(text.size() - 10));
  EXPECT_EQ(*handle->read(text.size() - 10, 100), text.substr(text.size() - 10));
  EXPECT_EQ(*handle->read(3, 5), text.substr(3, 5));
  EXPECT_EQ(*handle->read(text.size() + 100, 5), "");
}

TEST_F(PseudoTreeTest, SlotsCoverTheDeviceOnce) {
  put("small", "x");
  put("large", std::string(1 << 20, 'y'));
  std::uint64_t next = 0;
  bool saw_large = false;
  const Lines lines = lines_of(read("slots"));
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const auto columns = columns_of(lines[i]);
    EXPECT_EQ(std::stoull(columns[0]), next) << lines[i];
    next += std::stoull(columns[1]);
    saw_large = saw_large || columns[3] == "large";
  }
  EXPECT_EQ(next, store_->volume().geometry().slot_count);
  EXPECT_TRUE(saw_large);
}

TEST_F(PseudoTreeTest, KeyMirrorsTheTree) {
  put("a/b/c", std::string(10'000, 'x'));
  const auto directory = find("key/a/b");
  ASSERT_TRUE(directory.has_value());
  EXPECT_TRUE(directory->is_directory);
  const auto entries = tree_->list(directory->node, 0, 10);
  ASSERT_TRUE(entries.has_value());
  ASSERT_EQ(entries->size(), 1U);
  EXPECT_EQ(entries->front().name, "c");
  EXPECT_EQ(entries->front().node, find("key/a/b/c")->node);
  const auto record = values("key/a/b/c");
  EXPECT_EQ(record.at("key"), "a/b/c");
  EXPECT_EQ(record.at("size_bytes"), "10000");
  EXPECT_EQ(record.at("slots"), "3");
  EXPECT_EQ(record.at("state"), "live");
  EXPECT_EQ(find("key/a/b/c")->size_bytes, read("key/a/b/c").size());
}

TEST_F(PseudoTreeTest, ARemovedKeyIsGoneAlsoUnderItsNumber) {
  put("a", "one");
  const std::uint64_t node = find("key/a")->node;
  EXPECT_TRUE(store_->remove("a").has_value());
  EXPECT_EQ(find("key/a").error().code, Errc::kNotFound);
  EXPECT_EQ(tree_->stat(node).error().code, Errc::kNotFound);
  EXPECT_FALSE(tree_->open(node, false).has_value());
}

TEST_F(PseudoTreeTest, KeysThatBreakLinesAreEscapedAndCanBeGotBack) {
  const std::string key = "odd\tname\nwith\\all\xff";
  put(key, "x");
  const Lines lines = lines_of(read("index"));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(unescape_key(columns_of(lines[1]).front()).value(), key);
  EXPECT_TRUE(find("key/" + key).has_value());
}

TEST_F(PseudoTreeTest, SlotShowsTheRunThatHoldsItAndWhetherItIsWhole) {
  put("a", std::string(20'000, 'x'));
  const auto first = values("key/a").at("run");
  const Lines lines = lines_of(read("slot/" + first));
  ASSERT_EQ(lines.size(), 2U);
  const auto columns = columns_of(lines[1]);
  EXPECT_EQ(columns[2], "live");
  EXPECT_EQ(columns[3], "a");
  EXPECT_EQ(columns[5], "holds");
  EXPECT_EQ(find("slot/" + first)->size_bytes, read("slot/" + first).size());
}

TEST_F(PseudoTreeTest, SlotNumbersAreDecimalAndInRange) {
  const std::uint32_t count = store_->volume().geometry().slot_count;
  EXPECT_TRUE(find("slot/" + std::to_string(count - 1)).has_value());
  for (const std::string& name :
       {std::to_string(count), std::string("00"), std::string("01"), std::string("-1"),
        std::string("x"), std::string("1x"), std::string("99999999999")}) {
    EXPECT_EQ(find("slot/" + name).error().code, Errc::kNotFound) << name;
  }
  EXPECT_TRUE(tree_->list(find("slot")->node, 0, 10)->empty());
}

TEST_F(PseudoTreeTest, OnlyControlFilesCanBeWritten) {
  for (const char* name : {"stats", "index", "slot/0"}) {
    EXPECT_EQ(to_errno(tree_->open(find(name)->node, true).error()), EACCES) << name;
  }
  EXPECT_EQ(tree_->open(find("key")->node, false).error().code, Errc::kWrongKind);
  EXPECT_EQ(find("flush")->mode, 0600U);
}

TEST_F(PseudoTreeTest, WritingOneRunsAndAnythingElseIsInvalid) {
  put("a", "one");
  for (const char* name : {"checkpoint", "flush"}) {
    EXPECT_NE(read(name).find("never"), std::string::npos) << name;
    const auto handle = open(name, true);
    ASSERT_NE(handle, nullptr);
    EXPECT_EQ(handle->write("2").error().code, Errc::kInvalid);
    EXPECT_EQ(handle->write("1\n").value(), 2U);
    std::string text;
    do {
      std::this_thread::yield();
      text = read(name);
    } while (text.find("waiting") != std::string::npos ||
             text.find("running") != std::string::npos);
    EXPECT_NE(text.find("done"), std::string::npos) << text;
  }
}

// The other tests need an image; here the device stands still for as long as it is looked at.
TEST(PseudoTreeOfASlowDevice, InflightShowsThePutsThatTheDeviceHolds) {
  testing::StoreHarness harness;
  PseudoTree tree(harness.volume(), {});
  harness.device().hold(testing::OperationKind::kWrite);
  const std::vector<std::string> texts = {std::string(5000, 'a'), std::string(100, 'b')};
  const std::vector<Put> puts = {{"folder/first", testing::bytes_of(texts[0])},
                                 {"folder/second", testing::bytes_of(texts[1])}};
  std::thread writer([&] {
    for (const auto& result : harness.store().put_many(puts).results) EXPECT_TRUE(result);
  });
  harness.device().wait_until_held(1);
  const auto read_inflight = [&] {
    const auto node = tree.lookup(kControlDirectoryNode, "inflight");
    EXPECT_TRUE(node);
    const auto handle = tree.open(node->node, false);
    EXPECT_TRUE(handle);
    return lines_of((*handle)->read(0, 65536).value_or(""));
  };
  const auto lines = read_inflight();
  harness.device().release();  // before any assertion can leave the writer waiting
  writer.join();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(columns_of(lines[1])[0], "folder/first");
  EXPECT_EQ(columns_of(lines[1])[3], "5000");
  EXPECT_EQ(columns_of(lines[1])[4], "submitted");
  EXPECT_EQ(columns_of(lines[2])[0], "folder/second");
  EXPECT_EQ(read_inflight().size(), 1U) << "only the names of the columns are left";
}

TEST_F(PseudoTreeTest, ScrubRunsReportsAndIsStopped) {
  for (int i = 0; i < 20; ++i) put("key" + std::to_string(i), std::string(200'000, 'x'));
  EXPECT_EQ(columns_of(lines_of(read("scrub")).at(1)).at(0), "never");
  PseudoTree slow(store_->volume(), {.names_are_private = false,
                                     .config = {},
                                     .stats = {},
                                     .live_node = {},
                                     .deadline_seconds = {},
                                     .set_deadline_seconds = {},
                                     .scrub_bytes_per_second = 1});
  const auto node = slow.lookup(kControlDirectoryNode, "scrub");
  ASSERT_TRUE(node);
  EXPECT_EQ(node->mode, 0600U);
  const auto state = [&](PseudoTree& tree) {
    const auto handle = tree.open(node->node, false);
    return columns_of(lines_of(read_all(**handle)).at(1)).at(0);
  };
  auto slow_handle = slow.open(node->node, true);
  ASSERT_TRUE(slow_handle);
  EXPECT_EQ((*slow_handle)->write("2\n").error().code, Errc::kInvalid);
  ASSERT_TRUE((*slow_handle)->write("1\n"));
  EXPECT_EQ(state(slow), "running");
  EXPECT_EQ(to_errno((*slow_handle)->write("1\n").error()), EBUSY);
  ASSERT_TRUE((*slow_handle)->write("0\n"));
  while (state(slow) == "running") std::this_thread::yield();
  EXPECT_EQ(state(slow), "stopped");
  ASSERT_TRUE((*slow_handle)->write("1\n"));
  slow.close();  // ends it, however long its rest is
  EXPECT_EQ(state(slow), "stopped");
  EXPECT_EQ(to_errno((*slow_handle)->write("1\n").error()), EBUSY);
  ASSERT_TRUE(open("scrub", true)->write("1"));
  while (state(*tree_) == "running") std::this_thread::yield();
  const auto columns = columns_of(lines_of(read("scrub")).at(1));
  EXPECT_EQ(columns.at(0), "done");
  EXPECT_EQ(columns.at(3), "20");       // files
  EXPECT_EQ(columns.at(5), "4000000");  // bytes
  EXPECT_EQ(columns.at(7), "0");        // corrupt
}

TEST_F(PseudoTreeTest, AScrubOfALostDeviceSaysWhyItEnded) {
  testing::StoreHarness harness;
  ASSERT_TRUE(harness.store().put("key", testing::bytes_of(testing::value_of(1, 200'000))));
  PseudoTree tree(harness.volume(), {.names_are_private = false,
                                     .config = {},
                                     .stats = {},
                                     .live_node = {},
                                     .deadline_seconds = {},
                                     .set_deadline_seconds = {},
                                     .scrub_bytes_per_second = 0});
  const auto node = tree.lookup(kControlDirectoryNode, "scrub");
  ASSERT_TRUE(node);
  const auto run = [&] {
    EXPECT_TRUE((*tree.open(node->node, true))->write("1"));
    while (true) {
      Lines columns = columns_of(lines_of(read_all(**tree.open(node->node, false))).at(1));
      if (columns.at(0) != "running") return columns;
      std::this_thread::yield();
    }
  };
  harness.device().add_fault({.kind = testing::OperationKind::kRead, .error = ENODEV});
  const Lines failed = run();
  EXPECT_EQ(failed.at(0), "failed");
  EXPECT_EQ(failed.at(7), "0") << "what was not read is not corrupt";
  EXPECT_EQ(failed.at(9), "the device is lost (ENODEV)");
  harness.device().clear_faults();
  const Lines again = run();
  EXPECT_EQ(again.at(0), "done");
  EXPECT_EQ(again.at(5), "200000");
  EXPECT_EQ(again.at(9), "-");
}

TEST_F(PseudoTreeTest, DeadlineIsShownAndChanged) {
  std::uint32_t seconds = 30;
  PseudoTree tree(store_->volume(),
                  {.names_are_private = false,
                   .config = {},
                   .stats = {},
                   .live_node = {},
                   .deadline_seconds = [&] { return seconds; },
                   .set_deadline_seconds = [&](std::uint32_t chosen) { seconds = chosen; },
                   .scrub_bytes_per_second = 0});
  const auto node = tree.lookup(kControlDirectoryNode, "deadline");
  ASSERT_TRUE(node);
  EXPECT_EQ(node->mode, 0600U);
  const auto handle = tree.open(node->node, true);
  EXPECT_EQ(read_all(**handle), "#seconds\n30\n");
  for (const char* const bad : {"", "x", "-1", "1x", "99999999"})
    EXPECT_EQ((*handle)->write(bad).error().code, Errc::kInvalid) << bad;
  ASSERT_TRUE((*handle)->write("5\n"));
  EXPECT_EQ(seconds, 5U);
}

// Names that imitate the engine's owners, and names that would break a line.
TEST_F(PseudoTreeTest, AHostileNameIsOneLineAndNeverLooksLikeTheEngine) {
  const std::vector<std::string> names = {"#checkpoint", "#unlinked 7\tx\ny", "-",      "a\tb\nc",
                                          "\x1b[2J",     "\xc2\x9b",          "\xff\\x"};
  for (const std::string& name : names) put(name, "value");
  for (const char* file : {"index", "slots"}) {
    std::multiset<std::string> found;
    for (const std::string& line : lines_of(read(file))) {
      const Lines columns = columns_of(line);
      EXPECT_EQ(columns.size(), file == std::string("index") ? 9U : 5U) << line;
      found.insert(columns[file == std::string("index") ? 0 : 3]);
    }
    for (const std::string& name : names)
      EXPECT_EQ(found.count(escape_key(name)), 1U) << file << ": " << escape_key(name);
    EXPECT_LE(found.count("#checkpoint"), 3U);
  }
  for (const std::string& name : names)
    store_->volume().inspector().report_fault(
        {.operation = "read", .key = name, .slot = {}, .action = name});
  const Lines errors = lines_of(read("errors"));
  ASSERT_EQ(errors.size(), names.size() + 1);
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(columns_of(errors[i + 1]).size(), 6U);
    EXPECT_EQ(columns_of(errors[i + 1])[2], escape_key(names[i]));
  }
  for (const std::string& name : names) {
    const Lines lines = lines_of(read("key/" + name));
    ASSERT_GT(lines.size(), 1U);
    EXPECT_EQ(lines[1], "key\t" + escape_key(name));
  }
}

}  // namespace
}  // namespace kvslot
