// Any bytes as keys of puts, renames and removals: refused, or there under exactly this name, also
// after the store was opened again.
#include <kvslot/admin.h>
#include <kvslot/volume.h>

#include <set>
#include <string>

#include "tests/fuzz/support/formatted_image.h"
#include "tests/fuzz/support/require.h"
#include "tests/support/snapshot.h"

namespace kvslot::testing {
namespace {

constexpr std::size_t kStepsMax = 64;

bool put(Volume& volume, std::string_view key) {
  ContentChange change;
  change.key = key;
  change.whole = true;
  change.size_bytes = 3;
  change.writes.push_back({.window = 0, .size_bytes = 3, .data = Buffer::from_heap(4096)});
  volume.commit({&change, 1});
  return change.result.has_value();
}

// A key is names joined by single slashes, none empty, "." or "..", at most 255 bytes each.
bool is_well_formed(std::string_view key) {
  while (true) {
    const std::size_t slash = key.find('/');
    const std::string_view name = key.substr(0, slash);
    if (name.empty() || name == "." || name == ".." || name.size() > kNameSizeBytesMax ||
        name.find('\0') != std::string_view::npos)
      return false;
    if (slash == std::string_view::npos) return true;
    key = key.substr(slash + 1);
  }
}

// One step a line of the input: its first byte says what, the rest is the name.
void step(Volume& volume, std::string_view line) {
  if (line.empty()) return;
  const std::string_view key = line.substr(1);
  switch (line[0] & 3) {
    case 0:
    case 1: {
      if (!put(volume, key)) break;
      require(is_well_formed(key), "a key that is stored is well formed", key);
      const auto info = volume.find(key);
      require(info && info->size_bytes == 3, "a key that was stored is found", key);
      require(volume.inspector().path_of(info->node) == key, "under its name", key);
      break;
    }
    case 2: {
      const auto made = volume.create(NodeId::kRoot, key, NodeKind::kDirectory, {});
      require(!made || (is_well_formed(key) && key.find('/') == std::string_view::npos),
              "a name is well formed", key);
      break;
    }
    default: {
      const auto entries = volume.list(NodeId::kRoot, 0, 1);
      if (!entries || entries->empty()) break;
      const auto renamed = volume.rename(NodeId::kRoot, entries->front().name, NodeId::kRoot, key,
                                         RenameMode::kReplace);
      require(!renamed || is_well_formed(key), "a new name is well formed", key);
    }
  }
}

void run(std::string_view text) {
  auto device = formatted_image();
  SimulatedDevice& raw = *device;
  Snapshot before;
  std::unique_ptr<SimulatedDevice> left;
  {
    auto volume = Volume::open(std::move(device), {.seed = 1});
    require(volume.has_value(), "an empty store opens");
    for (std::size_t steps = 0; !text.empty() && steps < kStepsMax; ++steps) {
      const std::size_t end = text.find('\n');
      step(**volume, text.substr(0, end));
      text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    }
    auto snapshot = take_snapshot(**volume);
    require(snapshot.has_value(), "a store can be listed");
    before = std::move(*snapshot);
    require((*volume)->close().has_value(), "a store can be closed");
    left = raw.survivor(1, CrashMode::kNone);
  }
  const auto report = check_device(*left, {});
  require(report && !report->damaged, "a closed store is clean");
  auto volume = Volume::open(std::move(left), {.seed = 2});
  require(volume.has_value(), "a closed store opens");
  const auto after = take_snapshot(**volume);
  require(after.has_value(), "a store can be listed");
  const std::string found = difference(before, *after);
  require(found.empty(), "what was closed comes back", found);
}

}  // namespace
}  // namespace kvslot::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvslot::testing::run(kvslot::testing::input_text(data, size));
  return 0;
}
