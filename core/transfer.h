// What to do with the result of a transfer: the one policy on short transfers and retries that
// every engine follows. Called with the results of preadv/pwritev and of ring completions.
#pragma once

#include <kvslot/device.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/io_engine.h"

namespace kvslot {

inline constexpr unsigned kShortTransfersMax = 3;  // the third short result of a request is EIO
inline constexpr unsigned kRetriesMax = 100;       // EAGAIN, EINTR, EBUSY, per request

enum class TransferStep : std::uint8_t {
  kDone,      // the request's error is final
  kResubmit,  // offset_bytes() and segments() say what is left
};

[[nodiscard]] inline bool is_transient(int error) {
  return error == EAGAIN || error == EINTR || error == EBUSY;
}

// The bytes of a request; a check failure if it breaks a limit of device.h.
[[nodiscard]] std::size_t checked_size_bytes(const IoRequest& request);

// One request on its way, perhaps in several attempts.
//   threads  one thread at a time
//   owns     borrows the request and its segments
class Transfer {
 public:
  explicit Transfer(IoRequest& request);

  [[nodiscard]] IoOp op() const { return request_->op; }
  [[nodiscard]] std::uint64_t offset_bytes() const { return request_->offset_bytes + done_bytes_; }
  [[nodiscard]] std::span<const iovec> segments() const {
    return done_bytes_ == 0 ? request_->segments : std::span<const iovec>(rest_);
  }

  // Judges one attempt: the bytes it moved, or a negative errno.
  [[nodiscard]] TransferStep on_result(std::int64_t result, IoCounters& counters);

 private:
  TransferStep on_error(int error, IoCounters& counters);
  TransferStep finish(int error, IoCounters& counters);
  void skip(std::size_t size_bytes);

  IoRequest* request_;
  std::size_t size_bytes_;
  std::size_t done_bytes_ = 0;  // whole blocks
  unsigned short_count_ = 0;
  unsigned retry_count_ = 0;
  std::vector<iovec> rest_;  // what is left, once done_bytes_ is not 0
};

}  // namespace kvslot
