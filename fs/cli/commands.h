// What each command takes and returns. fs/cli/main fills in the arguments; one file a group of
// commands carries them out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvslot::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

// Of fsck, as fsck(8) has them: 1 and 4 may come together, as 5.
inline constexpr int kFsckCorrected = 1;
inline constexpr int kFsckDamaged = 4;
inline constexpr int kFsckCouldNotRun = 8;
inline constexpr int kFsckUsage = 16;

struct FormatArguments {
  std::string path;
  std::optional<std::uint64_t> size_bytes;
  std::uint64_t slot_size_bytes = 4096;
  std::string label;
  bool force = false;
};
int run_format(const FormatArguments& arguments);

struct MountArguments {
  std::string path;
  std::string directory;
  std::vector<std::string> options;  // of every -o, each comma-separated
  bool foreground = false;
  int ready_fd = -1;     // gets one byte when the mount answers
  bool is_fake = false;  // mount(8) only wants to know whether the arguments are all right
};
int run_mount(const MountArguments& arguments);

int run_unmount(const std::string& directory);

int run_info(const std::string& path);

struct FsckArguments {
  std::string path;
  bool verify_values = true;
  bool repair = false;
  std::string salvage_directory;  // empty: do not salvage
};
int run_fsck(const FsckArguments& arguments);

struct ListArguments {
  std::string path;
  std::string prefix;
  bool is_long = false;
};
int run_ls(const ListArguments& arguments);

struct TransferArguments {
  std::string path;
  std::string key;
  std::string file;  // empty or "-": standard input or output
};
int run_get(const TransferArguments& arguments);
int run_put(const TransferArguments& arguments);
int run_rm(const std::string& path, const std::vector<std::string>& keys);

struct ExecArguments {
  std::string path;
  std::optional<std::uint64_t> size_bytes;
  std::vector<std::string> options;
  std::vector<std::string> command;
};
int run_exec(const ExecArguments& arguments);

enum class BenchGrid : std::uint8_t { kSmall, kFull };
struct BenchArguments {
  std::string path;
  bool json = false;
  bool force = false;
  std::uint32_t rounds = 10;
  BenchGrid grid = BenchGrid::kFull;
};
int run_bench_put(const BenchArguments& arguments);

}  // namespace kvslot::cli
