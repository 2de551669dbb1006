#include "tests/support/traced_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "core/put_changes.h"
#include "tests/support/engine.h"

namespace kvslot::testing {

WallClock ticking_clock() {
  return [ticks = TimestampNs{1'000'000'000}]() mutable { return ticks += 1'000'000'000; };
}

TracedStore TracedStore::resume(const TracedStore& other, std::uint64_t seed) {
  TracedStore store(seed);
  store.value_seed_ = other.value_seed_;
  store.states_ = other.states_;
  store.durable_ = other.durable_;
  return store;
}

Result<void> TracedStore::try_open(std::shared_ptr<SimulatedDevice> device) {
  volume_.reset();
  device_ = std::move(device);
  auto volume = Volume::open(std::make_unique<BorrowedDevice>(device_),
                             {.seed = seed_, .clock = ticking_clock()});
  if (!volume) return fail(volume);
  volume_ = std::move(*volume);
  return {};
}

bool TracedStore::open(std::shared_ptr<SimulatedDevice> device) {
  const auto opened = try_open(std::move(device));
  EXPECT_TRUE(opened) << "opening what is on the device: " << opened.error().step;
  return opened.has_value();
}

bool TracedStore::is_stopped() const {
  return device_->is_crashed() || volume_ == nullptr || volume_->is_read_only();
}

bool TracedStore::expect_allowed(const Result<void>& result, const std::string& what) {
  if (result) return true;
  const bool allowed = device_->is_crashed() || (tolerated_ && tolerated_(what, result.error()));
  EXPECT_TRUE(allowed) << what << ": " << result.error().step;
  return false;
}

void TracedStore::record(ModelStore next, bool durable) {
  states_.push_back(std::move(next));
  if (durable) durable_ = states_.size() - 1;
}

bool TracedStore::flush_to(bool durable, std::uint64_t sequence) {
  return durable && expect_allowed(volume_->flush_until(sequence), "flush");
}

std::pair<NodeId, std::string> TracedStore::split(const std::string& key) {
  const std::size_t slash = key.rfind('/');
  if (slash == std::string::npos) return {NodeId::kRoot, key};
  const auto directory = volume_->find(key.substr(0, slash));
  EXPECT_TRUE(directory) << key;
  return {directory ? directory->node : NodeId::kRoot, key.substr(slash + 1)};
}

ModelStore::Value TracedStore::new_value(std::size_t size_bytes) {
  return std::make_shared<const std::string>(
      value_of(seed_ * 1'000'003 + ++value_seed_, size_bytes));
}

// ---- Contents

void TracedStore::put(const std::vector<Entry>& entries, bool durable) {
  const bool was_stopped = is_stopped();
  std::vector<ContentChange> changes;
  for (const Entry& entry : entries)
    changes.push_back(change_for_put(*volume_, entry.key, bytes_of(*entry.value)));
  const std::uint64_t sequence = volume_->commit(changes);
  ModelStore stored = model();
  std::vector<Entry> uncertain;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (expect_allowed(changes[i].result, "put " + entries[i].key)) {
      stored.put(entries[i].key, entries[i].value);
    } else if (changes[i].result.error().code != Errc::kNoSpace) {
      uncertain.push_back(entries[i]);
    }
  }
  if (!was_stopped && is_stopped()) record_subsets(uncertain);
  record(std::move(stored), flush_to(durable, sequence));
}

// When the store stops, nobody knows which of the last batch are on the device: none, or those
// whose values could be written.
void TracedStore::record_subsets(const std::vector<Entry>& entries) {
  const ModelStore before = model();
  const std::size_t varied = std::min<std::size_t>(entries.size(), 3);
  for (std::size_t subset = 1; subset < std::size_t{1} << varied; ++subset) {
    ModelStore next = before;
    for (std::size_t i = 0; i < entries.size(); ++i)
      if (i >= varied || (subset >> i & 1) != 0) next.put(entries[i].key, entries[i].value);
    record(std::move(next), false);
  }
}

void TracedStore::put(const std::string& key, std::size_t size_bytes, bool durable) {
  put({{key, new_value(size_bytes)}}, durable);
}

void TracedStore::put_in_pieces(const std::string& key, std::size_t size_bytes, bool durable) {
  const bool was_stopped = is_stopped();
  const ModelStore::Value value = new_value(size_bytes);
  const std::size_t window_bytes = volume_->geometry().window_size_bytes();
  const bool is_new = !model().contains(key);
  const auto [parent, name] = split(key);
  const auto info = is_new ? volume_->create(parent, name, NodeKind::kFile, {}, {}, true)
                           : volume_->find_and_hold(key);
  if (!expect_allowed(info ? Result<void>() : fail(info), "create " + key)) return;
  std::vector<PlacedWindow> placed;
  bool all_placed = true;
  for (std::size_t at = 0; at < size_bytes && all_placed; at += window_bytes) {
    const std::size_t bytes = std::min(window_bytes, size_bytes - at);
    ContentChange piece;
    piece.node = info->node;
    piece.place_only = true;
    piece.writes.push_back({static_cast<std::uint32_t>(at / window_bytes),
                            static_cast<std::uint32_t>(bytes), Buffer::from_heap(bytes)});
    std::memcpy(piece.writes[0].data.data(), value->data() + at, bytes);
    volume_->commit({&piece, 1});
    all_placed = expect_allowed(piece.result, "placing a piece of " + key);
    std::move(piece.placed.begin(), piece.placed.end(), std::back_inserter(placed));
  }
  ContentChange change;
  change.node = info->node;
  change.whole = true;
  change.size_bytes = size_bytes;
  bool stored = false;
  std::uint64_t sequence = 0;
  if (all_placed) {
    change.placed = placed;
    sequence = volume_->commit({&change, 1});
    stored = expect_allowed(change.result, "committing " + key);
  }
  if (!stored) {
    volume_->discard_placed(placed);
    if (is_new) static_cast<void>(volume_->remove(parent, name, RemoveKind::kNotDirectory));
  }
  ModelStore next = model();
  next.put(key, value);
  if (!stored && !was_stopped && is_stopped()) {
    const ModelStore before = model();
    record(std::move(next), false);
    next = before;
  }
  if (stored || is_stopped())
    record(stored ? std::move(next) : model(), flush_to(durable && stored, sequence));
  volume_->release(info->node);
}

void TracedStore::patch(const std::string& key, std::size_t size_bytes, bool durable) {
  const bool was_stopped = is_stopped();
  std::string value = model().value(key);
  const std::size_t window_bytes = volume_->geometry().window_size_bytes();
  // A window is replaced as a whole.
  const std::size_t front_bytes = std::min(std::max(value.size(), size_bytes), window_bytes);
  const ModelStore::Value front = new_value(front_bytes);
  value.replace(0, front_bytes, *front);
  ContentChange change;
  change.node = volume_->find(key)->node;
  change.size_bytes = value.size();
  change.writes.push_back({.window = 0,
                           .size_bytes = static_cast<std::uint32_t>(front_bytes),
                           .data = Buffer::from_heap(front_bytes)});
  std::memcpy(change.writes[0].data.data(), front->data(), front_bytes);
  const std::uint64_t sequence = volume_->commit({&change, 1});
  const bool stored = expect_allowed(change.result, "patch " + key);
  if (!stored && (was_stopped || !is_stopped())) return;
  ModelStore next = model();
  next.put(key, std::make_shared<const std::string>(std::move(value)));
  const ModelStore before = model();
  record(std::move(next), stored && flush_to(durable, sequence));
  if (!stored) record(before, false);
}

// ---- Names

void TracedStore::remove(const std::string& key, bool durable) {
  const bool of_directory = model().is_directory(key);
  const auto [parent, name] = split(key);
  const auto removed = volume_->remove(
      parent, name, of_directory ? RemoveKind::kDirectory : RemoveKind::kNotDirectory);
  if (!expect_allowed(removed, "remove " + key)) return;
  ModelStore next = model();
  next.remove(key);
  record(std::move(next), durable && expect_allowed(volume_->flush(), "flush"));
}

void TracedStore::rename(const std::string& from, const std::string& to, bool durable) {
  const auto [from_parent, from_name] = split(from);
  const auto [to_parent, to_name] = split(to);
  const auto renamed =
      volume_->rename(from_parent, from_name, to_parent, to_name, RenameMode::kReplace);
  if (!expect_allowed(renamed, "rename " + from + " to " + to)) return;
  ModelStore next = model();
  next.rename(from, to);
  record(std::move(next), durable && expect_allowed(volume_->flush(), "flush"));
}

void TracedStore::exchange(const std::string& a, const std::string& b) {
  const auto [a_parent, a_name] = split(a);
  const auto [b_parent, b_name] = split(b);
  const auto renamed = volume_->rename(a_parent, a_name, b_parent, b_name, RenameMode::kExchange);
  if (!expect_allowed(renamed, "exchange " + a + " with " + b)) return;
  ModelStore next = model();
  next.exchange(a, b);
  record(std::move(next), false);
}

void TracedStore::make_directory(const std::string& key, bool durable) {
  const auto [parent, name] = split(key);
  const auto made = volume_->create(parent, name, NodeKind::kDirectory, {.mode = 0755});
  if (!expect_allowed(made ? Result<void>() : fail(made), "mkdir " + key)) return;
  ModelStore next = model();
  next.make_directory(key);
  record(std::move(next), durable && expect_allowed(volume_->flush(), "flush"));
}

NodeId TracedStore::replace_by_new_file(const std::string& key) {
  const auto [parent, name] = split(key);
  const auto made = volume_->create(NodeId::kRoot, "new", NodeKind::kFile, {});
  if (!made) return NodeId::kNone;
  const auto renamed = volume_->rename(NodeId::kRoot, "new", parent, name, RenameMode::kReplace);
  return renamed ? made->node : NodeId::kNone;
}

void TracedStore::commit_new_file(const std::string& key, NodeId node, ModelStore::Value value,
                                  bool durable) {
  const bool was_stopped = is_stopped();
  ContentChange change = change_for_put(*volume_, {}, bytes_of(*value));
  change.node = node;
  const std::uint64_t sequence = volume_->commit({&change, 1});
  const bool stored = expect_allowed(change.result, "commit " + key);
  // The new file stays without content, and the old one behind it: gone when that is removed.
  if (!stored && !is_stopped()) return remove_new_file(key);
  ModelStore next = model();
  next.put(key, std::move(value));
  const ModelStore before = model();
  if (stored || !was_stopped) record(std::move(next), stored && flush_to(durable, sequence));
  if (!stored) record(before, false);
}

void TracedStore::remove_new_file(const std::string& key) {
  const auto [parent, name] = split(key);
  const auto removed = volume_->remove(parent, name, RemoveKind::kNotDirectory);
  if (!expect_allowed(removed, "remove " + key)) return;
  ModelStore next = model();
  next.remove(key);
  record(std::move(next), false);
}

// ---- The whole store

void TracedStore::flush() { record(model(), expect_allowed(volume_->flush(), "flush")); }

void TracedStore::checkpoint() {
  record(model(), expect_allowed(volume_->checkpoint(), "checkpoint"));
}

bool TracedStore::close() {
  const bool closed = expect_allowed(volume_->close(), "close");
  record(model(), closed);
  return closed;
}

void TracedStore::fill(std::uint64_t slots_left) {
  const std::uint64_t per_slot = volume_->geometry().blocks_per_slot();
  const auto has_room = [&] { return volume_->space().free_blocks / per_slot > slots_left; };
  for (int i = 0; has_room() && !::testing::Test::HasFailure(); ++i)
    put("ballast/" + std::to_string(i), 10);
  flush();
}

void TracedStore::advance_journal(std::uint64_t offset_bytes) {
  const auto head = [&] { return volume_->inspector().journal().head_offset_bytes; };
  while (head() < offset_bytes) {
    const std::uint64_t left = offset_bytes - head();
    const std::string pad(std::clamp<std::uint64_t>(left, 5000, 45'000) - 4900, 'p');
    const auto set = volume_->set_xattr(NodeId::kRoot, "user.pad", pad, Volume::XattrMode::kAny);
    if (!expect_allowed(set, "set_xattr") || !expect_allowed(volume_->flush(), "flush")) return;
  }
}

bool TracedStore::compare() {
  const auto found = ModelStore::read_from(*volume_);
  if (!found) return false;
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

bool TracedStore::compare_live() {
  const auto found = ModelStore::read_from(*volume_);
  if (!found) return false;
  EXPECT_EQ(model().difference(*found), "");
  return model() == *found;
}

}  // namespace kvslot::testing
