// Keys as text: one line, valid UTF-8, and the key can be got back.
// Called by the pseudo-files and the command line, wherever a key is printed.
#pragma once

#include <kvslot/clock.h>
#include <kvslot/error.h>
#include <kvslot/types.h>

#include <string>
#include <string_view>

namespace kvslot {

// Escapes a key: tab, newline and backslash as `\t`, `\n`, `\\`; control bytes and what is no UTF-8
// as `\xHH`. A leading `#` and the key `-` are escaped too, so that a column never looks like the
// header line, a reserved owner such as `#checkpoint`, or the `-` that stands for nothing.
[[nodiscard]] std::string escape_key(std::string_view key);

// The key that escape_key() was given.
//   errors   kInvalid: an unknown or incomplete escape
[[nodiscard]] Result<std::string> unescape_key(std::string_view text);

// A line for people that may quote anybody's bytes: control bytes and what is no UTF-8 as `\xHH`,
// so that no terminal takes them for commands; everything else as it is.
[[nodiscard]] std::string escape_control(std::string_view line);

// Seconds since 1970 with nine decimals: "1700000000.000000001", "-0.500000000".
[[nodiscard]] std::string format_timestamp(TimestampNs time_ns);

// "EIO", or "-" for 0.
[[nodiscard]] std::string errno_name(int os_errno);

}  // namespace kvslot
