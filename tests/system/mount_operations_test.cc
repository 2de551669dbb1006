// File operations through a real mount: what went wrong in comparable systems does not here.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/descriptor.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"

namespace kvslot::testing {
namespace {

struct stat stat_of(const std::string& path) {
  struct stat status{};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path << ": " << std::strerror(errno);
  return status;
}

class MountOperationsTest : public MountTest {
 protected:
  static void SetUpTestSuite() {
    if (why_no_mount().empty()) shared_ = std::make_unique<MountedStore>("512M");
  }
  static void TearDownTestSuite() {
    if (shared_ != nullptr) shared_->expect_sound();
    shared_.reset();
  }
  void TearDown() override {
    if (shared_ != nullptr) store().shell("rm -rf \"$M\"/*");
  }
  static MountedStore& store() { return *shared_; }
  static std::string path(const std::string& name) { return shared_->path(name); }

  static std::unique_ptr<MountedStore> shared_;
};

std::unique_ptr<MountedStore> MountOperationsTest::shared_;

// ---- Overwriting and truncating

TEST_F(MountOperationsTest, AShorterOverwriteLeavesNoTail) {
  EXPECT_EQ(store().shell("printf %020d 0 >$M/t; printf BB >$M/t; cat $M/t"), "BB");
  EXPECT_EQ(store().shell("seq 3 >$M/s; echo x >$M/s; cat $M/s"), "x\n");
  store().remount();
  EXPECT_EQ(store().content("t"), "BB");
}

TEST_F(MountOperationsTest, ATruncationByPathReachesAnOpenDescriptor) {
  const Descriptor file(path("p"), O_RDWR | O_CREAT);
  file.write_at(0, std::string(9000, 'x'));
  ASSERT_EQ(::truncate(path("p").c_str(), 100), 0);
  struct stat status{};
  ASSERT_EQ(::fstat(file, &status), 0);
  EXPECT_EQ(status.st_size, 100);
  EXPECT_EQ(file.read(9000), std::string(100, 'x'));
}

TEST_F(MountOperationsTest, AReaderSeesWhatIsAppendedThroughAnotherDescriptor) {
  EXPECT_EQ(store().shell(": >$M/r; exec 3<$M/r; cat <&3; echo hello >>$M/r; cat <&3"), "hello\n");
  EXPECT_EQ(store().shell("for i in 1 2 3; do echo $i >>$M/log; done; cat $M/log"), "1\n2\n3\n");
}

TEST_F(MountOperationsTest, CreatingAndRemovingInALoopNeverRaces) {
  store().shell(
      "for i in $(seq 60); do echo x >$M/e && rm $M/e && : >$M/e && rm $M/e || exit 1; done");
  EXPECT_EQ(store().shell("ls -A $M"), "");
}

TEST_F(MountOperationsTest, AnOpenRightAfterACloseWorksThoughTheReleaseHasNotCome) {
  EXPECT_EQ(store().shell("for i in $(seq 60); do echo $i >$M/k || exit 1; read j <$M/k; "
                          "[ $i = $j ] || exit 1; done; cat $M/k"),
            "60\n");
}

// ---- Names

TEST_F(MountOperationsTest, OpenFilesOutliveTheirNames) {
  ASSERT_EQ(::mkdir(path("q").c_str(), 0755), 0);
  Descriptor file(path("q/f"), O_RDWR | O_CREAT);
  file.write_at(0, "still");
  ASSERT_EQ(::unlink(path("q/f").c_str()), 0);
  EXPECT_EQ(::rmdir(path("q").c_str()), 0) << std::strerror(errno);
  file.write_at(5, " here");
  EXPECT_EQ(file.read(100), "still here");
  struct stat status{};
  ASSERT_EQ(::fstat(file, &status), 0);
  EXPECT_EQ(status.st_nlink, 0U);
  EXPECT_EQ(::fsync(file), 0);
  EXPECT_EQ(file.close(), 0);
  EXPECT_EQ(store().shell("ls -A $M"), "");
}

TEST_F(MountOperationsTest, AFileRenamedOverWhileItIsOpenStaysReadable) {
  store().shell("echo old >$M/x; echo new >$M/y");
  const Descriptor old(path("x"), O_RDONLY);
  ASSERT_EQ(std::rename(path("y").c_str(), path("x").c_str()), 0);
  EXPECT_EQ(old.read(100), "old\n");
  EXPECT_EQ(store().content("x"), "new\n");
  EXPECT_NE(stat_of(path("x")).st_ino, 0U);
}

TEST_F(MountOperationsTest, RenameKnowsItsFlags) {
  store().shell("echo a >$M/a; echo b >$M/b");
  const auto rename = [](const std::string& from, const std::string& to, unsigned flags) {
    return ::syscall(SYS_renameat2, AT_FDCWD, path(from).c_str(), AT_FDCWD, path(to).c_str(),
                     flags);
  };
  EXPECT_EQ(rename("a", "b", RENAME_EXCHANGE), 0);
  EXPECT_EQ(store().content("a") + store().content("b"), "b\na\n");
  EXPECT_EQ(rename("a", "b", RENAME_NOREPLACE), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_EQ(rename("a", "c", RENAME_NOREPLACE), 0);
  EXPECT_EQ(rename("c", "d", RENAME_WHITEOUT), -1);
  EXPECT_EQ(errno, EINVAL);
  store().remount();
  EXPECT_EQ(store().content("c") + store().content("b"), "b\na\n");
}

TEST_F(MountOperationsTest, DirectoriesMoveIntoEmptyOnesAndNeverIntoThemselves) {
  store().shell("mkdir -p $M/d/e $M/empty $M/full/x; echo f >$M/d/e/f");
  EXPECT_EQ(std::rename(path("d").c_str(), path("d/e/g").c_str()), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(std::rename(path("d").c_str(), path("full").c_str()), -1);
  EXPECT_EQ(errno, ENOTEMPTY);
  EXPECT_EQ(std::rename(path("d").c_str(), path("empty").c_str()), 0);
  EXPECT_EQ(store().content("empty/e/f"), "f\n");
  EXPECT_EQ(stat_of(path("empty")).st_nlink, 3U);
}

TEST_F(MountOperationsTest, NamesOf255BytesWorkAndLongerOnesAreRefused) {
  const std::string longest(255, 'a');
  const Descriptor file(path(longest), O_WRONLY | O_CREAT);
  for (const std::size_t size : {256U, 1024U, 4000U}) {
    const std::string name(size, 'b');
    EXPECT_EQ(::open(path(name).c_str(), O_WRONLY | O_CREAT, 0644), -1);
    EXPECT_EQ(errno, ENAMETOOLONG);
    EXPECT_EQ(::mkdir(path(name).c_str(), 0755), -1);
    EXPECT_EQ(errno, ENAMETOOLONG);
    EXPECT_EQ(::symlink("x", path(name).c_str()), -1);
    EXPECT_EQ(errno, ENAMETOOLONG);
    EXPECT_EQ(std::rename(path(longest).c_str(), path(name).c_str()), -1);
    EXPECT_EQ(errno, ENAMETOOLONG);
    struct stat status{};
    EXPECT_EQ(::stat(path(name).c_str(), &status), -1);
    EXPECT_EQ(errno, ENAMETOOLONG);
  }
  struct statvfs space{};
  ASSERT_EQ(::statvfs(store().root().c_str(), &space), 0);
  EXPECT_EQ(space.f_namemax, 255U);
  EXPECT_EQ(space.f_bsize, 4096U);
}

TEST_F(MountOperationsTest, ADirectoryIsListedOnceWhateverComesAndGoes) {
  constexpr int kLasting = 10'000;
  for (int i = 0; i < kLasting; ++i) {
    Descriptor file(path("lasting" + std::to_string(i)), O_WRONLY | O_CREAT);
  }
  std::jthread churn([](const std::stop_token& stop) {
    for (int i = 0; !stop.stop_requested(); ++i) {
      const std::string name = path("passing" + std::to_string(i % 500));
      if (::unlink(name.c_str()) != 0) ::close(::open(name.c_str(), O_WRONLY | O_CREAT, 0644));
    }
  });
  for (int round = 0; round < 3; ++round) {
    std::map<std::string, int> seen;
    DIR* const directory = ::opendir(store().root().c_str());
    ASSERT_NE(directory, nullptr);
    while (const dirent* const entry = ::readdir(directory)) {
      ++seen[entry->d_name];
      EXPECT_EQ(entry->d_type, entry->d_name[0] == '.' ? DT_DIR : DT_REG) << entry->d_name;
    }
    ::closedir(directory);
    EXPECT_EQ(seen["."], 1);
    EXPECT_EQ(seen[".."], 1);
    EXPECT_EQ(seen.count(".kvslot"), 0U);
    for (int i = 0; i < kLasting; ++i) ASSERT_EQ(seen["lasting" + std::to_string(i)], 1) << i;
  }
}

TEST_F(MountOperationsTest, InodeNumbersStayThroughRenameAndRemount) {
  store().shell("echo x >$M/f");
  const ino_t before = stat_of(path("f")).st_ino;
  store().shell("mv $M/f $M/g");
  EXPECT_EQ(stat_of(path("g")).st_ino, before);
  store().remount();
  EXPECT_EQ(stat_of(path("g")).st_ino, before);
}

TEST_F(MountOperationsTest, WhatIsNotSupportedSaysSo) {
  store().shell("echo x >$M/f");
  EXPECT_EQ(::link(path("f").c_str(), path("g").c_str()), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::mkfifo(path("fifo").c_str(), 0644), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::open(store().root().c_str(), O_TMPFILE | O_RDWR, 0644), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(::mkdir(path(".kvslot").c_str(), 0755), -1);
  EXPECT_EQ(errno, EEXIST);
  const Descriptor file(path("f"), O_RDONLY);
  int value = 0;
  EXPECT_EQ(::ioctl(file, 0x5401 /* TCGETS */, &value), -1);
  EXPECT_EQ(errno, ENOTTY);
}

// ---- Attributes

TEST_F(MountOperationsTest, CopiesKeepTheirTimesAndModes) {
  store().shell("touch -d '2001-02-03 04:05:06.123456789' $T/s; chmod 640 $T/s; cp -p $T/s $M/s");
  const struct stat outside = stat_of(store().outside("s"));
  for (int round = 0; round < 2; ++round) {
    const struct stat inside = stat_of(path("s"));
    EXPECT_EQ(inside.st_mtim.tv_sec, outside.st_mtim.tv_sec);
    EXPECT_EQ(inside.st_mtim.tv_nsec, outside.st_mtim.tv_nsec);
    EXPECT_EQ(inside.st_mode, outside.st_mode);
    store().remount();
  }
}

TEST_F(MountOperationsTest, TimesCanBeSetInAllWays) {
  store().shell("touch $M/n; touch -a $M/n; touch -d @0 $M/n; ln -s n $M/l; touch -h -d @1 $M/l");
  EXPECT_EQ(stat_of(path("n")).st_mtim.tv_sec, 0);
  store().shell("umask 027; touch $M/p; mkdir $M/pd");
  EXPECT_EQ(stat_of(path("p")).st_mode & 0777, 0640U);
  EXPECT_EQ(stat_of(path("pd")).st_mode & 0777, 0750U);
}

TEST_F(MountOperationsTest, BlocksAreCountedRightAndDoNotChangeAtTheCommit) {
  Descriptor file(path("f"), O_RDWR | O_CREAT);
  file.write_at(0, std::string(300'000, 'x'));
  const struct stat dirty = stat_of(path("f"));
  EXPECT_GE(dirty.st_blocks * 512, dirty.st_size);
  EXPECT_EQ(dirty.st_blksize, 4096);
  EXPECT_EQ(::fsync(file), 0);
  EXPECT_EQ(stat_of(path("f")).st_blocks, dirty.st_blocks);
  file.close();
  store().remount();
  EXPECT_EQ(stat_of(path("f")).st_blocks, dirty.st_blocks);
}

TEST_F(MountOperationsTest, UserAttributesAreKeptAndOthersRefused) {
  store().shell("echo x >$M/f");
  const std::string file = path("f");
  EXPECT_EQ(::setxattr(file.c_str(), "user.a", "1", 1, 0), 0);
  EXPECT_EQ(::setxattr(file.c_str(), "security.x", "1", 1, 0), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(::getxattr(file.c_str(), "user.b", nullptr, 0), -1);
  EXPECT_EQ(errno, ENODATA);
  store().shell("mv $M/f $M/g");
  store().remount();
  std::string value(64, '\0');
  EXPECT_EQ(::getxattr(path("g").c_str(), "user.a", value.data(), value.size()), 1);
  EXPECT_GT(::getxattr(path("g").c_str(), "user.kvslot.slots", value.data(), value.size()), 0);
  EXPECT_EQ(::listxattr(path("g").c_str(), value.data(), value.size()), 7);
}

TEST_F(MountOperationsTest, AWriteAsksForNoAttributesEachTime) {
  store().shell("dd if=/dev/zero of=$M/f bs=4k count=1 2>/dev/null");
  const std::uint64_t before = store().stat("fuse_getxattrs");
  store().shell("dd if=/dev/zero of=$M/f bs=4k count=200 conv=notrunc 2>/dev/null");
  const std::uint64_t asked = store().stat("fuse_getxattrs") - before;
  if (asked > 1)
    GTEST_SKIP() << "libfuse before 3.18 cannot stop the kernel from asking: " << asked;
}

// ---- Content

TEST_F(MountOperationsTest, HolesAreZerosAndCanBeFound) {
  const Descriptor file(path("f"), O_RDWR | O_CREAT);
  ASSERT_EQ(::ftruncate(file, 4 << 20), 0);
  ASSERT_EQ(::pwrite(file, "x", 1, 3 << 20), 1);
  ASSERT_EQ(::fsync(file), 0);
  EXPECT_EQ(::lseek(file, 0, SEEK_DATA), 3 << 20);
  EXPECT_EQ(::lseek(file, 0, SEEK_HOLE), 0);
  EXPECT_EQ(::lseek(file, 4 << 20, SEEK_DATA), -1);
  EXPECT_EQ(errno, ENXIO);
  EXPECT_EQ(file.read(3, (3 << 20) - 1), std::string("\0x\0", 3));
  EXPECT_LT(stat_of(path("f")).st_blocks, 1024);
}

TEST_F(MountOperationsTest, FallocateReservesPunchesAndZeroes) {
  const Descriptor file(path("f"), O_RDWR | O_CREAT);
  EXPECT_EQ(::fallocate(file, 0, 0, 1 << 20), 0);
  EXPECT_EQ(stat_of(path("f")).st_size, 1 << 20);
  EXPECT_EQ(::fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 2 << 20), 0);
  EXPECT_EQ(stat_of(path("f")).st_size, 1 << 20);
  EXPECT_EQ(::fallocate(file, 0, 0, off_t{1} << 40), -1);
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_EQ(::fallocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
  const std::string full(1 << 20, 'a');
  ASSERT_EQ(::pwrite(file, full.data(), full.size(), 0), 1 << 20);
  EXPECT_EQ(::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 300'000), 0);
  std::string expected = full;
  expected.replace(4096, 300'000, 300'000, '\0');
  EXPECT_TRUE(file.read(1 << 20) == expected);
}

TEST_F(MountOperationsTest, SharedMappingsAreWritten) {
  Descriptor file(path("f"), O_RDWR | O_CREAT);
  ASSERT_EQ(::ftruncate(file, 100'000), 0);
  auto* const memory =
      static_cast<char*>(::mmap(nullptr, 100'000, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_EQ(file.close(), 0);
  memory[99'999] = 'x';  // after close: only the release can store it
  ::munmap(memory, 100'000);
  store().shell("sync $M");
  store().remount();
  EXPECT_EQ(store().content("f"), std::string(99'999, '\0') + "x");
}

TEST_F(MountOperationsTest, DirectTransfersOfAnyLengthWork) {
  Descriptor file(path("f"), O_RDWR | O_CREAT | O_DIRECT);
  const std::string text(70'001, 'q');
  EXPECT_EQ(file.write(text), 70'001);
  EXPECT_TRUE(file.read(80'000) == text);
  EXPECT_EQ(file.close(), 0);
  Descriptor synced(path("g"), O_WRONLY | O_CREAT | O_DIRECT | O_DSYNC);
  EXPECT_EQ(synced.write("durable"), 7);
  store().kill_and_remount();
  EXPECT_EQ(store().content("g"), "durable");
}

TEST_F(MountOperationsTest, CopyFileRangeCopies) {
  store().shell("head -c 20000000 /dev/urandom >$M/f");
  const Descriptor from(path("f"), O_RDONLY);
  const Descriptor to(path("g"), O_WRONLY | O_CREAT);
  off_t left = 20'000'000;
  while (left > 0) {
    const ssize_t count =
        ::copy_file_range(from, nullptr, to, nullptr, static_cast<size_t>(left), 0);
    ASSERT_GT(count, 0) << std::strerror(errno);
    left -= count;
  }
  store().shell("cmp $M/f $M/g");
}

TEST_F(MountOperationsTest, ADatabaseWorks) {
  const CommandResult has_python = run_shell("python3 -c 'import sqlite3'");
  if (has_python.exit_code != 0) GTEST_SKIP() << "no python3 with sqlite3";
  EXPECT_EQ(store().shell(R"(python3 - "$M" <<'EOP'
import sqlite3, sys
for mode in ('delete', 'wal'):
    db = sqlite3.connect(sys.argv[1] + '/db' + mode)
    db.execute('pragma journal_mode=' + mode)
    db.execute('create table t(a)')
    with db:
        db.executemany('insert into t values(?)', ((str(i) * 20,) for i in range(20000)))
    print(db.execute('pragma integrity_check').fetchone()[0])
    db.close()
EOP
)"),
            "ok\nok\n");
}

// ---- Stores of their own

using MountLifeTest = MountTest;

TEST_F(MountLifeTest, AFullStoreRefusesWholeAndRecoversByRemoval) {
  MountedStore store("24M");
  store.shell("echo precious >$M/old; sync $M/old; head -c 64M /dev/urandom >$T/big");
  store.shell("! cp $T/big $M/a 2>/dev/null");
  store.shell("! cp $T/big $M/old 2>/dev/null");
  EXPECT_EQ(store.content("old"), "precious\n");
  store.shell("rm $M/a");
  store.wait_until_removed_files_are_gone();
  store.shell("head -c 10M $T/big >$T/ten; cp $T/ten $M/ten; cmp $T/ten $M/ten");
  store.remount();
  EXPECT_EQ(store.content("old"), "precious\n");
  store.shell("cmp $T/ten $M/ten");
  store.expect_sound();
}

TEST_F(MountLifeTest, WhatWasSyncedSurvivesAKill) {
  MountedStore store("200M");
  store.shell("cp -a /usr/include/linux $M/tree; touch $M/empty; sync $M; echo more >$M/later");
  store.kill_and_remount();
  store.shell("diff -r --no-dereference /usr/include/linux $M/tree; [ -e $M/empty ]");
  store.shell("f=$M/later; [ ! -e $f ] || [ \"$(cat $f)\" = more ]");
  store.expect_sound();
}

TEST_F(MountLifeTest, SyncMountsCloseOnlyWhatIsDurable) {
  MountedStore store("64M", "sync");
  store.shell("echo value >$M/f; mv $M/f $M/g");
  store.kill_and_remount();
  EXPECT_EQ(store.content("g"), "value\n");
}

TEST_F(MountLifeTest, OptionsChangeWhatIsShown) {
  MountedStore store("64M", "uid=1234,gid=567,umask=027,control=visible");
  store.shell("echo x >$M/f");
  const struct stat status = stat_of(store.path("f"));
  EXPECT_EQ(status.st_uid, 1234U);
  EXPECT_EQ(status.st_gid, 567U);
  EXPECT_EQ(status.st_mode & 0777, 0640U);
  EXPECT_EQ(store.shell("ls -A $M"), ".kvslot\nf\n");
}

TEST_F(MountLifeTest, ReadOnlyMountsChangeNothing) {
  MountedStore writable("64M");
  writable.shell("echo x >$M/f");
  writable.unmount();
  const MountGuard guard(writable.outside("ro"));
  expect_ok(run_mount(writable.outside("store.img"), guard.path(), "ro"));
  EXPECT_EQ(run_shell("cat $1/f; echo y 2>/dev/null >$1/g || echo refused", {guard.path()}).out,
            "x\nrefused\n");
  expect_ok(run_kvslot({"unmount", guard.path()}));
}

// As another user, in the mount's root: the folders above it may be closed to others.
CommandResult as_nobody(MountedStore& store, const std::string& script) {
  return run_shell(
      "cd \"$1\" && exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c \"$2\"",
      {store.path("."), script});
}

using MountPrivileges = MountTest;

TEST_F(MountPrivileges, SuidAndSgidGoWhenOthersWriteAndTheModeShownFollows) {
  MountedStore store("64M", "allow_other");
  store.shell("chmod 777 \"$M\"; echo x >\"$M/f\"");
  for (const char* write : {"echo x >>f", ": >f"}) {
    store.shell("chmod 6777 \"$M/f\"");
    EXPECT_EQ(stat_of(store.path("f")).st_mode & 07777, 06777U);
    expect_ok(as_nobody(store, write));
    EXPECT_EQ(stat_of(store.path("f")).st_mode & 07777, 0777U) << write;
  }
}

TEST_F(MountPrivileges, NamesOfKeysAreForTheOwnersEyesWhereOthersMayUseTheMount) {
  MountedStore store("64M", "allow_other");
  store.shell("mkdir -m 700 \"$M/private\"; echo x >\"$M/private/secret\"; sync \"$M\"");
  for (const char* name : {"index", "slots", "slot/0", "key/private/secret", "errors"}) {
    EXPECT_NE(as_nobody(store, std::string("cat .kvslot/") + name).exit_code, 0) << name;
    expect_ok(run_shell("cat \"$1\"", {store.path(std::string(".kvslot/") + name)}));
  }
  expect_ok(as_nobody(store, "cat .kvslot/stats"));
}

}  // namespace
}  // namespace kvslot::testing
