// A callback that would wait for a commit does not: it goes on from the pool, with its arguments.
#include "fs/recorded_call.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>

#include "tests/fs/filesystem_fixture.h"

namespace kvslot::testing {
namespace {

int no_answer(fuse_req_t) { return 0; }

struct Seen {
  std::string name;
  std::string value;
  int number = 0;
  std::thread::id thread;
};
std::promise<Seen> seen;

// As a callback: makes a directory, which waits while too much is recorded.
LiveStore* called_store = nullptr;
void operation(const Request& request, const char* name, std::string_view value, int number) {
  EXPECT_TRUE(called_store->fs().make(NodeId::kRoot, name, NodeKind::kDirectory, 0755, {}));
  request.answer(no_answer);
  seen.set_value({name, std::string(value), number, std::this_thread::get_id()});
}

class RecordedCall : public FilesystemTest {
 protected:
  // Fills what may be recorded while the device keeps the committer from taking it.
  void fill() {
    for (int i = 0; store_.volume().has_room_to_record(); ++i) {
      const std::string name = std::string(200, 'n') + std::to_string(i);
      ASSERT_TRUE(store_.fs().make(NodeId::kRoot, name, NodeKind::kDirectory, 0755, {}));
    }
  }
  void call(ReaderPool& pool) {
    called_store = &store_;
    seen = {};
    // Gone when the callback returns, as libfuse's are.
    std::string name = "made later, with a name that no small string holds in itself";
    std::string value("a\0b", 3);
    run_recorded<operation>(store_.volume(), pool, Request(nullptr), name.c_str(),
                            std::string_view(value), 7);
    name.assign(name.size(), 'x');
    value.assign(value.size(), 'x');
  }
};

TEST_F(RecordedCall, RunsAtOnceWhereThereIsRoom) {
  ReaderPool pool({.threads_max = 1});
  call(pool);
  EXPECT_EQ(seen.get_future().get().thread, std::this_thread::get_id());
}

TEST_F(RecordedCall, GoesOnElsewhereWhereItWouldWait) {
  ReaderPool pool({.threads_max = 1});
  Handle handle = store_.create("file");
  ASSERT_TRUE(store_.write(handle, 0, "text"));
  store_.device().hold(OperationKind::kWrite);
  auto committed = store_.begin_fsync(handle);
  store_.device().wait_until_held(1);
  fill();
  call(pool);  // returns, although the device stands still
  EXPECT_FALSE(store_.exists("made later, with a name that no small string holds in itself"));
  store_.device().release();
  const Seen found = seen.get_future().get();
  EXPECT_NE(found.thread, std::this_thread::get_id());
  EXPECT_EQ(found.name, "made later, with a name that no small string holds in itself");
  EXPECT_EQ(found.value, std::string("a\0b", 3));
  EXPECT_EQ(found.number, 7);
  EXPECT_TRUE(committed.get());
  EXPECT_TRUE(store_.close(std::move(handle)));
}

}  // namespace
}  // namespace kvslot::testing
