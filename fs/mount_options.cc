// Parses `-o`. Every option that mount(8) may pass on is known here, so that a typing error is
// told from an option of somebody else.
#include "fs/mount_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>

namespace kvslot {

namespace {

using Parsed = std::expected<void, std::string>;

constexpr std::uint32_t kCommitSecondsMax = 3600;
constexpr std::uint32_t kScrubMibPerSecondMax = 1 << 20;
constexpr std::uint64_t kStagingBytesMin = 8 << 20;
constexpr std::uint64_t kStagingBytesMax = std::uint64_t{64} << 30;

// For the kernel, by way of libfuse.
constexpr std::array<std::string_view, 9> kKernelOptions = {
    "suid", "nosuid", "dev", "nodev", "exec", "noexec", "noatime", "nodiratime", "dirsync"};

// For mount(8), systemd and fstab; or what we do anyway.
constexpr std::array<std::string_view, 23> kIgnoredOptions = {"rw",
                                                              "async",
                                                              "defaults",
                                                              "auto",
                                                              "noauto",
                                                              "user",
                                                              "nouser",
                                                              "users",
                                                              "nousers",
                                                              "owner",
                                                              "noowner",
                                                              "group",
                                                              "nogroup",
                                                              "nofail",
                                                              "_netdev",
                                                              "atime",
                                                              "diratime",
                                                              "relatime",
                                                              "strictatime",
                                                              "norelatime",
                                                              "silent",
                                                              "loud",
                                                              "default_permissions"};

constexpr std::array<std::string_view, 6> kIgnoredPrefixes = {
    "x-", "X-", "comment=", "user=", "subtype=", "fsname="};

template <typename Number>
std::expected<Number, std::string> parse_number(std::string_view name, std::string_view text,
                                                int base, Number max) {
  Number value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || result.ec != std::errc{} || result.ptr != text.data() + text.size() ||
      value > max) {
    return std::unexpected(fmt::format(
        "option {}={}: takes {} number up to {}", name, text, base == 8 ? "an octal" : "a",
        base == 8 ? fmt::format("{:o}", max) : fmt::format("{}", max)));
  }
  return value;
}

template <typename Choice, std::size_t kCount>
Parsed parse_choice(std::string_view name, std::string_view text,
                    const std::array<std::pair<std::string_view, Choice>, kCount>& choices,
                    Choice& choice) {
  std::string known;
  for (const auto& [word, value] : choices) {
    if (word == text) {
      choice = value;
      return {};
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", word);
  }
  return std::unexpected(fmt::format("option {}={}: takes one of {}", name, text, known));
}

Parsed parse_valued(std::string_view name, std::string_view value, MountOptions& options,
                    bool& is_known) {
  is_known = true;
  const auto set_number = [](auto parsed, auto& target) -> Parsed {
    if (!parsed) return std::unexpected(parsed.error());
    target = *parsed;
    return {};
  };
  constexpr std::uint32_t kIdMax = std::numeric_limits<std::uint32_t>::max() - 1;
  if (name == "uid") return set_number(parse_number<uid_t>(name, value, 10, kIdMax), options.uid);
  if (name == "gid") return set_number(parse_number<gid_t>(name, value, 10, kIdMax), options.gid);
  if (name == "umask") {
    return set_number(parse_number<mode_t>(name, value, 8, 0777), options.umask);
  }
  if (name == "commit") {
    auto parsed = parse_number<std::uint32_t>(name, value, 10, kCommitSecondsMax);
    if (parsed && *parsed == 0) parsed = 1;
    return set_number(parsed, options.commit_seconds);
  }
  if (name == "deadline") {
    return set_number(parse_number<std::uint32_t>(name, value, 10, kDeadlineSecondsMax),
                      options.deadline_seconds);
  }
  if (name == "scrub_rate") {
    return set_number(parse_number<std::uint32_t>(name, value, 10, kScrubMibPerSecondMax),
                      options.scrub_mib_per_second);
  }
  if (name == "control") {
    return parse_choice<ControlDirectory, 3>(name, value,
                                             {{{"hidden", ControlDirectory::kHidden},
                                               {"visible", ControlDirectory::kVisible},
                                               {"none", ControlDirectory::kNone}}},
                                             options.control);
  }
  if (name == "transport") {
    return parse_choice<TransportChoice, 3>(name, value,
                                            {{{"auto", TransportChoice::kAuto},
                                              {"uring", TransportChoice::kUring},
                                              {"dev", TransportChoice::kDev}}},
                                            options.transport);
  }
  if (name == "readdirplus") {
    return parse_choice<ReaddirPlus, 3>(
        name, value,
        {{{"auto", ReaddirPlus::kAuto}, {"yes", ReaddirPlus::kYes}, {"no", ReaddirPlus::kNo}}},
        options.readdirplus);
  }
  if (name == "engine") {
    return parse_choice<EngineChoice, 4>(name, value,
                                         {{{"auto", EngineChoice::kAuto},
                                           {"uring", EngineChoice::kUring},
                                           {"io_uring", EngineChoice::kUring},
                                           {"posix", EngineChoice::kPosix}}},
                                         options.engine);
  }
  if (name == "staging") {
    const auto parsed = parse_size(value);
    if (!parsed || *parsed < kStagingBytesMin || *parsed > kStagingBytesMax) {
      return std::unexpected(
          fmt::format("option staging={}: takes a size from 8M to 64G, such as 256M", value));
    }
    options.staging_bytes = *parsed;
    return {};
  }
  is_known = false;
  return {};
}

Parsed parse_one(std::string_view option, MountOptions& options) {
  const std::size_t equals = option.find('=');
  if (equals != std::string_view::npos) {
    bool is_known = false;
    auto parsed =
        parse_valued(option.substr(0, equals), option.substr(equals + 1), options, is_known);
    if (is_known) return parsed;
  }
  if (option == "ro")
    options.read_only = true;
  else if (option == "rw")
    options.read_only = false;
  else if (option == "sync")
    options.sync = true;
  else if (option == "async")
    options.sync = false;
  else if (option == "allow_other")
    options.allow_other = true;
  else if (option == "cache") {
    return std::unexpected("option cache: not available yet; leave it out");
  } else if (std::ranges::find(kKernelOptions, option) != kKernelOptions.end()) {
    if (!options.kernel_options.empty()) options.kernel_options += ',';
    options.kernel_options += option;
  } else if (std::ranges::find(kIgnoredOptions, option) == kIgnoredOptions.end() &&
             std::ranges::none_of(kIgnoredPrefixes, [option](std::string_view prefix) {
               return option.starts_with(prefix);
             })) {
    return std::unexpected(
        fmt::format("option {}: unknown; kvslot mount --help lists the options", option));
  }
  return {};
}

}  // namespace

std::expected<void, std::string> parse_mount_options(std::string_view text, MountOptions& options) {
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view option = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    if (option.empty()) continue;
    if (auto parsed = parse_one(option, options); !parsed) return parsed;
    if (!options.text.empty()) options.text += ',';
    options.text += option;
  }
  return {};
}

std::expected<std::uint64_t, std::string> parse_size(std::string_view text) {
  const auto bad = [text] {
    return std::unexpected(fmt::format("{}: not a size; write 65536, 4K, 256M, 2G or 1T", text));
  };
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{}) return bad();
  std::string_view unit(result.ptr,
                        static_cast<std::size_t>(text.data() + text.size() - result.ptr));
  unsigned shift = 0;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kUnits = "KMGT";
    const char letter = unit.front() == 'k' ? 'K' : unit.front();
    const std::size_t which = kUnits.find(letter);
    if (which == std::string_view::npos) return bad();
    unit.remove_prefix(1);
    if (!unit.empty() && unit != "iB" && unit != "i" && unit != "B") return bad();
    shift = static_cast<unsigned>(10 * (which + 1));
  }
  if (value > (std::numeric_limits<std::uint64_t>::max() >> shift)) return bad();
  return value << shift;
}

}  // namespace kvslot
