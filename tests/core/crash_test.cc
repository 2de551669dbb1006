// Random histories on a device that loses power at a random point. What comes back must be the
// state after some prefix of the history, and hold everything that was acknowledged as durable.
//
// KVSLOT_CRASH_SEED and KVSLOT_CRASH_ROUNDS replay or extend the rounds.
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/engine.h"
#include "tests/support/model_store.h"

namespace kvslot::testing {
namespace {

constexpr std::uint64_t kDeviceSizeBytes = 16 * kMiB;  // a journal of 1 MiB, which wraps
constexpr std::size_t kFilesMax = 40;
constexpr const char* kBallast = "z";  // a directory that fills most of a crowded device

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// A volume, the model of it, and the models after each operation since the last crash.
class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed) {
    SimulatedDeviceOptions options;
    options.seed = seed;
    options.shuffles_batches = one_in(2);
    const std::uint32_t slot_size = one_in(3) ? 16384 : 4096;
    states_.emplace_back();
    open(make_device(kDeviceSizeBytes, slot_size, options));
    crowded_ = one_in(3);
    if (crowded_) put_ballast();
  }

  [[nodiscard]] Volume& volume() { return *volume_; }
  [[nodiscard]] std::uint64_t random(std::uint64_t below) { return random_() % below; }
  [[nodiscard]] bool one_in(std::uint64_t n) { return random(n) == 0; }
  [[nodiscard]] bool is_crashed() const { return device_->is_crashed(); }

  // Operations until `count` of them are done or the device has vanished.
  void operate(std::size_t count) {
    for (std::size_t i = 0; i < count && !is_crashed(); ++i) operate_once();
  }
  void crash_soon() { device_->crash_after_operations(random(one_in(3) ? 400 : 60)); }

  // Loses power, perhaps again while recovering, and compares. False: the test has failed.
  bool crash_and_compare() {
    auto survivor = lose_power();
    while (one_in(3)) {
      // Whether or not this opening went through: nothing new was acknowledged.
      survivor->crash_after_operations(random(40));
      volume_.reset();
      device_ = std::move(survivor);
      if (auto volume = Volume::open(std::make_unique<BorrowedDevice>(device_), options())) {
        volume_ = std::move(*volume);
      } else {
        EXPECT_TRUE(is_crashed()) << volume.error().step;
      }
      survivor = lose_power();
    }
    return open(std::move(survivor)) && compare();
  }

  // Closes, opens what is durable: exactly the last state must be there.
  bool close_and_compare() {
    const auto closed = volume_->close();
    EXPECT_TRUE(closed) << closed.error().step;
    durable_ = states_.size() - 1;
    return closed && open(device_->survivor(random_(), CrashMode::kNone)) && compare();
  }

 private:
  [[nodiscard]] VolumeOptions options() { return {.seed = random_() | 1}; }
  // A crowded device has no room for some values.
  [[nodiscard]] bool is_refused(const Result<void>& result) const {
    return crowded_ && !result && result.error().code == Errc::kNoSpace;
  }
  [[nodiscard]] const ModelStore& model() const { return states_.back(); }

  bool open(std::unique_ptr<SimulatedDevice> device) {
    volume_.reset();
    device_ = std::move(device);
    auto volume = Volume::open(std::make_unique<BorrowedDevice>(device_), options());
    EXPECT_TRUE(volume) << "opening what the crash left: " << volume.error().step;
    if (!volume) return false;
    volume_ = std::move(*volume);
    return true;
  }

  std::unique_ptr<SimulatedDevice> lose_power() {
    constexpr CrashMode kModes[] = {CrashMode::kNone, CrashMode::kAll, CrashMode::kRandom,
                                    CrashMode::kRandom, CrashMode::kPrefix};
    if (one_in(6) && !device_->is_crashed()) return device_->process_crash();
    return device_->survivor(random_(), kModes[random(std::size(kModes))]);
  }

  bool compare() {
    const auto found = ModelStore::read_from(*volume_);
    if (!found) return false;
    expect_slots_accounted(*volume_);
    for (std::size_t i = states_.size(); i-- > durable_;) {
      if (!(states_[i] == *found)) continue;
      states_ = {*found};
      durable_ = 0;
      return true;
    }
    ADD_FAILURE() << "what came back is no state between operation " << durable_ << " ("
                  << states_[durable_].difference(*found) << ") and " << states_.size() - 1 << " ("
                  << states_.back().difference(*found) << ")";
    return false;
  }

  void put_ballast();
  void operate_once();
  void put_some();
  void patch();
  void remove_one();
  void rename_one();
  void exchange_two();
  void make_directory();
  void replace_by_new_file();

  // After an operation: the state it leads to, and whether that is durable now.
  void record(ModelStore next, bool durable) {
    states_.push_back(std::move(next));
    if (durable) durable_ = states_.size() - 1;
  }
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
  // The directory and name of a key, as the volume wants them.
  std::pair<NodeId, std::string> split(const std::string& key) {
    const std::size_t slash = key.rfind('/');
    if (slash == std::string::npos) return {NodeId::kRoot, key};
    const auto directory = volume_->find(key.substr(0, slash));
    EXPECT_TRUE(directory) << key;
    return {directory ? directory->node : NodeId::kRoot, key.substr(slash + 1)};
  }
  ModelStore::Value some_value() {
    constexpr std::size_t kSizes[] = {0, 1, 100, 4096, 5000, 30'000, 140'000};
    return std::make_shared<const std::string>(
        value_of(random_(), kSizes[random(std::size(kSizes))] + random(3)));
  }

  std::mt19937_64 random_;
  std::shared_ptr<SimulatedDevice> device_;
  std::unique_ptr<Volume> volume_;
  std::vector<ModelStore> states_;
  bool crowded_ = false;
  std::size_t durable_ = 0;  // the first state that may come back
};

// So much that slots are soon used again, and sometimes there are none.
void History::put_ballast() {
  ModelStore next = model();
  for (int i = 0; i < 6; ++i) {
    const std::string key = std::string(kBallast) + '/' + std::to_string(i);
    const auto value = std::make_shared<const std::string>(value_of(random_(), 2 * kMiB));
    const auto stored = put_key(*volume_, key, *value);
    EXPECT_TRUE(stored) << stored.error().step;
    next.put(key, value);
  }
  record(std::move(next), volume_->flush().has_value());
}

void History::operate_once() {
  const std::uint64_t kind = random(16);
  if (kind < 5) {
    put_some();
  } else if (kind < 6) {
    patch();
  } else if (kind < 8) {
    remove_one();
  } else if (kind < 10) {
    rename_one();
  } else if (kind < 11) {
    exchange_two();
  } else if (kind < 12) {
    make_directory();
  } else if (kind < 14) {
    replace_by_new_file();
  } else if (kind < 15) {
    record(model(), volume_->flush().has_value());
  } else {
    record(model(), one_in(3) && volume_->checkpoint().has_value());
  }
}

void History::put_some() {
  ModelStore next = model();
  std::vector<std::string> keys;
  std::vector<ModelStore::Value> values;
  const std::size_t count = 1 + random(one_in(4) ? 12 : 3);
  for (std::size_t i = 0; i < count; ++i) {
    std::string key = next.files().size() >= kFilesMax ? some_file() : some_key();
    // A directory that may be missing; a put that finds no space would leave it behind.
    if (!crowded_ && one_in(10)) key += "_in/" + some_name();
    bool possible = !key.empty() && !next.is_directory(key);
    for (std::size_t slash = key.find('/'); slash != std::string::npos;
         slash = key.find('/', slash + 1))
      possible &= !next.contains(key.substr(0, slash)) || next.is_directory(key.substr(0, slash));
    if (!possible) continue;
    keys.push_back(key);
    values.push_back(some_value());
    next.put(key, values.back());
  }
  std::vector<ContentChange> changes;
  for (std::size_t i = 0; i < keys.size(); ++i)
    changes.push_back(change_for_put(*volume_, keys[i], bytes_of(*values[i])));
  const std::uint64_t sequence = volume_->commit(changes);
  ModelStore with_space = model();
  bool succeeded = true;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (is_refused(changes[i].result)) continue;
    with_space.put(keys[i], values[i]);
    succeeded &= changes[i].result.has_value();
    EXPECT_TRUE(changes[i].result || is_crashed())
        << keys[i] << ": " << changes[i].result.error().step;
  }
  // In a crash it is unknown which keys were refused before anything was written.
  if (is_crashed()) record(std::move(next), false);
  const bool durable = one_in(2) && volume_->flush_until(sequence) && succeeded;
  record(std::move(with_space), durable);
}

// Rewrites the first window of a file in place, as a mounted store does.
void History::patch() {
  const std::string key = some_file();
  if (key.empty()) return;
  ModelStore next = model();
  std::string value = next.value(key);
  const std::size_t window = volume_->geometry().window_size_bytes();
  const std::string front =
      value_of(random_(), std::min(std::max<std::size_t>(value.size(), 10), window));
  value.replace(0, front.size(), front);
  ContentChange change;
  change.node = volume_->find(key)->node;
  change.size_bytes = value.size();
  WindowWrite write{.window = 0,
                    .size_bytes = static_cast<std::uint32_t>(front.size()),
                    .data = Buffer::from_heap(front.size())};
  std::memcpy(write.data.data(), front.data(), front.size());
  change.writes.push_back(std::move(write));
  const std::uint64_t sequence = volume_->commit({&change, 1});
  if (is_refused(change.result) && !is_crashed()) return;
  EXPECT_TRUE(change.result || is_crashed()) << change.result.error().step;
  next.put(key, std::make_shared<const std::string>(value));
  record(std::move(next), change.result && one_in(3) && volume_->flush_until(sequence));
}

void History::remove_one() {
  const auto directories = some_directories();
  const bool of_directory = one_in(4) && !directories.empty();
  const std::string key = of_directory ? directories[random(directories.size())] : some_file();
  if (key.empty() || (of_directory && !model().is_empty(key))) return;
  const auto [parent, name] = split(key);
  const auto removed = volume_->remove(
      parent, name, of_directory ? RemoveKind::kDirectory : RemoveKind::kNotDirectory);
  EXPECT_TRUE(removed || is_crashed()) << key << ": " << removed.error().step;
  if (!removed) return;
  ModelStore next = model();
  next.remove(key);
  record(std::move(next), one_in(4) && volume_->flush());
}

void History::rename_one() {
  const auto directories = some_directories();
  const bool of_directory = one_in(3) && !directories.empty();
  const std::string from = of_directory ? directories[random(directories.size())] : some_file();
  const std::string to = one_in(2) && !of_directory ? some_file() : some_key();
  if (from.empty() || to.empty() || (to + '/').starts_with(from + '/')) return;
  if (model().contains(to) && model().is_directory(to) != of_directory) return;
  if (of_directory && model().contains(to) && !model().is_empty(to)) return;
  const auto [from_parent, from_name] = split(from);
  const auto [to_parent, to_name] = split(to);
  const auto renamed =
      volume_->rename(from_parent, from_name, to_parent, to_name, RenameMode::kReplace);
  EXPECT_TRUE(renamed || is_crashed()) << from << " to " << to << ": " << renamed.error().step;
  if (!renamed) return;
  ModelStore next = model();
  next.rename(from, to);
  record(std::move(next), one_in(4) && volume_->flush());
}

void History::exchange_two() {
  const std::string a = some_file(), b = some_file();
  if (a.empty() || a == b) return;
  const auto [a_parent, a_name] = split(a);
  const auto [b_parent, b_name] = split(b);
  const auto renamed = volume_->rename(a_parent, a_name, b_parent, b_name, RenameMode::kExchange);
  EXPECT_TRUE(renamed || is_crashed()) << a << " with " << b;
  if (!renamed) return;
  ModelStore next = model();
  next.exchange(a, b);
  record(std::move(next), false);
}

void History::make_directory() {
  const std::string key = some_key();
  if (model().contains(key) || model().directories().size() >= 8) return;
  const auto [parent, name] = split(key);
  const auto made = volume_->create(parent, name, NodeKind::kDirectory, {.mode = 0755});
  EXPECT_TRUE(made || is_crashed()) << key;
  if (!made) return;
  ModelStore next = model();
  next.make_directory(key);
  record(std::move(next), one_in(4) && volume_->flush());
}

// Writes a new file beside an old one, renames it over the old one, and only then commits it: a
// crash before the commit leaves the old value.
void History::replace_by_new_file() {
  const std::string key = some_file();
  if (key.empty()) return;
  const auto [parent, name] = split(key);
  const auto made = volume_->create(NodeId::kRoot, "new", NodeKind::kFile, {});
  if (!made) return;
  if (!volume_->rename(NodeId::kRoot, "new", parent, name, RenameMode::kReplace)) return;
  if (one_in(4)) static_cast<void>(volume_->checkpoint());
  if (one_in(4)) static_cast<void>(volume_->flush());
  ModelStore next = model();
  if (one_in(4)) {
    const auto removed = volume_->remove(parent, name, RemoveKind::kNotDirectory);
    if (!removed) return;
    next.remove(key);
    return record(std::move(next), false);
  }
  const ModelStore::Value value = some_value();
  ContentChange change = change_for_put(*volume_, {}, bytes_of(*value));
  change.node = made->node;
  const std::uint64_t sequence = volume_->commit({&change, 1});
  if (is_refused(change.result) && !is_crashed()) {
    // The new file stays without content, and the old one behind it: gone when that is removed.
    const auto removed = volume_->remove(parent, name, RemoveKind::kNotDirectory);
    EXPECT_TRUE(removed || is_crashed()) << removed.error().step;
    next.remove(key);
    return record(std::move(next), false);
  }
  EXPECT_TRUE(change.result || is_crashed()) << change.result.error().step;
  next.put(key, value);
  record(std::move(next), change.result && one_in(3) && volume_->flush_until(sequence));
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
