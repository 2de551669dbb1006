// Writing, cutting and reading the live bytes of one file. Committing them: live_commit.cc;
// space for later: live_reserve.cc.
#include "fs/live_content.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kvslot {

namespace {

constexpr std::size_t kBufferSizeBytesMin = 4096;

Buffer take_buffer(Volume& volume, std::size_t size_bytes, LiveContent::Memory memory) {
  const std::size_t rounded = std::max(kBufferSizeBytesMin, std::bit_ceil(size_bytes));
  return memory == LiveContent::Memory::kPoolOnly ? volume.buffers().take(rounded)
                                                  : volume.buffers().take_or_heap(rounded);
}

void copy_bytes(std::byte* target, const std::byte* source, std::size_t size_bytes) {
  if (size_bytes > 0) std::memcpy(target, source, size_bytes);
}

void clear_bytes(std::byte* target, std::size_t size_bytes) {
  if (size_bytes > 0) std::memset(target, 0, size_bytes);
}

}  // namespace

LiveContent::LiveContent(Volume& volume, NodeId node, std::uint64_t stored_size_bytes,
                         std::uint64_t allocated_bytes, bool is_stored)
    : volume_(volume),
      node_(node),
      window_size_bytes_(volume.geometry().window_size_bytes()),
      slot_size_bytes_(volume.geometry().slot_size_bytes),
      size_bytes_(stored_size_bytes),
      base_size_bytes_(stored_size_bytes),
      stored_size_bytes_(stored_size_bytes),
      stored_allocated_bytes_(allocated_bytes),
      version_(is_stored ? 0 : 1) {}

LiveContent::~LiveContent() {
  give_back_everything();
  give_slots(extra_slots_);
}

void LiveContent::give_back_everything() {
  std::uint32_t slots = 0;
  for (const auto& [number, window] : windows_) slots += window.reserved_slots;
  give_slots(slots);
  std::vector<PlacedWindow> abandoned;
  for (auto& [number, placed] : placed_) {
    if (!placed.in_flight) abandoned.push_back(std::move(placed.at));
  }
  if (!abandoned.empty()) volume_.discard_placed(abandoned);
}

void LiveContent::revert() {
  give_back_everything();
  windows_.clear();
  placed_.clear();
  buffered_bytes_ = 0;
  live_slots_ = 0;
  size_bytes_ = base_size_bytes_ = stored_size_bytes_;
  committed_version_ = ++version_;
  ++generation_;
}

bool LiveContent::is_plain() const {
  return windows_.empty() && in_flight_.empty() && placed_.empty() &&
         base_size_bytes_ == size_bytes_ && stored_size_bytes_ == size_bytes_;
}

std::uint64_t LiveContent::allocated_bytes() const {
  const std::uint64_t dense = std::uint64_t{slots_for(size_bytes_)} * slot_size_bytes_;
  const std::uint64_t stored = base_size_bytes_ > 0 ? stored_allocated_bytes_ : 0;
  return std::min(dense, stored + live_slots_ * slot_size_bytes_);
}

// ---- The layers under a window

std::uint32_t LiveContent::visible_below(std::uint32_t number) const {
  if (const auto placed = placed_.find(number); placed != placed_.end()) {
    return placed->second.visible;
  }
  const std::uint64_t start = start_of(number);
  if (base_size_bytes_ <= start) return 0;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(window_size_bytes_, base_size_bytes_ - start));
}

std::optional<LiveContent::InFlight> LiveContent::in_flight(std::uint32_t number) const {
  const auto found = in_flight_.find(number);
  if (found == in_flight_.end()) return std::nullopt;
  const std::uint64_t start = start_of(number);
  const std::uint64_t limit = in_flight_limit_ > start ? in_flight_limit_ - start : 0;
  InFlight result = found->second;
  result.used = static_cast<std::uint32_t>(std::min<std::uint64_t>(result.used, limit));
  return result;
}

bool LiveContent::is_complete(std::uint32_t number, const Window& window) const {
  if (window.hides_below) return true;
  return window.dirty.covers(0, visible_below(number));
}

std::uint32_t LiveContent::present_bytes(std::uint32_t number) const {
  if (const auto found = windows_.find(number); found != windows_.end()) {
    const Window& window = found->second;
    return window.hides_below ? window.used : std::max(window.used, visible_below(number));
  }
  if (const auto flight = in_flight(number)) return flight->used;
  return visible_below(number);
}

// ---- Slots and buffers

Result<void> LiveContent::take_slots(std::uint32_t count) {
  const std::uint32_t from_extra = std::min(count, extra_slots_);
  if (count > from_extra) {
    if (auto reserved = volume_.reserve_slots(count - from_extra); !reserved) return reserved;
  }
  extra_slots_ -= from_extra;
  return {};
}

void LiveContent::give_slots(std::uint32_t count) {
  if (count > 0) volume_.unreserve_slots(count);
}

void LiveContent::set_slots(Window& window, std::uint32_t slots) {
  live_slots_ += slots;
  live_slots_ -= window.reserved_slots;
  window.reserved_slots = slots;
}

void LiveContent::set_buffer(Window& window, Buffer buffer) {
  buffered_bytes_ += buffer.capacity();
  buffered_bytes_ -= window.data.capacity();
  window.data = std::move(buffer);
}

void LiveContent::hide_below(std::uint32_t number, Window& window) {
  window.hides_below = true;
  window.dirty.clear();
  discard_placed(number);
}

void LiveContent::discard_placed(std::uint32_t number) {
  const auto found = placed_.find(number);
  if (found == placed_.end() || found->second.in_flight) return;
  live_slots_ -= found->second.slots;
  volume_.discard_placed({&found->second.at, 1});
  placed_.erase(found);
  ++generation_;
}

// ---- Writing

Result<LiveContent::Step> LiveContent::plan_step(std::uint32_t number, std::uint32_t begin,
                                                 std::uint32_t end, Memory memory) {
  Step step{.window = number, .begin = begin, .end = end, .grown = {}};
  const auto found = windows_.find(number);
  const Window* window = found == windows_.end() ? nullptr : &found->second;
  const auto flight = window == nullptr ? in_flight(number) : std::nullopt;
  const bool hides = flight || (window != nullptr && window->hides_below);
  const std::uint32_t before = window != nullptr ? window->used : flight ? flight->used : 0;
  step.used = std::max(before, end);
  step.slots = slots_for(hides ? step.used : std::max(step.used, visible_below(number)));
  if (window != nullptr) step.slots = std::max(step.slots, window->reserved_slots);
  if (window == nullptr || window->data.capacity() < step.used) {
    step.grown = take_buffer(volume_, step.used, memory);
    if (!step.grown) return fail(Errc::kBusy, "write: staging memory is used up");
  }
  return step;
}

void LiveContent::apply_step(Step step, ConstBytes bytes) {
  const auto [found, is_new] = windows_.try_emplace(step.window);
  Window& window = found->second;
  const std::uint32_t below = visible_below(step.window);
  if (is_new) {
    if (const auto flight = in_flight(step.window)) {
      // What is on its way to the device must not change: go on with a copy.
      copy_bytes(step.grown.data(), flight->data, flight->used);
      window.used = flight->used;
      hide_below(step.window, window);
    } else if (below == 0) {
      window.hides_below = true;
    }
    set_buffer(window, std::move(step.grown));
  } else if (step.grown) {
    copy_bytes(step.grown.data(), window.data.data(), window.used);
    set_buffer(window, std::move(step.grown));
  }
  set_slots(window, step.slots);
  if (window.hides_below && step.begin > window.used) {
    clear_bytes(window.data.data() + window.used, step.begin - window.used);
  }
  copy_bytes(window.data.data() + step.begin, bytes.data(), bytes.size());
  window.used = step.used;
  if (window.hides_below) return;
  window.dirty.add(step.begin, step.end);
  if (window.dirty.covers(0, std::max(window.used, below))) hide_below(step.window, window);
}

Result<void> LiveContent::write(std::uint64_t offset_bytes, ConstBytes bytes, Memory memory) {
  if (bytes.empty()) return {};
  const std::uint64_t end = offset_bytes + bytes.size();
  if (end < offset_bytes || end > kFileSizeBytesMax) {
    return fail(Errc::kTooLarge, "write: past the largest file", EFBIG);
  }
  std::vector<Step> steps;
  std::uint32_t slots = 0;
  for (std::uint64_t at = offset_bytes; at < end;) {
    const auto number = static_cast<std::uint32_t>(at / window_size_bytes_);
    const auto begin = static_cast<std::uint32_t>(at % window_size_bytes_);
    const auto size = std::min<std::uint64_t>(window_size_bytes_ - begin, end - at);
    auto step = plan_step(number, begin, static_cast<std::uint32_t>(begin + size), memory);
    if (!step) return fail(step);
    const auto found = windows_.find(number);
    slots += step->slots - (found == windows_.end() ? 0 : found->second.reserved_slots);
    steps.push_back(std::move(*step));
    at += size;
  }
  if (auto taken = take_slots(slots); !taken) return taken;
  for (Step& step : steps) {
    const std::size_t size = step.end - step.begin;
    last_window_ = step.window;
    apply_step(std::move(step), bytes.first(size));
    bytes = bytes.subspan(size);
  }
  size_bytes_ = std::max(size_bytes_, end);
  ++version_;
  return {};
}

// ---- Cutting and zeroing

Result<void> LiveContent::truncate(std::uint64_t size_bytes) {
  if (size_bytes > kFileSizeBytesMax) {
    return fail(Errc::kTooLarge, "truncate: past the largest file", EFBIG);
  }
  if (size_bytes == size_bytes_) return {};
  if (size_bytes < size_bytes_) {
    if (auto done = cut(size_bytes); !done) return done;
  }
  size_bytes_ = size_bytes;
  ++version_;
  return {};
}

Result<void> LiveContent::cut(std::uint64_t size_bytes) {
  const auto number = static_cast<std::uint32_t>(size_bytes / window_size_bytes_);
  const auto keep = static_cast<std::uint32_t>(size_bytes % window_size_bytes_);
  const std::uint32_t end = number + (keep > 0 ? 1 : 0);  // windows from here on go

  // The window that the new end cuts is written again; what the others had reserved pays for it.
  const auto found = windows_.find(number);
  const bool is_known = keep > 0 && found != windows_.end();
  const bool is_cut = keep > 0 && present_bytes(number) > keep;
  std::uint32_t freed = is_known ? found->second.reserved_slots : 0;
  for (auto at = windows_.lower_bound(end); at != windows_.end(); ++at) {
    freed += at->second.reserved_slots;
  }
  std::uint32_t slots = 0;
  if (is_cut)
    slots = slots_for(keep);
  else if (is_known)
    slots = found->second.reserved_slots;
  const auto flight = is_known ? std::nullopt : in_flight(number);
  Buffer copied;
  if (is_cut && flight) copied = take_buffer(volume_, keep, Memory::kPoolOrHeap);
  if (slots > freed) {
    if (auto taken = take_slots(slots - freed); !taken) return taken;
  }
  if (is_cut) cut_window(number, keep, std::move(copied), slots);
  while (!windows_.empty() && windows_.rbegin()->first >= end) {
    Window& last = windows_.rbegin()->second;
    set_buffer(last, Buffer());
    set_slots(last, 0);
    windows_.erase(std::prev(windows_.end()));
  }
  if (freed > slots) give_slots(freed - slots);

  while (!placed_.empty() && placed_.rbegin()->first >= end) {
    Placed& last = placed_.rbegin()->second;
    last.visible = 0;
    if (last.in_flight) break;
    discard_placed(placed_.rbegin()->first);
  }
  for (auto at = placed_.lower_bound(end); at != placed_.end(); ++at) at->second.visible = 0;
  if (const auto at = placed_.find(number); at != placed_.end() && keep > 0) {
    at->second.visible = std::min(at->second.visible, keep);
  }
  base_size_bytes_ = std::min(base_size_bytes_, size_bytes);
  in_flight_limit_ = std::min(in_flight_limit_, size_bytes);
  ++generation_;
  return {};
}

void LiveContent::cut_window(std::uint32_t number, std::uint32_t keep, Buffer copied,
                             std::uint32_t slots) {
  const auto flight = in_flight(number);
  const auto [found, is_new] = windows_.try_emplace(number);
  Window& window = found->second;
  if (is_new && flight) {
    copy_bytes(copied.data(), flight->data, std::min(keep, flight->used));
    set_buffer(window, std::move(copied));
    window.used = std::min(keep, flight->used);
    hide_below(number, window);
  }
  window.used = std::min(window.used, keep);
  window.dirty.clip(keep);
  set_slots(window, slots);
}

void LiveContent::zero_window(std::uint32_t number) {
  if (present_bytes(number) == 0 && !windows_.contains(number)) return;
  Window& window = windows_[number];
  set_buffer(window, Buffer());
  give_slots(window.reserved_slots);
  set_slots(window, 0);
  window.used = 0;
  hide_below(number, window);
  ++version_;
}

// The first stretch of the stored value in [begin, end) that is no hole and not cut off; empty at
// `end` where there is none.
Range LiveContent::stored_data(std::uint64_t begin, std::uint64_t end) const {
  end = std::min(end, base_size_bytes_);
  if (begin >= end) return {.begin = end, .end = end};
  const auto data = volume_.seek(node_, begin, true);
  if (!data || *data >= end) return {.begin = end, .end = end};
  const auto hole = volume_.seek(node_, *data, false);
  return {.begin = *data, .end = hole ? std::min(*hole, end) : end};
}

// The first window from `number` on that may have bytes; `stored` is kept between calls.
std::uint64_t LiveContent::next_present(std::uint64_t number, Range& stored) const {
  constexpr std::uint64_t kNoWindow = std::uint64_t{1} << 32;
  std::uint64_t next = kNoWindow;
  if (number >= kNoWindow) return next;
  const auto look = [&](const auto& windows) {
    const auto found = windows.lower_bound(static_cast<std::uint32_t>(number));
    if (found != windows.end()) next = std::min<std::uint64_t>(next, found->first);
  };
  look(windows_);
  look(in_flight_);
  look(placed_);
  const std::uint64_t start = number * window_size_bytes_;
  if (stored.end <= start) stored = stored_data(start, base_size_bytes_);
  if (stored.begin < stored.end) {
    next = std::min(next, std::max(start, stored.begin) / window_size_bytes_);
  }
  return next;
}

Result<void> LiveContent::zero(std::uint64_t offset_bytes, std::uint64_t length_bytes,
                               Memory memory) {
  const std::uint64_t end = std::min(size_bytes_, offset_bytes + length_bytes);
  std::vector<std::byte> zeros;
  Range stored;
  for (std::uint64_t at = offset_bytes; at < end;) {
    const std::uint64_t next = next_present(at / window_size_bytes_, stored);
    at = std::max(at, next * window_size_bytes_);
    if (at >= end) break;
    const auto number = static_cast<std::uint32_t>(next);
    const auto begin = static_cast<std::uint32_t>(at % window_size_bytes_);
    const auto size = std::min<std::uint64_t>(window_size_bytes_ - begin, end - at);
    const std::uint32_t present = present_bytes(number);
    if (begin == 0 && size >= present) {
      zero_window(number);
    } else if (begin < present) {
      zeros.resize(std::min<std::uint64_t>(size, present - begin));
      if (auto done = write(at, zeros, memory); !done) return done;
    }
    at += size;
  }
  return {};
}

// ---- Reading

void LiveContent::read_below(std::uint32_t number, std::uint32_t begin, Bytes target,
                             std::size_t target_offset, std::vector<DevicePiece>& pieces) const {
  const std::uint32_t visible = visible_below(number);
  const std::size_t size =
      begin < visible ? std::min<std::size_t>(target.size(), visible - begin) : 0;
  clear_bytes(target.data() + size, target.size() - size);
  if (size == 0) return;
  const auto placed = placed_.find(number);
  const std::uint64_t file_offset = start_of(number) + begin;
  if (placed == placed_.end() && !pieces.empty()) {
    DevicePiece& last = pieces.back();
    if (!last.placed && last.target_offset + last.size_bytes == target_offset &&
        last.file_offset_bytes + last.size_bytes == file_offset) {
      last.size_bytes += size;
      return;
    }
  }
  DevicePiece piece{.target_offset = target_offset,
                    .size_bytes = size,
                    .file_offset_bytes = file_offset,
                    .placed = std::nullopt,
                    .window_offset = begin};
  if (placed != placed_.end()) piece.placed = placed->second.at;
  pieces.push_back(std::move(piece));
}

void LiveContent::read_window(std::uint32_t number, std::uint32_t begin, Bytes target,
                              std::size_t target_offset, std::vector<DevicePiece>& pieces) const {
  const std::uint64_t end = begin + target.size();
  const auto copy_from = [&](const std::byte* data, std::uint32_t used) {
    const std::size_t size = begin < used ? std::min<std::size_t>(target.size(), used - begin) : 0;
    if (size > 0) copy_bytes(target.data(), data + begin, size);
    clear_bytes(target.data() + size, target.size() - size);
  };
  const auto found = windows_.find(number);
  if (found == windows_.end()) {
    if (const auto flight = in_flight(number)) return copy_from(flight->data, flight->used);
    return read_below(number, begin, target, target_offset, pieces);
  }
  const Window& window = found->second;
  if (window.hides_below) return copy_from(window.data.data(), window.used);
  for (const Range& range : window.dirty.ranges()) {
    const std::uint64_t from = std::max<std::uint64_t>(range.begin, begin);
    const std::uint64_t to = std::min(range.end, end);
    if (from < to) copy_bytes(target.data() + (from - begin), window.data.data() + from, to - from);
  }
  for (const Range& gap : window.dirty.gaps(begin, end)) {
    const std::size_t at = gap.begin - begin;
    read_below(number, static_cast<std::uint32_t>(gap.begin),
               target.subspan(at, gap.end - gap.begin), target_offset + at, pieces);
  }
}

std::vector<DevicePiece> LiveContent::read(std::uint64_t offset_bytes, Bytes target) const {
  std::vector<DevicePiece> pieces;
  for (std::size_t done = 0; done < target.size();) {
    const std::uint64_t at = offset_bytes + done;
    const auto number = static_cast<std::uint32_t>(at / window_size_bytes_);
    const auto begin = static_cast<std::uint32_t>(at % window_size_bytes_);
    const std::size_t size =
        std::min<std::size_t>(window_size_bytes_ - begin, target.size() - done);
    read_window(number, begin, target.subspan(done, size), done, pieces);
    done += size;
  }
  return pieces;
}

Result<std::uint64_t> LiveContent::seek(std::uint64_t offset_bytes, bool data) const {
  if (offset_bytes >= size_bytes_) return fail(Errc::kNotFound, "seek past the end", ENXIO);
  if (is_plain()) return volume_.seek(node_, offset_bytes, data);
  return data ? offset_bytes : size_bytes_;  // until it is committed, all of it counts as data
}

}  // namespace kvslot
