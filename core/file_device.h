// A Device on a block device or an image file: the descriptor, its lock and its geometry. Made by
// open_file_device of <kvslot/device.h>; transfers are the business of its IoEngine.
#pragma once

#include <kvslot/device.h>

#include <memory>
#include <span>
#include <utility>

#include "core/io_engine.h"
#include "core/unique_fd.h"

namespace kvslot {

// Threads: thread-safe.
class FileDevice final : public Device {
 public:
  [[nodiscard]] static Result<std::unique_ptr<FileDevice>> open(const std::string& path,
                                                                const FileDeviceOptions& options);

  void run(std::span<IoRequest> requests) override;
  [[nodiscard]] bool run_or_leave(std::span<IoRequest> requests,
                                  const std::function<bool()>& is_over,
                                  std::unique_ptr<LateRequests>& late) override;
  [[nodiscard]] Result<void> flush() override;
  void discard(std::uint64_t offset_bytes, std::uint64_t size_bytes) override;
  void retire_threads() override { engine_->retire_threads(); }
  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  [[nodiscard]] DeviceCounters counters() const override { return counters_.snapshot(); }

 private:
  FileDevice(UniqueFd fd, UniqueFd backing, DeviceInfo info, bool read_only)
      : fd_(std::move(fd)),
        backing_(std::move(backing)),
        info_(std::move(info)),
        read_only_(read_only) {}
  [[nodiscard]] bool accepts(const IoRequest& request) const;

  const UniqueFd fd_;
  const UniqueFd backing_;  // of a loop device: locked, never read
  DeviceInfo info_;
  const bool read_only_;
  bool takes_requests_at_once_ = false;  // set by open
  IoCounters counters_;
  std::unique_ptr<IoEngine> engine_;  // set by open, then never changed; ends before counters_
};

}  // namespace kvslot
