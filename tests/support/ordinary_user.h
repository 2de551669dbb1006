// Somebody who is not root, and may mount as on most machines. For tests/system.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/support/command.h"
#include "tests/support/temp_dir.h"

#ifdef KVSLOT_BINARY
namespace kvslot::testing {

// Only this test's: limits count what a user has.
inline std::string ordinary_uid() { return std::to_string(1'000'000 + ::getpid()); }

// In a mount namespace of its own, where everybody may use /dev/fuse, and where the user has a
// name, which fusermount3 wants. The command and its libraries are copied, because the user may
// not reach where they are. $1 directory, $2 command, $3 user, $4 the user's script, $5 its
// argument.
inline constexpr const char* kAsOrdinaryUser = R"(
cd "$1" && mkdir bin && cp "$2" bin/kvslot || exit 77
unshare --mount --propagation private true || exit 77
ldd "$2" | awk '$3 ~ /libfuse3/ {print $3}' | xargs -I{} cp {} bin/
exec unshare --mount --propagation private /bin/sh -c '
  mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse || exit 77
  { cat /etc/passwd; echo "kvslot-test:x:$1:$1::/:"; } >passwd && mount --bind passwd /etc/passwd || exit 77
  setpriv --reuid="$1" --regid="$1" --clear-groups true || exit 77
  exec setpriv --reuid="$1" --regid="$1" --clear-groups /bin/sh -c "$2" sh "$3"
' sh "$3" "$4" "$5"
)";

// The user's side of it.
inline constexpr const char* kOrdinaryUserBegins = R"(
export LD_LIBRARY_PATH="$PWD/bin"
kvslot() { bin/kvslot "$@"; }
ls "$PWD" >/dev/null && head -c 0 /dev/fuse 2>/dev/null && command -v fusermount3 >/dev/null || exit 77
[ -x bin/kvslot ] || exit 77
trap 'fusermount3 -u -z m 2>/dev/null || true' EXIT
)";

inline constexpr int kNoOrdinaryUser = 77;
inline constexpr const char* kWhyNoOrdinaryUser =
    "no mount namespace, folder, /dev/fuse or fusermount3 for an ordinary user: ";

// Runs the script as the user, in the directory, which becomes everybody's; $1 is the argument, and
// `kvslot` the command. What is mounted on `m` there is unmounted at the end. Returns
// kNoOrdinaryUser where the machine does not allow it.
[[nodiscard]] inline CommandResult run_as_ordinary_user(const TempDir& directory,
                                                        const std::string& script,
                                                        const std::string& argument) {
  ::chmod(directory.path().c_str(), 0777);
  return run_shell(kAsOrdinaryUser, {directory.path(), KVSLOT_BINARY, ordinary_uid(),
                                     kOrdinaryUserBegins + script, argument});
}

}  // namespace kvslot::testing
#endif  // KVSLOT_BINARY
