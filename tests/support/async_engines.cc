// See async_engines.h.
#include "tests/support/async_engines.h"

#include <aio.h>
#include <liburing.h>
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/support/client_calls.h"

namespace kvslot::testing {
namespace {

// `result` as the kernel gives it: a count, or an errno below zero.
int outcome_of_result(std::int64_t result, std::size_t wanted) {
  if (result < 0) return static_cast<int>(-result);
  return static_cast<std::size_t>(result) == wanted ? 0 : kShort;
}

// The kernel's own calls: the library of that name adds nothing to them.
class LibaioEngine final : public AsyncEngine {
 public:
  explicit LibaioEngine(aio_context_t context) : context_(context) {}
  ~LibaioEngine() override { ::syscall(SYS_io_destroy, context_); }

  int run(std::span<const AsyncTransfer> transfers) override {
    std::vector<iocb> blocks(transfers.size());
    std::vector<iocb*> pointers;
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      const AsyncTransfer& transfer = transfers[i];
      iocb& block = blocks[i];
      block.aio_data = i;
      block.aio_lio_opcode = transfer.is_write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
      block.aio_fildes = static_cast<std::uint32_t>(transfer.fd);
      block.aio_buf = reinterpret_cast<std::uint64_t>(transfer.bytes.data());
      block.aio_nbytes = transfer.bytes.size();
      block.aio_offset = static_cast<std::int64_t>(transfer.offset);
      pointers.push_back(&block);
    }
    int failure = 0;
    std::size_t submitted = 0;
    std::size_t completed = 0;
    while (completed < transfers.size()) {
      while (submitted < transfers.size() && submitted - completed + kAsyncBatch <= kAsyncDepth) {
        const std::size_t count = std::min<std::size_t>(kAsyncBatch, transfers.size() - submitted);
        const long taken = ::syscall(SYS_io_submit, context_, count, pointers.data() + submitted);
        if (taken < 0 && errno == EINTR) continue;
        if (taken < 0) failure = errno;
        if (taken <= 0) return drain(submitted - completed, failure);
        submitted += static_cast<std::size_t>(taken);
      }
      std::array<io_event, kAsyncBatch> events{};
      const long count =
          ::syscall(SYS_io_getevents, context_, 1, events.size(), events.data(), nullptr);
      for (long i = 0; i < count; ++i) {
        const io_event& event = events[static_cast<std::size_t>(i)];
        const int outcome = outcome_of_result(event.res, transfers[event.data].bytes.size());
        if (outcome != 0) failure = outcome;
        ++completed;
      }
    }
    return failure;
  }

 private:
  [[nodiscard]] int drain(std::size_t count, int failure) const {
    for (io_event event{}; count > 0; --count) {
      ::syscall(SYS_io_getevents, context_, 1, 1, &event, nullptr);
    }
    return failure;
  }
  aio_context_t context_;
};

// With `is_registered` the buffers and descriptors of a batch are registered first.
class UringEngine final : public AsyncEngine {
 public:
  UringEngine(const io_uring& ring, bool is_registered)
      : ring_(ring), is_registered_(is_registered) {}
  ~UringEngine() override { io_uring_queue_exit(&ring_); }

  int run(std::span<const AsyncTransfer> transfers) override {
    if (is_registered_) {
      if (const int error = register_all(transfers); error != 0) return error;
    }
    int failure = 0;
    std::size_t submitted = 0;
    std::size_t completed = 0;
    while (completed < transfers.size() && failure != EPROTO) {
      while (submitted < transfers.size() && submitted - completed + kAsyncBatch <= kAsyncDepth) {
        const std::size_t end = std::min(submitted + kAsyncBatch, transfers.size());
        for (; submitted < end; ++submitted) prepare(transfers[submitted], submitted);
        if (io_uring_submit(&ring_) < 0) failure = EPROTO;
      }
      io_uring_cqe* event = nullptr;
      if (io_uring_wait_cqe(&ring_, &event) != 0) continue;
      const std::size_t size = transfers[event->user_data].bytes.size();
      if (const int outcome = outcome_of_result(event->res, size); outcome != 0) failure = outcome;
      io_uring_cqe_seen(&ring_, event);
      ++completed;
    }
    if (is_registered_) {
      io_uring_unregister_buffers(&ring_);
      io_uring_unregister_files(&ring_);
    }
    return failure;
  }

 private:
  int register_all(std::span<const AsyncTransfer> transfers) {
    std::vector<iovec> buffers;
    std::vector<int> files;
    for (const AsyncTransfer& transfer : transfers) {
      buffers.push_back({transfer.bytes.data(), transfer.bytes.size()});
      files.push_back(transfer.fd);
    }
    const auto count = static_cast<unsigned>(transfers.size());
    if (const int error = io_uring_register_buffers(&ring_, buffers.data(), count); error != 0) {
      return -error;
    }
    return -io_uring_register_files(&ring_, files.data(), count);
  }
  void prepare(const AsyncTransfer& transfer, std::size_t index) {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    std::byte* const data = transfer.bytes.data();
    const auto size = static_cast<unsigned>(transfer.bytes.size());
    const int place = static_cast<int>(index);
    if (!is_registered_ && transfer.is_write) {
      io_uring_prep_write(entry, transfer.fd, data, size, transfer.offset);
    } else if (!is_registered_) {
      io_uring_prep_read(entry, transfer.fd, data, size, transfer.offset);
    } else if (transfer.is_write) {
      io_uring_prep_write_fixed(entry, place, data, size, transfer.offset, place);
    } else {
      io_uring_prep_read_fixed(entry, place, data, size, transfer.offset, place);
    }
    if (is_registered_) io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(entry, index);
  }

  io_uring ring_;
  bool is_registered_;
};

class PosixAioEngine final : public AsyncEngine {
 public:
  int run(std::span<const AsyncTransfer> transfers) override {
    int failure = 0;
    for (std::size_t at = 0; at < transfers.size(); at += kAsyncDepth) {
      const auto part =
          transfers.subspan(at, std::min<std::size_t>(kAsyncDepth, transfers.size() - at));
      if (const int outcome = run_part(part); outcome != 0) failure = outcome;
    }
    return failure;
  }

 private:
  static int run_part(std::span<const AsyncTransfer> transfers) {
    std::vector<aiocb> blocks(transfers.size());
    std::size_t submitted = 0;
    int failure = 0;
    for (; submitted < transfers.size(); ++submitted) {
      const AsyncTransfer& transfer = transfers[submitted];
      aiocb& block = blocks[submitted];
      block.aio_fildes = transfer.fd;
      block.aio_buf = transfer.bytes.data();
      block.aio_nbytes = transfer.bytes.size();
      block.aio_offset = static_cast<off_t>(transfer.offset);
      block.aio_sigevent.sigev_notify = SIGEV_NONE;
      if ((transfer.is_write ? ::aio_write(&block) : ::aio_read(&block)) == 0) continue;
      failure = errno;
      break;
    }
    for (std::size_t i = 0; i < submitted; ++i) {
      const aiocb* const block = &blocks[i];
      while (::aio_error(block) == EINPROGRESS) (void)::aio_suspend(&block, 1, nullptr);
      const int error = ::aio_error(block);
      const ssize_t count = ::aio_return(&blocks[i]);
      const int outcome = error != 0 ? error : outcome_of_result(count, transfers[i].bytes.size());
      if (outcome != 0) failure = outcome;
    }
    return failure;
  }
};

}  // namespace

std::unique_ptr<AsyncEngine> make_async_engine(AsyncKind kind, std::string& reason) {
  if (kind == AsyncKind::kPosixAio) {
#if defined(__SANITIZE_THREAD__)
    reason = "the C library starts threads of its own, in which ThreadSanitizer crashes";
    return nullptr;
#else
    return std::make_unique<PosixAioEngine>();
#endif
  }
  if (kind == AsyncKind::kLibaio) {
    aio_context_t context = 0;
    if (::syscall(SYS_io_setup, kAsyncDepth, &context) == 0) {
      return std::make_unique<LibaioEngine>(context);
    }
    reason = std::string("io_setup: ") + std::strerror(errno);
    return nullptr;
  }
  io_uring ring{};
  if (const int error = io_uring_queue_init(kAsyncDepth, &ring, 0); error != 0) {
    reason = std::string("io_uring_queue_init: ") + std::strerror(-error);
    return nullptr;
  }
  return std::make_unique<UringEngine>(ring, kind == AsyncKind::kUringRegistered);
}

}  // namespace kvslot::testing
