// Taking everything out of a damaged store, and the damage.
#pragma once

#include <gtest/gtest.h>
#include <kvslot/admin.h>

#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/layout.h"
#include "tests/support/simulated_device.h"

namespace kvslot::testing {

using Values = std::map<std::string, std::string>;

// Keeps what comes out, by path.
class MemorySink final : public SalvageSink {
 public:
  Result<void> begin(const SalvagedFile& file) override {
    std::string path;
    for (const std::string& component : file.path) {
      EXPECT_FALSE(component.empty() || component == "." || component == "..");
      EXPECT_EQ(component.find_first_of(std::string_view("/\0", 2)), std::string::npos);
      path += (path.empty() ? "" : "/") + component;
    }
    path_ = path;
    is_file_ = file.kind == NodeKind::kFile;
    if (file.kind == NodeKind::kSymlink) links[path] = file.target;
    if (file.size_bytes > kGiB) return fail(Errc::kTooLarge, "too large for a test");
    files[path] = file;
    value_.assign(file.size_bytes, '\0');
    return refusal;
  }
  Result<void> write(std::uint64_t offset_bytes, ConstBytes bytes) override {
    EXPECT_LE(offset_bytes + bytes.size(), value_.size());
    std::memcpy(value_.data() + offset_bytes, bytes.data(), bytes.size());
    return refusal;
  }
  Result<void> end(Salvaged outcome) override {
    if (!is_file_) return {};
    if (outcome == Salvaged::kWhole) {
      EXPECT_TRUE(whole.emplace(path_, value_).second) << path_ << " twice";
    } else if (outcome == Salvaged::kPartial) {
      partial[path_] = value_;
    }
    return {};
  }

  Values whole, partial, links;
  std::map<std::string, SalvagedFile> files;  // as they were begun
  Result<void> refusal;

 private:
  std::string path_;
  std::string value_;
  bool is_file_ = false;
};

inline SalvageReport salvage(Device& device, MemorySink& sink) {
  const std::uint64_t writes = device.counters().writes;
  auto report = salvage_device(device, sink, {});
  EXPECT_TRUE(report) << report.error().step;
  EXPECT_EQ(device.counters().writes, writes);
  return report ? std::move(*report) : SalvageReport{};
}

inline void wipe(SimulatedDevice& device, std::uint64_t offset, std::uint64_t size) {
  device.poke(offset, std::vector<std::byte>(size));
}
inline void wipe_superblocks(SimulatedDevice& device) {
  for (const std::uint64_t offset : superblock_offsets(device.info().size_bytes))
    wipe(device, offset, kBlockSizeBytes);
}
inline void wipe_journal(SimulatedDevice& device, const Geometry& geometry) {
  wipe(device, geometry.journal_offset_bytes, geometry.journal_size_bytes);
}
// Every chunk of a checkpoint; with "KVMF", every manifest.
inline void wipe_checkpoints(SimulatedDevice& device, std::string_view magic = "KVCK") {
  std::vector<std::byte> block(4);
  for (std::uint64_t at = 0; at < device.info().size_bytes; at += kBlockSizeBytes) {
    device.peek(at, block);
    if (std::memcmp(block.data(), magic.data(), 4) == 0) wipe(device, at, kBlockSizeBytes);
  }
}

}  // namespace kvslot::testing
