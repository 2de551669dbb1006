// Opens and locks what holds the bytes, finds its geometry, and passes batches to the engine.
// Called by the store and by the command, through <kvslot/device.h>.
#include "core/file_device.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "core/loop_backing.h"
#include "core/submission.h"
#include "core/transfer.h"

namespace kvslot {
namespace {

using Clock = std::chrono::steady_clock;

// Neither a lock nor O_EXCL can be waited for with a deadline, so both are asked for again.
constexpr std::chrono::milliseconds kOpenRetryInterval{10};

// A descriptor on the way to becoming a FileDevice.
struct Opened {
  UniqueFd fd;
  UniqueFd backing;  // of a loop device: holds the lock that openers of the file meet
  bool is_block_device = false;
  bool is_direct = false;
};

Errc code_of_open(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ENXIO:
    case ENODEV:
      return Errc::kNotFound;
    case EBUSY:
    case ETXTBSY:  // swapped to
    case EWOULDBLOCK:
      return Errc::kBusy;
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return Errc::kInvalid;
    case EROFS:
      return Errc::kReadOnly;
    default:
      return Errc::kIo;
  }
}

std::unexpected<Error> fail_open(const char* step, int error) {
  return fail(code_of_open(error), step, error);
}

// True for a block device, false for a regular file; refuses everything else.
Result<bool> check_kind(const struct stat& status) {
  if (S_ISBLK(status.st_mode)) return true;
  if (S_ISREG(status.st_mode)) return false;
  return fail(Errc::kInvalid, "device: neither a block device nor a regular file",
              S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
}

// Sleeps one interval; false when the deadline has passed.
bool may_try_again(Clock::time_point deadline) {
  if (Clock::now() >= deadline) return false;
  std::this_thread::sleep_for(kOpenRetryInterval);
  return true;
}

// Opens once; 0 or an errno. EINVAL means that the file system does not do O_DIRECT.
int open_once(const char* path, int flags, Opened& opened) {
  int fd = ::open(path, opened.is_direct ? flags | O_DIRECT : flags);
  if (fd < 0 && errno == EINVAL && opened.is_direct) {
    opened.is_direct = false;
    fd = ::open(path, flags);
  }
  if (fd < 0) return errno;
  opened.fd.reset(fd);
  return 0;
}

Result<void> lock_file(int fd, int lock, Clock::time_point deadline) {
  while (::flock(fd, lock | LOCK_NB) < 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return fail_open("device: lock", errno);
    if (!may_try_again(deadline)) return fail(Errc::kBusy, "device: lock", EBUSY);
  }
  return {};
}

// The kernel lets one open a write-protected device for writing, and refuses the writes.
Result<void> check_write_protection(int fd) {
  int is_protected = 0;
  if (::ioctl(fd, BLKROGET, &is_protected) < 0 || is_protected == 0) return {};
  return fail(
      Errc::kReadOnly,
      "device: write-protected; take the protection off, or open it read-only (mount -o ro)",
      EROFS);
}

// Beyond a limit of file sizes writes fail, but only those that go there.
Result<void> check_size_limit(off_t size_bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur >= static_cast<rlim_t>(size_bytes))
    return {};
  return fail(Errc::kTooLarge,
              "device: larger than a file may get here; raise the limit (ulimit -f), or open it "
              "read-only (mount -o ro)",
              EFBIG);
}

// A block device is held by O_EXCL, against mounts too and, for lack of a shared form, among
// readers. A file is held by flock, which a reader shares with readers.
Result<Opened> open_and_lock(const std::string& path, const FileDeviceOptions& options) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(options.open_wait_ms);
  struct stat status{};
  if (::stat(path.c_str(), &status) < 0) return fail_open("device: stat", errno);
  auto kind = check_kind(status);  // Before open, which may have effects on other kinds.
  if (!kind) return fail(kind);
  Opened opened{.fd = {}, .backing = {}, .is_block_device = *kind, .is_direct = options.direct};
  const int flags = (options.read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOCTTY |
                    (opened.is_block_device && options.exclusive ? O_EXCL : 0);
  int error = open_once(path.c_str(), flags, opened);
  while (error == EBUSY && may_try_again(deadline)) {
    error = open_once(path.c_str(), flags, opened);
  }
  if (error != 0) return fail_open("device: open", error);
  if (::fstat(opened.fd.get(), &status) < 0) return fail_open("device: fstat", errno);
  kind = check_kind(status);
  if (!kind) return fail(kind);
  if (*kind != opened.is_block_device) return fail(Errc::kInvalid, "device: changed while opened");
  const int lock = options.read_only ? LOCK_SH : LOCK_EX;
  if (!opened.is_block_device) {
    if (!loop_device_over(status).empty()) {
      return fail(Errc::kBusy, "device: shown by a loop device", EBUSY);
    }
    if (auto ok = lock_file(opened.fd.get(), lock, deadline); !ok) return fail(ok);
    if (!options.read_only) {
      if (auto ok = check_size_limit(status.st_size); !ok) return fail(ok);
    }
    return opened;
  }
  if (const std::string backing = backing_file_of(status); !backing.empty()) {
    opened.backing.reset(::open(backing.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!opened.backing) return fail_open("device: file of the loop device", errno);
    if (auto ok = lock_file(opened.backing.get(), lock, deadline); !ok) return fail(ok);
  }
  if (!options.read_only) {
    if (auto ok = check_write_protection(opened.fd.get()); !ok) return fail(ok);
  }
  return opened;
}

Result<void> find_block_geometry(int fd, DeviceInfo& info) {
  std::uint64_t size_bytes = 0;
  if (::ioctl(fd, BLKGETSIZE64, &size_bytes) < 0) return fail(Errc::kIo, "BLKGETSIZE64", errno);
  int logical_block_size_bytes = 0;
  if (::ioctl(fd, BLKSSZGET, &logical_block_size_bytes) < 0) {
    return fail(Errc::kIo, "BLKSSZGET", errno);
  }
  info.size_bytes = size_bytes;
  info.logical_block_size_bytes = static_cast<std::uint32_t>(logical_block_size_bytes);
  if (info.logical_block_size_bytes > kBlockSizeBytes) {
    return fail(Errc::kInvalid, "device: logical blocks over 4096 bytes", EINVAL);
  }
  return {};
}

// For file systems that take the flag at open and refuse the transfer.
bool refuses_direct_reads(int fd) {
  alignas(kBlockSizeBytes) std::array<std::byte, kBlockSizeBytes> block;
  return ::pread(fd, block.data(), block.size(), 0) < 0 && errno == EINVAL;
}

// Direct transfers need alignment at most kBlockSizeBytes; a file system may say what it needs.
bool find_direct_alignment(int fd, std::uint32_t& alignment_bytes) {
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    const std::uint32_t needed_bytes =
        std::max(status.stx_dio_offset_align, status.stx_dio_mem_align);
    if (status.stx_dio_offset_align == 0 || needed_bytes > kBlockSizeBytes) return false;
    alignment_bytes = std::max(status.stx_dio_offset_align, 512U);
  }
#endif
  return !refuses_direct_reads(fd);
}

Result<void> find_file_geometry(int fd, DeviceInfo& info) {
  struct stat status{};
  if (::fstat(fd, &status) < 0) return fail(Errc::kIo, "device: fstat", errno);
  info.size_bytes = static_cast<std::uint64_t>(status.st_size);
  if (!info.is_direct || find_direct_alignment(fd, info.logical_block_size_bytes)) return {};
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags & ~O_DIRECT) < 0) {
    return fail(Errc::kIo, "device: give up O_DIRECT", errno);
  }
  info.is_direct = false;
  return {};
}

}  // namespace

Result<std::unique_ptr<Device>> open_file_device(const std::string& path,
                                                 const FileDeviceOptions& options) {
  auto device = FileDevice::open(path, options);
  if (!device) return fail(device);
  return std::move(*device);
}

Result<std::unique_ptr<FileDevice>> FileDevice::open(const std::string& path,
                                                     const FileDeviceOptions& options) {
  auto opened = open_and_lock(path, options);
  if (!opened) return fail(opened);
  DeviceInfo info{.name = path,
                  .engine = {},
                  .engine_detail = {},
                  .is_block_device = opened->is_block_device,
                  .is_direct = opened->is_direct};
  const auto found = info.is_block_device ? find_block_geometry(opened->fd.get(), info)
                                          : find_file_geometry(opened->fd.get(), info);
  if (!found) return fail(found);
  std::unique_ptr<FileDevice> device(new FileDevice(
      std::move(opened->fd), std::move(opened->backing), std::move(info), options.read_only));
  auto engine = make_io_engine(
      {.choice = options.engine, .queue_depth_max = options.queue_depth_max}, device->counters_);
  if (!engine) return fail(engine);
  device->engine_ = std::move(*engine);
  device->takes_requests_at_once_ =
      device->info_.is_direct && takes_requests_at_once(device->fd_.get());
  device->info_.engine = device->engine_->name();
  device->info_.engine_detail = device->engine_->detail();
  return device;
}

void FileDevice::run(std::span<IoRequest> requests) {
  IoCounters::add(counters_.batches);
  const auto accepted = [this](const IoRequest& request) { return accepts(request); };
  if (std::ranges::all_of(requests, accepted)) return engine_->run(fd_.get(), requests);
  for (IoRequest& request : requests) {
    if (accepts(request)) {
      engine_->run(fd_.get(), {&request, 1});
    } else {
      request.error = EIO;
    }
  }
}

bool FileDevice::run_or_leave(std::span<IoRequest> requests, const std::function<bool()>& is_over,
                              std::unique_ptr<LateRequests>& late) {
  const auto accepted = [this](const IoRequest& request) { return accepts(request); };
  if (!takes_requests_at_once_ || !std::ranges::all_of(requests, accepted)) return false;
  if (!engine_->run_or_leave(fd_.get(), requests, is_over, late)) return false;
  IoCounters::add(counters_.batches);
  return true;
}

// A write past the end would make an image file grow.
bool FileDevice::accepts(const IoRequest& request) const {
  const std::uint64_t size_bytes = checked_size_bytes(request);
  return size_bytes <= info_.size_bytes && request.offset_bytes <= info_.size_bytes - size_bytes;
}

Result<void> FileDevice::flush() {
  IoCounters::add(counters_.flushes);
  int result = ::fdatasync(fd_.get());
  while (result < 0 && errno == EINTR) result = ::fdatasync(fd_.get());
  if (result < 0) return fail(Errc::kIo, "device: flush", errno);
  return {};
}

void FileDevice::discard(std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  if (read_only_ || size_bytes == 0) return;
  if (info_.is_block_device) {
    std::array<std::uint64_t, 2> range{offset_bytes, size_bytes};
    ::ioctl(fd_.get(), BLKDISCARD, range.data());
  } else {
    ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(offset_bytes), static_cast<off_t>(size_bytes));
  }
}

}  // namespace kvslot
