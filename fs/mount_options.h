// What `-o` says, parsed and checked. Shared by the command line, the session and `config`.
#pragma once

#include <kvslot/device.h>
#include <kvslot/watched_device.h>
#include <sys/types.h>

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>

namespace kvslot {

enum class TransportChoice : std::uint8_t { kAuto, kUring, kDev };
enum class ControlDirectory : std::uint8_t { kHidden, kVisible, kNone };  // `.kvslot`
enum class ReaddirPlus : std::uint8_t { kAuto, kYes, kNo };

inline constexpr std::uint32_t kDeadlineSecondsMax = 86'400;

struct MountOptions {
  std::string device_path;
  std::string mount_point;
  bool read_only = false;
  bool sync = false;  // close and rename wait for durability
  std::uint32_t commit_seconds = 1;
  bool allow_other = false;
  std::optional<uid_t> uid;  // shown as the owner of everything
  std::optional<gid_t> gid;
  std::optional<mode_t> umask;
  ControlDirectory control = ControlDirectory::kHidden;
  TransportChoice transport = TransportChoice::kAuto;
  ReaddirPlus readdirplus = ReaddirPlus::kAuto;
  std::uint64_t staging_bytes = 256 << 20;
  EngineChoice engine = EngineChoice::kAuto;
  std::uint32_t deadline_seconds = kDeadlineDefault.count();  // for the device; 0: for ever
  std::uint32_t scrub_mib_per_second = 64;                    // 0: as fast as the device reads
  std::string kernel_options;  // generic ones for mount(2): "nosuid,nodev,noatime"
  std::string text;            // all of it, as shown in `config`
};

// Parses a comma-separated list such as "ro,commit=5,allow_other" into `options`.
//   errors   one line naming the option and what it takes
[[nodiscard]] std::expected<void, std::string> parse_mount_options(std::string_view text,
                                                                   MountOptions& options);

// "4K", "2G", "65536", "1MiB" in bytes.
[[nodiscard]] std::expected<std::uint64_t, std::string> parse_size(std::string_view text);

}  // namespace kvslot
