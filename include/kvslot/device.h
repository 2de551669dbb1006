// The seam between the engine and whatever holds its bytes: a file, a block device, a simulation.
// The engine decides what to transfer, a Device decides how. Nothing above this header knows a
// descriptor or a ring.
#pragma once

#include <kvslot/error.h>
#include <kvslot/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace kvslot {

enum class IoOp : std::uint8_t { kRead, kWrite };

// One contiguous transfer between the device and one or more pieces of memory.
struct IoRequest {
  IoOp op = IoOp::kRead;
  std::uint64_t offset_bytes = 0;   // multiple of kBlockSizeBytes
  std::span<const iovec> segments;  // aligned to kBlockSizeBytes in address and length
  int error = 0;                    // set by Device::run: 0, or the errno of the final attempt
};

inline constexpr std::size_t kTransferSizeBytesMax = 1 << 20;  // of one IoRequest
inline constexpr std::size_t kSegmentsMax = 256;               // of one IoRequest

struct DeviceInfo {
  std::string name;           // path as given by the user
  std::string engine;         // "io_uring", "posix", "simulated"
  std::string engine_detail;  // ring flags, or why it fell back
  std::uint64_t size_bytes = 0;
  std::uint32_t logical_block_size_bytes = 512;
  bool is_block_device = false;
  bool is_direct = false;  // transfers bypass the page cache
};

struct DeviceCounters {
  std::uint64_t reads = 0;  // requests completed
  std::uint64_t writes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t batches = 0;      // calls of run
  std::uint64_t submissions = 0;  // system calls that submitted or carried out transfers
  std::uint64_t flushes = 0;
  std::uint64_t retries = 0;  // EAGAIN, EINTR, EBUSY
  std::uint64_t short_transfers = 0;
  std::uint64_t queue_depth = 0;      // requests under way now
  std::uint64_t queue_depth_max = 0;  // the most since open
  std::uint64_t timeouts = 0;         // calls that were given up (kvslot/watched_device.h)
  std::uint64_t overdue = 0;          // of them, those that the device still holds
};

// Whether the error is the whole device's: it does not answer, or is not there any more. Trying
// again, or elsewhere on it, is in vain.
[[nodiscard]] inline bool is_device_lost(int os_errno) {
  return os_errno == ETIMEDOUT || os_errno == ENODEV || os_errno == ENXIO;
}

// Requests whose caller left while the device had them.
class LateRequests {
 public:
  virtual ~LateRequests() = default;  // after wait()
  // Returns when the device has none of them any more. Once, on any thread.
  virtual void wait() = 0;
};

// Threads: every call is thread-safe. Destruction waits for nothing: no call may be under way.
class Device {
 public:
  virtual ~Device() = default;

  // Carries out all requests, in no particular order, and returns when the last one completed.
  //   errors   each request's own `error`; a neighbour's failure changes nothing. Short transfers
  //            are resumed, EAGAIN/EINTR/EBUSY resubmitted, both bounded; what is left is an error
  //   owns     borrows the requests, their segments and their memory for the call only
  virtual void run(std::span<IoRequest> requests) = 0;

  // As run(), on this thread alone, for a caller that may leave: while nothing comes back,
  // `is_over` is asked a few times a second, and true makes it leave.
  //   returns  false where that cannot be done with these requests; run() can, although some of
  //   them
  //            may have been carried out already
  //   late     set where the caller left: the memory of all requests is the device's until
  //            late->wait() returns, and none has a result
  [[nodiscard]] virtual bool run_or_leave([[maybe_unused]] std::span<IoRequest> requests,
                                          [[maybe_unused]] const std::function<bool()>& is_over,
                                          [[maybe_unused]] std::unique_ptr<LateRequests>& late) {
    return false;
  }

  // Returns when everything that completed before the call survives power loss.
  [[nodiscard]] virtual Result<void> flush() = 0;

  // Tells the device that the range holds nothing of interest. A device that cannot is no error.
  virtual void discard(std::uint64_t offset_bytes, std::uint64_t size_bytes) = 0;

  // Ends threads of its own, between calls: later ones are made with the rights that the process
  // has then.
  virtual void retire_threads() {}

  [[nodiscard]] virtual const DeviceInfo& info() const = 0;
  [[nodiscard]] virtual DeviceCounters counters() const = 0;
};

enum class EngineChoice : std::uint8_t { kAuto, kUring, kPosix };

struct FileDeviceOptions {
  EngineChoice engine = EngineChoice::kAuto;
  bool read_only = false;
  bool direct = true;  // O_DIRECT where the file system allows it
  unsigned queue_depth_max = 256;
  unsigned open_wait_ms = 2000;  // how long to wait for another holder to let go
  // A block device is held with O_EXCL. False where the caller holds it in another way: a fuseblk
  // mount makes the kernel hold it, and O_EXCL beside that would be refused.
  bool exclusive = true;
};

// Opens a block device (O_EXCL) or an image file (locked) for one holder at a time.
//   errors   kNotFound, kBusy (mounted, or open elsewhere), kInvalid (a directory, a tty, ...), kIo
[[nodiscard]] Result<std::unique_ptr<Device>> open_file_device(const std::string& path,
                                                               const FileDeviceOptions& options);

}  // namespace kvslot
