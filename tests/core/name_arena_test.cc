// Names packed into chunks: each comes back whole, places of removed ones are used again.
#include "core/name_arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace kvslot {
namespace {

TEST(NameArena, KeepsNamesOfEveryLength) {
  NameArena names;
  std::map<std::string, NameArena::Ref> refs;
  for (std::size_t size = 1; size <= kNameSizeBytesMax; ++size) {
    const std::string name(size, static_cast<char>('a' + size % 26));
    refs[name] = names.add(name);
    EXPECT_NE(refs[name], NameArena::kEmpty);
  }
  for (const auto& [name, ref] : refs) EXPECT_EQ(names.get(ref), name);
}

TEST(NameArena, TheEmptyNameTakesNoPlace) {
  NameArena names;
  EXPECT_EQ(names.add(""), NameArena::kEmpty);
  EXPECT_EQ(names.get(NameArena::kEmpty), "");
  names.remove(NameArena::kEmpty);
}

TEST(NameArena, UsesThePlaceOfARemovedNameAgain) {
  NameArena names;
  const auto first = names.add("abcdef");
  names.add("other");
  names.remove(first);
  EXPECT_EQ(names.add("ghijkl"), first);
}

TEST(NameArena, MemoryDoesNotGrowWithChurnAndNamesStayIntact) {
  NameArena names;
  std::mt19937_64 random(1);
  std::map<std::uint64_t, std::pair<std::string, NameArena::Ref>> held;
  std::uint64_t settled = 0;
  for (std::uint64_t step = 0; step < 200'000; ++step) {
    const std::uint64_t place = random() % 5000;
    if (const auto old = held.find(place); old != held.end()) {
      ASSERT_EQ(names.get(old->second.second), old->second.first);
      names.remove(old->second.second);
    }
    std::string name(1 + random() % 32, 'n');
    name.back() = static_cast<char>('a' + step % 26);
    held[place] = {name, names.add(name)};
    if (step == 100'000) settled = names.memory_bytes();
  }
  EXPECT_LE(names.memory_bytes(), settled * 11 / 10);
}

}  // namespace
}  // namespace kvslot
