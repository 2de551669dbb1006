// With its clock and random numbers injected the engine does the same twice, to the last byte: what
// makes every seed of the other tests a way to replay them.
#include <gtest/gtest.h>
#include <kvslot/volume.h>

#include <string>

#include "core/put_changes.h"
#include "tests/support/engine.h"
#include "tests/support/traced_store.h"

namespace kvslot::testing {
namespace {

// A life of a store with every kind of write, a power loss and a recovery. Gives fingerprints of
// the device, one for each step.
std::vector<std::uint64_t> images_of_a_life(std::uint64_t seed, const WallClock& clock) {
  std::vector<std::uint64_t> images;
  std::shared_ptr<SimulatedDevice> device = std::make_shared<SimulatedDevice>(
      SimulatedDeviceOptions{.size_bytes = 16 * kMiB, .seed = seed, .shuffles_batches = true});
  const auto note = [&] { images.push_back(device->fingerprint()); };
  EXPECT_TRUE(format_device(
      *device, {.slot_size_bytes = 4096, .label = "test", .seed = seed, .clock = clock}));
  note();
  for (int life = 0; life < 3; ++life) {
    const VolumeOptions options{.seed = seed, .clock = clock};
    auto volume = Volume::open(std::make_unique<BorrowedDevice>(device), options);
    EXPECT_TRUE(volume);
    note();
    for (int i = 0; i < 20; ++i) {
      const std::string key = "dir" + std::to_string(i % 3) + "/k" + std::to_string(i);
      EXPECT_TRUE(put_key(**volume, key, value_of(seed + i, 1000 * i)));
    }
    note();
    const NodeId node = (*volume)->find("dir1/k4")->node;
    EXPECT_TRUE((*volume)->set_xattr(node, "user.x", "1", Volume::XattrMode::kAny));
    EXPECT_TRUE((*volume)->rename(NodeId::kRoot, "dir0", NodeId::kRoot,
                                  "moved" + std::to_string(life), RenameMode::kReplace));
    EXPECT_TRUE(
        (*volume)->create(NodeId::kRoot, "d" + std::to_string(life), NodeKind::kDirectory, {}));
    EXPECT_TRUE((*volume)->flush());
    note();
    EXPECT_TRUE((*volume)->checkpoint());
    note();
    EXPECT_TRUE(put_key(**volume, "unflushed", "x"));
    if (life == 1) {
      EXPECT_TRUE((*volume)->close());
    }
    note();
    device = device->survivor(seed + life, CrashMode::kRandom);
    note();
  }
  return images;
}

TEST(Determinism, OneSeedGivesOneImage) {
  for (const std::uint64_t seed : {1, 2, 3})
    EXPECT_EQ(images_of_a_life(seed, ticking_clock()), images_of_a_life(seed, ticking_clock()));
}

TEST(Determinism, AnotherSeedAndAnotherTimeGiveOtherImages) {
  const auto images = images_of_a_life(1, ticking_clock());
  EXPECT_NE(images, images_of_a_life(2, ticking_clock()));
  EXPECT_NE(images, images_of_a_life(1, [] { return TimestampNs{5}; }));
}

}  // namespace
}  // namespace kvslot::testing
