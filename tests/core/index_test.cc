// The tree in memory: names, places in listings, contents, and what a key costs.
#include "core/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace kvslot {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class IndexTest : public ::testing::Test {
 protected:
  IndexTest() {
    EXPECT_EQ(index_.add(ObjectId::kRoot, NodeKind::kDirectory, {}, StoredState::kStored),
              NodeId::kRoot);
  }
  NodeId add(NodeId parent, std::string_view name, NodeKind kind = NodeKind::kFile) {
    const NodeId node = index_.add(ObjectId{next_object_++}, kind, {}, StoredState::kStored);
    index_.link(node, parent, name);
    return node;
  }
  void remove(NodeId node) {
    index_.unlink(node);
    index_.erase(node);
  }

  Index index_;
  std::uint64_t next_object_ = 2;
};

TEST_F(IndexTest, FindsLinkedNamesInTheirDirectoryOnly) {
  const NodeId directory = add(NodeId::kRoot, "d", NodeKind::kDirectory);
  const NodeId a = add(NodeId::kRoot, "a");
  const NodeId b = add(directory, "a");
  EXPECT_EQ(index_.find(NodeId::kRoot, "a"), a);
  EXPECT_EQ(index_.find(directory, "a"), b);
  EXPECT_EQ(index_.find(directory, "d"), NodeId::kNone);
  EXPECT_EQ(index_.path(b), "d/a");
  EXPECT_EQ(index_.path(NodeId::kRoot), "");
  EXPECT_TRUE(index_.is_within(b, directory));
  EXPECT_FALSE(index_.is_within(a, directory));
  EXPECT_EQ(index_.subdirectory_count(NodeId::kRoot), 1U);
  EXPECT_FALSE(index_.is_empty(directory));
  remove(b);
  EXPECT_TRUE(index_.is_empty(directory));
  EXPECT_FALSE(index_.is_valid(b));
}

TEST_F(IndexTest, AShadowedNodeIsNotFoundButKeepsItsNameForCheckpoints) {
  const NodeId old = add(NodeId::kRoot, "a");
  index_.shadow(old);
  EXPECT_EQ(index_.find(NodeId::kRoot, "a"), NodeId::kNone);
  EXPECT_TRUE(index_.is_shadowed(old));
  EXPECT_TRUE(index_.is_checkpointed(old));
  EXPECT_EQ(index_.image(old).name, "a");
  EXPECT_EQ(index_.image(old).parent, ObjectId::kRoot);
  const NodeId fresh =
      index_.add(ObjectId{next_object_++}, NodeKind::kFile, {}, StoredState::kUnstored);
  index_.link(fresh, NodeId::kRoot, "a", index_.cookie(old));
  EXPECT_EQ(index_.find(NodeId::kRoot, "a"), fresh);
  EXPECT_FALSE(index_.is_checkpointed(fresh));
  EXPECT_EQ(index_.list(NodeId::kRoot, 0, 10).size(), 1U);
}

TEST_F(IndexTest, ContentMovesBetweenOneExtentAndManyAndBack) {
  const NodeId node = add(NodeId::kRoot, "a");
  const std::vector<Extent> one{{0, 1000, 7, 8, 9}};
  const std::vector<Extent> many{{0, 131072, 7, 8, 9}, {32, 5, 70, 80, 90}};
  Extent scratch;
  for (const auto& extents : {one, many, one, {}, many, {}}) {
    const std::uint64_t size = extents.empty()
                                   ? 0
                                   : std::uint64_t{extents.back().file_block} * kBlockSizeBytes +
                                         extents.back().size_bytes;
    index_.set_content(node, size, extents);
    EXPECT_EQ(index_.size_bytes(node), size);
    EXPECT_EQ(index_.extent_count(node), extents.size());
    const auto found = index_.extents(node, scratch);
    EXPECT_TRUE(std::equal(found.begin(), found.end(), extents.begin(), extents.end()));
    EXPECT_EQ(index_.image(node).extents, extents);
  }
}

TEST_F(IndexTest, ImageSizesAddUpWhateverChanges) {
  std::mt19937_64 random(1);
  std::vector<NodeId> nodes;
  for (int step = 0; step < 3000; ++step) {
    const std::uint64_t kind = random() % 5;
    if (nodes.size() < 5 || kind == 0) {
      nodes.push_back(
          add(NodeId::kRoot, "name" + std::string(random() % 50, 'x') + std::to_string(step)));
      continue;
    }
    std::swap(nodes[random() % nodes.size()], nodes.back());
    const NodeId node = nodes.back();
    if (kind == 1) {
      remove(node);
      nodes.pop_back();
    } else if (kind == 2) {
      std::vector<Extent> extents(random() % 4);
      for (std::size_t i = 0; i < extents.size(); ++i)
        extents[i] = {static_cast<std::uint32_t>(32 * i), 131072, 1, 2, 3};
      index_.set_content(node, extents.size() * 131072, extents);
    } else if (kind == 3) {
      index_.set_xattrs(node, random() % 2 == 0 ? Xattrs{} : Xattrs{{"user.x", "value"}});
    } else {
      index_.unlink(node);
      index_.link(node, NodeId::kRoot, "renamed" + std::to_string(step),
                  random() % 2 == 0 ? 0 : 1u << 20 | static_cast<unsigned>(step));
    }
    if (step % 100 != 0) continue;
    std::uint64_t sum = 0;
    for (std::uint32_t number = 1; number < index_.node_limit(); ++number) {
      const auto other = static_cast<NodeId>(number);
      if (!index_.is_valid(other)) continue;
      std::vector<std::byte> bytes;
      encode_record(bytes, SetNode{index_.image(other)});
      EXPECT_EQ(index_.image_bytes(other), bytes.size()) << index_.name(other);
      sum += bytes.size();
    }
    EXPECT_EQ(index_.total_image_bytes(), sum);
  }
}

TEST_F(IndexTest, ListGoesOnBehindACookieThatIsGone) {
  std::vector<NodeId> nodes;
  for (int i = 0; i < 5; ++i) nodes.push_back(add(NodeId::kRoot, std::to_string(i)));
  const auto front = index_.list(NodeId::kRoot, 0, 2);
  EXPECT_THAT(front, ElementsAre(nodes[0], nodes[1]));
  const std::uint64_t cookie = index_.cookie(nodes[1]);
  remove(nodes[1]);
  EXPECT_THAT(index_.list(NodeId::kRoot, cookie, 10), ElementsAre(nodes[2], nodes[3], nodes[4]));
  EXPECT_THAT(index_.list(NodeId::kRoot, index_.cookie(nodes[4]), 10), IsEmpty());
}

// Entries present all the time appear exactly once, whatever comes, goes or is replaced.
TEST_F(IndexTest, EntriesThatStayAppearExactlyOnceInAListingWhileOthersComeAndGo) {
  std::mt19937_64 random(7);
  std::vector<std::string> staying;
  std::vector<std::string> passing;
  for (int i = 0; i < 3000; ++i) {
    const std::string name = (i % 2 == 0 ? "stay" : "pass") + std::to_string(i);
    add(NodeId::kRoot, name);
    (i % 2 == 0 ? staying : passing).push_back(name);
  }
  std::map<std::string, int> seen;
  std::uint64_t cookie = 0;
  int created = 0;
  while (true) {
    const auto some = index_.list(NodeId::kRoot, cookie, 1 + random() % 40);
    if (some.empty()) break;
    for (const NodeId node : some) ++seen[std::string(index_.name(node))];
    cookie = index_.cookie(some.back());
    for (int i = 0; i < 5; ++i) {
      if (random() % 2 == 0) {  // one comes
        passing.push_back("new" + std::to_string(created++));
        add(NodeId::kRoot, passing.back());
      }
      std::swap(passing[random() % passing.size()], passing.back());
      const NodeId leaving = index_.find(NodeId::kRoot, passing.back());
      passing.pop_back();
      if (random() % 2 == 0) {  // one goes
        remove(leaving);
        continue;
      }
      // One takes the name of another that stays: the name keeps its place.
      const std::string& name = staying[random() % staying.size()];
      const NodeId replaced = index_.find(NodeId::kRoot, name);
      const std::uint64_t place = index_.cookie(replaced);
      remove(replaced);
      index_.unlink(leaving);
      index_.link(leaving, NodeId::kRoot, name, place);
    }
    if (passing.size() < 20) break;
  }
  while (true) {
    const auto some = index_.list(NodeId::kRoot, cookie, 100);
    if (some.empty()) break;
    for (const NodeId node : some) ++seen[std::string(index_.name(node))];
    cookie = index_.cookie(some.back());
  }
  for (const std::string& name : staying) EXPECT_EQ(seen[name], 1) << name;
}

TEST_F(IndexTest, AgreesWithAMapThroughRandomChanges) {
  std::mt19937_64 random(3);
  std::map<std::string, NodeId> names;
  for (int step = 0; step < 50'000; ++step) {
    const std::string name = "n" + std::to_string(random() % 2000);
    const auto known = names.find(name);
    ASSERT_EQ(index_.find(NodeId::kRoot, name),
              known == names.end() ? NodeId::kNone : known->second);
    if (known == names.end()) {
      names[name] = add(NodeId::kRoot, name);
    } else {
      remove(known->second);
      names.erase(known);
    }
  }
  EXPECT_EQ(index_.node_count(), names.size() + 1);
}

TEST_F(IndexTest, ClearForgetsEverything) {
  add(NodeId::kRoot, "a");
  index_.clear();
  EXPECT_EQ(index_.node_count(), 0U);
  EXPECT_EQ(index_.total_image_bytes(), 0U);
  EXPECT_EQ(index_.add(ObjectId::kRoot, NodeKind::kDirectory, {}, StoredState::kStored),
            NodeId::kRoot);
  EXPECT_EQ(index_.find(NodeId::kRoot, "a"), NodeId::kNone);
}

// At every moment of its growth, not only when tables happen to be full.
TEST_F(IndexTest, AFileCostsAtMost96BytesBesidesItsName) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::uint64_t kCount = 300'000;
#else
  constexpr std::uint64_t kCount = 1'000'000;
#endif
  double most = 0;
  for (std::uint64_t i = 1; i <= kCount; ++i) {
    char name[17];
    std::snprintf(name, sizeof name, "%016llx",
                  static_cast<unsigned long long>(i * 0x9e3779b97f4a7c15));
    const NodeId node = add(NodeId::kRoot, name);
    index_.set_content(node, 4000, {{0, 4000, static_cast<std::uint32_t>(i), i, i}});
    if (i < 250'000 || i % 5000 != 0) continue;  // below, the chunk begun last weighs in
    most = std::max(most, static_cast<double>(index_.memory_bytes()) / static_cast<double>(i) - 16);
  }
  const double last = static_cast<double>(index_.memory_bytes()) / static_cast<double>(kCount) - 16;
  std::printf("index: %.1f bytes a file besides its name at %llu files, at most %.1f on the way\n",
              last, static_cast<unsigned long long>(kCount), most);
  EXPECT_LE(last, 96.0);
  EXPECT_LE(most, 96.0);
}

}  // namespace
}  // namespace kvslot
