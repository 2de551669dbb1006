// Random system calls on files of a mount against strings in memory, over both transports: on one
// file, and on several by as many threads. Each round prints its seed where it fails.
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/environment.h"
#include "tests/support/exercised_file.h"
#include "tests/support/mount_test.h"
#include "tests/support/mounted_store.h"

namespace kvslot {
namespace {

using testing::ExercisedFile;
using testing::MountedStore;
using testing::number_from;

constexpr std::size_t kFiles = 4;

class ExercisedFiles : public testing::TransportTest {
 protected:
  // Little staging memory: what is dirty has to leave early.
  static std::string options() { return "staging=8M," + transport(); }
  static std::uint64_t seed() { return number_from("KVSLOT_FILES_SEED", 1); }
  static std::uint64_t steps() { return number_from("KVSLOT_FILES_STEPS", 1200); }

  static std::string how_to_replay() {
    return "KVSLOT_FILES_SEED=" + std::to_string(seed()) +
           " KVSLOT_FILES_STEPS=" + std::to_string(steps()) +
           " build/kvslot_system_tests --gtest_filter='*ExercisedFiles*'";
  }
  static void exercise(ExercisedFile& file, std::uint64_t steps) {
    for (std::uint64_t i = 0; i < steps && !HasFailure(); ++i) file.step();
    if (!HasFailure()) file.expect_whole();
  }
};

TEST_P(ExercisedFiles, OneFileIsWhatItsModelIs) {
  SCOPED_TRACE(how_to_replay());
  MountedStore store("64M", options());
  ExercisedFile file(store.path("file"), seed());
  exercise(file, steps());
  file.close();
  store.remount();
  file.reopen();
  exercise(file, steps() / 10);
  file.close();
  store.expect_sound();
}

TEST_P(ExercisedFiles, SeveralFilesAreWhatTheirModelsAre) {
  SCOPED_TRACE(how_to_replay());
  MountedStore store("64M", options());
  std::deque<ExercisedFile> files;
  for (std::size_t i = 0; i < kFiles; ++i) {
    files.emplace_back(store.path("file" + std::to_string(i)), seed() * kFiles + i);
  }
  std::vector<std::thread> threads;
  for (ExercisedFile& file : files) threads.emplace_back([&] { exercise(file, steps() / kFiles); });
  for (std::thread& thread : threads) thread.join();
  for (ExercisedFile& file : files) file.close();
  store.remount();
  for (ExercisedFile& file : files) {
    file.reopen();
    file.expect_whole();
    file.close();
  }
  store.expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Transports, ExercisedFiles, testing::kTransports,
                         testing::name_of_transport);

}  // namespace
}  // namespace kvslot
