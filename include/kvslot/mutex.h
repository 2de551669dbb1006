// std::mutex with annotations, so that clang's -Wthread-safety proves who holds what.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define KVSLOT_ANNOTATE(x) __attribute__((x))
#else
#define KVSLOT_ANNOTATE(x)
#endif

#define CAPABILITY(x) KVSLOT_ANNOTATE(capability(x))
#define SCOPED_CAPABILITY KVSLOT_ANNOTATE(scoped_lockable)
#define GUARDED_BY(x) KVSLOT_ANNOTATE(guarded_by(x))
#define PT_GUARDED_BY(x) KVSLOT_ANNOTATE(pt_guarded_by(x))
#define REQUIRES(...) KVSLOT_ANNOTATE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) KVSLOT_ANNOTATE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) KVSLOT_ANNOTATE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) KVSLOT_ANNOTATE(release_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(x) KVSLOT_ANNOTATE(assert_capability(x))
#define RETURN_CAPABILITY(x) KVSLOT_ANNOTATE(lock_returned(x))
// For what runs before a second thread exists; say so where it is used.
#define NO_THREAD_SAFETY_ANALYSIS KVSLOT_ANNOTATE(no_thread_safety_analysis)

namespace kvslot {

// Counts what each thread holds, so that "nobody is called under a lock" can be checked always.
class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() {
    mutex_.lock();
    ++held_by_this_thread_;
  }
  void unlock() RELEASE() {
    --held_by_this_thread_;
    mutex_.unlock();
  }
  // For lambdas that run under a lock their creator holds, which the analysis cannot see.
  void assert_held() ASSERT_CAPABILITY(this) {}

  // How many this thread holds, of all there are.
  [[nodiscard]] static int held_by_this_thread() { return held_by_this_thread_; }

 private:
  static inline thread_local constinit int held_by_this_thread_ = 0;
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void unlock() RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// Waits with the caller's Mutex. wait() and wait_until() return also without cause, so callers
// loop on their condition.
class Condition {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) { condition_.wait(mutex); }
  template <typename TimePoint>
  bool wait_until(Mutex& mutex, TimePoint deadline) REQUIRES(mutex) {
    return condition_.wait_until(mutex, deadline) == std::cv_status::no_timeout;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace kvslot
