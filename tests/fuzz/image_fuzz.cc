// A whole image: checked, opened read-only and for writing, listed, every value read, changed,
// closed and opened again, repaired, and salvaged, with its superblock and without. The records are
// free, everything around them is sealed.
#include <kvslot/admin.h>
#include <kvslot/volume.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <random>
#include <string>

#include "core/layout.h"
#include "core/records.h"
#include "tests/fuzz/support/image_input.h"
#include "tests/fuzz/support/require.h"
#include "tests/support/snapshot.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t size_max);

namespace kvslot::testing {
namespace {

constexpr SnapshotLimits kLimits = {.entries_max = 2000, .value_bytes_max = 64 * kKiB};

std::string first_error(const CheckReport& report) {
  for (const CheckFinding& finding : report.findings)
    if (finding.is_error) return finding.what;
  return {};
}

std::unique_ptr<SimulatedDevice> copy_of(const SimulatedDevice& device) {
  return device.survivor(1, CrashMode::kAll);
}

// The pseudo-files walk all of this.
void inspect(Volume& volume) {
  std::uint32_t cursor = 0;
  while (true) {
    const auto records = volume.inspector().nodes(cursor, 64);
    if (records.empty()) break;
    for (const NodeRecord& record : records)
      require(volume.inspector().node(record.node).has_value(), "a listed node has a record");
  }
  std::uint64_t slots = 0;
  for (cursor = 0;;) {
    const auto records = volume.inspector().slots(cursor);
    if (records.empty()) break;
    for (const SlotRecord& record : records) slots += record.run.count;
  }
  require(slots == volume.geometry().slot_count, "every slot is listed once");
}

struct Opened {
  bool opened = false;
  std::optional<Snapshot> snapshot;
  Error error{.code = Errc::kIo, .os_errno = 0, .step = ""};
};

Opened look(Volume& volume) {
  Opened found;
  found.opened = true;
  found.snapshot = take_snapshot(volume, kLimits);
  require(found.snapshot.has_value(), "a store that opens can be listed");
  return found;
}

Opened open_read_only(const SimulatedDevice& device) {
  auto volume = Volume::open(copy_of(device), {.read_only = true, .seed = 1});
  if (!volume) return {.opened = false, .snapshot = {}, .error = volume.error()};
  Opened found = look(**volume);
  inspect(**volume);
  return found;
}

// Some changes of every kind; what they meet decides which succeed.
void change(Volume& volume) {
  const auto entries = volume.list(NodeId::kRoot, 0, 4);
  if (!entries) return;
  AttributeChange private_mode;
  private_mode.mode = 0600;
  static_cast<void>(volume.create(NodeId::kRoot, "new directory", NodeKind::kDirectory, {}));
  for (const DirectoryEntry& entry : *entries) {
    static_cast<void>(volume.set_attributes(entry.node, private_mode));
    static_cast<void>(volume.set_xattr(entry.node, "user.new", "value", Volume::XattrMode::kAny));
    static_cast<void>(volume.rename(NodeId::kRoot, entry.name, NodeId::kRoot, "new name",
                                    RenameMode::kNoReplace));
  }
  ContentChange put;
  put.key = "new directory/new key";
  put.size_bytes = 5000;
  put.whole = true;
  put.writes.push_back({.window = 0, .size_bytes = 5000, .data = Buffer::from_heap(8192)});
  volume.commit({&put, 1});
  static_cast<void>(volume.remove(NodeId::kRoot, "new name", RemoveKind::kNotDirectory));
  static_cast<void>(volume.checkpoint());
}

void expect_same(const Opened& left, const Opened& right, const char* what) {
  const std::string found = difference(*left.snapshot, *right.snapshot);
  require(found.empty(), what, found);
}

void open_and_close(std::unique_ptr<SimulatedDevice> device, const Opened& as_read, bool was_clean,
                    bool changes) {
  SimulatedDevice& raw = *device;
  std::unique_ptr<SimulatedDevice> left;
  Opened found;
  {
    auto volume = Volume::open(std::move(device), {.seed = 1});
    if (!volume) {
      require(!was_clean, "a store that the check calls clean opens", volume.error().step);
      return;
    }
    found = look(**volume);
    if (as_read.opened) expect_same(as_read, found, "both ways of opening show the same");
    if (changes) change(**volume);
    if (changes) found = look(**volume);
    const auto closed = (*volume)->close();
    if (!closed) return;
    left = raw.survivor(1, CrashMode::kNone);
  }
  const auto report = check_device(*left, {});
  require(report.has_value(), "a store that was closed can be checked");
  require(!was_clean || !report->damaged, "closing leaves a clean store clean",
          first_error(*report));
  auto again = Volume::open(std::move(left), {.seed = 2});
  require(again.has_value(), "a store that was closed opens again",
          again ? "" : again.error().step);
  expect_same(found, look(**again), "what was closed comes back");
}

bool may_be_mended(const CheckFinding& finding) { return finding.remedy == Remedy::kRepair; }

// Repair leaves what opens as it is, writes nothing over what it cannot mend, and ends.
void repair(std::unique_ptr<SimulatedDevice> device, const CheckReport& before,
            const Opened& as_read) {
  const std::uint64_t found = device->fingerprint();
  const auto repaired = repair_device(*device, {});
  if (!before.opens)
    require(repaired.has_value() && device->fingerprint() == found,
            "what contradicts itself is not written to");
  if (!repaired) return;
  const bool has_room = std::ranges::none_of(repaired->done, [](const std::string& line) {
    return line.find("no room") != std::string::npos;  // all slots are quarantined or in use
  });
  require(
      !has_room || !before.opens || std::ranges::none_of(repaired->after.findings, may_be_mended),
      "what can be mended is mended", first_error(repaired->after));
  if (as_read.opened && before.opens) {
    const Opened after = open_read_only(*device);
    require(after.opened, "a repaired store opens", after.error.step);
    expect_same(as_read, after, "repair changes nothing that is seen");
  }
  const auto again = repair_device(*device, {});
  require(again && (again->done.empty() || !has_room), "nothing is left to repair",
          again ? first_error(again->after) : again.error().step);
}

// Takes what is salvaged, and judges what a folder would be asked for.
class JudgingSink final : public SalvageSink {
 public:
  Result<void> begin(const SalvagedFile& file) override {
    require(!is_open_ && !file.path.empty(), "one file after the other, each with a name");
    is_open_ = true;
    path_.clear();
    for (const std::string& component : file.path) {
      require(is_valid_name(component), "every part of a path is a name", component);
      path_ += (path_.empty() ? "" : "/") + component;
    }
    size_bytes_ = file.size_bytes;
    is_file_ = file.kind == NodeKind::kFile;
    value_.assign(std::min(size_bytes_, kKeptBytesMax), '\0');
    return {};
  }
  Result<void> write(std::uint64_t offset_bytes, ConstBytes bytes) override {
    require(is_open_ && is_file_ && offset_bytes <= size_bytes_ &&
                bytes.size() <= size_bytes_ - offset_bytes,
            "bytes are inside their file", path_);
    if (offset_bytes < value_.size())
      std::memcpy(value_.data() + offset_bytes, bytes.data(),
                  std::min(bytes.size(), value_.size() - offset_bytes));
    return {};
  }
  Result<void> end(Salvaged outcome) override {
    require(is_open_, "each end has a beginning");
    is_open_ = false;
    if (is_file_ && outcome == Salvaged::kWhole && whole.size() < kFilesMax)
      whole.emplace(path_, std::move(value_));
    return {};
  }

  static constexpr std::uint64_t kKeptBytesMax = 64 * kKiB;
  static constexpr std::size_t kFilesMax = 2000;
  std::map<std::string, std::string> whole;  // the beginning of each value

 private:
  bool is_open_ = false;
  bool is_file_ = false;
  std::string path_, value_;
  std::uint64_t size_bytes_ = 0;
};

void salvage(SimulatedDevice& device, bool was_clean, const Opened& as_read) {
  JudgingSink sink;
  const auto report = salvage_device(device, sink, {});
  require(device.counters().writes == 0, "salvage writes nothing");
  if (!was_clean) return;
  // It is not complete where a value of the last batches is missing, as power loss may leave it.
  require(report && report->metadata_whole, "a clean store can be salvaged");
  for (const auto& [key, entry] : *as_read.snapshot) {
    if (entry.kind != NodeKind::kFile || !entry.value) continue;
    const auto salvaged = sink.whole.find(key);
    require(salvaged != sink.whole.end() || sink.whole.size() == JudgingSink::kFilesMax,
            "every key of a clean store comes out", key);
    if (salvaged != sink.whole.end())
      require(entry.value->starts_with(salvaged->second), "with its value", key);
  }
}

void run(ConstBytes bytes) {
  const ImageInput input = ImageInput::parse(bytes);
  const auto device = input.build();
  const auto report = check_device(*device, {});
  const bool was_clean = report && !report->damaged;
  const Opened as_read = open_read_only(*device);
  if (was_clean) {
    require(as_read.opened, "a store that the check calls clean opens read-only",
            as_read.error.step);
    const auto bad = unreadable(*as_read.snapshot);
    require(bad.empty(), "a store that the check calls clean can be read",
            bad.empty() ? std::string() : bad[0]);
  }
  open_and_close(copy_of(*device), as_read, was_clean, (input.flags & ImageInput::kChanges) != 0);
  if (report) repair(copy_of(*device), *report, as_read);
  salvage(*copy_of(*device), was_clean, as_read);
  const std::vector<std::byte> zeros(kBlockSizeBytes);
  for (const std::uint64_t offset : superblock_offsets(kFuzzImageBytes))
    device->poke(offset, zeros);
  salvage(*copy_of(*device), false, as_read);
}

// ---- Mutation record by record ----

using ByteVector = std::vector<std::byte>;

void mutate_bytes(ByteVector& bytes, std::size_t from, std::mt19937& random) {
  constexpr std::size_t kGrowthMax = 64;
  const std::size_t size = bytes.size() - from;
  bytes.resize(bytes.size() + kGrowthMax);
  const std::size_t size_max =
      random() % 2 == 0 ? std::max<std::size_t>(size, 1) : size + kGrowthMax;
  const std::size_t now =
      LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(bytes.data() + from), size, size_max);
  bytes.resize(from + now);
}

void mutate_stream(ByteVector& stream, std::mt19937& random) {
  constexpr std::size_t kPrefixBytes = 5;
  auto records = split_records(stream);
  if (records.empty()) return mutate_bytes(stream, 0, random);
  const std::size_t at = random() % records.size();
  const std::size_t other = random() % records.size();
  switch (random() % 8) {
    case 0:
      records.insert(records.begin() + static_cast<std::ptrdiff_t>(other), ByteVector(records[at]));
      break;
    case 1:
      records.erase(records.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 2:
      std::swap(records[at], records[other]);
      break;
    case 3:  // sizes that lie
      mutate_bytes(records[at], 0, random);
      break;
    default:
      if (records[at].size() < kPrefixBytes) break;
      mutate_bytes(records[at], kPrefixBytes, random);
      fix_record_size(records[at]);
  }
  stream.clear();
  for (const ByteVector& record : records)
    stream.insert(stream.end(), record.begin(), record.end());
}

void mutate_patches(std::vector<HeaderPatch>& patches, std::mt19937& random) {
  constexpr std::uint64_t kExtremes[] = {
      0,          1,          2,          0xff,           0xffff,
      0x7fffffff, 0xffffffff, UINT64_MAX, UINT64_MAX - 1, std::uint64_t{1} << 63};
  if (!patches.empty() && random() % 3 == 0) {
    patches.erase(patches.begin() + static_cast<std::ptrdiff_t>(random() % patches.size()));
    return;
  }
  HeaderPatch patch{
      .target = static_cast<HeaderPatch::Target>(random() % 4),
      .index = static_cast<std::uint8_t>(random() % 3),
      .offset_bytes = static_cast<std::uint16_t>(random() % 96 * 4),
      .width_log = static_cast<std::uint8_t>(2 + random() % 2),
      .value = random() % 2 == 0 ? kExtremes[random() % std::size(kExtremes)] : random() % 300};
  if (patches.size() < 8) patches.push_back(patch);
}

}  // namespace
}  // namespace kvslot::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvslot::testing::run(kvslot::testing::input_bytes(data, size));
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t size_max, unsigned seed) {
  using namespace kvslot::testing;
  std::mt19937 random(seed);
  ImageInput input = ImageInput::parse(input_bytes(data, size));
  switch (random() % 10) {
    case 0:
      input.flags ^= static_cast<std::uint8_t>(1U << random() % 8);
      break;
    case 1:
    case 2:
      mutate_patches(input.patches, random);
      break;
    case 3:
      if (!input.blocks.empty() && random() % 2 == 0) {
        input.blocks.erase(input.blocks.begin() +
                           static_cast<std::ptrdiff_t>(random() % input.blocks.size()));
      } else if (input.blocks.size() < 8) {
        input.blocks.push_back(input.blocks.empty() ? input.stream : input.blocks.back());
      }
      break;
    case 4:
    case 5:
    case 6:
      if (!input.blocks.empty()) {
        mutate_stream(input.blocks[random() % input.blocks.size()], random);
        break;
      }
      [[fallthrough]];
    default:
      mutate_stream(input.stream, random);
  }
  const auto bytes = input.serialize();
  if (bytes.size() > size_max) return size;
  std::memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}
