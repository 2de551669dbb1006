// A request is answered exactly once, whoever answers it.
#include "fs/request.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>

namespace kvslot {
namespace {

// In place of libfuse's fuse_reply_err.
int answers = 0;
int count_answer(fuse_req_t, int error) {
  ++answers;
  return error;
}

TEST(Request, IsAnsweredByWhoeverHoldsACopy) {
  answers = 0;
  std::function<void()> later;
  {
    const Request request(nullptr);
    later = [request] { EXPECT_EQ(request.answer(count_answer, EIO), EIO); };
  }
  EXPECT_EQ(answers, 0);
  later();
  EXPECT_EQ(answers, 1);
}

TEST(RequestDeathTest, ASecondAnswerEndsTheProcessBeforeItReachesAnybody) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto answer_twice = [] {
    const Request request(nullptr);
    request.answer(count_answer, 0);
    request.answer(count_answer, 0);
  };
  EXPECT_DEATH(answer_twice(), "a request is answered once");
}

TEST(RequestDeathTest, ARequestThatNobodyAnsweredEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH({ const Request request(nullptr); }, "every request is answered");
}

TEST(RequestDeathTest, ARequestIsNotAskedAboutAfterItsAnswer) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ask_later = [] {
    const Request request(nullptr);
    request.answer(count_answer, 0);
    static_cast<void>(request.raw());
  };
  EXPECT_DEATH(ask_later(), "not used after its answer");
}

void answer_with(const Request& request, fuse_ino_t, int error) {
  request.answer(count_answer, error);
}

TEST(Request, ACallbackOfLibfuseGetsItsArguments) {
  answers = 0;
  void (*const callback)(fuse_req_t, fuse_ino_t, int) = kCallback<answer_with>;
  callback(nullptr, 1, 0);
  EXPECT_EQ(answers, 1);
}

}  // namespace
}  // namespace kvslot
