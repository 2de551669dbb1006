// Sizes on the command line: a number that was meant, or refused; never one that wrapped around.
#include <cctype>

#include "fs/mount_options.h"
#include "tests/fuzz/support/require.h"

namespace kvslot::testing {
namespace {

// The same, digit by digit, in a wider type.
unsigned __int128 digits_of(std::string_view text) {
  unsigned __int128 value = 0;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) break;
    value = value * 10 + static_cast<unsigned>(c - '0');
    if (value > UINT64_MAX) break;
  }
  return value;
}

void run(std::string_view text) {
  const auto size = parse_size(text);
  if (!size) return;
  require(!text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) != 0,
          "a size begins with a digit");
  const unsigned __int128 value = digits_of(text);
  require(
      value == 0 ? *size == 0 : *size % static_cast<std::uint64_t>(value) == 0 && *size >= value,
      "a size is its digits times a unit", text);
  const std::uint64_t factor = value == 0 ? 1 : *size / static_cast<std::uint64_t>(value);
  require(factor == 1 || factor == 1ULL << 10 || factor == 1ULL << 20 || factor == 1ULL << 30 ||
              factor == 1ULL << 40,
          "a unit is one of five", text);
}

}  // namespace
}  // namespace kvslot::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvslot::testing::run(kvslot::testing::input_text(data, size));
  return 0;
}
