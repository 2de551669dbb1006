// Files over a device that does not answer: what waits is told when time is over, and the rest goes
// on.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/fs/filesystem_fixture.h"

namespace kvslot::testing {
namespace {

class HungDeviceFilesystemTest : public FilesystemTest {
 protected:
  std::uint64_t stat(std::string_view name) { return stat_of(store_.volume(), name); }
};

// More of them than a queue of the kernel's has entries; no thread of ours waits for any.
TEST_F(HungDeviceFilesystemTest, ManyWhoWaitLeaveTheRestAlone) {
  constexpr std::size_t kWaiters = 400;
  put("stored", "old");
  std::vector<Handle> handles;
  for (std::size_t i = 0; i < kWaiters; ++i) {
    handles.push_back(store_.create("file" + std::to_string(i)));
    ASSERT_TRUE(store_.write(handles.back(), 0, "new"));
  }
  store_.device().hold(OperationKind::kAny);
  std::vector<std::future<Result<void>>> answers;
  for (const Handle& handle : handles) answers.push_back(store_.begin_fsync(handle));
  store_.device().wait_until_held(1);
  EXPECT_TRUE(store_.exists("stored"));
  EXPECT_EQ(store_.content(handles[0]), "new");
  EXPECT_TRUE(store_.fs().list(NodeId::kRoot, 0, 1000));
  Handle another = store_.create("another");
  EXPECT_TRUE(store_.write(another, 0, "x"));
  EXPECT_FALSE(store_.volume().inspector().inflight().empty());
  store_.watched().expire();
  for (auto& answer : answers) EXPECT_NE(errno_of(answer.get()), 0);
  EXPECT_EQ(stat("device_timeouts"), 1U);
  EXPECT_EQ(errno_of(store_.write(another, 1'000'000, "x")), EROFS);
  EXPECT_EQ(errno_of(store_.fsync(another)), EROFS);
  EXPECT_FALSE(store_.sync());
  EXPECT_EQ(store_.content(handles[0]), "new") << "what is in memory stays readable";
  store_.device().release();
  for (Handle& handle : handles) static_cast<void>(store_.close(std::move(handle)));
  static_cast<void>(store_.close(std::move(another)));
  store_.crash();
  EXPECT_EQ(store_.content("stored"), "old");
  EXPECT_FALSE(store_.exists("file1"));
}

TEST_F(HungDeviceFilesystemTest, AnErrorAfterCloseIsToldByTheNextFsyncAndListed) {
  const NodeId node = put("file", "old");
  store_.device().hold(OperationKind::kWrite);
  Handle writer = store_.open(node, {.writes = true});
  ASSERT_TRUE(store_.write(writer, 0, "new"));
  ASSERT_TRUE(store_.close(std::move(writer)));  // it is on its way
  store_.device().wait_until_held(1);
  Handle reader = store_.open(node, {.writes = true});
  auto waits = store_.begin_fsync(reader);
  store_.watched().expire();
  EXPECT_NE(errno_of(waits.get()), 0);
  EXPECT_NE(errno_of(store_.fsync(reader)), 0) << "it is not stored";
  bool is_listed = false;
  for (const FaultRecord& fault : store_.volume().inspector().faults())
    is_listed = is_listed || (fault.operation == "commit" && fault.key == "file");
  EXPECT_TRUE(is_listed);
  store_.device().release();
  static_cast<void>(store_.close(std::move(reader)));
  store_.crash();
  EXPECT_EQ(store_.content("file"), "old");
}

TEST_F(HungDeviceFilesystemTest, ReadersThatWaitGetEioAndOthersAtOnce) {
  std::vector<NodeId> nodes;
  for (int i = 0; i < 20; ++i) nodes.push_back(put("file" + std::to_string(i), "text"));
  store_.device().hold(OperationKind::kRead);
  std::vector<Handle> handles;
  std::vector<std::promise<int>> answers(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    handles.push_back(store_.open(nodes[i], {}));
    store_.fs().read(*handles[i], 0, 4, [&answers, i](Result<ReadView> view) {
      answers[i].set_value(view ? 0 : to_errno(view.error()));
    });
  }
  store_.device().wait_until_held(4);  // as many as the pool has threads
  store_.watched().expire();
  // One reader at a time tries the device; the test ends that one's time, too.
  for (auto& answer : answers) {
    auto future = answer.get_future();
    while (future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      store_.watched().expire();
      std::this_thread::yield();
    }
    EXPECT_EQ(future.get(), EIO);
  }
  store_.device().release();
  EXPECT_EQ(store_.content(handles[0]), "text");
  for (Handle& handle : handles) static_cast<void>(store_.close(std::move(handle)));
}

TEST_F(HungDeviceFilesystemTest, InflightCountsTheRequestsThatWait) {
  Handle handle = store_.create("file");
  ASSERT_TRUE(store_.write(handle, 0, "x"));
  store_.device().hold(OperationKind::kWrite);
  auto first = store_.begin_fsync(handle);
  store_.device().wait_until_held(1);
  auto second = store_.begin_fsync(handle);  // of the same bytes: it waits for the same put
  const auto listed = store_.volume().inspector().inflight();
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].waiters, 0U) << "the file's waiters are the mount's to count";
  {
    MutexLock lock(handle->file->mutex);
    EXPECT_EQ(handle->file->waiting_now.size(), 2U);
  }
  store_.device().release();
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(second.get());
  EXPECT_TRUE(store_.close(std::move(handle)));
}

}  // namespace
}  // namespace kvslot::testing
