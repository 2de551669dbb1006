// See crash_history.h.
#include "tests/support/crash_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

namespace kvslot::testing {
namespace {

constexpr std::size_t kVersionsShownMax = 16;
constexpr Tick kNever = std::numeric_limits<Tick>::max();

constexpr std::size_t kPageBytes = 4096;

std::uint64_t page_hash(std::string_view bytes, std::uint64_t page) {
  if (page * kPageBytes >= bytes.size()) return 0;
  const std::string_view part = bytes.substr(page * kPageBytes, kPageBytes);
  return (std::hash<std::string_view>{}(part) + page + 1) * (2 * page + 0x9e3779b97f4a7c15);
}

Tick or_never(Tick tick) { return tick == 0 ? kNever : tick; }

// The oldest version that a crash may leave.
std::size_t oldest_allowed(const KeyHistory& history, const std::vector<Barrier>& barriers) {
  std::size_t oldest = history.durable;
  for (const Barrier& barrier : barriers) {
    if (barrier.acknowledged == 0) continue;
    for (std::size_t i = history.versions.size(); i-- > oldest;) {
      if (or_never(history.versions[i].acknowledged) >= barrier.issued) continue;
      oldest = i;
      break;
    }
  }
  return oldest;
}

bool is_overlapped(Tick begin, Tick end, const std::vector<Barrier>& barriers) {
  return std::ranges::any_of(barriers, [&](const Barrier& barrier) {
    return barrier.issued < end && or_never(barrier.acknowledged) > begin;
  });
}

bool is_match(const KeyHistory& history, std::size_t i, const std::vector<Barrier>& barriers,
              const KeyState& found) {
  const KeyVersion& version = history.versions[i];
  if (version.state == found) {
    const bool is_last = i + 1 == history.versions.size();
    const Tick end = is_last ? kNever : or_never(history.versions[i + 1].acknowledged);
    return !version.is_passing || is_overlapped(version.issued, end, barriers);
  }
  return std::ranges::count(version.parts, found) > 0 &&
         is_overlapped(version.issued, or_never(version.acknowledged), barriers);
}

// The versions that what was found may be.
std::vector<std::size_t> matches_of(const KeyHistory& history, const std::vector<Barrier>& barriers,
                                    const KeyState& found) {
  std::vector<std::size_t> matches;
  for (std::size_t i = oldest_allowed(history, barriers); i < history.versions.size(); ++i) {
    if (is_match(history, i, barriers, found)) matches.push_back(i);
  }
  return matches;
}

std::string describe(const std::string& path, const KeyHistory& history,
                     const std::vector<Barrier>& barriers, const KeyState& found) {
  const std::size_t oldest = oldest_allowed(history, barriers);
  std::string text = fmt::format("{}: found {}\n", path, found.text());
  const std::size_t count = history.versions.size();
  const std::size_t first = std::min(oldest, count - std::min(count, kVersionsShownMax));
  for (std::size_t i = first; i < count; ++i) {
    const KeyVersion& version = history.versions[i];
    text += fmt::format("  {}{:>3} [{}, {}] {}: {}{}\n", i == oldest ? "durable" : "       ", i,
                        version.issued,
                        version.acknowledged == 0 ? "-" : std::to_string(version.acknowledged),
                        version.what, version.state.text(), version.is_passing ? ", passing" : "");
  }
  return text;
}

struct MoveEnd {
  const std::string* path = nullptr;
  std::size_t version = 0;
};

bool has_before(const std::vector<std::size_t>& matches, std::size_t version) {
  return matches.front() < version;
}
bool has_after(const std::vector<std::size_t>& matches, std::size_t version) {
  return matches.back() >= version;
}

}  // namespace

KeyState KeyState::of(std::string_view bytes) {
  KeyState state{.kind = Kind::kFile, .size_bytes = bytes.size()};
  for (std::uint64_t page = 0; page * kPageBytes < bytes.size(); ++page) {
    state.hash += page_hash(bytes, page);
  }
  return state;
}

std::vector<KeyState> KeyState::between(const KeyState& state, std::string_view before,
                                        std::string_view after, std::uint64_t offset,
                                        std::uint64_t end) {
  std::vector<KeyState> states;
  KeyState now = state;
  // A hole that the write leaves before itself comes with its first page.
  const std::uint64_t first = std::min<std::uint64_t>(offset, before.size()) / kPageBytes;
  for (std::uint64_t page = first; page * kPageBytes < end; ++page) {
    now.size_bytes = std::max<std::uint64_t>(before.size(), std::min((page + 1) * kPageBytes, end));
    now.hash += page_hash(after.substr(0, now.size_bytes), page) - page_hash(before, page);
    if ((page + 1) * kPageBytes > offset) states.push_back(now);
  }
  return states;
}

std::string KeyState::text() const {
  switch (kind) {
    case Kind::kNothing:
      return "nothing";
    case Kind::kDirectory:
      return "a directory";
    case Kind::kFile:
      return fmt::format("{} bytes ({:016x})", size_bytes, hash);
  }
  return {};
}

std::size_t CrashClock::begin_barrier() {
  const std::lock_guard lock(mutex_);
  barriers_.push_back({.issued = tick()});
  return barriers_.size() - 1;
}

void CrashClock::end_barrier(std::size_t number) {
  const std::lock_guard lock(mutex_);
  barriers_[number].acknowledged = tick();
}

std::vector<Barrier> CrashClock::barriers() const {
  const std::lock_guard lock(mutex_);
  return barriers_;
}

std::string judge_crash(const Histories& histories, const std::vector<Barrier>& barriers,
                        const std::map<std::string, KeyState>& found) {
  std::string wrong;
  for (const auto& [path, state] : found) {
    if (!histories.contains(path)) wrong += fmt::format("{}: nobody made it\n", path);
  }
  const auto state_at = [&](const std::string& path) {
    const auto at = found.find(path);
    return at == found.end() ? KeyState() : at->second;
  };
  std::map<std::string, std::vector<std::size_t>> matches;
  std::map<std::uint64_t, std::vector<MoveEnd>> moves;
  for (const auto& [path, history] : histories) {
    auto& own = matches[path] = matches_of(history, barriers, state_at(path));
    if (own.empty()) wrong += describe(path, history, barriers, state_at(path));
    for (std::size_t i = 0; i < history.versions.size(); ++i) {
      const std::uint64_t move = history.versions[i].move;
      if (move != 0) moves[move].push_back({.path = &path, .version = i});
    }
  }
  for (const auto& [number, ends] : moves) {
    if (ends.size() != 2) continue;
    const auto& first = matches[*ends[0].path];
    const auto& second = matches[*ends[1].path];
    if (first.empty() || second.empty()) continue;
    const bool is_before =
        has_before(first, ends[0].version) && has_before(second, ends[1].version);
    const bool is_after = has_after(first, ends[0].version) && has_after(second, ends[1].version);
    if (is_before || is_after) continue;
    wrong += fmt::format("half of the rename that made version {} of {}:\n", ends[0].version,
                         *ends[0].path);
    for (const MoveEnd& end : ends) {
      wrong += describe(*end.path, histories.at(*end.path), barriers, state_at(*end.path));
    }
  }
  return wrong;
}

}  // namespace kvslot::testing
