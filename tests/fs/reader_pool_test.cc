// Threads that may wait: what fs/reader_pool.h promises.
#include "fs/reader_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

namespace kvslot {
namespace {

TEST(ReaderPool, RunsEverythingBeforeItCloses) {
  std::atomic<int> count = 0;
  ReaderPool pool({.threads_max = 3});
  for (int i = 0; i < 1000; ++i) pool.post([&count] { ++count; });
  pool.close();
  EXPECT_EQ(count, 1000);
  pool.post([&count] { ++count; });  // late work still runs
  EXPECT_EQ(count, 1001);
}

TEST(ReaderPool, WorkThatWaitsDoesNotStopOtherWorkWhileThreadsAreLeft) {
  ReaderPool pool({.threads_max = 2});
  std::promise<void> gate;
  std::promise<void> done;
  pool.post([waiting = gate.get_future().share()] { waiting.wait(); });
  pool.post([&done] { done.set_value(); });
  done.get_future().wait();
  gate.set_value();
}

TEST(ReaderPool, CallersDoTheWorkThemselvesUpToTheLimit) {
  ReaderPool pool({.threads_max = 1, .inline_max = 1});
  const auto self = std::this_thread::get_id();
  std::promise<std::thread::id> inner;
  bool was_inline = false;
  pool.run([&] {
    was_inline = std::this_thread::get_id() == self;
    pool.run([&inner] { inner.set_value(std::this_thread::get_id()); });  // the limit is used up
  });
  EXPECT_TRUE(was_inline);
  EXPECT_NE(inner.get_future().get(), self);
}

TEST(ReaderPool, NobodyWorksForThePoolWhereNoneMayWait) {
  ReaderPool pool({.threads_max = 1, .inline_max = 0});
  std::promise<std::thread::id> where;
  pool.run([&where] { where.set_value(std::this_thread::get_id()); });
  EXPECT_NE(where.get_future().get(), std::this_thread::get_id());
}

}  // namespace
}  // namespace kvslot
