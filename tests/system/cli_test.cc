// The command as a user meets it: what it prints, what it returns, and what bad input gets.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/command.h"
#include "tests/support/damage.h"
#include "tests/support/mount_guard.h"
#include "tests/support/temp_dir.h"

namespace kvslot {
namespace {

using testing::CommandResult;
using testing::expect_ok;
using testing::expect_refused;
using testing::fingerprint;
using testing::MountGuard;
using testing::run_command;
using testing::run_kvslot;
using testing::run_shell;
using testing::Words;

class CliTest : public ::testing::Test {
 protected:
  // A store with one key.
  std::string make_store(const std::string& name = "store.img") {
    return testing::make_store(directory_.path(name));
  }

  // Every command that takes a store refuses this one and leaves it as it is.
  void expect_unusable(const std::string& path) {
    const bool exists = std::filesystem::exists(path);
    const std::uint64_t before = exists ? fingerprint(path) : 0;
    expect_refused(run_kvslot({"info", path}), 1, path);
    expect_refused(run_kvslot({"ls", path}), 1, path);
    expect_refused(run_kvslot({"get", path, "key"}), 1, path);
    expect_refused(run_kvslot({"put", path, "key"}, "x"), 1, path);
    expect_refused(run_kvslot({"rm", path, "key"}), 1, path);
    expect_refused(run_kvslot({"bench", "put", path, "--rounds", "1"}), 1, path);
    expect_refused(run_kvslot({"mount", path, directory_.path()}), 1, path);
    expect_refused(run_kvslot({"exec", path, "--", "true"}), 1, path);
    EXPECT_EQ(std::filesystem::exists(path), exists);
    EXPECT_EQ(exists ? fingerprint(path) : 0, before) << "was changed";
  }

  testing::TempDir directory_;
};

TEST_F(CliTest, HelpAndVersionAreThereAtEveryLevel) {
  expect_ok(run_kvslot({"--help"}));
  EXPECT_TRUE(run_kvslot({"--version"}).out.starts_with("kvslot "));
  for (const char* command : {"format", "mount", "unmount", "umount", "info", "fsck", "ls", "get",
                              "put", "rm", "exec", "bench"}) {
    const CommandResult result = run_kvslot({command, "--help"});
    expect_ok(result);
    EXPECT_NE(result.out.find("Usage:"), std::string::npos) << command;
  }
  expect_ok(run_kvslot({"bench", "put", "--help"}));
}

TEST_F(CliTest, UsageErrorsReturnTwoAndPointToHelp) {
  for (const Words& words :
       {Words{}, Words{"bogus"}, Words{"--bogus"}, Words{"format"}, Words{"mount", "x"},
        Words{"get", "x"}, Words{"rm", "x"}, Words{"ls", "x", "--bogus"}, Words{"bench"},
        Words{"exec", "x"}, Words{"format", "x", "--size", "12Q"}}) {
    expect_refused(run_kvslot(words), 2, "--help");
  }
  expect_refused(run_kvslot({"fsck"}), 16, "--help");
}

// ---- format ----

TEST_F(CliTest, FormatCreatesASparseImageAndSaysWhatItMade) {
  const std::string path = directory_.path("new.img");
  const CommandResult result = run_kvslot({"format", path, "--size", "64M", "--label", "test"});
  expect_ok(result);
  for (const char* part : {"UUID", "slots of 4 KiB", "journal"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  }
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 1);
  EXPECT_EQ(std::filesystem::file_size(path), 64U << 20U);
  const CommandResult info = run_kvslot({"info", path});
  expect_ok(info);
  EXPECT_NE(info.out.find("test"), std::string::npos);
  EXPECT_NE(info.out.find("64 MiB"), std::string::npos);
}

TEST_F(CliTest, FormatOfAMissingImageNeedsASize) {
  const std::string path = directory_.path("new.img");
  expect_refused(run_kvslot({"format", path}), 1, path);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(CliTest, FormatRefusesImpossibleSizesAndLeavesNoImage) {
  const std::string path = directory_.path("new.img");
  expect_refused(run_kvslot({"format", path, "--size", "4K"}), 2, "--size");
  expect_refused(run_kvslot({"format", path, "--size", "17T"}), 2, "--size");
  expect_refused(run_kvslot({"format", path, "--size", "64M", "--slot-size", "5K"}), 2,
                 "--slot-size");
  expect_refused(run_kvslot({"format", path, "--size", "64M", "--slot-size", "2K"}), 2,
                 "--slot-size");
  expect_refused(run_kvslot({"format", path, "--size", "64M", "--label", std::string(64, 'x')}), 2,
                 "--label");
  expect_refused(run_kvslot({"format", path, "--size", "16M", "--slot-size", "4M"}), 1, path);
  expect_refused(run_kvslot({"format", directory_.path("no/dir.img"), "--size", "64M"}), 1,
                 "no/dir");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(CliTest, FormatGrowsAnEmptyFileAndTakesAnyOtherAsItIs) {
  const std::string empty = directory_.make_image("empty.img", 0);
  expect_refused(run_kvslot({"format", empty}), 1, empty);
  expect_ok(run_kvslot({"format", empty, "--size", "32M"}));
  EXPECT_EQ(std::filesystem::file_size(empty), 32U << 20U);
  const std::string zeros = directory_.make_image("zeros.img", 20 << 20);
  expect_refused(run_kvslot({"format", zeros, "--size", "32M"}), 1, zeros);
  expect_ok(run_kvslot({"format", zeros}));
  EXPECT_EQ(std::filesystem::file_size(zeros), 20U << 20U);
}

TEST_F(CliTest, FormatOverwritesDataOnlyWhenForced) {
  const std::string store = make_store();
  const std::string foreign = directory_.make_image("foreign.img", 32 << 20);
  testing::overwrite(foreign, 5000, "somebody's data");
  const std::string at_end = directory_.make_image("end.img", 32 << 20);
  testing::overwrite(at_end, (32 << 20) - 5000, "somebody's data");
  for (const std::string& path : {store, foreign, at_end}) {
    const std::uint64_t before = fingerprint(path);
    expect_refused(run_kvslot({"format", path}), 1, path);
    EXPECT_EQ(fingerprint(path), before);
    expect_ok(run_kvslot({"format", path, "--force"}));
    EXPECT_EQ(run_kvslot({"ls", path}).out, "");
  }
}

TEST_F(CliTest, FormatRefusesWhatIsNoStorage) {
  expect_refused(run_kvslot({"format", directory_.path()}), 1, directory_.path());
  expect_refused(run_kvslot({"format", "/dev/null"}), 1, "/dev/null");
}

TEST_F(CliTest, FormatOnAFullFileSystemLeavesNothing) {
  if (const std::string why = testing::why_no_mount(); !why.empty()) GTEST_SKIP() << why;
  const MountGuard small(directory_.path("small"));
  ASSERT_EQ(::mount("kvslot-test", small.path().c_str(), "tmpfs", 0, "size=8k"), 0);
  const std::string path = small.path("new.img");
  expect_refused(run_kvslot({"format", path, "--size", "64M"}), 1, path);
  EXPECT_FALSE(std::filesystem::exists(path));
}

// ---- what bad images get ----

TEST_F(CliTest, AMissingImageIsRefused) {
  expect_unusable(directory_.path("missing.img"));
  expect_refused(run_kvslot({"fsck", directory_.path("missing.img")}), 8, "missing.img");
}

TEST_F(CliTest, AShortImageIsRefused) {
  const std::string path = directory_.make_image("short.img", 5000);
  expect_unusable(path);
  EXPECT_GE(run_kvslot({"fsck", path}).exit_code, 4);
}

TEST_F(CliTest, AForeignImageIsRefused) {
  const std::string path = directory_.make_image("foreign.img", 32 << 20);
  testing::overwrite(path, 1080, "\x53\xef");  // ext4's magic number
  expect_unusable(path);
  EXPECT_GE(run_kvslot({"fsck", path}).exit_code, 4);
}

TEST_F(CliTest, AnImageOfANewerVersionIsRefused) {
  const std::string path = make_store();
  testing::require_newer_version(path);
  expect_unusable(path);
  const CommandResult forced = run_kvslot({"format", path});
  expect_refused(forced, 1, path);
  expect_refused(run_kvslot({"fsck", path}), 8, "newer");
}

TEST_F(CliTest, ATruncatedImageIsRefused) {
  const std::string path = make_store();
  std::filesystem::resize_file(path, 64 << 10);
  expect_unusable(path);
  std::filesystem::resize_file(path, 0);
  expect_unusable(path);
}

TEST_F(CliTest, AnImageWithGarbledSuperblocksIsRefused) {
  const std::string path = make_store();
  testing::garble_superblocks(path);
  expect_unusable(path);
  EXPECT_GE(run_kvslot({"fsck", path}).exit_code, 4);
}

TEST_F(CliTest, ADirectoryOrADeviceThatIsNoStorageIsRefused) {
  expect_refused(run_kvslot({"ls", directory_.path()}), 1, directory_.path());
  expect_refused(run_kvslot({"info", "/dev/null"}), 1, "/dev/null");
}

TEST_F(CliTest, ADamagedValueIsReportedAndNeverPrinted) {
  const std::string path = directory_.path("store.img");
  const std::string value(200'000, 'v');
  expect_ok(run_kvslot({"format", path, "--size", "16M"}));
  expect_ok(run_kvslot({"put", path, "key"}, value));
  expect_ok(run_kvslot({"put", path, "other"}, "fine"));
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const std::size_t where = content.find(std::string(1000, 'v'));
  ASSERT_NE(where, std::string::npos);
  testing::overwrite(path, where + 500, "X");
  const CommandResult got = run_kvslot({"get", path, "key"});
  expect_refused(got, 1, "key");
  EXPECT_EQ(got.out, "");
  EXPECT_EQ(run_kvslot({"get", path, "other"}).out, "fine");
  const CommandResult checked = run_kvslot({"fsck", path});
  EXPECT_EQ(checked.exit_code, 4);
  EXPECT_NE(checked.out.find("error"), std::string::npos) << checked.out;
  EXPECT_EQ(run_kvslot({"fsck", "--no-values", path}).exit_code, 0);
}

TEST_F(CliTest, AnImageThatIsOpenElsewhereIsRefused) {
  const std::string path = make_store();
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0);
  expect_refused(run_kvslot({"put", path, "key"}, "x"), 1, path);
  expect_refused(run_kvslot({"format", path, "--force"}), 1, path);
  expect_refused(run_kvslot({"fsck", path}), 8, path);
  ::close(fd);
  expect_ok(run_kvslot({"fsck", path}));
}

// ---- keys of an unmounted store ----

TEST_F(CliTest, ValuesGoInAndComeOut) {
  const std::string path = make_store();
  const std::string value = std::string("binary\0value\n", 13) + std::string(300'000, 'x');
  const std::string file = directory_.path("file");
  std::ofstream(file, std::ios::binary) << value;
  expect_ok(run_kvslot({"put", path, "a/b", file}));
  EXPECT_TRUE(run_kvslot({"get", path, "a/b"}).out == value);
  expect_ok(run_kvslot({"get", path, "a/b", directory_.path("back")}));
  EXPECT_EQ(run_command({"cmp", file, directory_.path("back")}).exit_code, 0);
  expect_ok(run_kvslot({"put", path, "empty"}));
  EXPECT_EQ(run_kvslot({"get", path, "empty"}).out, "");
  EXPECT_EQ(run_kvslot({"ls", path}).exit_code, 0);
  expect_ok(run_kvslot({"fsck", path}));
}

TEST_F(CliTest, ALargeValueIsStoredWholeOrNotAtAll) {
  const std::string path = directory_.path("store.img");
  const std::string file = directory_.path("file");
  expect_ok(run_kvslot({"format", path, "--size", "128M"}));
  ASSERT_EQ(run_shell("head -c 50000001 /dev/urandom >\"$1\"", {file}).exit_code, 0);
  expect_ok(run_shell("cat \"$3\" | \"$1\" put \"$2\" a/b/large", {KVSLOT_BINARY, path, file}));
  expect_ok(run_shell("\"$1\" get \"$2\" a/b/large | cmp - \"$3\"", {KVSLOT_BINARY, path, file}));
  expect_ok(run_shell("head -c 40000000 \"$3\" | \"$1\" put \"$2\" a/b/large",
                      {KVSLOT_BINARY, path, file}));
  expect_refused(run_kvslot({"put", path, "x/y", "/dev/zero"}), 1, "x/y");
  EXPECT_EQ(run_kvslot({"ls", path}).out, "a/b/large\n");
  EXPECT_EQ(run_shell("\"$1\" get \"$2\" a/b/large | cmp -n 40000000 - \"$3\"",
                      {KVSLOT_BINARY, path, file})
                .exit_code,
            0);
  expect_ok(run_kvslot({"fsck", path}));
}

TEST_F(CliTest, KeysAreListedByPrefixAndEscaped) {
  const std::string path = make_store();
  expect_ok(run_kvslot({"put", path, "dir/a\nb"}, "12345"));
  EXPECT_EQ(run_kvslot({"ls", path, "dir"}).out, "dir/a\\nb\ndir/key\n");
  EXPECT_EQ(run_kvslot({"ls", path, "dir/"}).out, "dir/a\\nb\ndir/key\n");
  EXPECT_EQ(run_kvslot({"ls", path, "dir/key"}).out, "dir/key\n");
  const CommandResult listed = run_kvslot({"ls", "-l", path});
  expect_ok(listed);
  EXPECT_NE(listed.out.find("\t5\t"), std::string::npos) << listed.out;
  expect_refused(run_kvslot({"ls", path, "missing"}), 1, "missing");
}

TEST_F(CliTest, RemovedKeysAreGoneAndMissingOnesAreNamed) {
  const std::string path = make_store();
  expect_refused(run_kvslot({"rm", path, "missing", "dir/key"}), 1, "missing");
  EXPECT_EQ(run_kvslot({"ls", path}).out, "");
  expect_refused(run_kvslot({"get", path, "dir/key"}), 1, "dir/key");
}

TEST_F(CliTest, ImpossibleKeysAreRefusedAndNothingIsStored) {
  const std::string path = make_store();
  const std::string long_name = "dir/" + std::string(256, 'k');
  expect_refused(run_kvslot({"put", path, long_name}, "x"), 1, long_name);
  expect_refused(run_kvslot({"put", path, "a//b"}, "x"), 1, "a//b");
  expect_refused(run_kvslot({"put", path, "../b"}, "x"), 1, "../b");
  expect_refused(run_kvslot({"put", path, "dir"}, "x"), 1, "dir");
  expect_refused(run_kvslot({"put", path, "dir/key/below"}, "x"), 1, "dir/key/below");
  expect_refused(run_kvslot({"put", path, ".kvslot"}, "x"), 1, ".kvslot");
  expect_refused(run_kvslot({"put", path, "new/folder/"}, "x"), 1, "new/folder/");
  EXPECT_EQ(run_kvslot({"ls", path}).out, "dir/key\n");
  EXPECT_NE(run_kvslot({"fsck", path}).out.find(" 1 directories,"), std::string::npos);
  expect_ok(run_kvslot({"put", path, "dir/" + std::string(255, 'k')}, "x"));
}

TEST_F(CliTest, AValueThatDoesNotFitIsRefusedAndTheOldOneStays) {
  const std::string path = make_store();
  const std::string file = directory_.make_image("large", 64 << 20);
  testing::overwrite(file, (64 << 20) - 4, "full");
  // Holes need no space on the device either, so the value must be dense.
  ASSERT_EQ(run_shell("head -c 33554432 /dev/urandom >\"$1\"", {file}).exit_code, 0);
  expect_refused(run_kvslot({"put", path, "dir/key", file}), 1, "dir/key");
  EXPECT_EQ(run_kvslot({"get", path, "dir/key"}).out, "value");
  expect_ok(run_kvslot({"fsck", path}));
}

TEST_F(CliTest, AFileThatCannotBeReadOrWrittenIsNamed) {
  const std::string path = make_store();
  const std::string missing = directory_.path("missing/file");
  expect_refused(run_kvslot({"put", path, "key", missing}), 1, missing);
  expect_refused(run_kvslot({"put", path, "key", directory_.path()}), 1, directory_.path());
  expect_refused(run_kvslot({"get", path, "dir/key", missing}), 1, missing);
  EXPECT_EQ(run_kvslot({"ls", path}).out, "dir/key\n");
}

TEST_F(CliTest, OutputThatCannotBeWrittenIsAFailure) {
  const std::string path = make_store();
  const std::string command = std::string(KVSLOT_BINARY) + " \"$@\" >/dev/full";
  expect_refused(run_shell(command, {"ls", path}), 1, "standard output");
  expect_refused(run_shell(command, {"fsck", path}), 8, "standard output");
}

// ---- bench ----

TEST_F(CliTest, BenchPutPrintsARowForEachCellAndLeavesTheStoreEmpty) {
  const std::string path = directory_.path("bench.img");
  expect_ok(run_kvslot({"format", path, "--size", "256M"}));
  const CommandResult result =
      run_kvslot({"bench", "put", path, "--json", "--grid", "small", "--rounds", "1"});
  expect_ok(result);
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 2 * 2 * 2 * 2);  // sizes, counts, modes, durable
  for (const char* name :
       {"\"bench\":\"put\"", "\"n\":100", "\"bytes\":65536", "\"mode\":\"batch\"", "\"durable\":1",
        "\"p50_us\":", "\"p95_us\":", "\"queue_depth\":", "\"engine\":"}) {
    EXPECT_NE(result.out.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(run_kvslot({"ls", path}).out, "");
  expect_ok(run_kvslot({"fsck", path}));
}

TEST_F(CliTest, BenchPutSaysWhatDoesNotFitAndSparesKeysThatAreThere) {
  const std::string path = make_store();
  expect_ok(run_kvslot({"put", path, "filler"}, std::string(8 << 20, 'f')));
  expect_refused(run_kvslot({"bench", "put", path, "--rounds", "1"}), 1, path);
  const CommandResult result =
      run_kvslot({"bench", "put", path, "--force", "--grid", "small", "--rounds", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("skipped 100 x 64 KiB"), std::string::npos) << result.err;
  EXPECT_EQ(run_kvslot({"ls", path}).out, "dir/key\nfiller\n");
}

}  // namespace
}  // namespace kvslot
