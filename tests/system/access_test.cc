// Who may do what in a mounted store: permissions, the control directory, suid and sticky bits.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/support/as_user.h"
#include "tests/support/command.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"

namespace kvslot {
namespace {

using testing::errno_of_call;
using testing::kAlice;
using testing::kBob;
using testing::kRoot;
using testing::MountedStore;
using testing::run_as;
using testing::run_kvslot;
using testing::User;

int try_open(const char* path, int flags = O_RDONLY) {
  return errno_of_call(::open(path, flags | O_CLOEXEC, 0600));
}

int put(const char* path, mode_t mode, const std::string& bytes = "secret") {
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  const bool is_whole = ::write(fd, bytes.data(), bytes.size()) == std::ssize(bytes);
  return is_whole && ::fchmod(fd, mode) == 0 && ::close(fd) == 0 ? 0 : EIO;
}

class AccessTest : public testing::MountTest {
 protected:
  // A store that everybody may enter and write to, with files of alice's.
  static void fill(MountedStore& store) {
    ASSERT_EQ(::chmod(store.root().c_str(), 01777), 0);
    ASSERT_EQ(as(kAlice, store,
                 [] {
                   if (::mkdir("hers", 0700) != 0 || put("hers/hidden", 0644) != 0) return EIO;
                   if (::setxattr("hers/hidden", "user.note", "x", 1, 0) != 0) return EIO;
                   return put("private", 0600);
                 }),
              0);
    store.shell("sync $M");
  }
  static int as(const User& user, const MountedStore& store, const std::function<int()>& action) {
    return run_as(user, store.root(), action);
  }
};

TEST_F(AccessTest, PermissionsHoldAmongUsersOfOneMount) {
  MountedStore store("16M", "allow_other");
  fill(store);
  const auto bob = [&](const std::function<int()>& action) { return as(kBob, store, action); };
  EXPECT_EQ(as(kAlice, store, [] { return try_open("hers/hidden"); }), 0);
  EXPECT_EQ(bob([] { return try_open("private"); }), EACCES);
  EXPECT_EQ(bob([] { return try_open("private", O_WRONLY); }), EACCES);
  EXPECT_EQ(bob([] { return errno_of_call(::truncate("private", 0)); }), EACCES);
  EXPECT_EQ(bob([] { return try_open("hers/hidden"); }), EACCES);
  EXPECT_EQ(bob([] { return try_open("hers", O_DIRECTORY); }), EACCES);
  EXPECT_EQ(bob([] { return errno_of_call(::access("hers/hidden", F_OK)); }), EACCES);
  EXPECT_EQ(bob([] { return errno_of_call(::access("hers/none", F_OK)); }), EACCES);
  EXPECT_EQ(bob([] { return put("hers/new", 0600); }), EACCES);
  EXPECT_EQ(bob([] { return errno_of_call(::chmod("private", 0666)); }), EPERM);
  EXPECT_EQ(bob([] { return errno_of_call(::chown("private", kBob.uid, kBob.gid)); }), EPERM);
  EXPECT_EQ(as(kAlice, store, [] { return errno_of_call(::chown("private", kBob.uid, -1)); }),
            EPERM);
  for (const char* const name :
       {"user.note", "user.kvslot.checksum", "user.kvslot.slots", "user.kvslot.sequence"}) {
    EXPECT_EQ(bob([name] { return errno_of_call(::getxattr("private", name, nullptr, 0)); }),
              EACCES)
        << name;
  }
  EXPECT_EQ(bob([] { return errno_of_call(::setxattr("private", "user.a", "", 0, 0)); }), EACCES);
}

// As on ext4: a descriptor is worth what it was opened for.
TEST_F(AccessTest, ADescriptorIsWorthWhatItWasOpenedFor) {
  MountedStore store("16M", "allow_other");
  fill(store);
  const int located = ::open(store.path("private").c_str(), O_PATH | O_CLOEXEC);
  const int readable = ::open(store.path("private").c_str(), O_RDONLY | O_CLOEXEC);
  const int directory = ::open(store.path("hers").c_str(), O_PATH | O_CLOEXEC);
  EXPECT_EQ(
      as(kBob, store,
         [located] { return try_open(("/proc/self/fd/" + std::to_string(located)).c_str()); }),
      EACCES);
  EXPECT_EQ(as(kBob, store, [directory] { return errno_of_call(::fchdir(directory)); }), EACCES);
  EXPECT_EQ(as(kBob, store,
               [directory] {
                 return errno_of_call(::openat(directory, "hidden", O_RDONLY | O_CLOEXEC));
               }),
            EACCES);
  EXPECT_EQ(as(kBob, store,
               [readable] {
                 char bytes[6];
                 return ::pread(readable, bytes, 6, 0) == 6 && std::string(bytes, 6) == "secret"
                            ? 0
                            : EIO;
               }),
            0);
  for (const int fd : {located, readable, directory}) ::close(fd);
}

TEST_F(AccessTest, WhatNamesKeysInTheControlDirectoryIsForTheOwnerAlone) {
  MountedStore store("16M", "allow_other,control=visible");
  fill(store);
  const auto bob = [&](const std::function<int()>& action) { return as(kBob, store, action); };
  for (const char* const path :
       {".kvslot/index", ".kvslot/slots", ".kvslot/inflight", ".kvslot/errors", ".kvslot/key",
        ".kvslot/slot", ".kvslot/slot/0", ".kvslot/key/private", ".kvslot/key/hers/hidden",
        ".kvslot/key/none", ".kvslot/checkpoint", ".kvslot/flush", ".kvslot/scrub",
        ".kvslot/deadline"}) {
    EXPECT_EQ(bob([path] { return try_open(path); }), EACCES) << path;
    EXPECT_EQ(bob([path] { return try_open(path, O_PATH); }),
              std::count(path, path + std::string(path).size(), '/') > 1 ? EACCES : 0)
        << path;
  }
  for (const char* const path :
       {".kvslot/checkpoint", ".kvslot/flush", ".kvslot/scrub", ".kvslot/deadline"}) {
    EXPECT_EQ(bob([path] { return try_open(path, O_WRONLY); }), EACCES) << path;
    EXPECT_EQ(bob([path] { return errno_of_call(::truncate(path, 0)); }), EACCES) << path;
    EXPECT_EQ(bob([path] { return errno_of_call(::chmod(path, 0666)); }), EPERM) << path;
    EXPECT_EQ(as(kRoot, store, [path] { return try_open(path, O_WRONLY); }), 0) << path;
  }
  for (const char* const path :
       {".kvslot/stats", ".kvslot/batches", ".kvslot/journal", ".kvslot/config"}) {
    EXPECT_EQ(bob([path] { return try_open(path); }), 0) << path;
    const std::string content = store.content(path);
    for (const char* const name : {"hers", "hidden", "private"}) {
      EXPECT_EQ(content.find(name), std::string::npos) << path << " names " << name;
    }
  }
}

TEST_F(AccessTest, WithoutAllowOtherNobodyElseGetsIn) {
  MountedStore store("16M", "control=visible");
  const int root = ::open(store.root().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::chmod(store.root().c_str(), 0777), 0);
  store.shell("echo x >$M/file; chmod 666 $M/file");
  // From the outside, as its own directory cannot be entered.
  for (const char* const path : {"file", ".kvslot/stats", ".kvslot/index", ".", "new"}) {
    EXPECT_EQ(
        run_as(kBob, "/",
               [root, path] { return errno_of_call(::openat(root, path, O_RDONLY | O_CLOEXEC)); }),
        EACCES)
        << path;
  }
  EXPECT_EQ(run_as(kBob, "/", [root] { return errno_of_call(::mkdirat(root, "new", 0777)); }),
            EACCES);
  ::close(root);
}

struct Clearing {
  const char* name;
  int (*change)(int fd);
};

// By somebody who may write to the file and does not own it.
TEST_F(AccessTest, SetuidAndSetgidEndWithAnyChangeOfContents) {
  MountedStore store("16M", "allow_other");
  ASSERT_EQ(::chmod(store.root().c_str(), 0777), 0);
  const Clearing changes[] = {
      {"write", [](int fd) { return ::write(fd, "x", 1) == 1 ? 0 : EIO; }},
      {"truncate", [](int fd) { return errno_of_call(::ftruncate(fd, 2)); }},
      {"extend", [](int fd) { return errno_of_call(::ftruncate(fd, 20)); }},
      {"fallocate", [](int fd) { return errno_of_call(::fallocate(fd, 0, 0, 100)); }},
      {"punch",
       [](int fd) {
         return errno_of_call(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 3));
       }},
      {"copy",
       [](int fd) {
         const int from = ::open("source", O_RDONLY | O_CLOEXEC);
         return ::copy_file_range(from, nullptr, fd, nullptr, 4, 0) == 4 ? 0 : EIO;
       }},
  };
  ASSERT_EQ(as(kBob, store, [] { return put("source", 0644); }), 0);
  for (const Clearing& change : changes) {
    ASSERT_EQ(as(kAlice, store, [&] { return put(change.name, 06777); }), 0) << change.name;
    const std::string path = store.path(change.name);
    EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(06777));
    EXPECT_EQ(as(kBob, store,
                 [&] {
                   const int fd = ::open(change.name, O_RDWR | O_CLOEXEC);
                   return fd < 0 ? errno : change.change(fd);
                 }),
              0)
        << change.name;
    EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0777))
        << change.name;
    // Given again, they go again.
    ASSERT_EQ(as(kAlice, store, [&] { return errno_of_call(::chmod(change.name, 04777)); }), 0);
    EXPECT_EQ(as(kBob, store, [&] { return try_open(change.name, O_WRONLY | O_TRUNC); }), 0);
    EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0777))
        << change.name << ", O_TRUNC";
  }
  store.remount();
  for (const Clearing& change : changes) {
    EXPECT_EQ(std::filesystem::status(store.path(change.name)).permissions(),
              std::filesystem::perms(0777))
        << change.name << " after the next mount";
  }
}

TEST_F(AccessTest, SetuidEndsWhenTheOwnerOrGroupChanges) {
  MountedStore store("16M", "allow_other");
  ASSERT_EQ(::chmod(store.root().c_str(), 0777), 0);
  for (const char* const name : {"owner", "group"}) {
    ASSERT_EQ(as(kAlice, store, [name] { return put(name, 06755); }), 0);
  }
  ASSERT_EQ(::chown(store.path("owner").c_str(), kBob.uid, -1), 0);
  ASSERT_EQ(as(kAlice, store, [] { return errno_of_call(::chown("group", -1, kAlice.gid)); }), 0);
  for (const char* const name : {"owner", "group"}) {
    EXPECT_EQ(std::filesystem::status(store.path(name)).permissions(), std::filesystem::perms(0755))
        << name;
  }
  // Of a group that is not one's own, the bit cannot be set.
  ASSERT_EQ(as(kAlice, store, [] { return put("foreign", 0755); }), 0);
  ASSERT_EQ(::chown(store.path("foreign").c_str(), -1, kBob.gid), 0);
  EXPECT_EQ(as(kAlice, store, [] { return errno_of_call(::chmod("foreign", 02755)); }), 0);
  EXPECT_EQ(std::filesystem::status(store.path("foreign")).permissions(),
            std::filesystem::perms(0755));
}

TEST_F(AccessTest, StickyAndSetgidDirectoriesAndTheUmaskWorkAsElsewhere) {
  MountedStore store("16M", "allow_other");
  fill(store);
  ASSERT_EQ(as(kAlice, store, [] { return put("note", 0666); }), 0);
  const auto bob = [&](const std::function<int()>& action) { return as(kBob, store, action); };
  EXPECT_EQ(bob([] { return errno_of_call(::unlink("note")); }), EPERM);
  EXPECT_EQ(bob([] { return errno_of_call(::rename("note", "mine")); }), EPERM);
  EXPECT_EQ(bob([] { return put("mine", 0600); }), 0);
  EXPECT_EQ(bob([] { return errno_of_call(::rename("mine", "note")); }), EPERM);
  EXPECT_EQ(as(kAlice, store, [] { return errno_of_call(::rename("note", "renamed")); }), 0);

  store.shell("mkdir $M/group; chown 0:61001 $M/group; chmod 2777 $M/group");
  EXPECT_EQ(bob([] {
              ::umask(027);
              return errno_of_call(::mkdir("group/dir", 0777)) |
                     errno_of_call(::open("group/file", O_CREAT | O_WRONLY | O_CLOEXEC, 0666));
            }),
            0);
  EXPECT_EQ(store.shell("cd $M/group; stat -c '%a %u %g' dir file"),
            "2750 61002 61001\n640 61002 61001\n");
}

TEST_F(AccessTest, NothingIsFollowedOutOfTheStore) {
  MountedStore store("16M");
  const std::string outside = store.outside("outside");
  std::ofstream(outside) << "not yours";
  store.shell("ln -s " + outside + " $M/link; ln -s ../../../../etc/passwd $M/up; ln -s / $M/dir");
  EXPECT_EQ(std::filesystem::read_symlink(store.path("link")), outside);
  store.unmount();
  const std::string image = store.outside("store.img");
  for (const char* const key : {"link", "up", "dir"}) {
    testing::expect_refused(run_kvslot({"get", image, key}), 1, key);
    testing::expect_refused(run_kvslot({"put", image, key}, "x"), 1, key);
    const std::string below = std::string(key) + "/x";
    testing::expect_refused(run_kvslot({"put", image, below}, "x"), 1, below);
    testing::expect_refused(run_kvslot({"get", image, below}), 1, below);
  }
  for (const char* const key : {"..", "../x", "a/../b", "a/..", "/x", "./x", "a//b", ""}) {
    EXPECT_NE(run_kvslot({"put", image, key}, "x").exit_code, 0) << key;
  }
  EXPECT_EQ(testing::run_shell("cat \"$1\"", {outside}).out, "not yours");
  EXPECT_EQ(run_kvslot({"ls", image}).out, "");  // which lists files
}

TEST_F(AccessTest, FilesThatTheCommandMakesShowNoMoreThanTheirSource) {
  MountedStore store("16M");
  store.shell("echo x >$M/private; chmod 600 $M/private; echo x >$M/public; chmod 644 $M/public");
  store.unmount();
  const std::string image = store.outside("store.img");
  EXPECT_EQ(std::filesystem::status(image).permissions(), std::filesystem::perms(0600));
  for (const char* const key : {"private", "public"}) {
    testing::expect_ok(run_kvslot({"get", image, key, store.outside(key)}));
  }
  EXPECT_EQ(testing::run_shell("stat -c %a \"$1\" \"$2\"",
                               {store.outside("private"), store.outside("public")})
                .out,
            "600\n644\n");
}

}  // namespace
}  // namespace kvslot
