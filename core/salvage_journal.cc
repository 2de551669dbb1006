// See salvage_journal.h.
#include "core/salvage_journal.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/device_io.h"

namespace kvslot {
namespace {

struct Epoch {
  std::uint64_t newest_stamp = 0;         // of those whose number does not tell when they were
  std::uint64_t begins_at = UINT64_MAX;   // or before
  std::uint64_t cut_off_at = UINT64_MAX;  // a later one began there
};

// An opening takes everything before its first block for flushed, and says so from then on.
std::uint64_t begins_at_the_latest(const JournalHeader& header) {
  return std::min(header.sequence,
                  header.durable_upto == UINT64_MAX ? header.sequence : header.durable_upto + 1);
}

std::map<std::uint64_t, Epoch> epochs_of(Device& device, const std::vector<FoundBlock>& blocks,
                                         std::span<const LogStart> starts) {
  std::map<std::uint64_t, Epoch> epochs;
  for (const FoundBlock& block : blocks) {
    Epoch& epoch = epochs[block.header.epoch];
    epoch.begins_at = std::min(epoch.begins_at, begins_at_the_latest(block.header));
    if (epoch_rank(block.header.epoch) != 0) continue;
    for_each_stamp(device, block, [&](std::uint64_t stamp) {
      epoch.newest_stamp = std::max(epoch.newest_stamp, stamp);
    });
  }
  for (const LogStart& start : starts) {
    Epoch& epoch = epochs[start.epoch];
    epoch.begins_at = std::min(epoch.begins_at, start.sequence);
  }
  // The latest first. Without a number that tells, the one that began later; what an opening cut
  // off never says of a block behind that point that it was flushed.
  std::vector<std::pair<const std::uint64_t, Epoch>*> order;
  for (auto& epoch : epochs) order.push_back(&epoch);
  std::ranges::sort(order, std::greater{}, [](const auto* epoch) {
    return std::tuple(epoch_rank(epoch->first), epoch->second.begins_at,
                      epoch->second.newest_stamp);
  });
  std::uint64_t cut_off_at = UINT64_MAX;
  for (auto* epoch : order) {
    epoch->second.cut_off_at = cut_off_at;
    cut_off_at = std::min(cut_off_at, epoch->second.begins_at);
  }
  return epochs;
}

// A log that was cut off and went on in its epoch has two blocks of one sequence. The later one is
// where the earlier one was, so what does not follow the one that is there was cut off with it.
// `blocks` come by epoch and sequence.
void sort_forks(const std::vector<FoundBlock>& blocks, SortedLog& log) {
  std::vector<std::uint64_t> before, here;  // hashes of those kept, of two sequences
  bool is_known = false;                    // some of the sequence before were found
  const FoundBlock* last = nullptr;
  for (const FoundBlock& block : blocks) {
    const JournalHeader& header = block.header;
    const bool same_epoch = last != nullptr && last->header.epoch == header.epoch;
    if (!same_epoch || last->header.sequence != header.sequence) {
      is_known = same_epoch && last->header.sequence + 1 == header.sequence;
      before = is_known ? std::move(here) : std::vector<std::uint64_t>();
      here.clear();
    }
    last = &block;
    if (is_known && std::ranges::find(before, header.previous_hash) == before.end()) {
      log.cut_off.push_back(block);
    } else {
      here.push_back(header.checksum);
      log.in_force.push_back(block);
    }
  }
}

}  // namespace

void for_each_record(Device& device, const FoundBlock& block, const OnRecord& on_record) {
  const Buffer buffer = Buffer::from_heap(block.header.size_bytes);
  const Bytes bytes = buffer.first(block.header.size_bytes);
  if (!read_device(device, block.offset_bytes, bytes)) return;
  RecordReader in(ConstBytes(bytes).subspan(kJournalHeaderBytes, block.header.payload_bytes));
  while (true) {
    auto record = in.next();
    if (!record || !*record) return;
    on_record(std::move(**record));
  }
}

void for_each_stamp(const Record& record, const OnStamp& on_stamp) {
  const auto note = [&](const std::vector<Extent>& extents) {
    for (const Extent& extent : extents) on_stamp(extent.stamp);
  };
  if (const auto* set = std::get_if<SetNode>(&record)) note(set->image.extents);
  if (const auto* patch = std::get_if<PatchContent>(&record))
    for (const auto& window : patch->windows) note(window.extents);
}

void for_each_stamp(Device& device, const FoundBlock& block, const OnStamp& on_stamp) {
  for_each_record(device, block, [&](Record&& record) { for_each_stamp(record, on_stamp); });
}

SortedLog sort_log(Device& device, std::vector<FoundBlock> blocks,
                   std::span<const LogStart> starts) {
  SortedLog log;
  const auto epochs = epochs_of(device, blocks, starts);
  const auto later = std::ranges::stable_partition(blocks, [&](const FoundBlock& block) {
    return block.header.sequence < epochs.at(block.header.epoch).cut_off_at;
  });
  log.cut_off.assign(later.begin(), later.end());
  blocks.erase(later.begin(), later.end());
  std::ranges::stable_sort(blocks, {}, [](const FoundBlock& block) {
    return std::tuple(block.header.epoch, block.header.sequence);
  });
  sort_forks(blocks, log);
  std::ranges::stable_sort(log.in_force, {},
                           [](const FoundBlock& block) { return block.header.sequence; });
  return log;
}

}  // namespace kvslot
