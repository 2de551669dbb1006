// Cuts a transfer into requests of at most kTransferSizeBytesMax.
#include "core/device_io.h"

#include <algorithm>
#include <cerrno>
#include <vector>

namespace kvslot {
namespace {

Result<void> transfer(Device& device, IoOp op, std::uint64_t offset_bytes, std::byte* data,
                      std::size_t size_bytes) {
  const std::size_t count = (size_bytes + kTransferSizeBytesMax - 1) / kTransferSizeBytesMax;
  std::vector<iovec> segments(count);
  std::vector<IoRequest> requests(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t start = i * kTransferSizeBytesMax;
    segments[i] = {data + start, std::min(kTransferSizeBytesMax, size_bytes - start)};
    requests[i] = {.op = op, .offset_bytes = offset_bytes + start, .segments = {&segments[i], 1}};
  }
  device.run(requests);
  for (const IoRequest& request : requests)
    if (request.error != 0)
      return fail(request.error == ENOSPC ? Errc::kNoSpace : Errc::kIo,
                  op == IoOp::kRead ? "reading the device" : "writing the device", request.error);
  return {};
}

}  // namespace

Result<void> read_device(Device& device, std::uint64_t offset_bytes, Bytes target) {
  return transfer(device, IoOp::kRead, offset_bytes, target.data(), target.size());
}

Result<void> write_device(Device& device, std::uint64_t offset_bytes, ConstBytes source) {
  // A write only reads its memory; iovec has no const form.
  return transfer(device, IoOp::kWrite, offset_bytes, const_cast<std::byte*>(source.data()),
                  source.size());
}

}  // namespace kvslot
