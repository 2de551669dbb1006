// Random interleavings of everything a volume does. Whenever the volume waits for its device, other
// operations run: names change while a commit is written, commits land in the middle of a
// checkpoint or a flush, slots are freed under a reader. After each step what is shown must be what
// a model says, and what power loss leaves must be it too.
//
// One thread does all of it, so a seed gives one schedule; what may run at a pause follows from the
// locks of core/ARCHITECTURE.md. KVSLOT_INTERLEAVING_SEED and _ROUNDS replay or extend the rounds.
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/put_changes.h"
#include "tests/support/check_report.h"
#include "tests/support/engine.h"
#include "tests/support/environment.h"
#include "tests/support/interleaving_device.h"
#include "tests/support/model_store.h"

namespace kvslot::testing {
namespace {

struct ModelFile {
  std::string content;
  bool is_stored = false;
};
using File = std::shared_ptr<ModelFile>;

class Interleaving {
 public:
  explicit Interleaving(std::uint64_t seed) : random_(seed) {
    const std::uint32_t slot_size = one_in(3) ? 16384 : 4096;
    device_ = make_device(64 * kMiB, slot_size, {.seed = seed, .shuffles_batches = one_in(2)});
    open();
    directories_ = {"p", "q"};
    for (const std::string& name : directories_) EXPECT_TRUE(make_directory(name)) << name;
  }

  void run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      operate();
      if (under_way_.depth() == 0 && journal_is_filling()) checkpoint();
    }
  }

  // Live, and after power loss; and the space is accounted for.
  void expect_equal() {
    expect_shown("live");
    is_quiet_ = true;
    for (const auto& [key, file] : files_)
      if (!file->is_stored) commit_file(key);
    for (auto& [node, file] : held_) volume_->release(node);
    held_.clear();
    discard_placed();
    ASSERT_TRUE(volume_->flush());
    expect_slots_accounted(*volume_);
    auto survivor = device_->survivor(random_(), CrashMode::kNone);
    expect_sound(*survivor);
    volume_.reset();
    device_ = device_->survivor(random_(), CrashMode::kNone);
    open();
    expect_shown("after power loss");
  }

 private:
  [[nodiscard]] std::uint64_t random(std::uint64_t below) { return random_() % below; }
  [[nodiscard]] bool one_in(std::uint64_t n) { return random(n) == 0; }

  void open() {
    auto volume = Volume::open(std::make_unique<InterleavingDevice>(
                                   device_, [this](const PausedCall& call) { pause(call); }),
                               {.inline_checkpoints = false, .seed = 7});
    ASSERT_TRUE(volume) << volume.error().step;
    volume_ = std::move(*volume);
  }

  // ---- Pauses

  using Operation = PausedOperations::Operation;
  using Scope = PausedOperations::Scope;

  void pause(const PausedCall& call) {
    if (is_quiet_ || volume_ == nullptr || under_way_.depth() == 0 || under_way_.depth() > 4)
      return;
    under_way_.note(call, volume_->geometry().slots_offset_bytes);
    if (one_in(150)) expect_sound_after_crash();
    for (std::uint64_t count = random(4); count > 0; --count) operate();
  }

  [[nodiscard]] bool journal_is_filling() const {
    const JournalInfo journal = volume_->inspector().journal();
    return journal.used_bytes > journal.size_bytes / 4;
  }
  // A commit that would wait for a checkpoint, or for slots, can only run where nothing is held.
  [[nodiscard]] bool may_commit() const {
    if (under_way_.depth() == 0) return true;
    const SpaceInfo space = volume_->space();
    return !under_way_.held().turn && !journal_is_filling() &&
           space.free_blocks > space.total_blocks / 2;
  }

  void operate() {
    const PausedOperations::Held now = under_way_.held();
    const std::uint64_t what = random(100);
    if (what < 22 && may_commit()) return commit();
    if (what < 27 && may_commit()) return place();
    if (what < 32 && may_commit()) return commit_placed();
    if (what < 40 && !now.flush) return flush();
    if (what < 44 && !now.turn && !now.flush && !now.checkpoint) return checkpoint();
    if (what < 62) return read();
    if (recorded_since_commit_ > 80) return;  // more would wait for a commit
    ++recorded_since_commit_;
    if (what < 70) return create();
    if (what < 77) return remove();
    if (what < 86) return rename();
    if (what < 90) return move_directory();
    if (what < 93) return hold();
    if (what < 96) return release();
    change_attributes();
  }

  // ---- Names

  std::string some_key() {
    std::string key = "f" + std::to_string(random(5));
    const std::uint64_t place = random(directories_.size() + 1);
    if (place == directories_.size()) return key;
    return *std::next(directories_.begin(), static_cast<std::ptrdiff_t>(place)) + "/" + key;
  }
  std::string some_file() {
    if (files_.empty()) return {};
    return std::next(files_.begin(), static_cast<std::ptrdiff_t>(random(files_.size())))->first;
  }
  struct Name {
    NodeId parent = NodeId::kRoot;
    std::string name;
  };
  Name name_of(const std::string& key) {
    const std::size_t slash = key.find('/');
    if (slash == std::string::npos) return {.name = key};
    const auto parent = volume_->find(key.substr(0, slash));
    EXPECT_TRUE(parent) << key;
    return {.parent = parent ? parent->node : NodeId::kNone, .name = key.substr(slash + 1)};
  }
  NodeId node_of(const std::string& key) {
    const auto info = volume_->find(key);
    EXPECT_TRUE(info) << key << " is not shown";
    return info ? info->node : NodeId::kNone;
  }
  bool make_directory(const std::string& name) {
    return volume_->create(NodeId::kRoot, name, NodeKind::kDirectory, {.mode = 0755}).has_value();
  }

  void create() {
    const std::string key = some_key();
    const Name at = name_of(key);
    const auto made = volume_->create(at.parent, at.name, NodeKind::kFile, {});
    EXPECT_EQ(made.has_value(), !files_.contains(key)) << key;
    if (made) files_[key] = std::make_shared<ModelFile>();
  }
  void remove() {
    const std::string key = some_key();
    const Name at = name_of(key);
    const auto removed = volume_->remove(at.parent, at.name, RemoveKind::kNotDirectory);
    EXPECT_EQ(removed.has_value(), files_.erase(key) == 1) << key;
  }
  void rename() {
    const std::string from = some_file();
    const std::string to = some_key();
    if (from.empty()) return;
    const Name a = name_of(from);
    const Name b = name_of(to);
    const bool exchanges = one_in(4) && files_.contains(to);
    const auto mode = exchanges ? RenameMode::kExchange : RenameMode::kReplace;
    EXPECT_TRUE(volume_->rename(a.parent, a.name, b.parent, b.name, mode)) << from << " " << to;
    if (from == to) return;
    if (exchanges) return files_.at(from).swap(files_.at(to));
    files_[to] = files_.at(from);
    files_.erase(from);
  }
  // A directory with all that is in it gets another name, perhaps one that an empty one has.
  void move_directory() {
    const std::string from =
        *std::next(directories_.begin(), static_cast<std::ptrdiff_t>(random(directories_.size())));
    const std::string to(1, static_cast<char>('p' + random(4)));
    const bool is_free = std::ranges::none_of(
        files_, [&](const auto& entry) { return entry.first.starts_with(to + "/"); });
    if (from == to) return;
    const auto moved =
        volume_->rename(NodeId::kRoot, from, NodeId::kRoot, to, RenameMode::kReplace);
    EXPECT_EQ(moved.has_value(), is_free) << from << " " << to;
    if (!moved) return;
    std::map<std::string, File> renamed;
    for (auto& [key, file] : files_)
      renamed[key.starts_with(from + "/") ? to + key.substr(from.size()) : key] = file;
    files_.swap(renamed);
    directories_.erase(from);
    directories_.insert(to);
    if (directories_.size() > 1) return;
    const std::string again = to == "s" ? "r" : "s";
    EXPECT_TRUE(make_directory(again));
    directories_.insert(again);
  }
  void hold() {
    const std::string key = some_file();
    if (key.empty() || held_.size() > 4) return;
    const auto info = volume_->find_and_hold(key);
    ASSERT_TRUE(info) << key;
    held_.emplace_back(info->node, files_.at(key));
  }
  void release() {
    if (held_.empty() || is_in_use(held_.back().first)) return;
    volume_->release(held_.back().first);
    held_.pop_back();
  }
  void change_attributes() {
    const std::string key = some_file();
    if (key.empty()) return;
    const NodeId node = node_of(key);
    AttributeChange change;
    change.mode = 0600 + static_cast<std::uint32_t>(random(64));
    EXPECT_TRUE(volume_->set_attributes(node, change));
    EXPECT_TRUE(
        volume_->set_xattr(node, "user.n", std::to_string(random(1000)), Volume::XattrMode::kAny));
  }

  // ---- Contents

  [[nodiscard]] std::uint32_t window_bytes() const {
    return volume_->geometry().window_size_bytes();
  }
  std::string new_content() {
    const std::size_t size = one_in(4) ? random(std::uint64_t{window_bytes()} * 3) : random(9000);
    contents_.insert(value_of(++values_, size));
    return value_of(values_, size);
  }
  WindowWrite window_write(std::uint32_t window, std::string_view bytes) {
    WindowWrite write{
        .window = window,
        .size_bytes = static_cast<std::uint32_t>(bytes.size()),
        .data = volume_->buffers().take_or_heap(std::max<std::size_t>(bytes.size(), 1))};
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(write.data.data()));
    return write;
  }

  struct Change {
    ContentChange change;
    File file;
    std::string key;
    std::string after;
    bool is_new = false;
  };
  // All of a file's bytes, or some windows of it, or only its length.
  Change change_of(NodeId node, const File& file) {
    Change made{.change = {}, .file = file, .key = {}, .after = {}};
    made.change.node = node;
    std::string after = new_content();
    made.change.whole = one_in(2);
    const std::string& before = file->content;
    const std::size_t cut =
        after.size() % window_bytes() == 0 ? SIZE_MAX : after.size() / window_bytes();
    for (std::size_t start = 0; start < after.size(); start += window_bytes()) {
      const std::size_t size = std::min<std::size_t>(window_bytes(), after.size() - start);
      const std::size_t window = start / window_bytes();
      const bool is_kept = !made.change.whole && window != cut && one_in(2);
      if (is_kept) {
        std::string kept = start < before.size() ? before.substr(start, size) : std::string();
        kept.resize(size, '\0');
        after.replace(start, size, kept);
      } else {
        made.change.writes.push_back(window_write(static_cast<std::uint32_t>(window),
                                                  std::string_view(after).substr(start, size)));
      }
    }
    made.change.size_bytes = after.size();
    contents_.insert(after);
    made.after = std::move(after);
    return made;
  }
  Change put_of(std::string key) {
    Change made{.change = {}, .file = {}, .key = std::move(key), .after = new_content()};
    made.is_new = !files_.contains(made.key);
    File& file = files_[made.key];
    if (made.is_new) file = std::make_shared<ModelFile>();
    made.file = file;
    return made;
  }

  void commit() {
    std::vector<Change> made;
    std::set<File> taken;
    for (std::uint64_t count = 1 + random(3); count > 0; --count) {
      const bool is_put = one_in(3);
      const std::string key = is_put ? some_key() : some_file();
      if (key.empty()) continue;
      const auto known = files_.find(key);
      if (known != files_.end() && taken.contains(known->second)) continue;
      made.push_back(is_put ? put_of(key) : change_of(node_of(key), known->second));
      taken.insert(made.back().file);
    }
    commit(made);
  }
  void commit_file(const std::string& key) {
    std::vector<Change> made;
    made.push_back(change_of(node_of(key), files_.at(key)));
    commit(made);
  }
  void commit(std::vector<Change>& made) {
    const Scope scope(under_way_, Operation::kCommit);
    recorded_since_commit_ = 0;
    std::vector<ContentChange> changes;
    for (Change& change : made) {
      changes.push_back(change.change.node != NodeId::kNone
                            ? std::move(change.change)
                            : change_for_put(*volume_, change.key, bytes_of(change.after)));
    }
    volume_->commit(changes);
    for (std::size_t i = 0; i < made.size(); ++i) {
      EXPECT_TRUE(changes[i].result) << changes[i].result.error().step;
      made[i].file->content = made[i].after;
      made[i].file->is_stored = true;
    }
  }

  // One window goes to the device ahead of its commit.
  struct Placed {
    NodeId node = NodeId::kNone;
    File file;
    PlacedWindow window;
    std::string bytes;
  };
  void place() {
    const std::string key = some_file();
    if (key.empty() || placed_.size() > 3) return;
    Placed placed{.file = files_.at(key), .window = {}, .bytes = {}};
    placed.node = node_of(key);
    volume_->hold(placed.node);
    placed.bytes = value_of(++values_, 1 + random(window_bytes()));
    ContentChange change;
    change.node = placed.node;
    change.place_only = true;
    change.writes.push_back(window_write(static_cast<std::uint32_t>(random(3)), placed.bytes));
    change.size_bytes =
        std::uint64_t{change.writes[0].window} * window_bytes() + placed.bytes.size();
    {
      const Scope scope(under_way_, Operation::kCommit);
      volume_->commit({&change, 1});
    }
    ASSERT_TRUE(change.result) << change.result.error().step;
    ASSERT_EQ(change.placed.size(), 1U);
    placed.window = std::move(change.placed[0]);
    placed_.push_back(std::move(placed));
  }
  void commit_placed() {
    if (placed_.empty()) return;
    Placed placed = std::move(placed_.back());
    placed_.pop_back();
    if (one_in(3)) return discard(placed);
    ContentChange change;
    change.node = placed.node;
    const std::size_t start = std::size_t{placed.window.window} * window_bytes();
    std::string after = placed.file->content.substr(0, start);
    after.resize(start, '\0');
    after += placed.bytes;
    change.size_bytes = after.size();
    change.placed.push_back(placed.window);
    contents_.insert(after);
    const bool is_linked = volume_->stat(placed.node)->linked;
    {
      const Scope scope(under_way_, Operation::kCommit);
      volume_->commit({&change, 1});
    }
    EXPECT_EQ(change.result.has_value(), is_linked);
    if (!change.result) return discard(placed);
    placed.file->content = std::move(after);
    placed.file->is_stored = true;
    volume_->release(placed.node);
  }
  void discard(const Placed& placed) {
    volume_->discard_placed({&placed.window, 1});
    volume_->release(placed.node);
  }
  void discard_placed() {
    for (const Placed& placed : placed_) discard(placed);
    placed_.clear();
  }
  [[nodiscard]] bool is_in_use(NodeId node) const {
    return std::ranges::count(reading_, node) != 0;
  }

  void read() {
    NodeId node = NodeId::kNone;
    File file;
    if (!held_.empty() && one_in(2)) {
      std::tie(node, file) = held_[random(held_.size())];
    } else {
      const std::string key = some_file();
      if (key.empty()) return;
      node = node_of(key);
      file = files_.at(key);
    }
    volume_->hold(node);
    reading_.push_back(node);
    // What it looks up is settled before the device is asked; what comes meanwhile is not seen.
    const std::string expected = file->content;
    Result<ReadView> view;
    {
      const Scope scope(under_way_, Operation::kRead);
      view = volume_->read(node, 0, SIZE_MAX);
    }
    ASSERT_TRUE(view) << view.error().step;
    EXPECT_TRUE(text_of(*view) == expected) << "a reader got bytes of another time";
    reading_.pop_back();
    volume_->release(node);
  }

  void flush() {
    const Scope scope(under_way_, Operation::kFlush);
    EXPECT_TRUE(volume_->flush_until(UINT64_MAX));
  }
  void checkpoint() {
    const Scope scope(under_way_, Operation::kCheckpoint);
    recorded_since_commit_ = 0;
    const auto done = volume_->checkpoint();
    EXPECT_TRUE(done) << done.error().step;
  }

  // ---- Comparing

  void expect_shown(const char* when) {
    ModelStore expected;
    for (const std::string& name : directories_) expected.make_directory(name);
    for (const auto& [key, file] : files_)
      expected.put(key, std::make_shared<const std::string>(file->content));
    const auto shown = ModelStore::read_from(*volume_);
    ASSERT_TRUE(shown);
    EXPECT_EQ(expected.difference(*shown), "") << when;
  }
  static void expect_sound(SimulatedDevice& device) {
    const CheckReport report = check(device);
    EXPECT_FALSE(report.damaged) << text_of(report);
  }
  // Power is lost right here: what is found holds whole values only.
  void expect_sound_after_crash() {
    const std::uint64_t seed = random_();
    expect_sound(*device_->survivor(seed, CrashMode::kRandom));
    const auto volume = Volume::open(device_->survivor(seed, CrashMode::kRandom), {.seed = 9});
    ASSERT_TRUE(volume) << volume.error().step;
    const auto found = ModelStore::read_from(**volume);
    ASSERT_TRUE(found);
    for (const std::string& key : found->files())
      EXPECT_TRUE(found->value(key).empty() || contents_.contains(found->value(key)))
          << key << " holds what nobody stored";
  }

  std::mt19937_64 random_;
  std::shared_ptr<SimulatedDevice> device_;
  std::unique_ptr<Volume> volume_;
  PausedOperations under_way_;
  bool is_quiet_ = false;
  int recorded_since_commit_ = 0;
  std::uint64_t values_ = 0;

  std::set<std::string> directories_;
  std::map<std::string, File> files_;
  std::vector<std::pair<NodeId, File>> held_;
  std::vector<NodeId> reading_;
  std::vector<Placed> placed_;
  std::set<std::string> contents_;  // that any file ever had, or was about to have
};

TEST(Interleaving, WhatIsShownAndWhatIsStoredFollowTheModel) {
  const std::uint64_t first = number_from("KVSLOT_INTERLEAVING_SEED", 1);
  const std::uint64_t rounds = number_from("KVSLOT_INTERLEAVING_ROUNDS", 25);
  for (std::uint64_t seed = first; seed < first + rounds; ++seed) {
    Interleaving interleaving(seed);
    interleaving.run(40);
    if (!HasFailure()) interleaving.expect_equal();
    ASSERT_FALSE(HasFailure()) << "replay: KVSLOT_INTERLEAVING_SEED=" << seed
                               << " KVSLOT_INTERLEAVING_ROUNDS=1 build/kvslot_core_tests"
                                  " --gtest_filter='Interleaving.*'";
  }
}

}  // namespace
}  // namespace kvslot::testing
