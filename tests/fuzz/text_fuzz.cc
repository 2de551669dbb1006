// Keys as text: one line without control bytes, and the key can be got back.
#include "fs/text.h"

#include <algorithm>

#include "tests/fuzz/support/require.h"

namespace kvslot::testing {
namespace {

bool is_plain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte != 0x7f;
}

void run(std::string_view key) {
  const std::string text = escape_key(key);
  require(std::ranges::all_of(text, is_plain), "no control bytes");
  require(text.find("\xc2\x9b") == std::string::npos, "no control characters of two bytes");
  require(!text.starts_with('#') && text != "-", "no line that means something else");
  require(unescape_key(text) == key, "the key comes back");
  require(escape_key(text).size() >= text.size(), "escaping twice is escaping");
  if (const auto back = unescape_key(key)) {
    const std::string again = escape_key(*back);
    require(unescape_key(again) == *back, "what can be unescaped can be escaped");
  }
}

}  // namespace
}  // namespace kvslot::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvslot::testing::run(kvslot::testing::input_text(data, size));
  return 0;
}
