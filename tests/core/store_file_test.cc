// A store on an image file, with both engines: what was closed is there when it is opened again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <kvslot/admin.h>
#include <kvslot/store.h>

#include <string>
#include <vector>

#include "tests/support/engine.h"
#include "tests/support/temp_dir.h"

namespace kvslot::testing {
namespace {

using ::testing::Each;

struct FileCase {
  EngineChoice engine;
  bool direct;
  const char* name;
};

class StoreFileTest : public ::testing::TestWithParam<FileCase> {
 protected:
  std::unique_ptr<Device> open_device() {
    auto device =
        open_file_device(image_, {.engine = GetParam().engine, .direct = GetParam().direct});
    if (!device) return nullptr;
    return std::move(*device);
  }
  void open_store() {
    auto device = open_device();
    ASSERT_NE(device, nullptr);
    auto store =
        Store::open(std::move(device), {.volume = {.staging_size_bytes = 8 * kMiB}, .batcher = {}});
    ASSERT_TRUE(store) << store.error().step;
    store_ = std::move(*store);
  }
  void SetUp() override {
    auto device = open_device();
    if (device == nullptr) GTEST_SKIP() << "this engine does not work here";
    const auto formatted = format_device(*device, {});
    ASSERT_TRUE(formatted) << formatted.error().step;
    device.reset();
    open_store();
  }

  TempDir folder_;
  const std::string image_ = folder_.make_image("store.img", 128 * kMiB);
  std::unique_ptr<Store> store_;
};

TEST_P(StoreFileTest, ValuesOfManySizesComeBackAfterCloseAndAfterADeath) {
  const std::vector<std::size_t> sizes{0,    1,     511,        512,    4095, 4096,
                                       4097, 65537, 128 * kKiB, 131073, kMiB, 5 * kMiB + 3};
  std::vector<std::string> keys, values;
  std::vector<Put> puts;
  for (const std::size_t size : sizes) keys.push_back("folder/size" + std::to_string(size));
  for (const std::size_t size : sizes) values.push_back(value_of(size, size));
  for (std::size_t i = 0; i < sizes.size(); ++i) puts.push_back({keys[i], bytes_of(values[i])});
  EXPECT_THAT(words_of(store_->put_many(puts).results), Each("ok"));
  const std::vector<std::string_view> asked(keys.begin(), keys.end());
  for (int opening = 0; opening < 3; ++opening) {
    const auto found = store_->get_many(asked);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      EXPECT_TRUE(found[i] == values[i]) << keys[i] << ", opening " << opening;
    expect_slots_accounted(store_->volume());
    if (opening == 0) {
      EXPECT_TRUE(store_->close());
    }
    store_.reset();
    open_store();
  }
  EXPECT_FALSE(store_->list()->empty()) << "an index that comes back empty is not a success";
}

TEST_P(StoreFileTest, BatchesOverlapRemovalsAndReplacements) {
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> keys;
    std::vector<Put> puts;
    const std::string value = value_of(static_cast<std::uint64_t>(round), 20'000);
    for (int i = 0; i < 50; ++i) keys.push_back(std::to_string(i));
    for (const std::string& key : keys) puts.push_back({key, bytes_of(value)});
    EXPECT_THAT(words_of(store_->put_many(puts).results), Each("ok"));
    for (int i = 0; i < 50; i += 5) EXPECT_TRUE(store_->remove(keys[static_cast<std::size_t>(i)]));
    EXPECT_EQ(store_->get("7"), value);
  }
  EXPECT_TRUE(store_->close());
  store_.reset();
  open_store();
  EXPECT_EQ(store_->list()->size(), 40U);
  EXPECT_EQ(store_->get("7"), value_of(19, 20'000));
}

TEST_P(StoreFileTest, AnImageIsHeldByOneStoreAtATime) {
  const auto second = open_file_device(image_, {.open_wait_ms = 0});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Errc::kBusy);
}

INSTANTIATE_TEST_SUITE_P(Engines, StoreFileTest,
                         ::testing::Values(FileCase{EngineChoice::kPosix, true, "PosixDirect"},
                                           FileCase{EngineChoice::kPosix, false, "PosixBuffered"},
                                           FileCase{EngineChoice::kUring, true, "UringDirect"},
                                           FileCase{EngineChoice::kUring, false, "UringBuffered"}),
                         [](const auto& engine) { return engine.param.name; });

}  // namespace
}  // namespace kvslot::testing
