// Errors in words. See complaint.h.
#include "fs/cli/complaint.h"

#include <fmt/core.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "fs/cli/commands.h"
#include "fs/text.h"

namespace kvslot::cli {
namespace {

bool is_permission(const Error& error) {
  return error.os_errno == EACCES || error.os_errno == EPERM;
}

// Several steps of the engine come with their remedy.
std::string with_remedy(std::string_view step, std::string_view remedy) {
  const bool has_one = step.find(';') != std::string_view::npos;
  return has_one ? std::string(step) : fmt::format("{}; {}", step, remedy);
}

std::string step_text(const Error& error) {
  if (error.os_errno == 0) return error.step;
  return fmt::format("{}: {}", error.step, errno_text(error.os_errno));
}

std::string explain_damage(std::string_view step, std::string_view remedy) {
  if (step == "superblock: no kvslot signature") {
    return "holds no kvslot store; give the path of one, or make one with 'kvslot format' (if it "
           "was one, 'kvslot fsck --salvage DIR' takes out what is left)";
  }
  if (step.starts_with("shorter ")) {
    return fmt::format("is {}; bring it back to its full size, or restore a backup",
                       step.substr(0, step.find(';')));
  }
  return with_remedy(fmt::format("is damaged ({})", step), remedy);
}

}  // namespace

int complain(std::string_view thing, std::string_view what) {
  const std::string words = escape_control(what);
  const std::string line = thing.empty()
                               ? fmt::format("kvslot: {}\n", words)
                               : fmt::format("kvslot: {}: {}\n", escape_key(thing), words);
  std::fwrite(line.data(), 1, line.size(), stderr);
  return kExitFailure;
}

std::string explain_store(const Error& error) {
  if (is_permission(error)) {
    return fmt::format("{}; run as root, or as the owner of the image", step_text(error));
  }
  switch (error.code) {
    case Errc::kNotFound:
      return "does not exist; make a store with 'kvslot format PATH --size SIZE'";
    case Errc::kExists:
      return with_remedy(error.step, "give --force to overwrite it");
    case Errc::kBusy:
      return "is mounted or open elsewhere; use its mount, or unmount it with 'kvslot unmount DIR'";
    case Errc::kCorrupt:
      return explain_damage(
          error.step,
          "'kvslot fsck' tells how far, 'kvslot fsck --salvage DIR' takes out what is whole");
    case Errc::kInvalid:
      return with_remedy(error.step, "give the path of a block device or an image file");
    case Errc::kNoSpace:
      return with_remedy(step_text(error), "remove keys, or free space below the image");
    case Errc::kReadOnly:
      return with_remedy(step_text(error), "make the device writable");
    case Errc::kTooLarge:
      return with_remedy(error.step, "use a smaller device or image");
    case Errc::kWrongKind:
    case Errc::kIo:
      break;
  }
  if (error.os_errno == ENOSPC) {
    return fmt::format("{}; free space on the file system below the image", step_text(error));
  }
  return with_remedy(step_text(error), "the kernel's log (dmesg) may tell more");
}

std::string explain_check(const Error& error) {
  if (error.code != Errc::kCorrupt) return explain_store(error);
  return explain_damage(error.step, "'kvslot fsck --salvage DIR' takes out what is whole");
}

std::string explain_salvage(const Error& error) {
  if (error.code != Errc::kCorrupt) return explain_store(error);
  return fmt::format(
      "holds nothing that can be salvaged ({}); give the path of a store, or restore "
      "a backup",
      error.step);
}

std::string explain_folder(const Error& error) {
  switch (error.os_errno) {
    case ENOENT:
      return with_remedy(step_text(error), "make the folder above it first");
    case ENOTDIR:
    case EEXIST:
      return with_remedy(step_text(error), "give a folder that is empty or does not exist yet");
    case EACCES:
    case EPERM:
      return with_remedy(step_text(error), "give one in a folder that you may write to");
    case ENOSPC:
    case EDQUOT:
      return with_remedy(step_text(error), "give a new one where there is more room");
    case ENAMETOOLONG:
    case ELOOP:
      return with_remedy(step_text(error), "give another path");
    default:
      return with_remedy(step_text(error), "give a folder on another file system");
  }
}

std::string explain_key(const Error& error) {
  switch (error.code) {
    case Errc::kNotFound:
      return "no such key; 'kvslot ls' lists them";
    case Errc::kTooLarge:
      return "a name between slashes is over 255 bytes; use shorter names";
    case Errc::kWrongKind:
      return "is a directory, or lies below a file; choose another key";
    case Errc::kInvalid:
      return with_remedy(error.step, "a key is names joined by single slashes, none '.' or '..'");
    case Errc::kNoSpace:
      return "the store is full; remove keys, or use a larger store";
    case Errc::kCorrupt:
      return with_remedy(fmt::format("the value is damaged ({})", error.step),
                         "'kvslot fsck' tells how far");
    case Errc::kExists:
    case Errc::kIo:
    case Errc::kBusy:
    case Errc::kReadOnly:
      break;
  }
  return explain_store(error);
}

std::string errno_text(int os_errno) {
  return std::error_code(os_errno, std::generic_category()).message();
}

std::string size_text(std::uint64_t size_bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  std::uint64_t value = size_bytes;
  const char* unit = "bytes";
  for (const char* larger : kUnits) {
    if (value == 0 || value % 1024 != 0) break;
    value /= 1024;
    unit = larger;
  }
  return fmt::format("{} {}", value, unit);
}

}  // namespace kvslot::cli
