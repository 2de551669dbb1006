// `-o` as anybody may write it: parsed, or refused in one line that names the option.
#include "fs/mount_options.h"

#include "tests/fuzz/support/require.h"

namespace kvslot::testing {
namespace {

void run(std::string_view text) {
  MountOptions options;
  const auto parsed = parse_mount_options(text, options);
  if (!parsed) {
    require(parsed.error().starts_with("option "), "a refusal names the option");
    return;
  }
  require(options.commit_seconds >= 1 && options.commit_seconds <= 3600, "commit has its limits");
  require(options.staging_bytes >= 8 << 20, "staging has its limit");
  require(!options.umask || *options.umask <= 0777, "umask has its limit");
  MountOptions again;
  require(parse_mount_options(options.text, again).has_value(), "its own text can be parsed");
  require(again.text == options.text && again.kernel_options == options.kernel_options &&
              again.read_only == options.read_only && again.uid == options.uid,
          "and means the same");
}

}  // namespace
}  // namespace kvslot::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvslot::testing::run(kvslot::testing::input_text(data, size));
  return 0;
}
