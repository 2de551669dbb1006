// Making a store, and what is done to one that is not open: checking it without trusting the code
// that wrote it, repairing it, taking out what is whole. Called by the commands.
#pragma once

#include <kvslot/clock.h>
#include <kvslot/device.h>
#include <kvslot/error.h>
#include <kvslot/options.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvslot {

struct FormatOptions {
  std::uint32_t slot_size_bytes = 4096;
  std::string label;
  bool force = false;                        // overwrite what looks like somebody's data
  std::uint64_t seed = 0;                    // of the UUID; 0: from the system's random source
  WallClock clock = {};                      // of the time of format
  std::uint32_t root_uid = 0, root_gid = 0;  // who owns the root directory
};

// Writes an empty store.
//   errors   kInvalid (size, slot size or label out of range), kExists with a step naming what is
//            there (a known signature, or bytes in the first or last MiB) unless forced, kIo
Result<Geometry> format_device(Device& device, const FormatOptions& options);

// What is stored where, from the superblock alone. A device that lost its end is smaller than the
// geometry says.
struct StoreInfo {
  Geometry geometry;
  std::uint32_t format_version = 0;
  std::uint64_t sequence = 0;  // of the superblock
  std::uint64_t epoch = 0;
  bool closed = false;  // cleanly; false: in use, or what a crash left
  std::uint64_t checkpoint_size_bytes = 0;
  std::uint64_t key_count = 0;  // in the checkpoint
  TimestampNs checkpoint_written_ns = 0;
  TimestampNs formatted_ns = 0;
};
Result<StoreInfo> read_store_info(Device& device);

// What helps against a finding.
enum class Remedy : std::uint8_t {
  kNone,     // nothing is wrong
  kRepair,   // the store says elsewhere what is right
  kSalvage,  // only a guess could mend it: take out what is whole, or restore a backup
};

struct CheckFinding {
  bool is_error = true;  // false: a remark on what is no damage
  std::string what;      // one line: what is wrong, where, and what it means
  Remedy remedy = Remedy::kNone;
};

struct CheckReport {
  std::vector<CheckFinding> findings;
  std::uint64_t keys = 0, directories = 0, values_bytes = 0, slots_used = 0, slots_free = 0;
  std::uint64_t journal_blocks = 0;
  bool damaged = false;
  bool opens = true;                    // for writing; not where its structure contradicts itself
  std::uint32_t stale_superblocks = 0;  // copies older than the newest
  bool closed = true;  // cleanly; false: what a crash leaves, the next opening replays the journal
};

struct CheckOptions {
  bool verify_values = true;  // read every value and compare its checksum
  std::function<void(std::uint64_t done, std::uint64_t total)> on_progress;
};

// Reads everything, changes nothing, and shares no code with the writer but the layout.
//   errors   only what made the check itself impossible; damage is in the report
Result<CheckReport> check_device(Device& device, const CheckOptions& options);

struct RepairReport {
  CheckReport before, after;
  std::vector<std::string> done;  // one line each; empty: nothing was written
};

// Checks, mends what needs no guess (Remedy::kRepair), and checks again without the values. Where
// the structure contradicts itself, or nothing is wrong, nothing is written. Power may be lost at
// any point: the store is then no worse, and the next repair goes on.
//   errors   what made the check impossible; kNoSpace, kIo where writing failed; kReadOnly where a
//            newer kvslot wrote the store
//   source   core/repair_device.cc
Result<RepairReport> repair_device(Device& device, const CheckOptions& options);

// ---- Salvage.

// A file, directory or symbolic link on its way out of a damaged store.
struct SalvagedFile {
  std::vector<std::string> path;  // directories and the name; no component is empty, "." or "..",
                                  // or holds '/' or NUL
  NodeKind kind = NodeKind::kFile;
  std::uint64_t object = 0;  // unlike the path, nobody else's
  std::uint64_t size_bytes = 0;
  std::string target;                    // of a symbolic link
  std::optional<Attributes> attributes;  // where a record told them
  std::vector<std::pair<std::string, std::string>> xattrs;
};

enum class Salvaged : std::uint8_t { kWhole, kPartial, kNothing };

// Where they go: begin, the verified bytes in any order, end, for one after the other. What is not
// written is a hole.
//   errors   kInvalid, kTooLarge: this one cannot be held, the others can; any other ends the
//   salvage
// Threads: one thread at a time.
class SalvageSink {
 public:
  virtual ~SalvageSink() = default;
  virtual Result<void> begin(const SalvagedFile& file) = 0;
  virtual Result<void> write(std::uint64_t offset_bytes, ConstBytes bytes) = 0;
  virtual Result<void> end(Salvaged outcome) = 0;
};

struct SalvageOptions {
  std::function<void(const char* phase, std::uint64_t done, std::uint64_t total)> on_progress;
};

struct SalvageReport {
  std::uint64_t files = 0, directories = 0, symlinks = 0, bytes = 0;  // whole ones
  std::uint64_t partial = 0;   // files of which a part is missing
  std::uint64_t lost = 0;      // files of which nothing is left
  std::uint64_t unplaced = 0;  // of all files, those that only their trailer tells of
  std::uint64_t older = 0;     // versions that were found and are not the newest
  std::uint64_t removed = 0;   // keys that were found, and that the journal says were removed
  bool metadata_whole = false;
  bool complete = false;           // all that the store held was written out whole
  std::vector<std::string> notes;  // one line each: what was found, and what is missing
};

// Takes every value whose checksum holds out of a store, however damaged, and writes nothing to it.
// Checkpoint and journal say what there is, where they are whole; otherwise whatever can be found
// of them anywhere on the device, and then the trailers of values.
//   errors   kCorrupt: nothing tells the store's UUID; those of the sink
//   source   core/salvage_device.cc; core/LAYOUT.md "Salvage"
Result<SalvageReport> salvage_device(Device& device, SalvageSink& sink,
                                     const SalvageOptions& options);

}  // namespace kvslot
