// A device in whose calls other things happen: before and after each one, a test does what another
// thread could do just then. One thread, so one seed gives one interleaving, always the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/support/borrowed_device.h"

namespace kvslot::testing {

// A call that stands still.
struct PausedCall {
  enum class Kind : std::uint8_t { kRead, kWrite, kFlush };
  Kind kind = Kind::kFlush;
  bool is_done = false;            // it was carried out and has not returned
  std::uint64_t offset_bytes = 0;  // the lowest of its requests
};

// Threads: as the device below; the callback runs on the thread that called.
class InterleavingDevice final : public BorrowedDevice {
 public:
  using Meanwhile = std::function<void(const PausedCall& call)>;

  InterleavingDevice(std::shared_ptr<Device> device, Meanwhile meanwhile)
      : BorrowedDevice(std::move(device)), meanwhile_(std::move(meanwhile)) {}

  void run(std::span<IoRequest> requests) override {
    PausedCall call{.kind = PausedCall::Kind::kRead,
                    .offset_bytes = std::numeric_limits<std::uint64_t>::max()};
    for (const IoRequest& request : requests) {
      if (request.op == IoOp::kWrite) call.kind = PausedCall::Kind::kWrite;
      call.offset_bytes = std::min(call.offset_bytes, request.offset_bytes);
    }
    meanwhile_(call);
    BorrowedDevice::run(requests);
    call.is_done = true;
    meanwhile_(call);
  }
  [[nodiscard]] Result<void> flush() override {
    meanwhile_({.kind = PausedCall::Kind::kFlush});
    auto result = BorrowedDevice::flush();
    meanwhile_({.kind = PausedCall::Kind::kFlush, .is_done = true});
    return result;
  }

 private:
  const Meanwhile meanwhile_;
};

// Which of a volume's locks the operations hold that stand still (core/ARCHITECTURE.md), the
// innermost last. Where it is not certain, more is assumed to be held.
class PausedOperations {
 public:
  enum class Operation : std::uint8_t { kCommit, kFlush, kCheckpoint, kRead };
  struct Held {
    bool turn = false;
    bool flush = false;
    bool checkpoint = false;
  };
  // An operation is under way.
  class Scope {
   public:
    Scope(PausedOperations& all, Operation operation) : all_(all) {
      all_.under_way_.push_back({operation, {}});
    }
    ~Scope() { all_.under_way_.pop_back(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PausedOperations& all_;
  };

  [[nodiscard]] std::size_t depth() const { return under_way_.size(); }
  // The innermost operation stands still in this call.
  void note(const PausedCall& call, std::uint64_t slots_offset_bytes) {
    UnderWay& innermost = under_way_.back();
    const bool is_flush = call.kind == PausedCall::Kind::kFlush;
    const bool is_value = call.offset_bytes >= slots_offset_bytes;
    switch (innermost.operation) {
      case Operation::kCommit:
        innermost.held = {.turn = true, .flush = is_flush, .checkpoint = true};
        break;
      case Operation::kFlush:
        innermost.held = {.turn = false, .flush = true, .checkpoint = false};
        break;
      case Operation::kCheckpoint:
        innermost.held = {.turn = !is_flush && !is_value, .flush = is_flush, .checkpoint = true};
        break;
      case Operation::kRead:
        break;
    }
  }
  [[nodiscard]] Held held() const {
    Held all;
    for (const UnderWay& each : under_way_) {
      all.turn |= each.held.turn;
      all.flush |= each.held.flush;
      all.checkpoint |= each.held.checkpoint;
    }
    return all;
  }

 private:
  struct UnderWay {
    Operation operation;
    Held held;
  };
  std::vector<UnderWay> under_way_;
};

}  // namespace kvslot::testing
