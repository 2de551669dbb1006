// The texts of the pseudo-files. See pseudo_render.h; the step before is fs/pseudo_tree, the step
// after core's Inspector.
#include "fs/pseudo_render.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "fs/text.h"

namespace kvslot {
namespace {

constexpr std::string_view kNameValueHeader = "#name\tvalue\n";

// Text of the mount's or the user's making: a value must not break its line.
std::string one_line(std::string_view text) { return text.empty() ? "-" : escape_key(text); }

std::string slot_or_dash(const std::optional<SlotId>& slot) {
  return slot ? fmt::format("{}", std::to_underlying(*slot)) : "-";
}

// The engine's owners are no keys and begin with '#'; escaped keys never do.
std::string owner_text(const SlotRecord& record) {
  if (record.owner.empty()) return "-";
  return record.owner_is_key ? escape_key(record.owner) : record.owner;
}

template <typename Value>
void append_value(std::string& text, std::string_view name, const Value& value) {
  text += fmt::format("{}\t{}\n", name, value);
}

void append_checkpoint(std::string& text, std::string_view which, const CheckpointInfo& info) {
  const TimestampNs age_ns = info.written_ns == 0 ? 0 : wall_clock_ns() - info.written_ns;
  append_value(text, fmt::format("{}_checkpoint_sequence", which), info.sequence);
  append_value(text, fmt::format("{}_checkpoint_size_bytes", which), info.size_bytes);
  append_value(text, fmt::format("{}_checkpoint_written_s", which),
               info.written_ns == 0 ? "-" : format_timestamp(info.written_ns));
  append_value(text, fmt::format("{}_checkpoint_age_s", which),
               info.written_ns == 0 ? "-" : fmt::format("{}", age_ns / 1'000'000'000));
}

const char* kind_text(NodeKind kind) {
  switch (kind) {
    case NodeKind::kFile:
      return "file";
    case NodeKind::kDirectory:
      return "directory";
    case NodeKind::kSymlink:
      return "symlink";
  }
  return "unknown";
}

const char* state_text(const NodeRecord& record, const LiveNodeInfo& live) {
  return !record.stored || live.dirty_bytes > 0 ? "dirty" : "live";
}

bool overlaps(const Geometry& geometry, SlotId slot, const Extent& extent) {
  const std::uint64_t slots_first = geometry.slots_offset_bytes / kBlockSizeBytes;
  const std::uint64_t first =
      slots_first + std::uint64_t{std::to_underlying(slot)} * geometry.blocks_per_slot();
  const std::uint64_t end = first + geometry.blocks_per_slot();
  const std::uint64_t extent_end =
      extent.device_block +
      (std::uint64_t{extent.size_bytes} + kBlockSizeBytes - 1) / kBlockSizeBytes;
  return extent.device_block < end && extent_end > first;
}

// All but the last are five letters: see render_slot.
const char* to_string(SlotCheck check) {
  switch (check) {
    case SlotCheck::kUnknown:
      return "?????";
    case SlotCheck::kHolds:
      return "holds";
    case SlotCheck::kFails:
      return "fails";
    case SlotCheck::kFreed:
      return "freed";
    case SlotCheck::kError:
      return "error";
    case SlotCheck::kNone:
      break;
  }
  return "-";
}

}  // namespace

std::string render_inflight(const Inspector& inspector,
                            const std::function<LiveNodeInfo(NodeId)>& live_node) {
  std::string text = "#key\tbatch\tslots\tbytes\tstate\tage_us\twaiters\n";
  for (const InflightRecord& record : inspector.inflight()) {
    text += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\n", one_line(record.key), record.batch,
                        record.slots, record.bytes, to_string(record.state), record.age_us,
                        record.waiters + (live_node ? live_node(record.node).waiters : 0));
  }
  return text;
}

std::string render_batches(const Inspector& inspector) {
  std::string text =
      "#id\tkeys\tvalue_bytes\tdata_requests\tjournal_bytes\tmerged_writes\trecords\treserve_us\t"
      "write_us\tflush_us\tpublish_us\treason\tfailures\n";
  for (const BatchRecord& record : inspector.batches()) {
    text +=
        fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", record.id, record.keys,
                    record.value_bytes, record.data_requests, record.journal_bytes,
                    record.merged_writes, record.records, record.reserve_us, record.write_us,
                    record.flush_us, record.publish_us, one_line(record.reason), record.failures);
  }
  return text;
}

std::string render_errors(const Inspector& inspector) {
  std::string text = "#time_s\toperation\tkey\tslot\terrno\taction\n";
  for (const FaultRecord& record : inspector.faults()) {
    text += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\n", format_timestamp(record.time_ns),
                        one_line(record.operation), one_line(record.key), slot_or_dash(record.slot),
                        errno_name(record.os_errno), one_line(record.action));
  }
  return text;
}

std::string render_journal(const Inspector& inspector) {
  const JournalInfo info = inspector.journal();
  std::string text{kNameValueHeader};
  append_value(text, "size_bytes", info.size_bytes);
  append_value(text, "used_bytes", info.used_bytes);
  append_value(text, "head_offset_bytes", info.head_offset_bytes);
  append_value(text, "tail_offset_bytes", info.tail_offset_bytes);
  append_value(text, "next_sequence", info.next_sequence);
  append_value(text, "published_upto", info.published_upto);
  append_value(text, "durable_upto", info.durable_upto);
  append_value(text, "epoch", fmt::format("{:016x}", info.epoch));
  append_checkpoint(text, "current", info.current);
  append_checkpoint(text, "previous", info.previous);
  return text;
}

std::string render_stats(const Inspector& inspector, const std::vector<Stat>& added) {
  std::string text{kNameValueHeader};
  for (const Stat& stat : inspector.stats()) append_value(text, stat.name, stat.value);
  for (const Stat& stat : added) append_value(text, stat.name, stat.value);
  return text;
}

std::string render_config(Volume& volume, const ConfigLines& added) {
  const DeviceInfo& device = volume.device().info();
  const Geometry& geometry = volume.geometry();
  std::string text{kNameValueHeader};
  append_value(text, "version", KVSLOT_VERSION);
  append_value(text, "uuid", to_string(geometry.uuid));
  append_value(text, "label", one_line(geometry.label));
  append_value(text, "device", one_line(device.name));
  append_value(text, "device_kind", device.is_block_device ? "block device" : "image file");
  append_value(text, "device_size_bytes", device.size_bytes);
  append_value(text, "device_logical_block_size_bytes", device.logical_block_size_bytes);
  append_value(text, "direct_io", device.is_direct ? "yes" : "no");
  append_value(text, "engine", one_line(device.engine));
  append_value(text, "engine_detail", one_line(device.engine_detail));
  append_value(text, "store_size_bytes", geometry.size_bytes);
  append_value(text, "slot_size_bytes", geometry.slot_size_bytes);
  append_value(text, "slot_count", geometry.slot_count);
  append_value(text, "slots_offset_bytes", geometry.slots_offset_bytes);
  append_value(text, "journal_offset_bytes", geometry.journal_offset_bytes);
  append_value(text, "journal_size_bytes", geometry.journal_size_bytes);
  append_value(text, "read_only", volume.is_read_only() ? "yes" : "no");
  append_value(text, "staging_size_bytes", volume.buffers().size_bytes());
  append_value(text, "name_size_bytes_max", kNameSizeBytesMax);
  append_value(text, "symlink_size_bytes_max", kSymlinkSizeBytesMax);
  append_value(text, "xattr_size_bytes_max", kXattrSizeBytesMax);
  append_value(text, "extent_size_bytes_max", kExtentSizeBytesMax);
  append_value(text, "transfer_size_bytes_max", kTransferSizeBytesMax);
  for (const auto& [name, value] : added) append_value(text, name, one_line(value));
  return text;
}

Result<std::string> render_key(const Volume& volume, const NodeRecord& record,
                               const LiveNodeInfo& live) {
  const Attributes& attributes = record.attributes;
  std::string text{kNameValueHeader};
  append_value(text, "key", one_line(record.key));
  append_value(text, "kind", kind_text(record.kind));
  append_value(text, "state", state_text(record, live));
  append_value(text, "size_bytes", record.size_bytes);
  append_value(text, "object_id", std::to_underlying(record.id));
  append_value(text, "sequence", record.sequence);
  append_value(text, "checksum", fmt::format("{:016x}", record.checksum));
  append_value(text, "slots", record.slots);
  append_value(text, "pieces", record.extent_count);
  append_value(text, "mode", fmt::format("{:04o}", attributes.mode));
  append_value(text, "uid", attributes.uid);
  append_value(text, "gid", attributes.gid);
  append_value(text, "atime_s", format_timestamp(attributes.atime_ns));
  append_value(text, "mtime_s", format_timestamp(attributes.mtime_ns));
  append_value(text, "ctime_s", format_timestamp(attributes.ctime_ns));
  append_value(text, "open_handles", live.open_handles);
  append_value(text, "pins", record.holds);
  append_value(text, "live_size_bytes",
               live.open_handles > 0 || live.dirty_bytes > 0 ? live.size_bytes : record.size_bytes);
  append_value(text, "dirty_bytes", live.dirty_bytes);
  text += "#run\tfirst_slot\tcount\n";
  for (const SlotRun& run : record.runs) {
    text += fmt::format("run\t{}\t{}\n", std::to_underlying(run.first), run.count);
  }
  text += "#extent\toffset_bytes\tsize_bytes\tdevice_offset_bytes\tslot\tsequence\tchecksum\n";
  const Geometry& geometry = volume.geometry();
  for (const Extent& extent : record.extents) {
    const std::uint64_t device_offset = std::uint64_t{extent.device_block} * kBlockSizeBytes;
    text += fmt::format("extent\t{}\t{}\t{}\t{}\t{}\t{:016x}\n",
                        std::uint64_t{extent.file_block} * kBlockSizeBytes, extent.size_bytes,
                        device_offset,
                        (device_offset - geometry.slots_offset_bytes) / geometry.slot_size_bytes,
                        extent.stamp, extent.checksum);
  }
  return text;
}

std::string render_index_line(const NodeRecord& record, const LiveNodeInfo& live) {
  return fmt::format("{}\t{}\t{}\t{}\t{}\t{:016x}\t{}\t{}\t{}\n", one_line(record.key),
                     record.size_bytes, record.extent_count, slot_or_dash(record.first_slot),
                     record.slots, record.checksum, record.sequence,
                     format_timestamp(record.attributes.mtime_ns), state_text(record, live));
}

std::string render_slots_line(const SlotRecord& record) {
  return fmt::format("{}\t{}\t{}\t{}\t{}\n", std::to_underlying(record.run.first), record.run.count,
                     to_string(record.state), owner_text(record), record.piece);
}

SlotCheck slot_check_needed(const Volume& volume, const SlotRecord& record) {
  if (record.state != SlotState::kLive || !record.owner_is_key) return SlotCheck::kNone;
  return volume.find(record.owner) ? SlotCheck::kUnknown : SlotCheck::kNone;
}

SlotCheck check_slot(Volume& volume, SlotId slot, const SlotRecord& record) {
  const auto info = volume.find(record.owner);
  if (!info) return SlotCheck::kFreed;
  const auto node = volume.inspector().node(info->node);
  if (!node) return SlotCheck::kFreed;
  SlotCheck check = SlotCheck::kFreed;
  for (const Extent& extent : node->extents) {
    if (!overlaps(volume.geometry(), slot, extent)) continue;
    const auto view = volume.read(info->node, std::uint64_t{extent.file_block} * kBlockSizeBytes,
                                  extent.size_bytes);
    if (!view) return view.error().code == Errc::kCorrupt ? SlotCheck::kFails : SlotCheck::kError;
    check = SlotCheck::kHolds;
  }
  return check;
}

std::string render_slot(const SlotRecord& record, SlotCheck check) {
  std::string text = "#first_slot\tcount\tstate\towner\tpiece\tchecksum\n";
  std::string line = render_slots_line(record);
  line.pop_back();
  return text + line + '\t' + to_string(check) + '\n';
}

}  // namespace kvslot
