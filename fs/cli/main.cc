// The command line: which command, with which arguments. The step after is fs/cli/commands.h.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "fs/cli/commands.h"
#include "fs/cli/complaint.h"
#include "fs/cli/isolation.h"
#include "fs/mount_options.h"

namespace kvslot::cli {
namespace {

using Words = std::vector<std::string>;

// The arguments of all commands, and what the one that was given does.
struct CommandLine {
  FormatArguments format;
  MountArguments mount;
  std::string unmount_directory;
  std::string info_path;
  FsckArguments fsck;
  bool skip_values = false;
  bool is_ignored = false;
  std::string ignored_type;
  ListArguments list;
  TransferArguments get, put;
  std::string rm_path;
  Words rm_keys;
  ExecArguments exec;
  BenchArguments bench;
  std::function<int()> run;
};

CLI::Option* required(CLI::App* command, const std::string& name, std::string& target,
                      const std::string& help) {
  return command->add_option(name, target, help)->required();
}

// CLI11 wants an exception for a value that is not one; it is caught in parse().
void add_size(CLI::App* command, const std::string& name, std::function<void(std::uint64_t)> take,
              const std::string& help) {
  const auto parse = [name, take = std::move(take)](const std::string& text) {
    const auto size_bytes = parse_size(text);
    if (!size_bytes) throw CLI::ValidationError(name, size_bytes.error());
    take(*size_bytes);
  };
  command->add_option_function<std::string>(name, parse, help)->type_name("SIZE");
}

void add_mount_options(CLI::App* command, Words& target) {
  command
      ->add_option("-o", target,
                   "Mount options: ro, sync, commit=SECONDS, allow_other, uid=, gid=, umask=, "
                   "control=hidden|visible|none, transport=auto|uring|dev, "
                   "readdirplus=auto|yes|no, staging=SIZE, engine=auto|uring|io_uring|posix, "
                   "deadline=SECONDS, scrub_rate=MIB_PER_SECOND")
      ->type_name("OPTIONS")
      ->expected(1)
      ->take_all();
}

void add_format(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("format", "Make a store on a block device or image");
  required(command, "PATH", line.format.path, "Block device or image file");
  add_size(
      command, "--size", [&line](std::uint64_t size) { line.format.size_bytes = size; },
      "Create an image of this size, such as 4G");
  add_size(
      command, "--slot-size", [&line](std::uint64_t size) { line.format.slot_size_bytes = size; },
      "Unit of allocation, a power of two from 4K to 4M (default 4K)");
  command->add_option("--label", line.format.label, "A name, up to 63 bytes")->type_name("TEXT");
  command->add_flag("--force", line.format.force,
                    "Overwrite what is there, unless it is mounted or in use");
  command->callback([&line] { line.run = [&line] { return run_format(line.format); }; });
}

// A number that no descriptor has yet would become one of the mount's own.
std::string why_not_writable(const std::string& number) {
  int fd = -1;
  const char* const end = number.data() + number.size();
  if (std::from_chars(number.data(), end, fd).ptr != end) return {};  // the conversion complains
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0)
    return fmt::format("descriptor {} is not open; open it for kvslot: {}>FILE", fd, fd);
  if ((flags & O_ACCMODE) == O_RDONLY) return fmt::format("descriptor {} is not open to write", fd);
  return {};
}

// mount(8) calls its helpers with options of its own, and there -f means to fake.
void add_mount(CLI::App& app, CommandLine& line, bool is_helper) {
  CLI::App* command = app.add_subcommand("mount", "Mount a store on a directory");
  required(command, "PATH", line.mount.path, "Block device or image file");
  required(command, "DIR", line.mount.directory, "Directory to mount on");
  add_mount_options(command, line.mount.options);
  if (is_helper) {
    command->add_flag("-f", line.mount.is_fake, "Do everything but mount");
  } else {
    command->add_flag("-f,--foreground", line.mount.foreground, "Stay in the foreground");
  }
  command
      ->add_option("--ready-fd", line.mount.ready_fd,
                   "Write one byte to this descriptor when the mount answers")
      ->type_name("FD")
      ->check(why_not_writable);
  command->add_flag("-s,-n,-v", line.is_ignored)->group("");
  command->add_option("-t", line.ignored_type)->group("");
  command->callback([&line] { line.run = [&line] { return run_mount(line.mount); }; });
}

void add_unmount(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand(
      "unmount", "Unmount, and wait until everything is on the device; also: umount");
  command->alias("umount");
  required(command, "DIR", line.unmount_directory, "Where it is mounted");
  command->callback(
      [&line] { line.run = [&line] { return run_unmount(line.unmount_directory); }; });
}

void add_checks(CLI::App& app, CommandLine& line) {
  CLI::App* info = app.add_subcommand("info", "Show what a store is, unmounted");
  required(info, "PATH", line.info_path, "Block device or image file");
  info->callback([&line] { line.run = [&line] { return run_info(line.info_path); }; });

  CLI::App* fsck = app.add_subcommand("fsck", "Check, repair or salvage a store, unmounted");
  required(fsck, "PATH", line.fsck.path, "Block device or image file");
  fsck->add_flag("--no-values", line.skip_values, "Check the structure only, not every value");
  CLI::Option* check_only = fsck->add_flag("-n", line.is_ignored, "Change nothing (the default)");
  CLI::Option* repair = fsck->add_flag("--repair,-a,-p,-y", line.fsck.repair,
                                       "Mend what needs no guess, and say what was done");
  repair->excludes(check_only);
  fsck->add_option("--salvage", line.fsck.salvage_directory,
                   "Write every value that can be verified to DIR, a new or empty folder, and "
                   "nothing to the store; 4 where something is missing")
      ->type_name("DIR")
      ->check([](const std::string& text) { return std::string(text.empty() ? "no folder" : ""); })
      ->excludes(repair);
  fsck->footer(
      "Exit codes, as of fsck(8): 0 clean (a remark tells what a crash left), 1 errors corrected, "
      "4 errors left (5: some of both), 8 could not run, 16 wrong usage.");
  fsck->callback([&line] {
    line.fsck.verify_values = !line.skip_values;
    line.run = [&line] { return run_fsck(line.fsck); };
  });
}

void add_transfer(CLI::App& app, const char* name, const char* help, const char* file_help,
                  TransferArguments& arguments, std::function<void()> chosen) {
  CLI::App* command = app.add_subcommand(name, help);
  required(command, "PATH", arguments.path, "Block device or image file");
  required(command, "KEY", arguments.key, "A path such as a/b/c");
  command->add_option("FILE", arguments.file, file_help);
  command->callback(std::move(chosen));
}

void add_keys(CLI::App& app, CommandLine& line) {
  CLI::App* list = app.add_subcommand("ls", "List the keys of an unmounted store");
  required(list, "PATH", line.list.path, "Block device or image file");
  list->add_option("PREFIX", line.list.prefix, "A directory (default: all keys)");
  list->add_flag("-l", line.list.is_long, "With mode, owner, group, size and time");
  list->callback([&line] { line.run = [&line] { return run_ls(line.list); }; });

  add_transfer(app, "get", "Print a value of an unmounted store", "Write it there instead",
               line.get, [&line] { line.run = [&line] { return run_get(line.get); }; });
  add_transfer(app, "put", "Store a value in an unmounted store",
               "Where it is (default: standard input)", line.put,
               [&line] { line.run = [&line] { return run_put(line.put); }; });

  CLI::App* remove = app.add_subcommand("rm", "Remove keys of an unmounted store");
  required(remove, "PATH", line.rm_path, "Block device or image file");
  remove->add_option("KEY", line.rm_keys, "What to remove")->required();
  remove->callback([&line] { line.run = [&line] { return run_rm(line.rm_path, line.rm_keys); }; });
}

void add_exec(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand(
      "exec",
      "Run a command with a mounted store at $KVSLOT_MOUNT: exec PATH [OPTIONS] -- COMMAND");
  required(command, "PATH", line.exec.path, "Block device or image file");
  add_size(
      command, "--size", [&line](std::uint64_t size) { line.exec.size_bytes = size; },
      "Create an image of this size where PATH does not exist");
  add_mount_options(command, line.exec.options);
  command->footer(
      "The exit code is the command's, or 128 and the number of the signal it died of.");
  command->callback([&line] {
    if (line.exec.command.empty()) {
      throw CLI::ValidationError("COMMAND", "give it after --, as in 'exec PATH -- make test'");
    }
    line.run = [&line] { return run_exec(line.exec); };
  });
}

void add_bench(CLI::App& app, CommandLine& line) {
  CLI::App* bench = app.add_subcommand("bench", "Measure an unmounted store");
  bench->require_subcommand(1);
  CLI::App* put = bench->add_subcommand("put", "Single puts against one batch of them");
  required(put, "PATH", line.bench.path, "A store without keys");
  put->add_flag("--json", line.bench.json, "One JSON object a line");
  put->add_flag("--force", line.bench.force, "Run although the store holds keys");
  put->add_option("--rounds", line.bench.rounds, "Measured rounds (default 10)")
      ->check(CLI::Range(1, 10000));
  const auto take_grid = [&line](const std::string& text) {
    if (text != "small" && text != "full") {
      throw CLI::ValidationError("--grid", "give small or full");
    }
    line.bench.grid = text == "small" ? BenchGrid::kSmall : BenchGrid::kFull;
  };
  put->add_option_function<std::string>("--grid", take_grid, "small or full (default)")
      ->type_name("GRID");
  put->callback([&line] { line.run = [&line] { return run_bench_put(line.bench); }; });
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_command(const CLI::App& app, const std::string& word) {
  return std::ranges::any_of(app.get_subcommands([](const CLI::App*) { return true; }),
                             [&](const CLI::App* command) { return command->check_name(word); });
}

// `kvslot PATH DIR` mounts, as mount(8) calls the helper of a type; so does mount.kvslot.
bool is_mount_form(const CLI::App& app, const Words& words) {
  if (words.size() < 2 || words.front().starts_with('-')) return false;
  if (is_command(app, words.front())) return false;
  return words.front().find('/') != std::string::npos || ::access(words.front().c_str(), F_OK) == 0;
}

int complain_about_usage(const std::string& thing, const std::string& what,
                         const std::string& help) {
  complain(thing, fmt::format("{}; see '{}'", what, help));
  return kExitUsage;
}

int complain_usage(const CLI::App& app, const Words& words, std::string what) {
  std::ranges::replace(what, '\n', ' ');
  if (words.empty() || !is_command(app, words.front())) {
    const bool is_option = words.empty() || words.front().starts_with('-');
    if (is_option) return complain_about_usage("", what, "kvslot --help");
    return complain_about_usage(words.front(), "no such command or store", "kvslot --help");
  }
  const std::string& command = words.front();
  complain_about_usage(command, what, fmt::format("kvslot {} --help", command));
  return command == "fsck" ? kFsckUsage : kExitUsage;
}

int parse_and_run(CLI::App& app, const Words& words, CommandLine& line) {
  Words reversed(words.rbegin(), words.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::Success& wanted) {  // --help and --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    return complain_usage(app, words, error.what());
  }
  const int exit_code = line.run();
  if (exit_code != kExitOk || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0)) {
    return exit_code;
  }
  complain("standard output", "cannot be written; is the disk full?");
  return words.front() == "fsck" ? kFsckCouldNotRun : kExitFailure;
}

int run_command_line(const std::string& program, Words words) {
  const bool is_helper = program == "mount.kvslot";
  CLI::App app("A key/value store on a block device or image, mounted as a file system", "kvslot");
  app.set_version_flag("--version", "kvslot " KVSLOT_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(28);
  CommandLine line;
  add_format(app, line);
  add_mount(app, line, is_helper);
  add_unmount(app, line);
  add_checks(app, line);
  add_keys(app, line);
  add_exec(app, line);
  add_bench(app, line);
  if (program == "fsck.kvslot") words.insert(words.begin(), "fsck");
  if (is_helper || is_mount_form(app, words)) words.insert(words.begin(), "mount");
  if (!words.empty() && words.front() == "exec") {  // what follows -- is not ours to read
    const auto separator = std::ranges::find(words, "--");
    if (separator != words.end()) {
      line.exec.command.assign(separator + 1, words.end());
      words.erase(separator, words.end());
    }
  }
  return parse_and_run(app, words, line);
}

}  // namespace
}  // namespace kvslot::cli

int main(int argc, char** argv) {
  kvslot::cli::open_standard_fds();
  std::signal(SIGXFSZ, SIG_IGN);  // beyond a limit of file sizes, writes fail with EFBIG
  const std::string program = argc > 0 ? kvslot::cli::base_name(argv[0]) : "kvslot";
  return kvslot::cli::run_command_line(program, {argv + std::min(argc, 1), argv + argc});
}
