// Mends what needs no guess: renews the superblock's copies, and replaces a damaged checkpoint by a
// fresh one where the one before and the journal still say everything.
//
//   check     what is wrong, and whether the structure contradicts itself core/check_device.cc
//   recover   as a mount does: nothing is written before the state is whole     core/recovery.cc
//   write     one checkpoint more, so that there are two good ones              core/checkpoint.cc
//   check     again: what is left
//
// Each step leaves the device as a crash may leave it, so that losing power in any of them loses
// nothing.
#include <fmt/core.h>
#include <kvslot/admin.h>
#include <kvslot/volume.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace kvslot {
namespace {

// The caller keeps the device, to check it again.
class BorrowedDevice final : public Device {
 public:
  explicit BorrowedDevice(Device& device) : device_(device) {}
  void run(std::span<IoRequest> requests) override { device_.run(requests); }
  [[nodiscard]] Result<void> flush() override { return device_.flush(); }
  void discard(std::uint64_t offset_bytes, std::uint64_t size_bytes) override {
    device_.discard(offset_bytes, size_bytes);
  }
  [[nodiscard]] const DeviceInfo& info() const override { return device_.info(); }
  [[nodiscard]] DeviceCounters counters() const override { return device_.counters(); }

 private:
  Device& device_;
};

bool is_repairable(const CheckFinding& finding) { return finding.remedy == Remedy::kRepair; }
bool is_left(const CheckFinding& finding) { return finding.remedy == Remedy::kSalvage; }

bool needs_writing(const CheckReport& report) {
  return !report.closed || report.stale_superblocks != 0 ||
         std::ranges::any_of(report.findings, is_repairable);
}

Result<void> write_afresh(Device& device, RepairReport& report) {
  auto volume = Volume::open(std::make_unique<BorrowedDevice>(device), {});
  if (!volume) return fail(volume);
  if ((*volume)->is_read_only()) return fail(Errc::kReadOnly, "a newer kvslot has to mend it");
  const auto checkpoint = (*volume)->checkpoint();
  if (auto ok = (*volume)->close(); !ok) return ok;
  if (report.before.journal_blocks != 0)
    report.done.push_back(fmt::format("replayed {} journal blocks", report.before.journal_blocks));
  report.done.emplace_back(checkpoint ? "wrote a fresh checkpoint and all copies of the superblock"
                                      : "wrote all copies of the superblock; there is no room for "
                                        "a fresh checkpoint");
  return {};
}

}  // namespace

Result<RepairReport> repair_device(Device& device, const CheckOptions& options) {
  auto before = check_device(device, options);
  if (!before) return fail(before);
  RepairReport report{.before = *before, .after = std::move(*before), .done = {}};
  if (!report.before.opens || !needs_writing(report.before)) return report;
  if (auto ok = write_afresh(device, report); !ok) return fail(ok);
  auto after = check_device(device, {.verify_values = false, .on_progress = {}});
  if (!after) return fail(after);
  report.after = std::move(*after);
  // The store opens, so these are about values, which nobody touched.
  for (const CheckFinding& finding : report.before.findings) {
    if (!is_left(finding)) continue;
    report.after.damaged = true;
    report.after.findings.push_back(finding);
  }
  return report;
}

}  // namespace kvslot
