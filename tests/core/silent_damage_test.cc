// Writes that the device acknowledges and loses, or puts somewhere else, and tails that are torn in
// every combination. A value is then a prefix's value or an error, never other bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/superblocks.h"
#include "tests/support/engine.h"
#include "tests/support/environment.h"
#include "tests/support/traced_store.h"

namespace kvslot::testing {
namespace {

class SilentDamage : public ::testing::Test {
 protected:
  SilentDamage() {
    base_.open(make_device(16 * kMiB));
    for (const char* key : {"a", "b", "d/c"}) base_.put(key, 9000);
    base_.checkpoint();
    base_.put("b", 5000, true);
    base_.settle();
    base_.drop();
    image_ = base_.device().survivor(1, CrashMode::kAll);
  }

  static void scenario(TracedStore& s) {
    s.put("a", 6000, true);
    s.put("new", 5000);
    s.patch("b", 100);
    s.remove("d/c", true);
    s.put_in_pieces("large", 150'000, true);
    s.checkpoint();
    s.rename("new", "a", true);
    s.put("b", 7000);
    s.checkpoint();
    s.put("last", 100, true);
  }

  // The scenario with one write struck, for each of its writes.
  void strike_each(WriteEffect effect, std::uint64_t misdirected_to_bytes) {
    std::uint64_t n = 0;
    for (bool is_over = false; !is_over && !HasFailure(); ++n) {
      SCOPED_TRACE("write " + std::to_string(n));
      TracedStore store = TracedStore::resume(base_, 5);
      ASSERT_TRUE(store.open(image_->process_crash()));
      const std::uint64_t before = store.device().counters().writes;
      store.device().add_fault({.kind = OperationKind::kWrite,
                                .skip = n,
                                .times = 1,
                                .effect = effect,
                                .misdirected_to_bytes = misdirected_to_bytes});
      store.tolerate([](const std::string&, const Error&) { return true; });
      scenario(store);
      is_over = store.device().counters().writes <= before + n;
      expect_some_state_with_holes(store, store);
      for (const bool closed : {false, true}) {
        if (closed) static_cast<void>(store.close());
        TracedStore after = TracedStore::resume(store, 6);
        const auto opened = after.try_open(store.device().survivor(1, CrashMode::kAll));
        if (opened) {
          expect_some_state_with_holes(store, after);
        } else {
          EXPECT_TRUE(opened.error().code == Errc::kCorrupt || opened.error().code == Errc::kIo);
        }
      }
    }
    EXPECT_GT(n, 20U);
  }

  // What a volume shows is one of the states, but for values that it says it cannot read.
  static void expect_some_state_with_holes(const TracedStore& expected, TracedStore& shown) {
    std::set<std::string> unreadable;
    const auto found = ModelStore::read_from(shown.volume(), &unreadable);
    ASSERT_TRUE(found);
    std::string differences;
    for (const ModelStore& state : expected.states()) {
      ModelStore filled = *found;
      for (const std::string& key : unreadable)
        if (state.contains(key) && !state.is_directory(key))
          filled.put(key, std::make_shared<const std::string>(state.value(key)));
      if (filled == state) return;
      differences += "\n  " + state.difference(filled);
    }
    ADD_FAILURE() << "no state of the history:" << differences;
  }

  TracedStore base_{4};
  std::unique_ptr<SimulatedDevice> image_;
};

TEST_F(SilentDamage, ALostWriteIsNeverTakenForStaleBytes) { strike_each(WriteEffect::kLost, 0); }

TEST_F(SilentDamage, AMisdirectedWriteIsNeverTakenForOthersBytes) {
  const auto superblock = read_superblock(*image_);
  const Geometry& geometry = superblock->geometry;
  // Over the first values, over the journal's blocks, over a checkpoint.
  strike_each(WriteEffect::kMisdirected, geometry.slots_offset_bytes);
  strike_each(WriteEffect::kMisdirected, geometry.journal_offset_bytes + 2 * kBlockSizeBytes);
  strike_each(WriteEffect::kMisdirected,
              geometry.slots_offset_bytes +
                  std::uint64_t{superblock->current.manifest_slot} * geometry.slot_size_bytes);
}

// Eight puts that no flush covered, each a value and a block: whichever of them are torn, the first
// put with a torn part ends the log, and all before it are whole.
class TornTail : public ::testing::Test {
 protected:
  static constexpr std::size_t kPuts = 8;

  TornTail() {
    store_.open(make_device(16 * kMiB));
    store_.put("before", 5000, true);
    for (std::size_t i = 0; i < kPuts; ++i) store_.put("k" + std::to_string(i), 6000);
    store_.drop();
    const auto pending = store_.device().pending_writes();
    const auto superblock = read_superblock(store_.device());
    const Geometry& geometry = superblock->geometry;
    // What is pending besides are copies of the superblock.
    for (std::size_t i = 0; i < pending.size(); ++i) {
      const std::uint64_t at = pending[i].offset_bytes;
      if (at < geometry.journal_offset_bytes || at + kBlockSizeBytes >= geometry.size_bytes)
        continue;
      (at < geometry.slots_offset_bytes ? blocks_ : values_).push_back(i);
    }
  }

  // Bit i: the block (the value) of put i is torn.
  void tear(unsigned blocks, unsigned values) {
    std::set<std::size_t> torn;
    std::size_t whole = kPuts;
    for (std::size_t i = kPuts; i-- > 0;) {
      if ((blocks >> i & 1) != 0) torn.insert(blocks_[i]);
      if ((values >> i & 1) != 0) torn.insert(values_[i]);
      if (((blocks | values) >> i & 1) != 0) whole = i;
    }
    // One sector is missing: of a block the first, which has the records, of a value another each
    // time.
    const auto missing = [&](std::size_t write) {
      return std::ranges::find(blocks_, write) != blocks_.end() ? 0 : (blocks * 31 + values) % 11;
    };
    TracedStore after = TracedStore::resume(store_, 9);
    ASSERT_TRUE(after.open(store_.device().survivor([&](std::size_t write, std::size_t sector) {
      return sector != missing(write) || !torn.contains(write);
    }))) << blocks
         << " " << values;
    const auto found = ModelStore::read_from(after.volume());
    ASSERT_TRUE(found);
    const ModelStore& expected = store_.states()[store_.states().size() - 1 - kPuts + whole];
    ASSERT_EQ(expected.difference(*found), "") << "torn blocks " << blocks << ", values " << values;
  }

  TracedStore store_{8};
  std::vector<std::size_t> blocks_, values_;
};

TEST_F(TornTail, TheFirstTornPutEndsTheLogAndAllBeforeItAreWhole) {
  ASSERT_EQ(blocks_.size(), kPuts);
  ASSERT_EQ(values_.size(), kPuts);
  constexpr unsigned kAll = 1U << kPuts;
  const bool is_thorough = number_from("KVSLOT_CUTS", 0) != 0;
  if (is_thorough) {
    for (unsigned blocks = 0; blocks < kAll; ++blocks)
      for (unsigned values = 0; values < kAll && !HasFailure(); ++values) tear(blocks, values);
    return;
  }
  for (unsigned mask = 0; mask < kAll && !HasFailure(); ++mask) {
    tear(mask, 0);
    tear(0, mask);
    tear(mask, mask * 167 % kAll);
  }
}

}  // namespace
}  // namespace kvslot::testing
