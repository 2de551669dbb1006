// `kvslot info`, and `kvslot fsck` with what it mends. The step after is core's admin.h.
#include <fmt/core.h>
#include <kvslot/admin.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "fs/cli/commands.h"
#include "fs/cli/complaint.h"
#include "fs/cli/salvage_folder.h"
#include "fs/cli/store_access.h"
#include "fs/text.h"

namespace kvslot::cli {
namespace {

// One line on a terminal that is written over as the check goes on; nothing elsewhere.
class Progress {
 public:
  void show(const char* phase, std::uint64_t done, std::uint64_t total) {
    if (!is_terminal_ || total == 0) return;
    const auto percent = static_cast<int>(done * 100 / total);
    if (percent == shown_percent_) return;
    shown_percent_ = percent;
    fmt::print(stderr, "\r\033[K{}: {} %", phase, percent);
    std::fflush(stderr);
  }
  void clear() {
    if (shown_percent_ >= 0) fmt::print(stderr, "\r\033[K");
    shown_percent_ = -1;
  }

 private:
  const bool is_terminal_ = ::isatty(STDERR_FILENO) == 1;
  int shown_percent_ = -1;
};

void print_findings(const std::string& path, const CheckReport& report) {
  for (const CheckFinding& finding : report.findings)
    fmt::print("{}: {}: {}\n", escape_control(path), finding.is_error ? "error" : "remark",
               escape_control(finding.what));
}

// How bad it is, and the remedy.
std::string verdict(const CheckReport& report) {
  if (!report.damaged) return "clean";
  const auto count = [&](Remedy remedy) {
    return std::ranges::count(report.findings, remedy, &CheckFinding::remedy);
  };
  const auto repairable = count(Remedy::kRepair);
  const auto left = count(Remedy::kSalvage);
  const std::string errors = fmt::format("damaged ({} errors)", repairable + left);
  if (left == 0) return errors + "; 'kvslot fsck --repair' mends it";
  const bool some = repairable != 0 && report.opens;
  return fmt::format("{}; {}'kvslot fsck --salvage DIR' takes out what is whole", errors,
                     some ? "'kvslot fsck --repair' mends a part, " : "");
}

void print_summary(const std::string& path, const CheckReport& report) {
  fmt::print("{}: {}, {} keys, {} directories, {} bytes, {} slots used, {} free\n",
             escape_control(path), verdict(report), report.keys, report.directories,
             report.values_bytes, report.slots_used, report.slots_free);
}

int refuse(const std::string& path, const Error& error) {
  complain(path, explain_check(error));
  return kFsckCouldNotRun;
}

int check(const FsckArguments& arguments, Device& device, const CheckOptions& options,
          Progress& progress) {
  const auto report = check_device(device, options);
  progress.clear();
  if (!report) return refuse(arguments.path, report.error());
  print_findings(arguments.path, *report);
  print_summary(arguments.path, *report);
  return report->damaged ? kFsckDamaged : kExitOk;
}

int repair(const FsckArguments& arguments, Device& device, const CheckOptions& options,
           Progress& progress) {
  const auto report = repair_device(device, options);
  progress.clear();
  if (!report) return refuse(arguments.path, report.error());
  print_findings(arguments.path, report->before);
  for (const std::string& done : report->done)
    fmt::print("{}: repair: {}\n", escape_control(arguments.path), done);
  if (report->done.empty() && report->after.damaged)
    fmt::print("{}: repair: what is wrong would need a guess, nothing was written\n",
               escape_control(arguments.path));
  print_summary(arguments.path, report->after);
  const auto repairable = [](const CheckReport& of) {
    return std::ranges::count(of.findings, Remedy::kRepair, &CheckFinding::remedy);
  };
  return (repairable(report->after) < repairable(report->before) ? kFsckCorrected : kExitOk) |
         (report->after.damaged ? kFsckDamaged : kExitOk);
}

int salvage(const FsckArguments& arguments, Device& device, Progress& progress) {
  const std::string& directory = arguments.salvage_directory;
  const auto folder = SalvageFolder::open(directory);
  if (!folder) {
    complain(directory, folder.error());
    return kFsckCouldNotRun;
  }
  auto report = salvage_device(
      device, **folder,
      {.on_progress = [&](const char* phase, std::uint64_t done, std::uint64_t total) {
        progress.show(phase, done, total);
      }});
  if (report)
    if (auto finished = (*folder)->finish(); !finished) report = std::unexpected(finished.error());
  progress.clear();
  if (!report) {
    const bool is_store = report.error().code == Errc::kCorrupt;
    complain(is_store ? arguments.path : directory,
             is_store ? explain_salvage(report.error())
                      : "salvage is not complete: " + explain_folder(report.error()));
    return kFsckCouldNotRun;
  }
  for (const std::string& note : report->notes)
    fmt::print("{}: salvage: {}\n", escape_control(arguments.path), escape_control(note));
  if (report->unplaced != 0)
    fmt::print(
        "{}: salvage: {} values are named by no record and are in lost+found: removed keys "
        "may be among them, and values that end in a hole look shorter\n",
        escape_control(arguments.path), report->unplaced);
  if (report->older + report->removed != 0)
    fmt::print("{}: salvage: left out: {} older versions, {} removed keys\n",
               escape_control(arguments.path), report->older, report->removed);
  if (const std::uint64_t changed = (*folder)->changed_count(); changed != 0)
    fmt::print(
        "{}: salvage: of {} files, directories and links the folder does not hold all modes, "
        "owners, times or attributes; a folder on another file system may\n",
        escape_control(arguments.path), changed);
  fmt::print("{}: salvaged {}: {} files, {} directories, {} links, {} bytes; {} partial, {} lost\n",
             escape_control(arguments.path), report->complete ? "everything" : "what was left",
             report->files, report->directories, report->symlinks, report->bytes, report->partial,
             report->lost);
  return report->complete && (*folder)->changed_count() == 0 ? kExitOk : kFsckDamaged;
}

}  // namespace

int run_info(const std::string& path) {
  const auto device = open_device(path, Access::kRead);
  if (!device) return complain(path, device.error());
  const auto info = read_store_info(**device);
  if (!info) return complain(path, explain_store(info.error()));
  const Geometry& geometry = info->geometry;
  const auto line = [](const char* name, const std::string& value) {
    fmt::print("{:<18}{}\n", name, value);
  };
  line("UUID", to_string(geometry.uuid));
  line("label", geometry.label.empty() ? "-" : escape_key(geometry.label));
  line("format version", fmt::format("{}", info->format_version));
  line("state", info->closed ? "clean" : "not closed; the next mount recovers it");
  line("size", size_text(geometry.size_bytes));
  line("slot size", size_text(geometry.slot_size_bytes));
  line("slots", fmt::format("{}", geometry.slot_count));
  line("journal", size_text(geometry.journal_size_bytes));
  line("sequence", fmt::format("{}", info->sequence));
  line("checkpoint", info->checkpoint_written_ns == 0
                         ? "-"
                         : fmt::format("{} entries, {} bytes, written at {}", info->key_count,
                                       info->checkpoint_size_bytes,
                                       format_timestamp(info->checkpoint_written_ns)));
  line("formatted at", format_timestamp(info->formatted_ns));
  return kExitOk;
}

int run_fsck(const FsckArguments& arguments) {
  const auto device =
      open_device(arguments.path, arguments.repair ? Access::kWrite : Access::kRead);
  if (!device) {
    complain(arguments.path, device.error());
    return kFsckCouldNotRun;
  }
  Progress progress;
  const CheckOptions options{.verify_values = arguments.verify_values,
                             .on_progress = [&](std::uint64_t done, std::uint64_t total) {
                               progress.show("checking", done, total);
                             }};
  if (!arguments.salvage_directory.empty()) return salvage(arguments, **device, progress);
  return (arguments.repair ? repair : check)(arguments, **device, options, progress);
}

}  // namespace kvslot::cli
