// Gives what was salvaged the mode, times, extended attributes and, for root, the owner that it
// had, as 'cp -a' does. Called by fs/cli/salvage_folder.cc.
#pragma once

#include <kvslot/admin.h>

namespace kvslot::cli {

// Each is false where the file system, or the rights of whoever asks, do not allow all of it. What
// is known of nothing stays as a new file's. Set-user-ID and set-group-ID are left out: an image
// from elsewhere must not make a program that runs as somebody else.

// `fd` is open for writing.
[[nodiscard]] bool restore_file(int fd, const SalvagedFile& file);
// It was made with mode 0700; one of which nothing is known gets what a new directory has.
[[nodiscard]] bool restore_directory(int fd, const SalvagedFile& directory);
[[nodiscard]] bool restore_symlink(int directory_fd, const char* name, const SalvagedFile& link);

}  // namespace kvslot::cli
