// Takes every value whose checksum holds out of a store, and writes nothing to it.
//
//   identify   the superblock, or the UUID that the structures were written under
//   load       checkpoint and journal, where they are whole                   core/check_load.*
//   rebuild    otherwise, from whatever a scan of all blocks finds            core/salvage_*.cc
//   trailers   values that no record names any more
//   write out  each value read and verified, or its holes named
#include <fmt/format.h>
#include <kvslot/admin.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "core/check_load.h"
#include "core/check_values.h"
#include "core/device_io.h"
#include "core/salvage_rebuild.h"
#include "core/salvage_scan.h"
#include "core/superblocks.h"

namespace kvslot {
namespace {

constexpr std::size_t kDepthMax = 1024;  // directories of a path; deeper ones are broken or hostile
constexpr std::size_t kNotesMax = 1000;
constexpr auto kRootObject = static_cast<std::uint64_t>(ObjectId::kRoot);

using Path = std::vector<std::string>;

std::string quoted(const Path& path) {
  std::string text = "'";
  for (const std::string& component : path) {
    if (text.size() > 1) text += '/';
    append_escaped(text, component);
  }
  return text += "'";
}

// A value that only its trailer tells of.
struct Stray {
  std::uint64_t object = 0;
  std::uint64_t parent = 0;
  std::string name;
  Extent extent;
};

// Threads: one thread at a time.
class Salvage {
 public:
  Salvage(Device& device, SalvageSink& sink, const SalvageOptions& options)
      : device_(device), sink_(sink), options_(options) {}

  Result<SalvageReport> run() {
    if (auto ok = identify(); !ok) return fail(ok);
    if (!load_whole()) rebuild();
    reader_ = std::make_unique<ExtentReader>(device_, area_);
    choose_lost_and_found();
    take_trailers();
    if (auto ok = write_nodes(); !ok) return fail(ok);
    if (auto ok = write_strays(); !ok) return fail(ok);
    if (auto ok = write_cut_off(); !ok) return fail(ok);
    report_.complete =
        report_.metadata_whole && !cut_at_ && report_.partial == 0 && report_.lost == 0;
    if (notes_left_out_ != 0)
      report_.notes.push_back(fmt::format("{} more like these", notes_left_out_));
    return std::move(report_);
  }

 private:
  // ---- What store this is.

  Result<void> identify() {
    const std::uint64_t size_bytes = device_.info().size_bytes;
    if (size_bytes < kBlockSizeBytes) return fail(Errc::kCorrupt, "shorter than any store", EINVAL);
    std::vector<Uuid> guesses;
    read_superblocks(guesses);
    if (superblock_) {
      area_.uuid = superblock_->geometry.uuid;
    } else {
      const auto uuid = scan_for_uuid(device_, guesses, progress("looking for the store's UUID"));
      if (!uuid)
        return fail(Errc::kCorrupt,
                    "nothing on it tells the store's UUID, without which no value can be verified");
      area_.uuid = *uuid;
      note("no copy of the superblock is good; the store is known by its other structures");
    }
    // Values may be anywhere on the device; their checksums say whether they are.
    area_.slot_size_bytes = kBlockSizeBytes;
    area_.slot_count =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(size_bytes / kBlockSizeBytes, kNoSlot));
    return {};
  }

  // As an opening takes it; of a device that was cut off, any copy that is good.
  void read_superblocks(std::vector<Uuid>& guesses) {
    if (auto found = read_superblock(device_)) superblock_ = std::move(*found);
    const bool is_known = superblock_.has_value();
    const Buffer block = Buffer::from_heap(kBlockSizeBytes);
    for (const std::uint64_t offset : superblock_offsets(device_.info().size_bytes)) {
      const Bytes bytes = block.first(kBlockSizeBytes);
      if (offset >= device_.info().size_bytes || !read_device(device_, offset, bytes)) continue;
      auto copy = decode_superblock(bytes);
      if (!is_known && copy && (!superblock_ || copy->sequence > superblock_->sequence))
        superblock_ = std::move(*copy);
      if (const auto uuid = peek_superblock_uuid(bytes)) guesses.push_back(*uuid);
    }
  }

  // ---- What it says.

  bool load_whole() {
    if (!superblock_) return false;
    state_ = std::make_unique<CheckedState>(superblock_->geometry.window_size_bytes(), true);
    for (const bool from_previous : {false, true}) {
      CheckLoader loader(device_, *superblock_, *state_);
      const bool has_previous = superblock_->previous.sequence != superblock_->current.sequence;
      if (from_previous && !has_previous) break;
      if (loader.load(from_previous) || loader.obstacle()) continue;
      cut_at_ = loader.cut_at();
      if (cut_at_) load_cut_off(from_previous);
      if (superblock_->geometry.size_bytes > device_.info().size_bytes)
        note(fmt::format(
            "the device has {} bytes, but had {} when it was formatted: it was cut off, "
            "behind all that is needed to tell what it held",
            device_.info().size_bytes, superblock_->geometry.size_bytes));
      return report_.metadata_whole = true;
    }
    return false;
  }

  // With what lies behind the end of the log. Whether somebody was told that it is durable cannot
  // be seen.
  void load_cut_off(bool from_previous) {
    cut_off_ = std::make_unique<CheckedState>(superblock_->geometry.window_size_bytes(), true);
    CheckLoader loader(device_, *superblock_, *cut_off_);
    if (loader.load_uncut(from_previous)) cut_off_.reset();
  }

  void rebuild() {
    note(
        "checkpoint and journal are not whole: every block of the device is looked at. Keys that "
        "were removed or changed lately may come back as they were before");
    found_ = scan_for_structures(device_, area_.uuid, progress("scanning"));
    const std::uint32_t window_bytes =
        superblock_ ? superblock_->geometry.window_size_bytes() : window_bytes_of(device_, found_);
    state_ = std::make_unique<CheckedState>(window_bytes, true);
    rebuilt_ = rebuild_state(device_, found_, superblock_ ? &*superblock_ : nullptr, *state_);
    note(fmt::format("found {} checkpoint, {} journal blocks, {} values with a trailer",
                     rebuilt_.has_checkpoint ? "a whole"
                     : found_.chunks.empty() ? "no"
                                             : "a part of a",
                     found_.blocks.size(), found_.trailers.size()));
    if (found_.unreadable_bytes != 0)
      note(fmt::format("{} bytes of the device cannot be read", found_.unreadable_bytes));
  }

  // The newest value of each object that is newer than what the records say.
  void take_trailers() {
    const auto& all = found_.trailers;
    for (std::size_t start = 0, end = 0; start < all.size(); start = end) {
      while (end < all.size() && all[end].trailer.object == all[start].trailer.object) ++end;
      take_trailers_of(std::span(all).subspan(start, end - start));
    }
    // Of several objects that had one name, the newest counts.
    std::ranges::sort(strays_, [](const Stray& a, const Stray& b) {
      return std::tie(a.parent, a.name, b.extent.stamp) <
             std::tie(b.parent, b.name, a.extent.stamp);
    });
    const auto same = [](const Stray& a, const Stray& b) {
      return a.parent == b.parent && a.name == b.name;
    };
    const auto rest = std::ranges::unique(strays_, same);
    report_.older += rest.size();
    strays_.erase(rest.begin(), rest.end());
  }

  void take_trailers_of(std::span<const FoundTrailer> versions) {
    const auto object = static_cast<std::uint64_t>(versions.front().trailer.object);
    if (rebuilt_.removed.contains(object)) {
      ++report_.removed;
      return;
    }
    const std::uint32_t node = state_->find(object);
    std::set<std::uint64_t> known_stamps;
    if (node != CheckedState::kNowhere)
      for (const Extent& extent : state_->extents(state_->nodes()[node]))
        known_stamps.insert(extent.stamp);
    std::uint64_t known_stamp = known_stamps.empty() ? 0 : *known_stamps.rbegin();
    if (const auto said = rebuilt_.said_at.find(object); said != rebuilt_.said_at.end())
      known_stamp = std::max(known_stamp, said->second);
    for (const FoundTrailer& version : versions) {
      const bool is_given_up = rebuilt_.given_up.contains(version.extent.stamp);
      if (is_given_up || version.extent.stamp <= known_stamp) {
        if (!known_stamps.contains(version.extent.stamp)) ++report_.older;
        continue;
      }
      ExtentToRead item{.object = version.trailer.object, .extent = version.extent};
      if (!reader_->is_inside(version.extent) || !read_twice(item)) continue;
      known_stamp = UINT64_MAX;  // the others are older
      if (node == CheckedState::kNowhere) {
        if (is_valid_name(version.trailer.name))
          strays_.push_back({object, static_cast<std::uint64_t>(version.trailer.parent),
                             version.trailer.name, version.extent});
      } else if (version.extent.file_block == 0) {
        newer_[node] = version.extent;
      }
    }
  }

  // ---- Paths.

  void choose_lost_and_found() {
    std::set<std::string_view> taken;
    for (const CheckedNode& node : state_->nodes())
      if (node.object != 0 && node.parent == kRootObject) taken.insert(state_->name(node));
    while (taken.contains(lost_and_found_)) lost_and_found_ += '_';
  }

  // Nothing where the way to the root is broken.
  [[nodiscard]] std::optional<Path> directory_path(std::uint64_t object) const {
    Path path;
    while (object != kRootObject) {
      const std::uint32_t found = state_->find(object);
      if (found == CheckedState::kNowhere || path.size() == kDepthMax) return std::nullopt;
      const CheckedNode& node = state_->nodes()[found];
      if (node.kind != NodeKind::kDirectory) return std::nullopt;
      path.emplace_back(state_->name(node));
      object = node.parent;
    }
    std::ranges::reverse(path);
    return path;
  }

  [[nodiscard]] Path path_of(std::uint64_t parent, std::string_view name, bool is_stray) const {
    auto path = directory_path(parent);
    const bool is_broken = !path.has_value();
    if (is_broken) path = Path{fmt::format("dir-{}", parent)};
    if (is_broken || is_stray) path->insert(path->begin(), lost_and_found_);
    path->emplace_back(name);
    return std::move(*path);
  }

  // ---- Writing out.

  Result<void> write_nodes() {
    std::vector<std::uint32_t> order;
    for (std::uint32_t n = 0; n < state_->nodes().size(); ++n) {
      const CheckedNode& node = state_->nodes()[n];
      if (node.object == 0 || node.object == kRootObject) continue;
      order.push_back(n);
      if (node.kind == NodeKind::kFile)
        for (const Extent& extent : state_->extents(node)) total_bytes_ += extent.size_bytes;
    }
    for (const Stray& stray : strays_) total_bytes_ += stray.extent.size_bytes;
    // Symbolic links come last, so that nothing is ever written through one; of one directory's
    // files, one after the other.
    std::ranges::sort(order, {}, [&](std::uint32_t n) {
      const CheckedNode& node = state_->nodes()[n];
      return std::tuple(node.kind == NodeKind::kSymlink, node.parent, node.object);
    });
    for (const std::uint32_t n : order)
      if (auto ok = write_node(n); !ok) return ok;
    return {};
  }

  Result<void> write_node(std::uint32_t n) {
    const CheckedNode& node = state_->nodes()[n];
    SalvagedFile file{.path = path_of(node.parent, state_->name(node), false),
                      .kind = node.kind,
                      .object = node.object,
                      .size_bytes = node.size_bytes,
                      .target = state_->target(node),
                      .attributes = {},
                      .xattrs = {}};
    if (const NodeExtras* const extras = state_->extras(node)) {
      file.attributes = extras->attributes;
      file.xattrs = extras->xattrs;
    }
    if (node.kind != NodeKind::kFile) return write_without_value(file);
    const auto newer = newer_.find(n);
    if (newer == newer_.end()) return write_file(file, state_->extents(node), node.parent);
    file.size_bytes = newer->second.size_bytes;
    return write_file(file, {&newer->second, 1}, node.parent);
  }

  Result<void> write_strays() {
    for (const Stray& stray : strays_) {
      if (whole_names_.contains({stray.parent, stray.name})) {
        ++report_.older;
        continue;
      }
      const SalvagedFile file{
          .path = path_of(stray.parent, stray.name, true),
          .kind = NodeKind::kFile,
          .object = stray.object,
          .size_bytes =
              std::uint64_t{stray.extent.file_block} * kBlockSizeBytes + stray.extent.size_bytes,
          .target = {},
          .attributes = {},
          .xattrs = {}};
      ++report_.unplaced;
      if (auto ok = write_file(file, {&stray.extent, 1}, stray.parent, true); !ok) return ok;
    }
    return {};
  }

  Result<void> write_cut_off() {
    if (!cut_at_) return {};
    note(
        fmt::format("the log ends before block {}, a value of which is not on the device; of the "
                    "files that were written from there on, what is there is in {}",
                    *cut_at_, lost_and_found_));
    if (!cut_off_) return {};
    for (const CheckedNode& node : cut_off_->nodes()) {
      const bool is_file =
          node.object != 0 && node.object != kRootObject && node.kind == NodeKind::kFile;
      if (!is_file || is_written_as_it_is(node)) continue;
      const SalvagedFile file{.path = path_of(node.parent, cut_off_->name(node), true),
                              .kind = NodeKind::kFile,
                              .object = node.object,
                              .size_bytes = node.size_bytes,
                              .target = {},
                              .attributes = {},
                              .xattrs = {}};
      if (auto ok = write_file(file, cut_off_->extents(node), node.parent); !ok) return ok;
    }
    return {};
  }

  // Whether what the log says before its end about this file is the same.
  [[nodiscard]] bool is_written_as_it_is(const CheckedNode& node) const {
    const std::uint32_t found = state_->find(node.object);
    if (found == CheckedState::kNowhere) return false;
    const CheckedNode& before = state_->nodes()[found];
    return before.size_bytes == node.size_bytes &&
           std::ranges::equal(state_->extents(before), cut_off_->extents(node));
  }

  // What the folder cannot hold is noted; a full or failing one ends the salvage.
  Result<bool> judge(const SalvagedFile& file, const Result<void>& outcome) {
    if (outcome) return true;
    const Errc code = outcome.error().code;
    if (code != Errc::kInvalid && code != Errc::kTooLarge) return fail(outcome);
    ++report_.lost;
    note(fmt::format("{} cannot be written: {}", quoted(file.path), outcome.error().step));
    return false;
  }

  Result<void> write_without_value(const SalvagedFile& file) {
    auto outcome = sink_.begin(file);
    if (outcome) outcome = sink_.end(Salvaged::kWhole);
    const auto is_written = judge(file, outcome);
    if (!is_written) return fail(is_written);
    if (*is_written) ++(file.kind == NodeKind::kDirectory ? report_.directories : report_.symlinks);
    return {};
  }

  Result<void> write_file(const SalvagedFile& file, std::span<const Extent> extents,
                          std::uint64_t parent, bool is_stray = false) {
    const auto begun = judge(file, sink_.begin(file));
    if (!begun) return fail(begun);
    if (!*begun) return {};
    std::vector<Extent> missing;
    std::uint64_t written_bytes = 0;
    for (std::size_t start = 0; start < extents.size();) {
      std::vector<ExtentToRead> group;
      for (std::size_t bytes = 0; start < extents.size(); ++start) {
        bytes += ExtentReader::padded_bytes(extents[start]);
        if (bytes > ExtentReader::kTogetherBytesMax) break;
        if (reader_->is_inside(extents[start])) {
          group.push_back({.object = ObjectId{file.object}, .extent = extents[start]});
        } else {
          missing.push_back(extents[start]);
        }
      }
      if (auto ok = write_group(file, group, missing, written_bytes); !ok) return ok;
    }
    // What lies before a stray piece was not found.
    const bool has_gap = is_stray && extents.front().file_block != 0;
    const bool is_whole = missing.empty() && !has_gap;
    const Salvaged outcome = is_whole             ? Salvaged::kWhole
                             : written_bytes != 0 ? Salvaged::kPartial
                                                  : Salvaged::kNothing;
    if (auto ok = sink_.end(outcome); !ok) return ok;
    report_.bytes += written_bytes;
    if (is_whole) {
      ++report_.files;
      if (!found_.trailers.empty()) whole_names_.insert({parent, file.path.back()});
      return {};
    }
    ++(written_bytes == 0 ? report_.lost : report_.partial);
    if (written_bytes == 0) {
      note(fmt::format("{}: nothing of its {} bytes is left", quoted(file.path), file.size_bytes));
      return {};
    }
    note(fmt::format("{}.partial: of {} bytes {} are missing", quoted(file.path), file.size_bytes,
                     has_gap ? fmt::format("0 to {}", extents.front().file_block * 4096ULL)
                             : ranges_of(missing)));
    return {};
  }

  Result<void> write_group(const SalvagedFile& file, std::vector<ExtentToRead>& group,
                           std::vector<Extent>& missing, std::uint64_t& written_bytes) {
    const auto write = [&](const ExtentToRead& item) -> Result<void> {
      const std::uint64_t start = std::uint64_t{item.extent.file_block} * kBlockSizeBytes;
      if (start >= file.size_bytes) return {};
      const auto size = std::min<std::uint64_t>(item.bytes.size(), file.size_bytes - start);
      written_bytes += size;
      return sink_.write(start, item.bytes.first(size));
    };
    reader_->read(group);
    for (const ExtentToRead& item : group)
      if (item.verdict == ExtentVerdict::kGood)
        if (auto ok = write(item); !ok) return ok;
    for (ExtentToRead& item : group) {
      done_bytes_ += item.extent.size_bytes;
      if (item.verdict == ExtentVerdict::kGood) continue;
      if (!read_twice(item)) {
        missing.push_back(item.extent);
      } else if (auto ok = write(item); !ok) {
        return ok;
      }
    }
    if (options_.on_progress) options_.on_progress("writing", done_bytes_, total_bytes_);
    return {};
  }

  bool read_twice(ExtentToRead& item) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      reader_->read({&item, 1});
      if (item.verdict == ExtentVerdict::kGood) return true;
    }
    return false;
  }

  static std::string ranges_of(const std::vector<Extent>& missing) {
    constexpr std::size_t kRangesMax = 8;
    std::string text;
    for (std::size_t i = 0; i < missing.size() && i < kRangesMax; ++i) {
      const std::uint64_t start = std::uint64_t{missing[i].file_block} * kBlockSizeBytes;
      text += fmt::format("{}{} to {}", i == 0 ? "" : ", ", start, start + missing[i].size_bytes);
    }
    if (missing.size() > kRangesMax)
      text += fmt::format(" and {} more ranges", missing.size() - kRangesMax);
    return text;
  }

  void note(std::string line) {
    if (report_.notes.size() < kNotesMax) {
      report_.notes.push_back(std::move(line));
    } else {
      ++notes_left_out_;
    }
  }

  [[nodiscard]] ScanProgress progress(const char* phase) const {
    return [this, phase](std::uint64_t done, std::uint64_t total) {
      if (options_.on_progress) options_.on_progress(phase, done, total);
    };
  }

  Device& device_;
  SalvageSink& sink_;
  const SalvageOptions& options_;
  SalvageReport report_;
  std::uint64_t notes_left_out_ = 0;
  std::optional<Superblock> superblock_;
  Geometry area_;  // the UUID, and all of the device as slots of one block
  std::unique_ptr<CheckedState> state_;
  std::unique_ptr<ExtentReader> reader_;
  Found found_;
  Rebuilt rebuilt_;
  std::optional<std::uint64_t> cut_at_;    // the block that the log ends before
  std::unique_ptr<CheckedState> cut_off_;  // with that one and those behind it
  std::string lost_and_found_ = "lost+found";
  std::vector<Stray> strays_;
  std::map<std::uint32_t, Extent> newer_;  // by node: a whole value that no record names
  std::set<std::pair<std::uint64_t, std::string>> whole_names_;
  std::uint64_t done_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace

Result<SalvageReport> salvage_device(Device& device, SalvageSink& sink,
                                     const SalvageOptions& options) {
  return Salvage(device, sink, options).run();
}

}  // namespace kvslot
