// Records go out and come back the same; what is cut or damaged is refused, never read past.
#include "core/records.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

namespace kvslot {
namespace {

NodeImage full_image() {
  return {
      .object = ObjectId{77},
      .parent = ObjectId{5},
      .kind = NodeKind::kFile,
      .attributes =
          {.mode = 0751, .uid = 1, .gid = 2, .atime_ns = -3, .mtime_ns = 4, .ctime_ns = INT64_MAX},
      .size_bytes = 300'000,
      .cookie = 99,
      .name = std::string(255, 'n'),
      .target = {},
      .xattrs = {{"user.a", "1"}, {"user.empty", ""}, {"user.big", std::string(5000, 'x')}},
      .extents = {{0, 131072, 100, 11, 12}, {32, 131072, 500, 13, 14}, {64, 5, 900, 15, 16}}};
}

std::vector<Record> one_of_each() {
  NodeImage link{.object = ObjectId{78},
                 .parent = ObjectId::kRoot,
                 .kind = NodeKind::kSymlink,
                 .attributes = {},
                 .size_bytes = 0,
                 .cookie = 0,
                 .name = "link",
                 .target = std::string(4095, 't'),
                 .xattrs = {},
                 .extents = {}};
  NodeImage root{.object = ObjectId::kRoot,
                 .parent = ObjectId::kNone,
                 .kind = NodeKind::kDirectory,
                 .attributes = {},
                 .size_bytes = 0,
                 .cookie = 0,
                 .name = {},
                 .target = {},
                 .xattrs = {},
                 .extents = {}};
  return {SetNode{full_image()},
          SetNode{link},
          SetNode{root},
          MoveNode{ObjectId{3}, ObjectId{4}, 5, -6, "moved"},
          RemoveNode{ObjectId{7}},
          SetAttributes{ObjectId{8}, full_image().attributes},
          SetXattrs{ObjectId{9}, 10, full_image().xattrs},
          SetXattrs{ObjectId{9}, 10, {}},
          PatchContent{ObjectId{11},
                       full_image().attributes,
                       300'000,
                       {{0, {{0, 131072, 100, 11, 12}}}, {2, {}}}},
          QuarantineSlots{{SlotId{12}, 13}}};
}

std::vector<std::byte> encoded(const Record& record) {
  std::vector<std::byte> bytes;
  encode_record(bytes, record);
  return bytes;
}

TEST(Records, EveryTypeComesBackAsItWentOut) {
  for (const Record& record : one_of_each()) {
    const auto bytes = encoded(record);
    ByteReader in(bytes);
    const auto decoded = decode_record(in);
    ASSERT_TRUE(decoded) << "type " << record.index() << ": " << decoded.error().step;
    EXPECT_EQ(in.left(), 0U);
    EXPECT_EQ(decoded->index(), record.index());
    EXPECT_EQ(encoded(*decoded), bytes) << "type " << record.index();
  }
}

TEST(Records, SetNodeKeepsEveryField) {
  const auto bytes = encoded(SetNode{full_image()});
  ByteReader in(bytes);
  const auto decoded = decode_record(in);
  ASSERT_TRUE(decoded);
  const NodeImage image = std::get<SetNode>(*decoded).image;
  const NodeImage expected = full_image();
  EXPECT_EQ(image.object, expected.object);
  EXPECT_EQ(image.parent, expected.parent);
  EXPECT_EQ(image.attributes.mode, expected.attributes.mode);
  EXPECT_EQ(image.attributes.atime_ns, -3);
  EXPECT_EQ(image.attributes.ctime_ns, INT64_MAX);
  EXPECT_EQ(image.size_bytes, expected.size_bytes);
  EXPECT_EQ(image.cookie, 99U);
  EXPECT_EQ(image.name, expected.name);
  EXPECT_EQ(image.xattrs, expected.xattrs);
  EXPECT_EQ(image.extents, expected.extents);
}

TEST(Records, ARecordCutAnywhereIsRefused) {
  for (const Record& record : one_of_each()) {
    const auto bytes = encoded(record);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      // Memory of exactly this size, so that a sanitizer sees a read past it.
      const auto cut = std::make_unique<std::byte[]>(size);
      std::copy_n(bytes.begin(), size, cut.get());
      ByteReader in(ConstBytes(cut.get(), size));
      EXPECT_FALSE(decode_record(in)) << "type " << record.index() << " cut at " << size;
    }
  }
}

TEST(Records, DamagedRecordsAreRefusedOrDecodedButNeverReadPast) {
  std::mt19937_64 random(1);
  for (const Record& record : one_of_each()) {
    const auto good = encoded(record);
    for (int round = 0; round < 2000; ++round) {
      auto bytes = good;
      for (int i = 0; i < 3; ++i)
        bytes[random() % std::min<std::size_t>(bytes.size(), 120)] = std::byte(random() & 0xff);
      ByteReader in(bytes);
      static_cast<void>(decode_record(in));
    }
  }
}

TEST(Records, NodesThatCannotBeAreRefused) {
  const auto refused = [](const auto& spoil) {
    NodeImage image = full_image();
    spoil(image);
    const auto bytes = encoded(SetNode{image});
    ByteReader in(bytes);
    return !decode_record(in).has_value();
  };
  EXPECT_FALSE(refused([](NodeImage&) {}));
  EXPECT_TRUE(refused([](NodeImage& image) { image.object = ObjectId::kNone; }));
  EXPECT_TRUE(refused([](NodeImage& image) { image.kind = NodeKind{3}; }));
  EXPECT_TRUE(refused([](NodeImage& image) { image.name = ""; }));
  EXPECT_TRUE(refused([](NodeImage& image) { image.name = ".."; }));
  EXPECT_TRUE(refused([](NodeImage& image) { image.name = "a/b"; }));
  EXPECT_TRUE(refused([](NodeImage& image) { image.name = std::string("a\0b", 3); }));
  EXPECT_TRUE(refused([](NodeImage& image) { image.size_bytes = 10; })) << "extents past the size";
  EXPECT_TRUE(refused([](NodeImage& image) { image.extents[1].size_bytes = 0; }));
  EXPECT_TRUE(refused([](NodeImage& image) { image.extents[1].size_bytes = 131073; }));
  EXPECT_TRUE(refused([](NodeImage& image) { std::swap(image.extents[0], image.extents[1]); }));
  EXPECT_TRUE(refused([](NodeImage& image) { image.extents[1].file_block = 31; })) << "overlap";
}

TEST(Records, WhatNobodyCanSetIsRefused) {
  const auto decodes = [](const Record& record) {
    const auto bytes = encoded(record);
    ByteReader in(bytes);
    return decode_record(in).has_value();
  };
  const auto with_xattrs = [](Xattrs xattrs) {
    return SetXattrs{ObjectId{9}, 1, std::move(xattrs)};
  };
  const std::size_t room = kXattrSizeBytesMax - 5 - 6;
  EXPECT_TRUE(decodes(with_xattrs({{"user.a", std::string(room, 'x')}})));
  EXPECT_FALSE(decodes(with_xattrs({{"user.a", std::string(room + 1, 'x')}})));
  EXPECT_FALSE(decodes(with_xattrs({{"", "x"}})));
  EXPECT_FALSE(decodes(with_xattrs({{std::string("user.\0a", 7), "x"}})));
  SetNode file{full_image()};
  file.image.size_bytes = kValueSizeBytesMax;
  EXPECT_TRUE(decodes(file));
  ++file.image.size_bytes;
  EXPECT_FALSE(decodes(file));
  EXPECT_FALSE(decodes(PatchContent{ObjectId{11}, {}, kValueSizeBytesMax + 1, {}}));
  file.image = full_image();
  file.image.target = "only symbolic links have one";
  EXPECT_FALSE(decodes(file));
  SetNode link = std::get<SetNode>(one_of_each()[1]);
  for (const std::string& target :
       {std::string(), std::string(4096, 't'), std::string("a\0b", 3)}) {
    link.image.target = target;
    EXPECT_FALSE(decodes(link));
  }
}

TEST(Records, TheSizeFormulaIsExact) {
  for (const std::size_t name_bytes : {1U, 100U, 255U}) {
    for (const std::size_t extents : {0U, 1U, 3U}) {
      NodeImage image = full_image();
      image.name = std::string(name_bytes, 'n');
      image.extents.resize(extents);
      EXPECT_EQ(encoded(SetNode{image}).size(),
                node_record_bytes(name_bytes, 0, &image.xattrs, extents));
      image.xattrs.clear();
      EXPECT_EQ(encoded(SetNode{image}).size(), node_record_bytes(name_bytes, 0, nullptr, extents));
    }
  }
  const Record link = one_of_each()[1];
  EXPECT_EQ(encoded(link).size(), node_record_bytes(4, 4095, nullptr, 0));
}

TEST(Records, RecordsWithoutContentsStayBelowTheirBound) {
  NodeImage image = full_image();
  image.xattrs.clear();
  image.extents.clear();
  EXPECT_LE(encoded(SetNode{image}).size(), kRecordBytesMax);
  EXPECT_LE(encoded(MoveNode{ObjectId{1}, ObjectId{2}, 3, 4, image.name}).size(), kRecordBytesMax);
}

}  // namespace
}  // namespace kvslot
