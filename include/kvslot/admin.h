// Making a store, and checking one without trusting the code that wrote it.
#pragma once

#include <kvslot/clock.h>
#include <kvslot/device.h>
#include <kvslot/error.h>
#include <kvslot/options.h>

#include <functional>
#include <string>
#include <vector>

namespace kvslot {

struct FormatOptions {
  std::uint32_t slot_size_bytes = 4096;
  std::string label;
  bool force = false;      // overwrite what looks like somebody's data
  std::uint64_t seed = 0;  // of the UUID; 0: from the system's random source
  WallClock clock = {};    // of the time of format
};

// Writes an empty store.
//   errors   kInvalid (size, slot size or label out of range), kExists with a step naming what is
//            there (a known signature, or bytes in the first or last MiB) unless forced, kIo
Result<Geometry> format_device(Device& device, const FormatOptions& options);

// What is stored where, from the superblock alone.
struct StoreInfo {
  Geometry geometry;
  std::uint32_t format_version = 0;
  std::uint64_t sequence = 0;  // of the superblock
  std::uint64_t epoch = 0;
  bool clean = false;
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
  bool is_error = true;  // false: a remark, the store is clean
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
  bool clean = true;  // closed; false: what a crash leaves, the next opening replays the journal
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

}  // namespace kvslot
