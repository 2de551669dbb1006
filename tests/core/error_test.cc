#include <gtest/gtest.h>
#include <kvslot/error.h>

#include <cerrno>
#include <set>
#include <string>

namespace kvslot {
namespace {

constexpr Errc kAll[] = {Errc::kNotFound, Errc::kExists,    Errc::kNoSpace, Errc::kInvalid,
                         Errc::kTooLarge, Errc::kWrongKind, Errc::kIo,      Errc::kCorrupt,
                         Errc::kBusy,     Errc::kReadOnly};

TEST(Error, EveryCodeHasAnErrnoAndAWordOfItsOwn) {
  std::set<std::string> words;
  for (const Errc code : kAll) {
    EXPECT_NE(to_errno({.code = code, .os_errno = 0, .step = "test"}), 0);
    words.insert(to_string(code));
  }
  EXPECT_EQ(words.size(), std::size(kAll));
  EXPECT_FALSE(words.contains("unknown error"));
}

TEST(Error, TheErrnoOfTheFailedCallWins) {
  EXPECT_EQ(to_errno({.code = Errc::kIo, .os_errno = ENODEV, .step = "test"}), ENODEV);
  EXPECT_EQ(to_errno({.code = Errc::kIo, .os_errno = 0, .step = "test"}), EIO);
  EXPECT_EQ(to_errno({.code = Errc::kCorrupt, .os_errno = 0, .step = "test"}), EIO);
  EXPECT_EQ(to_errno({.code = Errc::kNoSpace, .os_errno = 0, .step = "test"}), ENOSPC);
}

TEST(Error, AFailureKeepsItsCauseAcrossResultTypes) {
  const Result<int> first = fail(Errc::kBusy, "first step", EAGAIN);
  const Result<std::string> second = fail(first);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Errc::kBusy);
  EXPECT_EQ(second.error().os_errno, EAGAIN);
  EXPECT_STREQ(second.error().step, "first step");
}

}  // namespace
}  // namespace kvslot
