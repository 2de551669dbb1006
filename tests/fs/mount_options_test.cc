// `-o`: what is taken, what is refused, and in which words.
#include "fs/mount_options.h"

#include <gtest/gtest.h>

namespace kvslot {
namespace {

MountOptions parsed(std::string_view text) {
  MountOptions options;
  const auto result = parse_mount_options(text, options);
  EXPECT_TRUE(result) << text << ": " << result.error();
  return options;
}

std::string refusal(std::string_view text) {
  MountOptions options;
  const auto result = parse_mount_options(text, options);
  EXPECT_FALSE(result) << text;
  return result ? "" : result.error();
}

TEST(MountOptions, EveryOptionIsTaken) {
  const MountOptions options = parsed(
      "ro,sync,commit=5,allow_other,uid=1000,gid=100,umask=022,control=visible,"
      "transport=dev,readdirplus=no,staging=64M,engine=posix,deadline=7,scrub_rate=0");
  EXPECT_TRUE(options.read_only);
  EXPECT_TRUE(options.sync);
  EXPECT_EQ(options.commit_seconds, 5U);
  EXPECT_TRUE(options.allow_other);
  EXPECT_EQ(options.uid, 1000U);
  EXPECT_EQ(options.gid, 100U);
  EXPECT_EQ(options.umask, 022U);
  EXPECT_EQ(options.control, ControlDirectory::kVisible);
  EXPECT_EQ(options.transport, TransportChoice::kDev);
  EXPECT_EQ(options.readdirplus, ReaddirPlus::kNo);
  EXPECT_EQ(options.staging_bytes, 64U << 20);
  EXPECT_EQ(options.engine, EngineChoice::kPosix);
  EXPECT_EQ(options.deadline_seconds, 7U);
  EXPECT_EQ(options.scrub_mib_per_second, 0U);
  for (const char* const text : {"engine=uring", "engine=io_uring"}) {
    MountOptions other;
    EXPECT_TRUE(parse_mount_options(text, other)) << text;
    EXPECT_EQ(other.engine, EngineChoice::kUring) << text;
  }
}

TEST(MountOptions, LaterOptionsWinAndAllOfThemAreShown) {
  MountOptions options = parsed("ro,commit=5");
  ASSERT_TRUE(parse_mount_options("rw,,commit=7", options));
  EXPECT_FALSE(options.read_only);
  EXPECT_EQ(options.commit_seconds, 7U);
  EXPECT_EQ(options.text, "ro,commit=5,rw,commit=7");
}

TEST(MountOptions, OptionsOfMountAndFstabAreAccepted) {
  const MountOptions options = parsed(
      "defaults,rw,nosuid,nodev,noexec,noatime,nofail,_netdev,noauto,users,x-systemd.automount,"
      "relatime,default_permissions,user=somebody");
  EXPECT_EQ(options.kernel_options, "nosuid,nodev,noexec,noatime");
}

TEST(MountOptions, WhatIsUnknownOrOutOfRangeIsNamed) {
  for (const char* const option :
       {"bogus", "commit=soon", "commit=-1", "commit=", "control=perhaps", "staging=12Q",
        "staging=1", "umask=9", "uid=nobody", "transport=pigeon", "readdirplus=", "cache"}) {
    EXPECT_NE(refusal(option).find(option), std::string::npos) << refusal(option);
  }
  EXPECT_NE(refusal("control=perhaps").find("hidden, visible, none"), std::string::npos);
}

TEST(MountOptions, SizesAreReadAsPeopleWriteThem) {
  EXPECT_EQ(parse_size("65536"), 65536U);
  EXPECT_EQ(parse_size("4K"), 4096U);
  EXPECT_EQ(parse_size("4k"), 4096U);
  EXPECT_EQ(parse_size("2G"), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_size("1MiB"), 1U << 20);
  EXPECT_EQ(parse_size("1T"), std::uint64_t{1} << 40);
  EXPECT_EQ(parse_size("100B"), 100U);
  for (const char* const text : {"", "K", "-1", "1Q", "1Kx", "99999999999999999999", "99999999T"}) {
    EXPECT_FALSE(parse_size(text)) << text;
  }
}

}  // namespace
}  // namespace kvslot
