// Tests fs/text.cc: keys survive being printed.
#include "fs/text.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <limits>
#include <random>

namespace kvslot {
namespace {

TEST(Text, PlainKeysStayAsTheyAre) {
  EXPECT_EQ(escape_key("model/layer0/chunk7"), "model/layer0/chunk7");
  EXPECT_EQ(escape_key("a b#c-d"), "a b#c-d");
  EXPECT_EQ(escape_key("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(escape_key("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
}

TEST(Text, SeparatorsAndControlBytesAreEscaped) {
  EXPECT_EQ(escape_key("a\tb\nc\\d"), "a\\tb\\nc\\\\d");
  EXPECT_EQ(escape_key("\x1b[31m\x7f"), "\\x1b[31m\\x7f");
  EXPECT_EQ(escape_key("\xC2\x9B"), "\\xc2\\x9b");  // a terminal's CSI as one character
}

TEST(Text, BytesThatAreNoUtf8AreEscapedOneByOne) {
  EXPECT_EQ(escape_key("\xFF"), "\\xff");
  EXPECT_EQ(escape_key("a\xC3"), "a\\xc3");
  EXPECT_EQ(escape_key("\xC0\xAF"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(escape_key("\xED\xA0\x80"), "\\xed\\xa0\\x80");           // surrogate
  EXPECT_EQ(escape_key("\xF4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // past the last code point
}

TEST(Text, KeysNeverLookLikeAHeaderOrLikeNothing) {
  EXPECT_EQ(escape_key("#checkpoint"), "\\x23checkpoint");
  EXPECT_EQ(escape_key("-"), "\\x2d");
  EXPECT_EQ(escape_key("-x"), "-x");
}

TEST(Text, AnyKeyCanBeGotBack) {
  const unsigned seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string key;
    const std::size_t size = random() % 40;
    for (std::size_t i = 0; i < size; ++i) key += static_cast<char>(random() % 256);
    const std::string text = escape_key(key);
    EXPECT_EQ(text.find_first_of("\t\n"), std::string::npos);
    const auto back = unescape_key(text);
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(*back, key);
  }
}

TEST(Text, ALineForPeopleKeepsAllButWhatCommandsATerminal) {
  EXPECT_EQ(escape_control("#a: \\n gr\xc3\xbc\xc3\x9f"), "#a: \\n gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(escape_control("\x1b[31m\n\t\x7f"), "\\x1b[31m\\x0a\\x09\\x7f");
  EXPECT_EQ(escape_control("\xc2\x9b\x9b\xff"), "\\xc2\\x9b\\x9b\\xff");
}

TEST(Text, IncompleteOrUnknownEscapesAreInvalid) {
  for (const char* text : {"\\", "a\\q", "\\x", "\\x1", "\\xg0", "\\x0g"}) {
    EXPECT_FALSE(unescape_key(text).has_value()) << text;
  }
  EXPECT_EQ(unescape_key("\\x41").value(), "A");
}

TEST(Text, TimestampsAreSecondsWithNineDecimals) {
  EXPECT_EQ(format_timestamp(0), "0.000000000");
  EXPECT_EQ(format_timestamp(1'700'000'000'000'000'001), "1700000000.000000001");
  EXPECT_EQ(format_timestamp(-500'000'000), "-0.500000000");
  EXPECT_EQ(format_timestamp(std::numeric_limits<TimestampNs>::min()), "-9223372036.854775808");
}

TEST(Text, ErrnosHaveTheirNames) {
  EXPECT_EQ(errno_name(0), "-");
  EXPECT_EQ(errno_name(EIO), "EIO");
  EXPECT_EQ(errno_name(123456), "errno 123456");
}

}  // namespace
}  // namespace kvslot
