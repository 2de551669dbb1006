// Random histories on a device that loses power at a random point. What comes back must be the
// state after some prefix of the history, and hold everything that was acknowledged as durable.
//
// KVSLOT_CRASH_SEED and KVSLOT_CRASH_ROUNDS replay or extend the rounds.
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <cerrno>
#include <random>
#include <string>
#include <vector>

#include "tests/support/check_report.h"
#include "tests/support/engine.h"
#include "tests/support/environment.h"
#include "tests/support/traced_store.h"

namespace kvslot::testing {
namespace {

constexpr std::uint64_t kDeviceSizeBytes = 16 * kMiB;  // a journal of 1 MiB, which wraps
constexpr std::size_t kFilesMax = 40;
constexpr const char* kBallast = "ballast";  // a directory that fills most of a crowded device

// What a history is like. All of it follows from the seed.
struct Form {
  std::uint32_t slot_size_bytes = 4096;
  bool is_crowded = false;   // hardly any room: slots are used again at once, and puts are refused
  bool starts_late = false;  // the journal is about to wrap
  std::uint64_t checkpoints = 48;  // one operation of so many is one
  bool has_faults = false;         // some transfers fail
};

Form form_of(std::mt19937_64& random) {
  const auto one_in = [&](std::uint64_t n) { return random() % n == 0; };
  Form form;
  // Of 256 KiB a device has 58 slots, of 1 MiB 13: that is crowded.
  constexpr std::uint32_t kSlotSizes[] = {4096, 4096, 4096, 16384, 65536, 262'144, 1 << 20};
  form.slot_size_bytes = kSlotSizes[random() % std::size(kSlotSizes)];
  form.is_crowded = one_in(form.slot_size_bytes < 65536 ? 8 : 2) || form.slot_size_bytes > 65536;
  form.starts_late = one_in(2);
  form.checkpoints = one_in(3) ? 5 : 48;
  form.has_faults = one_in(4);
  return form;
}

// Operations that the seed chooses, and power losses between and in them.
class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed), form_(form_of(random_)), store_(seed) {
    SimulatedDeviceOptions options;
    options.seed = seed;
    options.shuffles_batches = one_in(2);
    store_.open(make_device(kDeviceSizeBytes, form_.slot_size_bytes, options));
    store_.tolerate(
        [this](const std::string& what, const Error& error) { return is_expected(what, error); });
    if (form_.is_crowded) put_ballast();
    if (form_.starts_late)
      store_.advance_journal(store_.volume().geometry().journal_size_bytes -
                             (1 + random(20)) * kBlockSizeBytes);
  }

  [[nodiscard]] std::uint64_t random(std::uint64_t below) { return random_() % below; }
  [[nodiscard]] bool one_in(std::uint64_t n) { return random(n) == 0; }

  // Operations until `count` of them are done or nothing more can be written.
  void operate(std::size_t count) {
    for (std::size_t i = 0; i < count && !store_.is_stopped(); ++i) {
      if (form_.has_faults && one_in(8)) add_fault();
      operate_once();
    }
  }
  void crash_soon() { device().crash_after_operations(random(one_in(3) ? 400 : 60)); }

  // Loses power, perhaps again while recovering, and compares. False: the test has failed.
  bool crash_and_compare() {
    auto survivor = lose_power();
    while (one_in(3)) {
      // Whether or not this opening went through: nothing new was acknowledged.
      survivor->crash_after_operations(random(40));
      const auto opened = store_.try_open(std::move(survivor));
      EXPECT_TRUE(opened || device().is_crashed()) << opened.error().step;
      survivor = lose_power();
    }
    if (one_in(10)) expect_clean(*survivor);
    return store_.open(std::move(survivor)) && compare();
  }

  // Closes, opens what is durable: exactly the last state must be there.
  bool close_and_compare() {
    device().clear_faults();
    if (!store_.is_stopped() && !store_.close() && !form_.has_faults) return false;
    return store_.open(device().survivor(random_(), CrashMode::kNone)) && compare();
  }

 private:
  [[nodiscard]] SimulatedDevice& device() { return store_.device(); }
  [[nodiscard]] const ModelStore& model() const { return store_.model(); }
  // On a crowded device what takes space may be refused; nothing else may.
  [[nodiscard]] bool is_expected(const std::string& what, const Error& error) const {
    if (form_.has_faults) return true;
    const bool takes_space =
        what.starts_with("put") || what.starts_with("plac") || what.starts_with("commit") ||
        what.starts_with("patch") || what.starts_with("create") || what.starts_with("mkdir") ||
        what.starts_with("rename") || what.starts_with("exchange");  // to a longer name
    return form_.is_crowded && takes_space && error.code == Errc::kNoSpace;
  }

  std::shared_ptr<SimulatedDevice> lose_power() {
    constexpr CrashMode kModes[] = {CrashMode::kNone, CrashMode::kAll, CrashMode::kRandom,
                                    CrashMode::kRandom, CrashMode::kPrefix};
    // After a failed flush the cache shows what the device lost: the next opening writes it again.
    if (one_in(6)) return device().process_crash();
    return device().survivor(random_(), kModes[random(std::size(kModes))]);
  }
  bool compare() {
    expect_slots_accounted(store_.volume());
    return store_.compare();
  }
  // The check calls clean whatever a crash may leave.
  static void expect_clean(SimulatedDevice& left) {
    EXPECT_THAT(errors_of(check(left)), ::testing::IsEmpty());
  }

  void put_ballast();
  void add_fault();
  void operate_once();
  void put_some();
  void rename_one();
  void replace_by_new_file();

  [[nodiscard]] std::vector<std::string> some_directories() const {
    auto directories = model().directories();
    std::erase(directories, kBallast);
    return directories;
  }
  std::string some_name() { return "n" + std::to_string(random(30)); }
  std::string some_key() {
    const auto directories = some_directories();
    std::string key;
    if (!directories.empty() && one_in(2)) key = directories[random(directories.size())] + '/';
    return key + some_name();
  }
  std::string some_file() {
    auto files = model().files();
    std::erase_if(files, [](const std::string& key) { return key.starts_with(kBallast); });
    return files.empty() ? std::string() : files[random(files.size())];
  }
  std::size_t some_size() {
    constexpr std::size_t kSizes[] = {0, 1, 100, 4096, 5000, 30'000, 140'000};
    return kSizes[random(std::size(kSizes))] + random(3);
  }

  std::mt19937_64 random_;
  Form form_;
  TracedStore store_;
};

// So much that slots are soon used again, and sometimes there are none.
void History::put_ballast() {
  if (form_.slot_size_bytes >= 65536) return store_.fill(4 + random(8));
  for (int i = 0; i < 6; ++i) {
    static const auto value = std::make_shared<const std::string>(value_of(7, 2 * kMiB));
    store_.put({{std::string(kBallast) + '/' + std::to_string(i), value}}, i == 5);
  }
}

// A write that fails once or twice, or leaves its front; reads that come back wrong once.
void History::add_fault() {
  device().clear_faults();
  Fault fault{.kind = OperationKind::kWrite, .skip = random(6), .times = 1 + random(2)};
  if (one_in(3)) fault.error = ENOSPC;
  if (one_in(3)) fault.effect = WriteEffect::kTorn;
  if (one_in(4)) fault = {.kind = OperationKind::kRead, .times = 1, .error = 0, .flips_bit = true};
  if (one_in(20)) fault = {.kind = OperationKind::kFlush, .skip = random(3), .times = 1};
  device().add_fault(fault);
}

void History::operate_once() {
  if (one_in(form_.checkpoints)) return store_.checkpoint();
  const std::uint64_t kind = random(16);
  if (kind < 5) {
    put_some();
  } else if (kind < 6) {
    if (const auto key = some_file(); !key.empty()) store_.patch(key, 10, one_in(3));
  } else if (kind < 7) {
    const std::string key = one_in(2) ? some_file() : some_key();
    if (!key.empty() && !model().is_directory(key))
      store_.put_in_pieces(key, 100'000 + random(100'000), one_in(3));
  } else if (kind < 9) {
    const auto directories = some_directories();
    const bool of_directory = one_in(4) && !directories.empty();
    const std::string key = of_directory ? directories[random(directories.size())] : some_file();
    if (!key.empty() && (!of_directory || model().is_empty(key))) store_.remove(key, one_in(4));
  } else if (kind < 11) {
    rename_one();
  } else if (kind < 12) {
    const std::string a = some_file(), b = some_file();
    if (a != b) store_.exchange(a, b);
  } else if (kind < 13) {
    const std::string key = some_key();
    if (!model().contains(key) && model().directories().size() < 8)
      store_.make_directory(key, one_in(4));
  } else if (kind < 15) {
    replace_by_new_file();
  } else {
    store_.flush();
    if (one_in(2)) store_.volume().record_durable();
  }
}

void History::put_some() {
  ModelStore next = model();
  std::vector<TracedStore::Entry> entries;
  const std::size_t count = 1 + random(one_in(4) ? 12 : 3);
  for (std::size_t i = 0; i < count; ++i) {
    std::string key = next.files().size() >= kFilesMax ? some_file() : some_key();
    // A directory that may be missing; a put that fails would leave it behind.
    if (!form_.is_crowded && !form_.has_faults && one_in(10)) key += "_in/" + some_name();
    bool possible = !key.empty() && !next.is_directory(key);
    for (std::size_t slash = key.find('/'); slash != std::string::npos;
         slash = key.find('/', slash + 1))
      possible &= !next.contains(key.substr(0, slash)) || next.is_directory(key.substr(0, slash));
    for (const TracedStore::Entry& entry : entries) possible &= entry.key != key;
    if (!possible) continue;
    entries.push_back({key, store_.new_value(some_size())});
    next.put(key, entries.back().value);
  }
  store_.put(entries, one_in(2));
}

void History::rename_one() {
  const auto directories = some_directories();
  const bool of_directory = one_in(3) && !directories.empty();
  const std::string from = of_directory ? directories[random(directories.size())] : some_file();
  const std::string to = one_in(2) && !of_directory ? some_file() : some_key();
  if (from.empty() || to.empty() || (to + '/').starts_with(from + '/')) return;
  if (model().contains(to) && model().is_directory(to) != of_directory) return;
  if (of_directory && model().contains(to) && !model().is_empty(to)) return;
  store_.rename(from, to, one_in(4));
}

// Writes a new file beside an old one, renames it over the old one, and only then commits it: a
// crash before the commit leaves the old value.
void History::replace_by_new_file() {
  const std::string key = some_file();
  if (key.empty() || model().contains("new")) return;
  const NodeId node = store_.replace_by_new_file(key);
  if (node == NodeId::kNone) return;
  if (one_in(4)) store_.checkpoint();
  if (one_in(4)) store_.flush();
  if (one_in(4)) return store_.remove_new_file(key);
  store_.commit_new_file(key, node, store_.new_value(some_size()), one_in(3));
}

TEST(Crash, WhatComesBackIsAPrefixThatHoldsEveryAcknowledgedOperation) {
  const std::uint64_t first = number_from("KVSLOT_CRASH_SEED", 1);
  const std::uint64_t rounds = number_from("KVSLOT_CRASH_ROUNDS", 200);
  for (std::uint64_t seed = first; seed < first + rounds; ++seed) {
    SCOPED_TRACE("replay: KVSLOT_CRASH_ROUNDS=1 KVSLOT_CRASH_SEED=" + std::to_string(seed) +
                 " build/kvslot_core_tests --gtest_filter='Crash.*'");
    History history(seed);
    for (std::uint64_t life = 1 + history.random(3); life-- > 0;) {
      history.operate(history.random(60));
      history.crash_soon();
      history.operate(200);
      ASSERT_TRUE(history.crash_and_compare());
    }
    history.operate(history.random(30));
    ASSERT_TRUE(history.close_and_compare());
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace kvslot::testing
