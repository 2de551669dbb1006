// Starts threads on demand, up to its limit; they stay until the pool closes.
#include "fs/reader_pool.h"

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

namespace kvslot {

ReaderPool::ReaderPool(const ReaderPoolOptions& options) : options_(options) {}

ReaderPool::~ReaderPool() { close(); }

void ReaderPool::post(Work work) {
  MutexLock lock(mutex_);
  if (closing_) {
    lock.unlock();
    work();
    return;
  }
  queue_.push_back(std::move(work));
  if (idle_ >= queue_.size() || threads_.size() >= options_.threads_max) {
    wake_.notify_one();
    return;
  }
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the thread that runs the session
  try {
    threads_.emplace_back([this] { serve(); });
  } catch (const std::system_error&) {  // no thread is to be had: another one takes the work
    wake_.notify_one();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!threads_.empty()) return;
  Work alone = std::move(queue_.back());
  queue_.pop_back();
  lock.unlock();
  alone();
}

void ReaderPool::run(Work work) {
  {
    MutexLock lock(mutex_);
    if (inline_ >= options_.inline_max) {
      lock.unlock();
      post(std::move(work));
      return;
    }
    ++inline_;
  }
  work();
  MutexLock lock(mutex_);
  --inline_;
}

void ReaderPool::serve() {
  MutexLock lock(mutex_);
  for (;;) {
    while (queue_.empty()) {
      if (closing_) return;
      ++idle_;
      wake_.wait(mutex_);
      --idle_;
    }
    Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

void ReaderPool::close() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    threads.swap(threads_);
    wake_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

std::size_t ReaderPool::queued() const {
  MutexLock lock(mutex_);
  return queue_.size();
}

}  // namespace kvslot
