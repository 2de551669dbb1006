// The order of a directory's entries, against a sorted map.
#include "core/directory_order.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace kvslot {
namespace {

TEST(DirectoryOrder, AgreesWithASortedMapThroughRandomChanges) {
  DirectoryOrder order;
  std::map<std::uint64_t, std::uint32_t> expected;  // cookie -> node
  std::vector<std::uint64_t> cookies(20'000, 0);
  const auto cookie_of = [&](std::uint32_t node) { return cookies[node]; };
  std::mt19937_64 random(5);
  for (int step = 0; step < 60'000; ++step) {
    const auto node = static_cast<std::uint32_t>(random() % cookies.size());
    if (cookies[node] != 0) {
      order.erase(node, cookie_of);
      expected.erase(cookies[node]);
      cookies[node] = 0;
    } else {
      const std::uint64_t cookie = 1 + random() % 1'000'000;
      if (!expected.emplace(cookie, node).second) continue;
      cookies[node] = cookie;
      order.insert(node, cookie_of);
    }
    ASSERT_EQ(order.count(), expected.size());
    if (step % 500 != 0) continue;
    const std::uint64_t from = random() % 1'000'000;
    std::vector<std::uint32_t> some;
    order.list(from, 700, cookie_of, some);
    std::vector<std::uint32_t> wanted;
    for (auto at = expected.upper_bound(from); at != expected.end() && wanted.size() < 700; ++at)
      wanted.push_back(at->second);
    ASSERT_EQ(some, wanted);
  }
}

TEST(DirectoryOrder, AppendingInOrderFillsItsChunks) {
  DirectoryOrder order;
  const auto cookie_of = [](std::uint32_t node) { return std::uint64_t{node}; };
  for (std::uint32_t node = 1; node <= 100'000; ++node) order.insert(node, cookie_of);
  EXPECT_LE(order.memory_bytes(), 100'000U * 6);
  std::vector<std::uint32_t> all;
  order.list(0, SIZE_MAX, cookie_of, all);
  ASSERT_EQ(all.size(), 100'000U);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
}

TEST(DirectoryOrder, AnEmptyDirectoryListsNothing) {
  DirectoryOrder order;
  const auto cookie_of = [](std::uint32_t node) { return std::uint64_t{node}; };
  std::vector<std::uint32_t> none;
  order.list(0, 10, cookie_of, none);
  EXPECT_TRUE(none.empty());
  order.insert(1, cookie_of);
  order.erase(1, cookie_of);
  order.list(0, 10, cookie_of, none);
  EXPECT_TRUE(none.empty());
}

}  // namespace
}  // namespace kvslot
