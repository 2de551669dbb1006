// One line on standard error for whatever goes wrong: the thing, what is wrong, the remedy.
// Called by every command.
#pragma once

#include <kvslot/error.h>

#include <string>
#include <string_view>

namespace kvslot::cli {

// Prints "kvslot: <thing>: <what>" and returns kExitFailure. An empty thing is left out. Control
// bytes in either are escaped: a name must not command the terminal.
int complain(std::string_view thing, std::string_view what);

// What is wrong with a device or image, and the remedy: "does not exist; make a store with ...".
[[nodiscard]] std::string explain_store(const Error& error);

// The same for whoever asked fsck already.
[[nodiscard]] std::string explain_check(const Error& error);
[[nodiscard]] std::string explain_salvage(const Error& error);

// What went wrong with the folder that salvaged values are written to.
[[nodiscard]] std::string explain_folder(const Error& error);

// The same for a key of an open store.
[[nodiscard]] std::string explain_key(const Error& error);

// "No such file or directory"
[[nodiscard]] std::string errno_text(int os_errno);

// "256 MiB", "64 KiB", "4100 bytes": exact.
[[nodiscard]] std::string size_text(std::uint64_t size_bytes);

}  // namespace kvslot::cli
