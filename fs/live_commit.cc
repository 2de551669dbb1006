// Committing the live bytes of one file: what a change carries, and what its result means.
// Called by fs/publisher.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fs/live_content.h"

namespace kvslot {

std::vector<MissingBase> LiveContent::missing_base() const {
  std::vector<MissingBase> missing;
  for (const auto& [number, window] : windows_) {
    if (is_complete(number, window)) continue;
    MissingBase base{.window = number, .size_bytes = visible_below(number), .placed = std::nullopt};
    if (const auto placed = placed_.find(number); placed != placed_.end()) {
      base.placed = placed->second.at;
    }
    missing.push_back(std::move(base));
  }
  return missing;
}

void LiveContent::fill_base(std::uint32_t number, ConstBytes base) {
  const auto found = windows_.find(number);
  if (found == windows_.end() || found->second.hides_below) return;
  Window& window = found->second;
  const std::uint32_t visible = visible_below(number);
  const std::uint32_t used = std::max(window.used, visible);
  if (window.data.capacity() < used) {
    Buffer grown = volume_.buffers().take_or_heap(used);
    if (window.used > 0) std::memcpy(grown.data(), window.data.data(), window.used);
    set_buffer(window, std::move(grown));
  }
  for (const Range& gap : window.dirty.gaps(0, used)) {
    const std::uint64_t from_base = std::clamp<std::uint64_t>(
        std::min<std::uint64_t>(visible, base.size()), gap.begin, gap.end);
    std::byte* const data = window.data.data();
    if (from_base > gap.begin) {
      std::memcpy(data + gap.begin, base.data() + gap.begin, from_base - gap.begin);
    }
    if (gap.end > from_base) std::memset(data + from_base, 0, gap.end - from_base);
  }
  window.used = used;
  hide_below(number, window);
}

void LiveContent::add_holes(ContentChange& change) const {
  const std::uint64_t end = std::min(stored_size_bytes_, size_bytes_);
  std::uint64_t number = (base_size_bytes_ + window_size_bytes_ - 1) / window_size_bytes_;
  std::uint64_t data_end = 0;  // of a stretch that is stored
  for (; number * window_size_bytes_ < end; ++number) {
    if (number * window_size_bytes_ >= data_end) {
      const auto data = volume_.seek(node_, number * window_size_bytes_, true);
      if (!data || *data >= end) break;
      number = *data / window_size_bytes_;
      data_end = volume_.seek(node_, *data, false).value_or(end);
    }
    const auto window = static_cast<std::uint32_t>(number);
    if (windows_.contains(window) || placed_.contains(window)) continue;
    change.writes.push_back({.window = window, .size_bytes = 0, .data = {}});
  }
}

void LiveContent::fly(ContentChange& change) {
  for (const WindowWrite& write : change.writes) {
    in_flight_[write.window] = {.data = write.data.data(), .used = write.size_bytes};
  }
  in_flight_limit_ = size_bytes_;
  in_flight_slots_ = change.reserved_slots;
}

ContentChange LiveContent::begin_commit() {
  ContentChange change;
  change.node = node_;
  change.size_bytes = size_bytes_;
  change.whole = base_size_bytes_ == 0;
  for (auto& [number, window] : windows_) fill_base(number, {});  // gaps over nothing: zeros
  if (!change.whole) add_holes(change);
  for (auto& [number, window] : windows_) {
    change.reserved_slots += window.reserved_slots;
    if (window.used == 0 && change.whole) continue;
    buffered_bytes_ -= window.data.capacity();
    change.writes.push_back(
        {.window = number, .size_bytes = window.used, .data = std::move(window.data)});
  }
  for (auto& [number, placed] : placed_) {
    placed.in_flight = true;
    change.placed.push_back(placed.at);
  }
  windows_.clear();
  fly(change);
  in_flight_version_ = version_;
  return change;
}

ContentChange LiveContent::begin_spill(std::uint64_t size_bytes_max, bool all) {
  ContentChange change;
  change.node = node_;
  change.size_bytes = size_bytes_;
  change.place_only = true;
  std::uint64_t bytes = 0;
  for (auto at = windows_.begin(); at != windows_.end() && bytes < size_bytes_max;) {
    auto& [number, window] = *at;
    if (is_complete(number, window)) fill_base(number, {});  // gaps over nothing: zeros
    if (!window.hides_below || window.used == 0 || (!all && number == last_window_)) {
      ++at;
      continue;
    }
    bytes += window.used;
    change.reserved_slots += window.reserved_slots;
    buffered_bytes_ -= window.data.capacity();
    change.writes.push_back(
        {.window = number, .size_bytes = window.used, .data = std::move(window.data)});
    at = windows_.erase(at);
  }
  if (!change.writes.empty()) fly(change);
  return change;
}

void LiveContent::finish(ContentChange& change) {
  ++generation_;
  if (!change.result)
    finish_failed(change);
  else if (change.place_only)
    finish_spill(change);
  else
    finish_commit(change);
  in_flight_.clear();
  in_flight_version_.reset();
  in_flight_slots_ = 0;
}

void LiveContent::finish_commit(const ContentChange& change) {
  stored_size_bytes_ = change.size_bytes;
  base_size_bytes_ = std::min(in_flight_limit_, change.size_bytes);
  committed_version_ = *in_flight_version_;
  live_slots_ -= in_flight_slots_;
  for (auto at = placed_.begin(); at != placed_.end();) {
    if (!at->second.in_flight) {
      ++at;
      continue;
    }
    live_slots_ -= at->second.slots;
    at = placed_.erase(at);
  }
  if (const auto info = volume_.stat(node_)) stored_allocated_bytes_ = info->allocated_bytes;
}

void LiveContent::finish_spill(ContentChange& change) {
  live_slots_ -= in_flight_slots_;
  std::vector<PlacedWindow> superseded;
  for (PlacedWindow& window : change.placed) {
    const auto flight = in_flight(window.window);
    if (windows_.contains(window.window) || !flight || flight->used == 0) {
      superseded.push_back(std::move(window));
      continue;
    }
    const std::uint32_t slots = slots_for(flight->used);
    live_slots_ += slots;
    const std::uint32_t number = window.window;
    placed_[number] = {
        .at = std::move(window), .visible = flight->used, .slots = slots, .in_flight = false};
  }
  change.placed.clear();
  if (!superseded.empty()) volume_.discard_placed(superseded);
}

void LiveContent::finish_failed(ContentChange& change) {
  live_slots_ -= in_flight_slots_;
  for (WindowWrite& write : change.writes) {
    const auto flight = in_flight(write.window);
    if (!flight || start_of(write.window) >= in_flight_limit_) continue;
    const auto [found, is_new] = windows_.try_emplace(write.window);
    if (!is_new) continue;  // written again since, from a copy of this
    Window& window = found->second;
    window.hides_below = true;
    window.used = flight->used;
    set_buffer(window, std::move(write.data));
    const std::uint32_t slots = slots_for(window.used);
    if (slots > 0 && volume_.reserve_slots(slots)) set_slots(window, slots);
  }
  for (auto at = placed_.begin(); at != placed_.end();) {
    const auto [number, placed] = *at++;
    placed_[number].in_flight = false;
    const auto window = windows_.find(number);
    const bool hidden = window != windows_.end() && window->second.hides_below;
    if (hidden || placed.visible == 0) discard_placed(number);
  }
}

}  // namespace kvslot
