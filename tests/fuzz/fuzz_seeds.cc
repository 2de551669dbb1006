// Writes a first corpus for every fuzz target: fuzz_seeds DIRECTORY. Called by scripts/fuzz.sh.
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checkpoint_layout.h"
#include "core/layout.h"
#include "core/records.h"
#include "tests/fuzz/support/image_input.h"
#include "tests/support/seal.h"

namespace kvslot::testing {
namespace {

using ByteVector = std::vector<std::byte>;

class Seeds {
 public:
  explicit Seeds(std::string directory) : directory_(std::move(directory)) {}

  void add(const std::string& target, ConstBytes bytes) {
    const std::string folder = directory_ + "/" + target;
    std::filesystem::create_directories(folder);
    std::ofstream file(folder + "/seed" + std::to_string(count_++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  void add(const std::string& target, std::string_view text) {
    add(target, std::as_bytes(std::span(text)));
  }

 private:
  const std::string directory_;
  int count_ = 0;
};

NodeImage node(std::uint64_t object, std::uint64_t parent, NodeKind kind, std::string name) {
  NodeImage image;
  image.object = ObjectId{object};
  image.parent = ObjectId{parent};
  image.kind = kind;
  image.name = std::move(name);
  return image;
}

// Bytes of a value; images have something in the blocks from 2048 on.
Extent extent(std::uint32_t file_block, std::uint32_t size_bytes, std::uint32_t device_block) {
  return {.file_block = file_block,
          .size_bytes = size_bytes,
          .device_block = device_block,
          .stamp = device_block,
          .checksum = 0};
}

std::vector<Record> tree() {
  std::vector<Record> records;
  records.push_back(QuarantineSlots{{SlotId{3000}, 2}});
  records.push_back(SetNode{node(1, 0, NodeKind::kDirectory, "")});
  records.push_back(SetNode{node(2, 1, NodeKind::kDirectory, "dir")});
  NodeImage file = node(3, 2, NodeKind::kFile, "file");
  file.size_bytes = 5000;
  file.extents = {extent(0, 5000, 2100)};
  file.xattrs = {{"user.a", "value"}, {"user.b", ""}};
  records.push_back(SetNode{file});
  NodeImage large = node(4, 1, NodeKind::kFile, "large");
  large.size_bytes = 300'000;
  large.cookie = 77;
  large.extents = {extent(0, 65'536, 2110), extent(16, 65'536, 2130), extent(64, 30'000, 2150)};
  records.push_back(SetNode{large});
  NodeImage link = node(5, 2, NodeKind::kSymlink, "link");
  link.target = "file";
  records.push_back(SetNode{link});
  records.push_back(SetNode{node(6, 1, NodeKind::kFile, "empty")});
  return records;
}

std::vector<Record> changes() {
  NodeImage fresh = node(10, 1, NodeKind::kFile, "fresh");
  fresh.size_bytes = 100;
  fresh.extents = {extent(0, 100, 2200)};
  return {
      SetNode{fresh},
      MoveNode{.object = ObjectId{3}, .parent = ObjectId{1}, .cookie = 80, .name = "moved"},
      RemoveNode{ObjectId{6}},
      SetAttributes{ObjectId{2}, {.mode = 0700}},
      SetXattrs{ObjectId{4}, 5, {{"user.c", "x"}}},
      PatchContent{.object = ObjectId{4},
                   .attributes = {},
                   .size_bytes = 400'000,
                   .windows = {{1, {extent(32, 100'000, 2210)}}, {3, {extent(96, 6784, 2240)}}}},
      QuarantineSlots{{SlotId{3005}, 1}}};
}

ByteVector encoded(const std::vector<Record>& records) {
  ByteVector bytes;
  for (const Record& record : records) encode_record(bytes, record);
  return bytes;
}

void add_images(Seeds& seeds) {
  ImageInput plain;
  plain.flags = ImageInput::kClean | ImageInput::kSealsExtents;
  plain.stream = encoded(tree());
  seeds.add("image_fuzz", plain.serialize());
  ImageInput used = plain;
  used.flags = ImageInput::kSealsExtents | ImageInput::kHasPrevious | ImageInput::kTwoChunks |
               ImageInput::kChanges;
  used.blocks = {encoded(changes()), {}, encoded({RemoveNode{ObjectId{10}}})};
  seeds.add("image_fuzz", used.serialize());
  used.flags |= ImageInput::kFlushedBlocks;
  used.patches = {
      {.target = HeaderPatch::Target::kSuperblock, .offset_bytes = 32, .width_log = 3, .value = 6}};
  seeds.add("image_fuzz", used.serialize());
  ImageInput large = used;
  large.flags ^= ImageInput::kLargeSlots;
  seeds.add("image_fuzz", large.serialize());
  for (const auto& record : tree()) seeds.add("records_fuzz", encoded({record}));
  for (const auto& record : changes()) seeds.add("records_fuzz", encoded({record}));
  seeds.add("checkpoint_fuzz", encoded(tree()));
}

void add_structures(Seeds& seeds) {
  Superblock superblock;
  superblock.geometry = *plan_geometry(64 * kMiB, 4096, 512);
  superblock.geometry.label = "label";
  superblock.current.manifest_slot = 5;
  seeds.add("superblock_fuzz", ConstBytes(encode_superblock(superblock)).subspan(16, 400));
  superblock.geometry = *plan_geometry(kStoreSizeBytesMax, 4 << 20, 4096);
  seeds.add("superblock_fuzz", ConstBytes(encode_superblock(superblock)).subspan(16, 400));
  const Manifest manifest{.checkpoint_sequence = 3, .entries = {{1, 4096}, {2, 1 << 20}}};
  seeds.add("checkpoint_fuzz", ConstBytes(encode_manifest(manifest, {})).subspan(4, 100));
  ByteVector chunk(4096);
  seal_chunk(chunk, {.sequence = 3}, 0, 100, {});
  seeds.add("checkpoint_fuzz", ConstBytes(chunk).subspan(4, 200));
  ByteVector ring{std::byte{1}};
  for (std::uint64_t sequence = 1; sequence < 4; ++sequence) {
    ByteVector block(sequence * 4096);
    JournalHeader header{.payload_bytes = 100, .epoch = 9, .sequence = sequence};
    seal_journal_block(block, header, {});
    ring.insert(ring.end(), block.begin(), block.end());
  }
  seeds.add("journal_fuzz", ring);
  ByteVector slack(200);
  write_trailer(slack, {.object = ObjectId{3}, .stamp = 7, .size_bytes = 10, .name = "name"}, {});
  seeds.add("trailer_fuzz", ConstBytes(slack).last(68).first(56));
}

void add_texts(Seeds& seeds) {
  using namespace std::string_view_literals;
  for (const auto text : {"a/b"sv, "#checkpoint"sv, "-"sv, "a\tb\nc\\d\x1b[31m"sv, "\\x1b\\t\\n"sv,
                          "\xc2\x9b\xff\xed\xa0\x80"sv, "gr\xc3\xbc\xc3\x9f"sv})
    seeds.add("text_fuzz", text);
  for (const auto text : {"ro,sync,commit=5"sv, "uid=0,gid=0,umask=022,staging=64M,allow_other"sv,
                          "control=hidden,transport=auto,readdirplus=no,engine=io_uring"sv,
                          "nosuid,nodev,x-a=b,_netdev,defaults,,rw"sv})
    seeds.add("mount_options_fuzz", text);
  for (const auto text : {"65536"sv, "4K"sv, "256MiB"sv, "2GB"sv, "16T"sv, "0"sv,
                          "18446744073709551615"sv, "16777215T"sv, "1kiB"sv})
    seeds.add("size_fuzz", text);
  seeds.add("keys_fuzz", "0a/b/c\n1a/b/d\n2dir\n3renamed\n0a//b\n0../x\n0.kvslot\n2a\tb\n"sv);
  seeds.add("keys_fuzz", std::string("0") + std::string(255, 'n') + "\n0" + std::string(256, 'n'));
}

}  // namespace
}  // namespace kvslot::testing

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  kvslot::testing::Seeds seeds(argv[1]);
  kvslot::testing::add_images(seeds);
  kvslot::testing::add_structures(seeds);
  kvslot::testing::add_texts(seeds);
  return 0;
}
