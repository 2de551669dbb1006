// Tests of a file system over a device in memory.
#pragma once

#include <gtest/gtest.h>

#include <string_view>
#include <utility>

#include "tests/support/live_store.h"

namespace kvslot::testing {

class FilesystemTest : public ::testing::Test {
 protected:
  // A stored file.
  NodeId put(std::string_view name, std::string_view text) {
    Handle handle = store_.create(name);
    EXPECT_TRUE(store_.write(handle, 0, text));
    const NodeId node = handle->file->node;
    EXPECT_TRUE(store_.fsync(handle));
    EXPECT_TRUE(store_.close(std::move(handle)));
    return node;
  }

  LiveStore store_;
};

}  // namespace kvslot::testing
