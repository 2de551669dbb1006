// What reaches us from hands that mean harm, or slip: absurd command lines, options, names,
// attributes and writes to control files. Each gets one clear line or one errno, and a name stays
// one line.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/mounted_store.h"

namespace kvslot::testing {
namespace {

// Nothing that a terminal takes for a command: no control bytes but the newline at the end of a
// line, and no bytes that are no UTF-8.
void expect_harmless(const std::string& text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    EXPECT_TRUE((byte >= 0x20 && byte < 0x7f) || c == '\n')
        << "byte " << int{byte} << " in " << text;
  }
}

constexpr const char* kEvil = "\x1b[31mred\x9b\x07\r";
constexpr const char* kEvilShown = "\\x1b[31mred\\x9b\\x07\\x0d";

class HostileCommandLine : public ::testing::Test {
 protected:
  void expect_usage_error(const Words& words, int exit_code = 2) {
    const CommandResult result = run_kvslot(words);
    std::string line;
    for (const std::string& word : words) line += word.substr(0, 100) + ' ';
    SCOPED_TRACE(line);
    expect_refused(result, exit_code, "--help");
    expect_harmless(result.err);
    EXPECT_EQ(result.out, "");
  }

  TempDir directory_;
};

TEST_F(HostileCommandLine, SizesThatCannotBeAreUsageErrors) {
  const std::string path = directory_.path("new.img");
  for (const char* size :
       {"", "-1", "-16M", "+16M", "0x1000000", "1e9", "16.5M", "16 M", " 16M", "16M ", "M", "16MM",
        "16777216T", "18446744073709551616", "99999999999999999999999999", "16P", "16m"}) {
    expect_usage_error({"format", path, std::string("--size=") + size});
    expect_usage_error({"format", path, "--size", "64M", std::string("--slot-size=") + size});
    expect_usage_error({"exec", path, std::string("--size=") + size, "--", "true"});
  }
  for (const char* size : {"0", "1", "18446744073709551615", "17T", "16777215T"}) {
    expect_refused(run_kvslot({"format", path, "--size", size}), 2, "--size");
    expect_refused(run_kvslot({"format", path, "--size", "64M", "--slot-size", size}), 2,
                   "--slot-size");
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0) << "something was made";
}

TEST_F(HostileCommandLine, NumbersOutOfRangeAreUsageErrors) {
  for (const char* rounds : {"-1", "0", "10001", "99999999999999999999", "x", ""})
    expect_usage_error({"bench", "put", "x", std::string("--rounds=") + rounds});
  for (const char* fd : {"x", "", "99999999999999999999", "-1", "987"})
    expect_usage_error({"mount", "x", directory_.path(), std::string("--ready-fd=") + fd});
}

TEST_F(HostileCommandLine, MountOptionsThatCannotBeAreNamed) {
  const std::string image = directory_.path("no.img");
  for (const std::string& options :
       {std::string("commit=-1"), std::string("commit=99999999999999999999"),
        std::string("commit="), std::string("uid=-1"), std::string("uid=4294967295"),
        std::string("gid=root"), std::string("umask=888"), std::string("umask=7777"),
        std::string("staging=1"), std::string("staging=99999999T"), std::string("engine="),
        std::string("transport=UDS"), std::string("control=all"), std::string("=x"),
        std::string("="), std::string("ro=yes"), std::string("ro,sync,nonsense"),
        std::string(100'000, 'o'), std::string(kEvil)})
    expect_usage_error({"mount", image, directory_.path(), "-o", options});
}

// What is said twice counts once, the last time; empty options are none.
TEST_F(HostileCommandLine, RepeatedAndEmptyOptionsAreFine) {
  const std::string image = directory_.path("no.img");
  for (const char* options : {",", ",,ro,,", "ro,rw,ro", "commit=1,commit=2", "umask=0,umask=077"})
    expect_refused(run_kvslot({"mount", image, directory_.path(), "-o", options}), 1, "no.img");
}

TEST_F(HostileCommandLine, NamesNeverReachTheTerminalAsTheyAre) {
  const std::string store = directory_.path("store.img");
  expect_ok(run_kvslot({"format", store, "--size", "16M", "--label", kEvil}));
  const std::string path = directory_.path(kEvil);
  expect_ok(run_kvslot({"put", store, kEvil}, "value"));
  const std::vector<Words> failing = {{kEvil},
                                      {std::string("--") + kEvil},
                                      {"get", store, std::string("missing") + kEvil},
                                      {"rm", store, std::string("missing") + kEvil},
                                      {"ls", store, std::string("missing") + kEvil},
                                      {"put", store, std::string("a//") + kEvil},
                                      {"put", store, "key", path},
                                      {"get", store, kEvil, path + "/none"},
                                      {"ls", path},
                                      {"info", path},
                                      {"fsck", path},
                                      {"mount", path, directory_.path()},
                                      {"mount", store, path},
                                      {"unmount", path},
                                      {"ls", store, "x", kEvil},
                                      {"format", path},
                                      {"format", store, "--size", kEvil}};
  for (const Words& words : failing) {
    const CommandResult result = run_kvslot(words);
    EXPECT_NE(result.exit_code, 0) << words[0];
    expect_harmless(result.err);
    EXPECT_EQ(std::ranges::count(result.err, '\n'), 1) << result.err;
  }
  for (const Words& words :
       {Words{"info", store}, Words{"ls", store}, Words{"ls", "-l", store}, Words{"fsck", store}}) {
    const CommandResult result = run_kvslot(words);
    expect_ok(result);
    std::string text = result.out;
    std::ranges::replace(text, '\t', ' ');
    expect_harmless(text);
  }
  EXPECT_EQ(run_kvslot({"ls", store}).out, std::string(kEvilShown) + "\n");
  const CommandResult formatted = run_kvslot({"format", path, "--size", "16M"});
  expect_ok(formatted);
  expect_harmless(formatted.out);
}

// ---- Through a mount ----

class HostileMount : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_mount(); !why.empty()) GTEST_SKIP() << why;
    store_ = std::make_unique<MountedStore>("64M");
  }
  [[nodiscard]] std::vector<std::string> lines(const std::string& name) const {
    std::istringstream text(store_->content(name));
    std::vector<std::string> found;
    for (std::string line; std::getline(text, line);) found.push_back(line);
    return found;
  }
  // The errno of a write to a control file; 0 where it was taken.
  [[nodiscard]] int write_control(const std::string& name, const std::string& text) const {
    const int fd = ::open(store_->path(".kvslot/" + name).c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_GE(fd, 0) << std::strerror(errno);
    const ssize_t count = ::write(fd, text.data(), text.size());
    const int error = count < 0 ? errno : 0;
    ::close(fd);
    return error;
  }

  std::unique_ptr<MountedStore> store_;
};

TEST_F(HostileMount, ControlFilesTakeNothingButTheirWord) {
  for (const char* name : {"flush", "checkpoint"}) {
    for (const std::string& text :
         {std::string("0"), std::string("2"), std::string("11"), std::string("1 "),
          std::string("1\n1\n"), std::string("\n"), std::string("yes"), std::string("\0", 1),
          std::string("1\0", 2), std::string(4096, '1'), std::string(1 << 20, 'x'),
          std::string(kEvil)})
      EXPECT_EQ(write_control(name, text), EINVAL) << name << ": " << text.substr(0, 10);
    EXPECT_EQ(write_control(name, ""), 0);
    for (int i = 0; i < 200; ++i) ASSERT_EQ(write_control(name, i % 2 == 0 ? "1" : "1\n"), 0);
    const auto report = lines(std::string(".kvslot/") + name);
    ASSERT_EQ(report.size(), 2U);
    EXPECT_EQ(std::ranges::count(report[0], '\t'), std::ranges::count(report[1], '\t'));
  }
  for (const std::string& text :
       {std::string("-1"), std::string("1.5"), std::string("0x10"), std::string("1 "),
        std::string("99999999999999999999"), std::string("\n"), std::string("none"),
        std::string("1\0", 2), std::string(4096, '1'), std::string(kEvil)}) {
    EXPECT_EQ(write_control("deadline", text), EINVAL) << text.substr(0, 10);
    if (text != "1 ") continue;
    EXPECT_EQ(write_control("scrub", text), EINVAL) << text.substr(0, 10);
  }
  for (const std::string& text :
       {std::string("2"), std::string("-1"), std::string("11"), std::string("1\n1\n"),
        std::string("stop"), std::string("1\0", 2), std::string(kEvil)}) {
    EXPECT_EQ(write_control("scrub", text), EINVAL) << text.substr(0, 10);
  }
  EXPECT_EQ(write_control("deadline", "7\n"), 0);
  EXPECT_EQ(lines(".kvslot/deadline"), (std::vector<std::string>{"#seconds", "7"}));
  EXPECT_EQ(write_control("scrub", "0"), 0);  // none is under way
  for (const char* name : {"stats", "index", "config", "errors"}) {
    const int fd =
        ::open(store_->path(std::string(".kvslot/") + name).c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_LT(fd, 0) << name;
  }
  store_->expect_sound();
}

TEST_F(HostileMount, EveryNameIsOneLineAndComesBack) {
  std::vector<std::string> names = {"#checkpoint",
                                    "#unlinked 3",
                                    "a\\x41",
                                    "\\",
                                    "\\\\n",
                                    "-",
                                    std::string(255, '\n'),
                                    std::string(255, '\xff'),
                                    kEvil,
                                    "tab\there",
                                    "trailing ",
                                    "..."};
  for (int byte = 1; byte < 256; ++byte)
    if (byte != '/' && byte != '.') names.push_back("n" + std::string(1, static_cast<char>(byte)));
  for (const std::string& name : names) {
    const int fd =
        ::open(store_->path(name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0) << std::strerror(errno);
    EXPECT_EQ(::write(fd, "x", 1), 1);
    EXPECT_EQ(::close(fd), 0);
  }
  const std::string too_long = store_->path(std::string(256, 'n'));
  EXPECT_LT(::open(too_long.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600), 0);
  EXPECT_EQ(errno, ENAMETOOLONG);
  struct stat status{};
  EXPECT_NE(::stat(store_->path(".kvslot/key/" + std::string(256, 'n')).c_str(), &status), 0);
  EXPECT_EQ(errno, ENAMETOOLONG);
  store_->shell("sync $M");  // a file that is merely closed is still on its way
  store_->kill_and_remount();
  const auto index = lines(".kvslot/index");
  EXPECT_EQ(index.size(), names.size() + 1);
  std::set<std::string> shown;
  for (const std::string& line : index) {
    EXPECT_EQ(std::ranges::count(line, '\t'), 8) << line;
    shown.insert(line.substr(0, line.find('\t')));
  }
  EXPECT_EQ(shown.size(), names.size() + 1) << "no two names look alike";
  for (const std::string& line : lines(".kvslot/slots"))
    EXPECT_EQ(std::ranges::count(line, '\t'), 4) << line;
  for (const std::string& name : names) {
    EXPECT_EQ(::stat(store_->path(name).c_str(), &status), 0) << name;
    EXPECT_EQ(lines(".kvslot/key/" + name)[0], "#name\tvalue") << name;
  }
  store_->expect_sound();
}

TEST_F(HostileMount, AttributesKeepToTheirLimits) {
  store_->shell("echo x >\"$M/file\"");
  const std::string path = store_->path("file");
  const auto set = [&](const std::string& name, const std::string& value) {
    return ::setxattr(path.c_str(), name.c_str(), value.data(), value.size(), 0) == 0 ? 0 : errno;
  };
  const auto get = [&](const std::string& name) {
    std::string value(70'000, '\0');
    const ssize_t size = ::getxattr(path.c_str(), name.c_str(), value.data(), value.size());
    value.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return value;
  };
  const std::string longest = "user." + std::string(250, 'n');
  const std::string binary("\0\n\xff", 3);
  EXPECT_EQ(set(longest, binary), 0);
  EXPECT_EQ(set(longest + "n", binary), ERANGE);
  EXPECT_EQ(set("user.\n\t\x1b", ""), 0);
  EXPECT_EQ(set("user.kvslot.slots", "x"), EPERM);
  EXPECT_EQ(set("trusted.x", "x"), EOPNOTSUPP);
  EXPECT_EQ(set("user.large", std::string(65'536, 'x')), ENOSPC);
  EXPECT_EQ(set("user.large", std::string(65'000, 'x')), 0);
  EXPECT_EQ(set("user.more", std::string(1000, 'x')), ENOSPC) << "64 KiB in all";
  char small = 0;
  EXPECT_EQ(::getxattr(path.c_str(), longest.c_str(), &small, 1), -1);
  EXPECT_EQ(errno, ERANGE);
  EXPECT_EQ(::listxattr(path.c_str(), &small, 1), -1);
  EXPECT_EQ(errno, ERANGE);
  store_->remount();
  EXPECT_EQ(get(longest), binary);
  EXPECT_EQ(get("user.large").size(), 65'000U);
  store_->expect_sound();
}

}  // namespace
}  // namespace kvslot::testing
