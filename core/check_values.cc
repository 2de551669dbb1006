// Reads every value in the order of the device.
#include "core/check_values.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>

namespace kvslot {
namespace {

// Where an extent of the state is, to sort by without copying it.
struct Place {
  std::uint32_t device_block;
  std::uint32_t node;
  std::uint32_t extent;  // within the node
};

}  // namespace

ExtentReader::ExtentReader(Device& device, const Geometry& geometry)
    : device_(device), geometry_(geometry) {}

bool ExtentReader::is_inside(const Extent& extent) const {
  const std::uint64_t start = std::uint64_t{extent.device_block} * kBlockSizeBytes;
  const std::uint64_t end = geometry_.slots_offset_bytes +
                            std::uint64_t{geometry_.slot_count} * geometry_.slot_size_bytes;
  return start >= geometry_.slots_offset_bytes && start + padded_bytes(extent) <= end;
}

void ExtentReader::read(std::span<ExtentToRead> group) {
  if (group.empty()) return;
  if (!buffer_) buffer_ = Buffer::from_heap(kTogetherBytesMax);
  std::vector<iovec> segments;
  std::vector<IoRequest> requests;
  std::vector<std::size_t> request_of;
  segments.reserve(group.size());  // requests point into it
  std::byte* data = buffer_.data();
  std::uint64_t next_block = UINT64_MAX;
  for (const ExtentToRead& item : group) {
    const std::uint32_t bytes = padded_bytes(item.extent);
    const bool joins = item.extent.device_block == next_block &&
                       segments.back().iov_len + bytes <= kTransferSizeBytesMax;
    if (joins) {
      segments.back().iov_len += bytes;
    } else {
      segments.push_back({data, bytes});
      requests.push_back({.op = IoOp::kRead,
                          .offset_bytes = std::uint64_t{item.extent.device_block} * kBlockSizeBytes,
                          .segments = {&segments.back(), 1},
                          .error = 0});
    }
    request_of.push_back(requests.size() - 1);
    data += bytes;
    next_block = item.extent.device_block + bytes / kBlockSizeBytes;
  }
  device_.run(requests);
  data = buffer_.data();
  for (std::size_t i = 0; i < group.size(); ++i) {
    ExtentToRead& item = group[i];
    item.os_errno = requests[request_of[i]].error;
    item.bytes = ConstBytes(data, item.extent.size_bytes);
    const bool holds = extent_checksum(geometry_.uuid, item.object, item.extent.stamp,
                                       item.bytes) == item.extent.checksum;
    item.verdict = item.os_errno != 0 ? ExtentVerdict::kUnreadable
                   : holds            ? ExtentVerdict::kGood
                                      : ExtentVerdict::kMismatch;
    data += padded_bytes(item.extent);
  }
}

namespace {

// Threads: one thread at a time.
class ValueCheck {
 public:
  ValueCheck(Device& device, const Geometry& geometry, const CheckedState& state,
             Findings& findings)
      : geometry_(geometry), state_(state), findings_(findings), reader_(device, geometry) {}

  void run(const CheckOptions& options) {
    const std::uint64_t total = collect();
    std::uint64_t done = 0;
    std::vector<ExtentToRead> group;
    for (std::size_t start = 0; start < places_.size(); start += group.size()) {
      group.clear();
      std::size_t bytes = 0;
      for (std::size_t i = start; i < places_.size(); ++i) {
        bytes += ExtentReader::padded_bytes(extent_of(i));
        if (bytes > ExtentReader::kTogetherBytesMax) break;
        group.push_back({.object = ObjectId{node_of(i).object}, .extent = extent_of(i)});
      }
      reader_.read(group);
      for (std::size_t i = 0; i < group.size(); ++i) {
        if (group[i].verdict != ExtentVerdict::kGood) judge(start + i);
        done += group[i].extent.size_bytes;
      }
      if (options.on_progress) options.on_progress(done, total);
    }
  }

 private:
  [[nodiscard]] const CheckedNode& node_of(std::size_t place) const {
    return state_.nodes()[places_[place].node];
  }
  [[nodiscard]] const Extent& extent_of(std::size_t place) const {
    return state_.extents(node_of(place))[places_[place].extent];
  }

  // Everything readable, sorted by place; returns its bytes.
  std::uint64_t collect() {
    std::uint64_t total = 0;
    for (std::uint32_t n = 0; n < state_.nodes().size(); ++n) {
      const auto extents = state_.extents(state_.nodes()[n]);
      for (std::uint32_t e = 0; e < extents.size(); ++e) {
        if (!reader_.is_inside(extents[e])) continue;
        places_.push_back({extents[e].device_block, n, e});
        total += extents[e].size_bytes;
      }
    }
    std::sort(places_.begin(), places_.end(),
              [](const Place& a, const Place& b) { return a.device_block < b.device_block; });
    return total;
  }

  // Read once more, alone: the fault may have been on the way, or a neighbour's.
  void judge(std::size_t place) {
    ExtentToRead again{.object = ObjectId{node_of(place).object}, .extent = extent_of(place)};
    reader_.read({&again, 1});
    const Extent& extent = again.extent;
    const std::uint64_t start = std::uint64_t{extent.file_block} * kBlockSizeBytes;
    const std::uint64_t slot =
        (std::uint64_t{extent.device_block} * kBlockSizeBytes - geometry_.slots_offset_bytes) /
        geometry_.slot_size_bytes;
    const auto where =
        fmt::format("{}: bytes {} to {} (slot {})", state_.quoted_key(node_of(place)), start,
                    start + extent.size_bytes, slot);
    switch (again.verdict) {
      case ExtentVerdict::kGood:
        findings_.remark(where +
                         " were right only when read a second time; the device may be "
                         "failing");
        break;
      case ExtentVerdict::kMismatch:
        findings_.value_error(where +
                              " do not match their checksum: "
                              "reading them fails");
        break;
      case ExtentVerdict::kUnreadable:
        findings_.value_error(fmt::format("{} cannot be read: {}", where,
                                          std::generic_category().message(again.os_errno)));
        break;
    }
  }

  const Geometry& geometry_;
  const CheckedState& state_;
  Findings& findings_;
  ExtentReader reader_;
  std::vector<Place> places_;
};

}  // namespace

void check_values(Device& device, const Geometry& geometry, const CheckedState& state,
                  const CheckOptions& options, Findings& findings) {
  ValueCheck(device, geometry, state, findings).run(options);
}

}  // namespace kvslot
