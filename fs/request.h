// One request of the kernel, and the duty to answer it: exactly once, now or later. A second
// answer could reach whoever is served from the same ring entry by then, a missing one leaves a
// process waiting for ever; so both are checked in every build.
// Made for each callback of fs/operations*.cc, which hand it on to whoever answers.
#pragma once

#include <kvslot/check.h>
#include <kvslot/mutex.h>

#include <atomic>
#include <memory>
#include <utility>

#include "fs/fuse_library.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace kvslot {

// A request that comes after an answer may come because of it: the kernel orders them, which
// ThreadSanitizer cannot see. In other builds these are nothing.
inline void came_from_kernel([[maybe_unused]] char& order) {
#ifdef __SANITIZE_THREAD__
  __tsan_acquire(&order);
#endif
}
inline void goes_to_kernel([[maybe_unused]] char& order) {
#ifdef __SANITIZE_THREAD__
  __tsan_release(&order);
#endif
}

// Copies share the duty, so that callbacks can carry it. Threads: thread-safe.
class Request {
 public:
  explicit Request(fuse_req_t raw) : duty_(std::make_shared<Duty>(raw)) {
    came_from_kernel(kernel_order_);
  }

  // For what libfuse knows about the request. It is libfuse's again once it is answered.
  [[nodiscard]] fuse_req_t raw() const {
    KVSLOT_CHECK(!duty_->is_answered, "a request is not used after its answer");
    return duty_->raw;
  }

  // Answers with one of libfuse's fuse_reply_*; returns what that returns.
  template <typename Reply, typename... Arguments>
  auto answer(Reply reply, Arguments... arguments) const {
    KVSLOT_CHECK(Mutex::held_by_this_thread() == 0, "a request is answered under no lock");
    goes_to_kernel(kernel_order_);
    return reply(duty_->take(), arguments...);
  }

 private:
  struct Duty {
    explicit Duty(fuse_req_t request) : raw(request) {}
    ~Duty() { KVSLOT_CHECK(is_answered, "every request is answered"); }
    Duty(const Duty&) = delete;
    Duty& operator=(const Duty&) = delete;
    fuse_req_t take() {
      KVSLOT_CHECK(!is_answered.exchange(true), "a request is answered once");
      return raw;
    }
    const fuse_req_t raw;
    std::atomic<bool> is_answered = false;
  };

  static inline char kernel_order_ = 0;
  std::shared_ptr<Duty> duty_;
};

// The callback for libfuse that hands its request as a Request to `operation`.
template <auto operation>
struct Callback;
template <typename... Arguments, void (*operation)(const Request&, Arguments...)>
struct Callback<operation> {
  static void call(fuse_req_t raw, Arguments... arguments) {
    operation(Request(raw), arguments...);
  }
};
template <auto operation>
inline constexpr auto kCallback = &Callback<operation>::call;

}  // namespace kvslot
