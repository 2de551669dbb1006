// The reading half of admin.h: rebuilds what a store says with none of the code that wrote it, and
// judges it. Changes nothing.
//
//   superblocks   the newest good copy                        here
//   load          checkpoint and journal, by object id        core/check_load.*
//   judge         names, slots, values                        core/check_tree.cc, check_slots.cc,
//                                                             check_values.cc
#include <fmt/format.h>
#include <kvslot/admin.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/check_load.h"
#include "core/check_values.h"
#include "core/device_io.h"

namespace kvslot {
namespace {

constexpr std::string_view kSignature = "KVSLOTSB";

struct SuperblockCopy {
  std::uint64_t offset_bytes = 0;
  Result<Superblock> decoded;
  std::vector<std::byte> bytes;
  [[nodiscard]] bool has_signature() const {
    return bytes.size() >= kSignature.size() &&
           std::memcmp(bytes.data(), kSignature.data(), kSignature.size()) == 0;
  }
};

std::vector<SuperblockCopy> read_copies(Device& device, std::uint64_t size_bytes) {
  std::vector<SuperblockCopy> copies;
  const Buffer block = Buffer::from_heap(kBlockSizeBytes);
  for (const std::uint64_t offset : superblock_offsets(size_bytes)) {
    const Bytes bytes = block.first(kBlockSizeBytes);
    if (const auto read = read_device(device, offset, bytes); !read) {
      copies.push_back({offset, fail(read), {}});
    } else {
      copies.push_back({offset, decode_superblock(bytes), {bytes.begin(), bytes.end()}});
    }
  }
  return copies;
}

// Of the store with the most copies, the newest; of two with equally many, the newest of all.
const SuperblockCopy* best_of(const std::vector<SuperblockCopy>& copies) {
  const SuperblockCopy* best = nullptr;
  std::size_t best_count = 0;
  for (const SuperblockCopy& copy : copies) {
    if (!copy.decoded) continue;
    std::size_t count = 0;
    for (const SuperblockCopy& other : copies)
      if (other.decoded && other.decoded->geometry.uuid == copy.decoded->geometry.uuid) ++count;
    const bool is_better =
        best == nullptr || count > best_count ||
        (count == best_count && copy.decoded->sequence > best->decoded->sequence);
    if (!is_better) continue;
    best = &copy;
    best_count = count;
  }
  return best;
}

// Threads: one thread at a time.
class DeviceCheck {
 public:
  DeviceCheck(Device& device, const CheckOptions& options)
      : device_(device), options_(options), findings_(report_) {}

  Result<CheckReport> run() {
    const auto found = find_superblock();
    if (!found) return fail(found);
    if (*found) check_store();
    findings_.finish();
    return std::move(report_);
  }

 private:
  // False: there is none, and the report says so.
  Result<bool> find_superblock() {
    const std::uint64_t device_bytes = device_.info().size_bytes;
    if (device_bytes < kStoreSizeBytesMin)
      return fail(Errc::kCorrupt, "shorter than any store; was it cut off?", EINVAL);
    std::vector<SuperblockCopy> copies = read_copies(device_, device_bytes);
    const SuperblockCopy* best = best_of(copies);
    if (auto ok = judge_foreign(copies); !ok) return fail(ok);
    if (best != nullptr && best->decoded->geometry.size_bytes < device_bytes) {
      // The device has grown: the copies at the end are where the end was at format.
      copies = read_copies(device_, best->decoded->geometry.size_bytes);
      best = best_of(copies);
    }
    for (const SuperblockCopy& copy : copies) judge_copy(copy, best, copies);
    if (best == nullptr) {
      findings_.error(
          "no copy of the superblock is good: the store cannot be opened; if a copy "
          "was overwritten, what it said is lost");
      return false;
    }
    superblock_ = *best->decoded;
    if (superblock_.geometry.size_bytes > device_bytes) {
      findings_.error(
          fmt::format("the device has {} bytes, but had {} when it was formatted: it "
                      "was cut off",
                      device_bytes, superblock_.geometry.size_bytes));
      return false;
    }
    return true;
  }

  // What is no store, or one that this program must not judge, ends the check.
  static Result<void> judge_foreign(const std::vector<SuperblockCopy>& copies) {
    for (const SuperblockCopy& copy : copies)
      if (!copy.decoded && copy.decoded.error().code == Errc::kInvalid)
        return std::unexpected(copy.decoded.error());
    const auto is_ours = [](const SuperblockCopy& copy) { return copy.has_signature(); };
    if (std::any_of(copies.begin(), copies.end(), is_ours)) return {};
    return std::unexpected(copies.front().decoded.error());
  }

  void judge_copy(const SuperblockCopy& copy, const SuperblockCopy* best,
                  const std::vector<SuperblockCopy>& copies) {
    if (&copy == best) return;
    const auto where =
        fmt::format("superblock copy {} (at byte {})", &copy - copies.data(), copy.offset_bytes);
    if (!copy.decoded) {
      const auto what = fmt::format("{} is damaged: {}", where, copy.decoded.error().step);
      if (best == nullptr) return findings_.error(what);
      return findings_.repairable(what + "; another copy is good");
    }
    const Superblock& newest = *best->decoded;
    if (copy.decoded->geometry.uuid != newest.geometry.uuid) {
      findings_.repairable(where + " is of another store");
    } else if (copy.decoded->sequence != newest.sequence) {
      ++report_.stale_superblocks;
    } else if (copy.bytes != best->bytes) {
      findings_.repairable(
          fmt::format("{} disagrees with copy {} under the same sequence {}; the "
                      "latter counts",
                      where, best - copies.data(), newest.sequence));
    }
  }

  void check_store() {
    if (superblock_.read_only_compatible_features != 0)
      findings_.remark("the store uses features of a newer kvslot: this one only reads it");
    const Geometry& geometry = superblock_.geometry;
    CheckedState state(geometry.window_size_bytes());
    CheckLoader loader(device_, superblock_, state);
    if (!load(loader)) return;
    report_.journal_blocks = loader.journal_blocks();
    report_.closed = superblock_.clean;
    for (const std::string& oddity : loader.oddities()) findings_.repairable(oddity);
    if (loader.obstacle()) findings_.error(*loader.obstacle());
    remark_crash(loader);
    count(state);
    check_tree(state, findings_);
    check_slots(state, geometry, loader.checkpoint_runs(), findings_, report_);
    if (options_.verify_values) check_values(device_, geometry, state, options_, findings_);
  }

  bool load(CheckLoader& loader) {
    const CheckpointRoot& current = superblock_.current;
    const CheckpointRoot& previous = superblock_.previous;
    const bool has_previous = previous.sequence != current.sequence;
    const Failure failure = loader.load(false);
    if (!failure) {
      check_counts(current, loader);
      if (!has_previous) return true;
      previous_gone_ = loader.probe(previous);
      return true;
    }
    const auto what = fmt::format("checkpoint {} cannot be used: {}", current.sequence, *failure);
    if (!has_previous) {
      findings_.error(what + "; there is no other one, the store does not open");
      return false;
    }
    if (const Failure too = loader.load(true)) {
      findings_.error(
          fmt::format("{}; checkpoint {} before it cannot stand in ({}), the store "
                      "does not open",
                      what, previous.sequence, *too));
      return false;
    }
    findings_.repairable(
        fmt::format("{}; it can be recovered: checkpoint {} before it and the journal "
                    "since say the same",
                    what, previous.sequence));
    check_counts(previous, loader);
    return true;
  }

  void check_counts(const CheckpointRoot& root, const CheckLoader& loader) {
    if (loader.node_records() != root.node_count)
      findings_.repairable(fmt::format("checkpoint {} holds {} nodes, but the superblock says {}",
                                       root.sequence, loader.node_records(), root.node_count));
  }

  // All that a crash may leave, on one line.
  void remark_crash(const CheckLoader& loader) {
    std::vector<std::string> parts;
    if (!superblock_.clean)
      parts.push_back(
          fmt::format("the store was not closed; the next mount replays {} journal "
                      "blocks",
                      loader.journal_blocks()));
    if (loader.cut_at())
      parts.push_back(
          fmt::format("a value of journal block {} is not on the device, so the log ends before "
                      "it, and operations that were not flushed are lost",
                      *loader.cut_at()));
    if (report_.stale_superblocks != 0)
      parts.push_back(fmt::format("{} of the superblock's copies are older than the newest",
                                  report_.stale_superblocks));
    if (previous_gone_)
      parts.push_back(
          fmt::format("checkpoint {}, kept in case the current one is damaged, is not "
                      "there any more ({})",
                      superblock_.previous.sequence, *previous_gone_));
    if (!parts.empty()) findings_.remark(fmt::format("{}", fmt::join(parts, "; ")));
  }

  void count(const CheckedState& state) {
    for (const CheckedNode& node : state.nodes()) {
      const bool is_child =
          node.object != 0 && node.object != static_cast<std::uint64_t>(ObjectId::kRoot);
      if (!is_child) continue;
      if (node.kind == NodeKind::kDirectory) {
        ++report_.directories;
      } else {
        ++report_.keys;
      }
      if (node.kind == NodeKind::kFile) report_.values_bytes += node.size_bytes;
    }
  }

  Device& device_;
  const CheckOptions& options_;
  CheckReport report_;
  Findings findings_;
  Superblock superblock_;
  Failure previous_gone_;
};

}  // namespace

Result<CheckReport> check_device(Device& device, const CheckOptions& options) {
  return DeviceCheck(device, options).run();
}

}  // namespace kvslot
