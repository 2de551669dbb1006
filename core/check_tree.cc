// Judges the names of a rebuilt state.
#include <fmt/core.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "core/check_values.h"

namespace kvslot {
namespace {

constexpr auto kRootObject = static_cast<std::uint64_t>(ObjectId::kRoot);

bool is_child(const CheckedNode& node) { return node.object != 0 && node.object != kRootObject; }

void check_parents(const CheckedState& state, Findings& findings) {
  for (const CheckedNode& node : state.nodes()) {
    if (!is_child(node)) continue;
    const std::uint32_t parent = state.find(node.parent);
    if (parent == CheckedState::kNowhere) {
      findings.error(
          fmt::format("{} (object {}) is in directory {}, which does not exist: it "
                      "cannot be reached, and the store does not open",
                      state.quoted_key(node), node.object, node.parent));
    } else if (state.nodes()[parent].kind != NodeKind::kDirectory) {
      findings.error(
          fmt::format("{} (object {}) is below object {}, which is no directory: it "
                      "cannot be reached, and the store does not open",
                      state.quoted_key(node), node.object, node.parent));
    }
    if (node.kind != NodeKind::kFile && node.extent_count != 0)
      findings.error(fmt::format("{} (object {}) is no file, but owns slots",
                                 state.quoted_key(node), node.object));
  }
}

// Follows every directory upwards once; a way that meets itself is a circle.
void check_circles(const CheckedState& state, Findings& findings) {
  enum class Seen : std::uint8_t { kNot, kOnThisWay, kDone };
  std::vector<Seen> seen(state.nodes().size(), Seen::kNot);
  std::vector<std::uint32_t> way;
  for (std::uint32_t start = 0; start < state.nodes().size(); ++start) {
    std::uint32_t next = start;
    while (next != CheckedState::kNowhere && seen[next] == Seen::kNot &&
           is_child(state.nodes()[next])) {
      seen[next] = Seen::kOnThisWay;
      way.push_back(next);
      next = state.find(state.nodes()[next].parent);
    }
    const bool is_circle = next != CheckedState::kNowhere && seen[next] == Seen::kOnThisWay;
    if (is_circle)
      findings.error(
          fmt::format("directory {} (object {}) is below itself: nothing in it can be "
                      "reached",
                      state.quoted_key(state.nodes()[next]), state.nodes()[next].object));
    for (const std::uint32_t node : way) seen[node] = Seen::kDone;
    way.clear();
  }
}

void check_doubles(const CheckedState& state, std::vector<std::uint32_t>& order,
                   Findings& findings) {
  const auto compare = [&](std::uint32_t left, std::uint32_t right) {
    const CheckedNode& a = state.nodes()[left];
    const CheckedNode& b = state.nodes()[right];
    if (a.parent != b.parent) return a.parent < b.parent;
    const int names = state.name(a).compare(state.name(b));
    return names != 0 ? names < 0 : a.object < b.object;
  };
  std::sort(order.begin(), order.end(), compare);
  for (std::size_t i = 1; i < order.size(); ++i) {
    const CheckedNode& a = state.nodes()[order[i - 1]];
    const CheckedNode& b = state.nodes()[order[i]];
    if (a.parent == b.parent && state.name(a) == state.name(b))
      findings.error(
          fmt::format("{} is the name of two objects, {} and {}: the store does not open",
                      state.quoted_key(a), a.object, b.object));
  }
}

// A listing goes on behind the place of its last entry: of two in one place, one would be left out.
void check_places(const CheckedState& state, std::vector<std::uint32_t>& order,
                  Findings& findings) {
  const auto nodes = state.nodes();
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::tie(nodes[a].parent, nodes[a].cookie, nodes[a].object) <
           std::tie(nodes[b].parent, nodes[b].cookie, nodes[b].object);
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const CheckedNode& a = nodes[order[i - 1]];
    const CheckedNode& b = nodes[order[i]];
    if (a.parent == b.parent && a.cookie == b.cookie)
      findings.error(
          fmt::format("{} and {} have one place in the listing of their directory, {}: the store "
                      "does not open",
                      state.quoted_key(a), state.quoted_key(b), a.cookie));
  }
}

}  // namespace

void check_tree(const CheckedState& state, Findings& findings) {
  check_parents(state, findings);
  check_circles(state, findings);
  std::vector<std::uint32_t> order;
  for (std::uint32_t n = 0; n < state.nodes().size(); ++n)
    if (is_child(state.nodes()[n])) order.push_back(n);
  check_doubles(state, order, findings);
  check_places(state, order, findings);
}

}  // namespace kvslot
