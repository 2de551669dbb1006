// A small store with a history, and the judgement on what somebody did to its image: what is shown
// then must be a state that the store once had, with values whole or unreadable, and the check must
// say so wherever something is missing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/layout.h"
#include "tests/support/simulated_device.h"
#include "tests/support/snapshot.h"

namespace kvslot::testing {

// Threads: one thread at a time.
class HostileImage {
 public:
  enum class End : std::uint8_t { kClosed, kCrashed };
  HostileImage(End end, std::uint64_t seed);

  [[nodiscard]] SimulatedDevice& device() const { return *device_; }
  [[nodiscard]] const Geometry& geometry() const { return geometry_; }
  // Numbers of the blocks that hold anything, and of some that never did.
  [[nodiscard]] const std::vector<std::uint64_t>& blocks() const { return blocks_; }
  [[nodiscard]] std::vector<std::byte> read_block(std::uint64_t block) const;
  void write_block(std::uint64_t block, ConstBytes bytes);
  // An image of the same store from before its last changes.
  [[nodiscard]] const SimulatedDevice& earlier() const { return *earlier_; }

  // Checks, opens in both ways, reads, closes and reopens copies of a device that should be like
  // this image; the image's own by default. A broken promise fails the test.
  void judge(const std::string& what) const { judge(what, *device_); }
  void judge(const std::string& what, const SimulatedDevice& device) const;
  // The same where a forger made the checksums true: only that check and store agree.
  void judge_forged(const std::string& what) const;

 private:
  struct Opened;
  void remember(Volume& volume, bool is_flushed);
  [[nodiscard]] Opened open(std::unique_ptr<SimulatedDevice> device, bool read_only) const;
  void expect_known(const Opened& opened, bool is_damaged, const std::string& what) const;
  void judge_closing(std::unique_ptr<SimulatedDevice> device, bool is_damaged, bool is_forged,
                     const Opened& as_read, const std::string& what) const;
  void judge_both(const std::string& what, const SimulatedDevice& device, bool is_forged) const;

  std::unique_ptr<SimulatedDevice> device_;
  std::unique_ptr<SimulatedDevice> earlier_;
  Geometry geometry_;
  std::vector<std::uint64_t> blocks_;
  std::vector<Snapshot> states_;  // since the last checkpoint, the newest last
  std::size_t noted_ = 0;         // the journal says that states up to this one were flushed
  std::map<std::string, std::set<std::string>> values_;  // that a key ever had
};

}  // namespace kvslot::testing
