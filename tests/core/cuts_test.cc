// Power is lost after every operation on the device of some short canonical traces, with every
// subset of the writes that no flush had covered, and again at every operation of the recovery.
//
// KVSLOT_CUTS=1 tries all of it; without it, fewer subsets.
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <cerrno>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/check_report.h"
#include "tests/support/engine.h"
#include "tests/support/environment.h"
#include "tests/support/traced_store.h"

namespace kvslot::testing {
namespace {

bool is_thorough() { return number_from("KVSLOT_CUTS", 0) != 0; }

using Step = std::function<void(TracedStore&)>;

struct Trace {
  std::uint32_t slot_size_bytes = 4096;
  Step prepare = [](TracedStore&) {};  // durable before the first cut
  Step arm = [](TracedStore&) {};  // what the opening of each run does away with: faults, journal
  Step run;
  bool may_be_refused = false;  // the trace finds no space somewhere
  bool starts_clean = false;    // closed before the first cut
};

// What survives of the pending writes. Of up to `units_max` of them, and of as many single sectors,
// every subset; the others all survive, or none of them.
std::vector<SectorChoice> choices_of(const std::vector<PendingWrite>& pending,
                                     std::size_t units_max, std::uint64_t seed) {
  std::vector<SectorChoice> choices{[](std::size_t, std::size_t) { return false; }};
  if (pending.empty()) return choices;
  std::mt19937_64 random(seed);
  const auto add = [&](const std::vector<std::pair<std::size_t, std::size_t>>& units, bool whole) {
    for (const bool others : {false, true}) {
      for (std::size_t subset = 0; subset < std::size_t{1} << units.size(); ++subset) {
        choices.push_back([units, whole, others, subset](std::size_t write, std::size_t sector) {
          for (std::size_t i = 0; i < units.size(); ++i)
            if (units[i].first == write && (whole || units[i].second == sector))
              return (subset >> i & 1) != 0;
          return others;
        });
      }
    }
  };
  std::vector<std::pair<std::size_t, std::size_t>> units;
  const std::size_t count = std::min(units_max, pending.size());
  for (std::size_t i = pending.size() - count; i < pending.size(); ++i) units.emplace_back(i, 0);
  add(units, true);
  units.clear();
  for (std::size_t i = 0; i < units_max; ++i) {
    const std::size_t write = random() % pending.size();
    units.emplace_back(write, random() % pending[write].sector_count());
  }
  add(units, false);
  return choices;
}

class Cuts : public ::testing::Test {
 protected:
  // Every test adds to these; a trace that cuts nothing would prove nothing.
  struct Figures {
    std::uint64_t cuts = 0, images = 0, second_cuts = 0, recoveries = 0;
  };

  void explore(const Trace& trace) {
    trace_ = &trace;
    TracedStore base(kSeed);
    base.open(make_device(16 * kMiB, trace.slot_size_bytes, {.seed = kSeed}));
    trace.prepare(base);
    trace.starts_clean ? static_cast<void>(base.close()) : base.flush();
    base.settle();
    base.drop();
    const auto image = base.device().survivor(1, CrashMode::kAll);
    bool is_over = false;
    for (std::uint64_t cut = 0; !is_over && !HasFailure(); ++cut) {
      SCOPED_TRACE("cut after operation " + std::to_string(cut));
      TracedStore store = TracedStore::resume(base, kSeed + 1);
      if (!store.open(image->process_crash())) return;
      if (trace.may_be_refused)
        store.tolerate(
            [](const std::string&, const Error& error) { return error.code == Errc::kNoSpace; });
      trace.arm(store);
      store.device().crash_after_operations(cut);
      trace.run(store);
      is_over = !store.device().is_crashed();
      store.drop();
      lose_power(store, cut);
      ++figures_.cuts;
    }
    RecordProperty("images", std::to_string(figures_.images));
    std::cout << "[ figures  ] " << figures_.cuts << " cuts, " << figures_.images << " images, "
              << figures_.second_cuts << " cuts of a recovery, " << figures_.recoveries
              << " recoveries\n";
  }

 private:
  static constexpr std::uint64_t kSeed = 11;

  // All that the trace's cut may leave.
  void lose_power(const TracedStore& store, std::uint64_t cut) {
    std::set<std::uint64_t> seen;
    const auto& device = store.device();
    const auto choices = choices_of(device.pending_writes(), is_thorough() ? 6 : 3, cut);
    for (std::size_t i = 0; i < choices.size() && !HasFailure(); ++i) {
      const auto survivor = device.survivor(choices[i]);
      if (!seen.insert(survivor->fingerprint()).second) continue;
      SCOPED_TRACE("choice " + std::to_string(i) + " of what survives");
      ++figures_.images;
      if (!recover(store, *survivor, i % 8 == 0)) return;
      const bool again = is_thorough() ? i % 8 == 0 : i == 0;
      if (again) cut_recovery(store, *survivor);
    }
    // The process dies, and power is lost while the next one recovers what is in the cache.
    SCOPED_TRACE("the process died, the device did not");
    cut_recovery(store, *device.process_crash());
  }

  // Opens a copy of the device: what is there must be one of the states.
  bool recover(const TracedStore& store, const SimulatedDevice& device, bool fully) {
    ++figures_.recoveries;
    TracedStore after = TracedStore::resume(store, kSeed + 2);
    const std::shared_ptr<SimulatedDevice> copy = device.process_crash();
    if (fully) {
      EXPECT_THAT(errors_of(check(*copy)), ::testing::IsEmpty());
    }
    if (!after.open(copy) || !after.compare()) return false;
    expect_slots_accounted(after.volume());
    if (!fully) return true;
    // And it is a store that works.
    if (trace_->may_be_refused)
      after.tolerate(
          [](const std::string&, const Error& error) { return error.code == Errc::kNoSpace; });
    after.put("after", 3000, true);
    after.checkpoint();
    after.put("after", 6000, true);
    return after.open(copy->survivor(1, CrashMode::kNone)) && after.compare();
  }

  // Power is lost at each operation of the recovery of this device.
  void cut_recovery(const TracedStore& store, const SimulatedDevice& device) {
    std::set<std::uint64_t> seen;
    bool is_over = false;
    for (std::uint64_t cut = 0; !is_over && !::testing::Test::HasFailure(); ++cut) {
      SCOPED_TRACE("recovery cut after operation " + std::to_string(cut));
      const std::shared_ptr<SimulatedDevice> copy = device.process_crash();
      copy->crash_after_operations(cut);
      TracedStore recovering = TracedStore::resume(store, kSeed + 3);
      is_over = recovering.try_open(copy).has_value();
      EXPECT_TRUE(is_over || copy->is_crashed());
      recovering.drop();
      ++figures_.second_cuts;
      for (const auto& choice : choices_of(copy->pending_writes(), 1, cut)) {
        const auto survivor = copy->survivor(choice);
        if (!seen.insert(survivor->fingerprint()).second) continue;
        if (!recover(store, *survivor, false)) return;
      }
    }
  }

  const Trace* trace_ = nullptr;
  Figures figures_;
};

TEST_F(Cuts, Put) {
  explore({.prepare = [](TracedStore& s) { s.put("a", 5000); },
           .run =
               [](TracedStore& s) {
                 s.put("b", 100);
                 s.put("c", 9000, true);
               }});
}

TEST_F(Cuts, Overwrite) {
  explore({.prepare = [](TracedStore& s) { s.put("a", 5000); },
           .run =
               [](TracedStore& s) {
                 s.put("a", 9000, true);
                 s.put("a", 10);
                 s.put("a", 0, true);
               }});
}

TEST_F(Cuts, Delete) {
  explore({.prepare =
               [](TracedStore& s) {
                 s.put("a", 5000);
                 s.put("d/b", 5000);
               },
           .run =
               [](TracedStore& s) {
                 s.remove("a", true);
                 s.remove("d/b");
                 s.remove("d", true);
               }});
}

TEST_F(Cuts, PutMany) {
  explore({.prepare = [](TracedStore& s) { s.put("a", 5000); },
           .run =
               [](TracedStore& s) {
                 std::vector<TracedStore::Entry> entries;
                 for (const std::string key : {"a", "b", "c", "new/d", "e"})
                   entries.push_back({key, s.new_value(4096 + entries.size() * 100)});
                 s.put(entries, true);
                 s.put(entries);
               }});
}

TEST_F(Cuts, PutDeletePutOfOneKey) {
  explore({.run = [](TracedStore& s) {
    s.put("a", 5000);
    s.remove("a");
    s.put("a", 6000);
    s.flush();
    s.remove("a");
    s.put("a", 7000, true);
  }});
}

TEST_F(Cuts, RenameOverAnExistingKey) {
  explore({.prepare =
               [](TracedStore& s) {
                 s.put("a", 5000);
                 s.put("b", 6000);
                 s.put("c", 7000);
               },
           .run =
               [](TracedStore& s) {
                 s.rename("a", "b", true);
                 s.rename("b", "c");
                 s.put("a", 100, true);
               }});
}

TEST_F(Cuts, RenameOfADirectory) {
  explore({.prepare =
               [](TracedStore& s) {
                 s.put("d/a", 5000);
                 s.put("d/sub/b", 6000);
                 s.make_directory("empty");
               },
           .run =
               [](TracedStore& s) {
                 s.rename("d", "empty", true);
                 s.put("empty/sub/c", 100);
                 s.rename("empty/sub", "d", true);
               }});
}

TEST_F(Cuts, AFileThatReplacesAnotherBeforeItsFirstCommit) {
  explore({.prepare = [](TracedStore& s) { s.put("a", 5000); },
           .run =
               [](TracedStore& s) {
                 const NodeId node = s.replace_by_new_file("a");
                 s.checkpoint();
                 s.commit_new_file("a", node, s.new_value(6000), true);
               }});
}

TEST_F(Cuts, LargeValueInPieces) {
  explore({.prepare = [](TracedStore& s) { s.put("a", 200'000); },
           .run =
               [](TracedStore& s) {
                 s.put_in_pieces("a", 300'000, true);
                 s.put_in_pieces("b", 300'000);
                 s.flush();
               }});
}

TEST_F(Cuts, PartialRewrite) {
  explore({.prepare = [](TracedStore& s) { s.put("a", 300'000); },
           .run =
               [](TracedStore& s) {
                 s.patch("a", 100, true);
                 s.patch("a", 100);
                 s.flush();
               }});
}

TEST_F(Cuts, JournalWrap) {
  explore(
      {.prepare =
           [](TracedStore& s) {
             s.put("a", 5000);
             s.advance_journal(s.volume().geometry().journal_size_bytes - 4 * kBlockSizeBytes);
             s.checkpoint();
           },
       .run =
           [](TracedStore& s) {
             for (const std::size_t size : {100, 5000, 200}) s.put("a", size);
             std::vector<TracedStore::Entry> entries;  // a block that does not fit before the end
             for (int i = 0; i < 30; ++i)
               entries.push_back({std::string(200, 'n') + std::to_string(i), s.new_value(10)});
             s.put(entries, true);
             s.put("b", 100, true);
           }});
}

// The new checkpoint's journal lies between blocks of earlier epochs and laps.
TEST_F(Cuts, CheckpointSwitch) {
  explore({.prepare =
               [](TracedStore& s) {
                 for (int life = 0; life < 3; ++life) {
                   for (int i = 0; i < 4; ++i) s.put("a" + std::to_string(i), 3000, true);
                   s.open(s.device().survivor(1, CrashMode::kAll));
                 }
                 s.put("b", 5000);
               },
           .run =
               [](TracedStore& s) {
                 s.put("a0", 100);
                 s.checkpoint();
                 s.remove("a1");
                 s.put("a2", 200);
                 s.checkpoint();
                 s.put("a3", 300, true);
               }});
}

// So full that each value takes the slot of one that was just replaced or removed.
TEST_F(Cuts, SlotReuse) {
  explore({.slot_size_bytes = 256 * kKiB,
           .prepare =
               [](TracedStore& s) {
                 for (const char* key : {"a", "b", "c"}) s.put(key, 16'000, true);
                 s.fill(1);
               },
           .run =
               [](TracedStore& s) {
                 s.put("a", 17'000);
                 s.put("b", 18'000);
                 s.remove("c");
                 s.put("d", 19'000);
                 s.put("a", 15'000);
                 s.checkpoint();
                 s.put("b", 14'000, true);
               },
           .may_be_refused = true});
}

TEST_F(Cuts, Quarantine) {
  explore({.prepare = [](TracedStore& s) { s.put("a", 5000); },
           .arm =
               [](TracedStore& s) {
                 const auto& geometry = s.volume().geometry();
                 s.device().add_fault({.kind = OperationKind::kWrite,
                                       .times = 2,
                                       .offset_bytes = geometry.slots_offset_bytes,
                                       .size_bytes = geometry.size_bytes / 2});
               },
           .run =
               [](TracedStore& s) {
                 s.put("b", 5000, true);
                 s.put("a", 6000, true);
                 s.checkpoint();
               }});
}

TEST_F(Cuts, NoSpaceInTheStoreAndBelowIt) {
  explore({.slot_size_bytes = 256 * kKiB,
           .prepare =
               [](TracedStore& s) {
                 s.put("a", 9000);
                 s.fill(2);
               },
           .arm = [](TracedStore& s) { s.device().set_thin_budget(10 * kBlockSizeBytes); },
           .run =
               [](TracedStore& s) {
                 s.put("b", 900'000, true);
                 s.put("c", 30'000);
                 s.put("a", 30'000);
                 s.remove("a");
                 s.put("d", 20'000, true);
               },
           .may_be_refused = true});
}

TEST_F(Cuts, AJournalThatGrowsUntilACheckpointIsForced) {
  explore({.prepare = [](TracedStore& s) { s.put("a", 5000); },
           .arm =
               [](TracedStore& s) {
                 s.advance_journal(s.volume().inspector().journal().head_offset_bytes +
                                   s.volume().geometry().journal_size_bytes / 2 -
                                   3 * kBlockSizeBytes);
               },
           .run =
               [](TracedStore& s) {
                 const std::uint64_t before = stat_of(s.volume(), "checkpoints");
                 for (const std::size_t size : {100, 5000, 200, 6000, 300}) s.put("a", size);
                 if (!s.device().is_crashed()) {
                   EXPECT_GT(stat_of(s.volume(), "checkpoints"), before);
                 }
                 s.put("b", 100, true);
               }});
}

// The first operation since a clean opening, whichever it is.
TEST_F(Cuts, OneOperationSinceACleanOpening) {
  const std::vector<Step> steps{
      [](TracedStore& s) { s.put("new", 5000); },
      [](TracedStore& s) { s.put("a", 5000); },
      [](TracedStore& s) { s.put("dir/new", 0); },
      [](TracedStore& s) { s.patch("a", 100); },
      [](TracedStore& s) { s.put_in_pieces("a", 140'000); },
      [](TracedStore& s) { s.remove("a"); },
      [](TracedStore& s) { s.remove("empty"); },
      [](TracedStore& s) { s.rename("a", "b"); },
      [](TracedStore& s) { s.rename("dir", "empty"); },
      [](TracedStore& s) { s.exchange("a", "dir"); },
      [](TracedStore& s) { s.make_directory("more"); },
      [](TracedStore& s) {
        s.commit_new_file("a", s.replace_by_new_file("a"), s.new_value(9), false);
      },
      [](TracedStore& s) { s.checkpoint(); },
      [](TracedStore& s) { s.close(); },
  };
  for (std::size_t i = 0; i < steps.size() && !HasFailure(); ++i) {
    SCOPED_TRACE("operation " + std::to_string(i));
    explore({.prepare =
                 [](TracedStore& s) {
                   for (const char* key : {"a", "b", "dir/c"}) s.put(key, 5000);
                   s.make_directory("empty");
                 },
             .run =
                 [&](TracedStore& s) {
                   steps[i](s);
                   if (i + 1 < steps.size()) s.flush();
                 },
             .starts_clean = true});
  }
}

TEST_F(Cuts, CloseAndOpen) {
  explore({.prepare = [](TracedStore& s) { s.put("a", 5000); },
           .run =
               [](TracedStore& s) {
                 s.put("b", 100);
                 s.close();
               }});
}

}  // namespace
}  // namespace kvslot::testing
