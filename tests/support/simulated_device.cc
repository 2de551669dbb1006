// Carries out operations in memory, with the faults and crashes a test asked for.
#include "tests/support/simulated_device.h"

#include <kvslot/check.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "core/transfer.h"
#include "tests/support/patience.h"

namespace kvslot::testing {
namespace {

DeviceInfo info_of(const SimulatedDeviceOptions& options) {
  return {.name = "simulated",
          .engine = "simulated",
          .engine_detail = "seed " + std::to_string(options.seed),
          .size_bytes = options.size_bytes,
          .is_block_device = true,
          .is_direct = true};
}

bool overlaps(const Fault& fault, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  if (offset_bytes + size_bytes <= fault.offset_bytes) return false;
  return offset_bytes < fault.offset_bytes || offset_bytes - fault.offset_bytes < fault.size_bytes;
}

DeviceCall call_of(std::span<const IoRequest> requests) {
  DeviceCall call;
  for (const IoRequest& request : requests) {
    ++(request.op == IoOp::kRead ? call.reads : call.writes);
    call.size_bytes += checked_size_bytes(request);
  }
  return call;
}

}  // namespace

SimulatedDevice::SimulatedDevice(const SimulatedDeviceOptions& options)
    : options_(options), info_(info_of(options)), random_(options.seed) {}

// ---- Operations ----

void SimulatedDevice::run(std::span<IoRequest> requests) {
  const DeviceCall call = call_of(requests);
  std::vector<IoRequest*> order;
  order.reserve(requests.size());
  for (IoRequest& request : requests) order.push_back(&request);
  const MutexLock lock(mutex_);
  const bool began_alive = operation_count_ < crash_at_operation_;
  record(call);
  begin_writes(requests);
  ++counters_.batches;
  ++counters_.submissions;
  counters_.queue_depth += requests.size();
  counters_.queue_depth_max = std::max(counters_.queue_depth_max, counters_.queue_depth);
  if (options_.shuffles_batches) std::ranges::shuffle(order, random_);
  pass_gate(call.reads > 0, call.writes > 0, false);
  for (IoRequest* const request : order) request->error = carry_out(*request, began_alive);
  counters_.queue_depth -= requests.size();
  end_writes(requests);
}

void SimulatedDevice::begin_writes(std::span<const IoRequest> requests) {
  for (const IoRequest& request : requests) {
    if (request.op != IoOp::kWrite) continue;
    const std::uint64_t end = request.offset_bytes + checked_size_bytes(request);
    for (const auto& [other_start, other_end] : under_way_)
      KVSLOT_CHECK(end <= other_start || request.offset_bytes >= other_end,
                   "two writes of one block are never under way together");
    under_way_.emplace_back(request.offset_bytes, end);
  }
}

void SimulatedDevice::end_writes(std::span<const IoRequest> requests) {
  for (const IoRequest& request : requests)
    std::erase_if(under_way_, [&](const auto& range) {
      return request.op == IoOp::kWrite && range.first == request.offset_bytes;
    });
}

Result<void> SimulatedDevice::flush() {
  const MutexLock lock(mutex_);
  record({.kind = DeviceCall::Kind::kFlush});
  ++counters_.flushes;
  const std::uint64_t pending_end = pending_start_ + pending_.size();  // what completed before
  pass_gate(false, false, true);
  int error = count_operation();
  if (error == 0) {
    const Fault* const fault = matching_fault(OperationKind::kFlush, 0, 0);
    if (fault != nullptr) {
      error = fault->error;
      make_uncertain(pending_end);
    }
  }
  if (error != 0) return fail(Errc::kIo, "device: flush", error);
  make_durable(pending_end);
  return {};
}

void SimulatedDevice::discard(std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  const MutexLock lock(mutex_);
  record({.kind = DeviceCall::Kind::kDiscard, .size_bytes = size_bytes});
  if (operation_count_ >= crash_at_operation_ || size_bytes == 0) return;
  const std::size_t before = live_.page_count();
  pending_.push_back({.offset_bytes = offset_bytes, .bytes = {}, .discard_size_bytes = size_bytes});
  live_.erase(offset_bytes, size_bytes);
  if (thin_budget_bytes_) {
    *thin_budget_bytes_ += (before - live_.page_count()) * SparseBytes::kPageSizeBytes;
  }
}

DeviceCounters SimulatedDevice::counters() const {
  const MutexLock lock(mutex_);
  return counters_;
}

// 0, or the errno of a device that has vanished.
int SimulatedDevice::count_operation() {
  if (operation_count_ >= crash_at_operation_) return crash_error_;
  ++operation_count_;
  return 0;
}

int SimulatedDevice::carry_out(IoRequest& request, bool began_alive) {
  const bool is_read = request.op == IoOp::kRead;
  const std::uint64_t size_bytes = checked_size_bytes(request);
  const int crash_error = count_operation();
  if (crash_error != 0) {
    if (!is_read && began_alive) {
      pending_.push_back(pending_of(request));
      pending_.back().is_complete = false;
    }
    return crash_error;
  }
  if (size_bytes > options_.size_bytes || request.offset_bytes > options_.size_bytes - size_bytes) {
    return EIO;
  }
  ++(is_read ? counters_.reads : counters_.writes);
  const Fault* const fault = matching_fault(is_read ? OperationKind::kRead : OperationKind::kWrite,
                                            request.offset_bytes, size_bytes);
  if (fault != nullptr && is_read && !fault->flips_bit) return fault->error;
  if (fault != nullptr && !is_read && fault->effect == WriteEffect::kRefused) return fault->error;
  (is_read ? counters_.read_bytes : counters_.written_bytes) += size_bytes;
  if (!is_read) return write(request, fault);
  read(request);
  if (fault != nullptr) {
    const iovec& segment = request.segments[random_() % request.segments.size()];
    const std::size_t bit = random_() % (segment.iov_len * 8);
    static_cast<std::byte*>(segment.iov_base)[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  return 0;
}

void SimulatedDevice::read(const IoRequest& request) const {
  std::uint64_t offset_bytes = request.offset_bytes;
  for (const iovec& segment : request.segments) {
    live_.read(offset_bytes, {static_cast<std::byte*>(segment.iov_base), segment.iov_len});
    offset_bytes += segment.iov_len;
  }
}

int SimulatedDevice::write(const IoRequest& request, const Fault* fault) {
  Pending pending = pending_of(request);
  if (!take_from_budget(request, pending.bytes.size())) return ENOSPC;
  int error = 0;
  if (fault != nullptr) {
    if (fault->effect == WriteEffect::kLost) return 0;
    if (fault->effect == WriteEffect::kMisdirected)
      pending.offset_bytes = fault->misdirected_to_bytes;
    if (fault->effect == WriteEffect::kTorn) {
      error = fault->error;
      const std::size_t sectors = pending.bytes.size() / kSectorSizeBytes;
      pending.bytes.resize(random_() % sectors * kSectorSizeBytes);
      if (pending.bytes.empty()) return error;  // an empty Pending is a discard
    }
  }
  live_.write(pending.offset_bytes, pending.bytes);
  pending_.push_back(std::move(pending));
  return error;
}

bool SimulatedDevice::take_from_budget(const IoRequest& request, std::uint64_t size_bytes) {
  if (!thin_budget_bytes_) return true;
  const std::uint64_t first = request.offset_bytes / SparseBytes::kPageSizeBytes;
  const std::uint64_t count = size_bytes / SparseBytes::kPageSizeBytes;
  std::uint64_t fresh_bytes = 0;
  for (std::uint64_t page = first; page < first + count; ++page) {
    if (!live_.has_page(page)) fresh_bytes += SparseBytes::kPageSizeBytes;
  }
  if (fresh_bytes > *thin_budget_bytes_) return false;
  *thin_budget_bytes_ -= fresh_bytes;
  return true;
}

SimulatedDevice::Pending SimulatedDevice::pending_of(const IoRequest& request) {
  Pending pending{.offset_bytes = request.offset_bytes, .bytes = {}};
  for (const iovec& segment : request.segments) {
    const auto* const data = static_cast<const std::byte*>(segment.iov_base);
    pending.bytes.insert(pending.bytes.end(), data, data + segment.iov_len);
  }
  return pending;
}

void SimulatedDevice::make_durable(std::uint64_t pending_end) {
  if (pending_end <= pending_start_) return;  // Another flush covered it meanwhile.
  const auto end = pending_.begin() + static_cast<std::ptrdiff_t>(pending_end - pending_start_);
  for (auto entry = pending_.begin(); entry != end; ++entry) apply(durable_, *entry);
  pending_.erase(pending_.begin(), end);
  pending_start_ = pending_end;
}

// A failed flush: what it covered is on the medium or lost, and no later flush brings it back.
void SimulatedDevice::make_uncertain(std::uint64_t pending_end) {
  if (pending_end <= pending_start_) return;
  const auto end = pending_.begin() + static_cast<std::ptrdiff_t>(pending_end - pending_start_);
  for (auto entry = pending_.begin(); entry != end; ++entry) {
    if (random_() % 2 == 0) apply(durable_, *entry);
  }
  pending_.erase(pending_.begin(), end);
  pending_start_ = pending_end;
}

void SimulatedDevice::record(const DeviceCall& call) {
  if (calls_.size() < kCallsMax) calls_.push_back(call);
}

// ---- Crashes ----

void SimulatedDevice::crash_after_operations(std::uint64_t count, int error) {
  const MutexLock lock(mutex_);
  crash_at_operation_ = operation_count_ + count;
  crash_error_ = error;
}

bool SimulatedDevice::is_crashed() const {
  const MutexLock lock(mutex_);
  return operation_count_ >= crash_at_operation_;
}

std::uint64_t SimulatedDevice::operation_count() const {
  const MutexLock lock(mutex_);
  return operation_count_;
}

std::unique_ptr<SimulatedDevice> SimulatedDevice::survivor(std::uint64_t seed,
                                                           CrashMode mode) const {
  SimulatedDeviceOptions options = options_;
  options.seed = seed;
  auto device = std::make_unique<SimulatedDevice>(options);
  std::mt19937_64 random(seed);
  const MutexLock lock(mutex_);
  const MutexLock device_lock(device->mutex_);
  device->durable_ = surviving_bytes(random, mode);
  device->live_ = SparseBytes(device->durable_);
  return device;
}

std::unique_ptr<SimulatedDevice> SimulatedDevice::survivor(const SectorChoice& survives) const {
  auto device = std::make_unique<SimulatedDevice>(options_);
  const MutexLock lock(mutex_);
  const MutexLock device_lock(device->mutex_);
  SparseBytes bytes(durable_);
  for (std::size_t write = 0; write < pending_.size(); ++write) {
    const Pending& pending = pending_[write];
    if (pending.bytes.empty()) {
      if (survives(write, 0)) apply(bytes, pending);
      continue;
    }
    for (std::size_t at = 0; at < pending.bytes.size(); at += kSectorSizeBytes)
      if (survives(write, at / kSectorSizeBytes))
        bytes.write(pending.offset_bytes + at,
                    ConstBytes(pending.bytes).subspan(at, kSectorSizeBytes));
  }
  device->live_ = SparseBytes(bytes);
  device->durable_ = std::move(bytes);
  return device;
}

std::vector<PendingWrite> SimulatedDevice::pending_writes() const {
  const MutexLock lock(mutex_);
  std::vector<PendingWrite> writes;
  for (const Pending& pending : pending_)
    writes.push_back(
        {.number = pending_start_ + writes.size(),
         .offset_bytes = pending.offset_bytes,
         .size_bytes = pending.bytes.empty() ? pending.discard_size_bytes : pending.bytes.size(),
         .is_discard = pending.bytes.empty()});
  return writes;
}

std::uint64_t SimulatedDevice::fingerprint() const {
  const MutexLock lock(mutex_);
  return live_.fingerprint();
}

std::unique_ptr<SimulatedDevice> SimulatedDevice::process_crash() const {
  auto device = std::make_unique<SimulatedDevice>(options_);
  const MutexLock lock(mutex_);
  const MutexLock device_lock(device->mutex_);
  device->durable_ = SparseBytes(durable_);
  device->live_ = SparseBytes(live_);
  std::ranges::copy_if(pending_, std::back_inserter(device->pending_),
                       [](const Pending& pending) { return pending.is_complete; });
  return device;
}

SparseBytes SimulatedDevice::surviving_bytes(std::mt19937_64& random, CrashMode mode) const {
  SparseBytes bytes(durable_);
  if (mode == CrashMode::kNone || pending_.empty()) return bytes;
  const std::size_t prefix = random() % (pending_.size() + 1);
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const bool is_whole = mode == CrashMode::kAll || (mode == CrashMode::kPrefix && i < prefix) ||
                          (mode == CrashMode::kRandom && random() % 2 == 0);
    const bool is_torn = mode == CrashMode::kPrefix ? i == prefix : random() % 2 == 0;
    if (is_whole) {
      apply(bytes, pending_[i]);
    } else if (is_torn && mode == CrashMode::kRandom) {
      apply_torn(bytes, pending_[i], random);
    } else if (is_torn && !pending_[i].bytes.empty()) {
      const std::size_t sectors = pending_[i].bytes.size() / kSectorSizeBytes;
      const std::size_t length = random() % sectors * kSectorSizeBytes;
      bytes.write(pending_[i].offset_bytes, ConstBytes(pending_[i].bytes).first(length));
    }
  }
  return bytes;
}

void SimulatedDevice::apply(SparseBytes& bytes, const Pending& pending) {
  if (pending.bytes.empty()) return bytes.erase(pending.offset_bytes, pending.discard_size_bytes);
  bytes.write(pending.offset_bytes, pending.bytes);
}

void SimulatedDevice::apply_torn(SparseBytes& bytes, const Pending& pending,
                                 std::mt19937_64& random) {
  for (std::size_t at = 0; at < pending.bytes.size(); at += kSectorSizeBytes) {
    if (random() % 2 == 0) continue;
    bytes.write(pending.offset_bytes + at, ConstBytes(pending.bytes).subspan(at, kSectorSizeBytes));
  }
}

// ---- Faults ----

void SimulatedDevice::add_fault(const Fault& fault) {
  const MutexLock lock(mutex_);
  faults_.push_back({.fault = fault});
}

void SimulatedDevice::clear_faults() {
  const MutexLock lock(mutex_);
  faults_.clear();
}

// The first fault that strikes this operation, or null. Every matching fault counts it.
const Fault* SimulatedDevice::matching_fault(OperationKind kind, std::uint64_t offset_bytes,
                                             std::uint64_t size_bytes) {
  const Fault* struck = nullptr;
  for (ArmedFault& armed : faults_) {
    const Fault& fault = armed.fault;
    if (fault.kind != OperationKind::kAny && fault.kind != kind) continue;
    if (fault.flips_bit && kind != OperationKind::kRead) continue;
    if (kind != OperationKind::kFlush && !overlaps(fault, offset_bytes, size_bytes)) continue;
    const std::uint64_t number = armed.seen++;
    const bool strikes = number >= fault.skip && number - fault.skip < fault.times;
    if (strikes && struck == nullptr) struck = &fault;
  }
  return struck;
}

void SimulatedDevice::set_thin_budget(std::optional<std::uint64_t> budget_bytes) {
  const MutexLock lock(mutex_);
  thin_budget_bytes_ = budget_bytes;
}

void SimulatedDevice::flip_bit(std::uint64_t offset_bytes, unsigned bit) {
  std::byte value{};
  peek(offset_bytes, {&value, 1});
  value ^= std::byte{1} << bit;
  poke(offset_bytes, {&value, 1});
}

void SimulatedDevice::peek(std::uint64_t offset_bytes, Bytes target) const {
  const MutexLock lock(mutex_);
  live_.read(offset_bytes, target);
}

void SimulatedDevice::poke(std::uint64_t offset_bytes, ConstBytes source) {
  const MutexLock lock(mutex_);
  live_.write(offset_bytes, source);
  durable_.write(offset_bytes, source);
  for (Pending& pending : pending_) {  // A later flush must not bring the old bytes back.
    for (std::size_t i = 0; i < source.size(); ++i) {
      const std::uint64_t at = offset_bytes + i - pending.offset_bytes;
      if (at < pending.bytes.size()) pending.bytes[at] = source[i];
    }
  }
}

// ---- Holding operations ----

bool SimulatedDevice::is_held(bool has_reads, bool has_writes, bool is_flush) const {
  return std::ranges::any_of(held_kinds_, [&](OperationKind kind) {
    return kind == OperationKind::kAny || (kind == OperationKind::kRead && has_reads) ||
           (kind == OperationKind::kWrite && has_writes) ||
           (kind == OperationKind::kFlush && is_flush);
  });
}

void SimulatedDevice::pass_gate(bool has_reads, bool has_writes, bool is_flush) {
  if (!is_held(has_reads, has_writes, is_flush)) return;
  ++held_count_;
  gate_changed_.notify_all();
  while (passes_ == 0 && is_held(has_reads, has_writes, is_flush)) gate_changed_.wait(mutex_);
  if (is_held(has_reads, has_writes, is_flush)) --passes_;
  --held_count_;
  gate_changed_.notify_all();
}

void SimulatedDevice::hold(OperationKind kind) {
  const MutexLock lock(mutex_);
  held_kinds_.push_back(kind);
}

void SimulatedDevice::wait_until_held(std::size_t calls) const {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  const MutexLock lock(mutex_);
  while (held_count_ < calls)
    KVSLOT_CHECK(gate_changed_.wait_until(mutex_, end), "what is to be held comes");
}

std::size_t SimulatedDevice::held_count() const {
  const MutexLock lock(mutex_);
  return held_count_;
}

void SimulatedDevice::let_pass(std::size_t calls) {
  const MutexLock lock(mutex_);
  passes_ += calls;
  gate_changed_.notify_all();
}

void SimulatedDevice::release() {
  const MutexLock lock(mutex_);
  held_kinds_.clear();
  passes_ = 0;
  gate_changed_.notify_all();
}

// ---- What was done ----

std::vector<DeviceCall> SimulatedDevice::calls() const {
  const MutexLock lock(mutex_);
  return calls_;
}

void SimulatedDevice::clear_calls() {
  const MutexLock lock(mutex_);
  calls_.clear();
}

std::size_t SimulatedDevice::unflushed_write_count() const {
  const MutexLock lock(mutex_);
  return pending_.size();
}

}  // namespace kvslot::testing
