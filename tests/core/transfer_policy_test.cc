// Scripts the results of transfers and looks at what the engines would do next.
#include <gtest/gtest.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <memory>
#include <vector>

#include "core/transfer.h"

namespace kvslot {
namespace {

constexpr std::int64_t kBlock = kBlockSizeBytes;
constexpr std::size_t kSize = kBlockSizeBytes;  // the same, as a size of memory

// A request of pieces of 1, 2 and 3 blocks at device block 10, and its transfer.
class TransferPolicy : public ::testing::Test {
 protected:
  TransferPolicy() { transfer_ = std::make_unique<Transfer>(request_); }

  TransferStep on_result(std::int64_t result) { return transfer_->on_result(result, counters_); }
  [[nodiscard]] std::size_t left_bytes() const {
    std::size_t size_bytes = 0;
    for (const iovec& segment : transfer_->segments()) size_bytes += segment.iov_len;
    return size_bytes;
  }
  [[nodiscard]] std::byte* block(std::size_t number) { return memory_.data() + number * kSize; }

  alignas(kBlockSizeBytes) std::array<std::byte, 6 * kSize> memory_;
  std::vector<iovec> segments_{{block(0), 1 * kSize}, {block(1), 2 * kSize}, {block(3), 3 * kSize}};
  IoRequest request_{
      .op = IoOp::kWrite, .offset_bytes = 10 * kSize, .segments = segments_, .error = -1};
  IoCounters counters_;
  std::unique_ptr<Transfer> transfer_;
};

TEST_F(TransferPolicy, AFullTransferIsDone) {
  EXPECT_EQ(on_result(6 * kBlock), TransferStep::kDone);
  EXPECT_EQ(request_.error, 0);
  EXPECT_EQ(counters_.writes, 1U);
  EXPECT_EQ(counters_.written_bytes, 6 * kSize);
  EXPECT_EQ(counters_.short_transfers, 0U);
}

TEST_F(TransferPolicy, AShortTransferResumesInsideItsSegment) {
  EXPECT_EQ(on_result(2 * kBlock), TransferStep::kResubmit);
  EXPECT_EQ(transfer_->offset_bytes(), 12 * kSize);
  ASSERT_EQ(transfer_->segments().size(), 2U);
  EXPECT_EQ(transfer_->segments()[0].iov_base, block(2));
  EXPECT_EQ(transfer_->segments()[0].iov_len, kSize);
  EXPECT_EQ(transfer_->segments()[1].iov_base, block(3));
  EXPECT_EQ(on_result(4 * kBlock), TransferStep::kDone);
  EXPECT_EQ(request_.error, 0);
  EXPECT_EQ(counters_.short_transfers, 1U);
  EXPECT_EQ(counters_.written_bytes, 6 * kSize);
}

TEST_F(TransferPolicy, AShortTransferAtASegmentsEndResumesWithTheNextSegment) {
  EXPECT_EQ(on_result(3 * kBlock), TransferStep::kResubmit);
  ASSERT_EQ(transfer_->segments().size(), 1U);
  EXPECT_EQ(transfer_->segments()[0].iov_base, block(3));
}

TEST_F(TransferPolicy, APartialBlockIsTransferredAgain) {
  EXPECT_EQ(on_result(2 * kBlock + 512), TransferStep::kResubmit);
  EXPECT_EQ(transfer_->offset_bytes(), 12 * kSize);
  EXPECT_EQ(left_bytes(), 4 * kSize);
  EXPECT_EQ(on_result(512), TransferStep::kResubmit);
  EXPECT_EQ(transfer_->offset_bytes(), 12 * kSize);
  EXPECT_EQ(on_result(4 * kBlock), TransferStep::kDone);
  EXPECT_EQ(request_.error, 0);
}

TEST_F(TransferPolicy, LessThanABlockAtFirstStartsOver) {
  EXPECT_EQ(on_result(512), TransferStep::kResubmit);
  EXPECT_EQ(transfer_->offset_bytes(), 10 * kSize);
  EXPECT_EQ(left_bytes(), 6 * kSize);
}

TEST_F(TransferPolicy, TheThirdShortTransferIsAnError) {
  EXPECT_EQ(on_result(kBlock), TransferStep::kResubmit);
  EXPECT_EQ(on_result(kBlock), TransferStep::kResubmit);
  EXPECT_EQ(on_result(kBlock), TransferStep::kDone);
  EXPECT_EQ(request_.error, EIO);
  EXPECT_EQ(counters_.writes, 1U);
  EXPECT_EQ(counters_.written_bytes, 0U);
  EXPECT_EQ(counters_.short_transfers, 3U);
}

TEST_F(TransferPolicy, NothingTransferredIsAnError) {
  EXPECT_EQ(on_result(0), TransferStep::kDone);
  EXPECT_EQ(request_.error, EIO);
}

TEST_F(TransferPolicy, TransientErrorsAreRetriedAndCounted) {
  for (const int error : {EAGAIN, EINTR, EBUSY}) {
    EXPECT_EQ(on_result(-error), TransferStep::kResubmit);
    EXPECT_EQ(left_bytes(), 6 * kSize);
  }
  EXPECT_EQ(on_result(6 * kBlock), TransferStep::kDone);
  EXPECT_EQ(request_.error, 0);
  EXPECT_EQ(counters_.retries, 3U);
}

TEST_F(TransferPolicy, AStormOfRetriesEndsWithItsError) {
  for (unsigned i = 0; i < kRetriesMax; ++i) ASSERT_EQ(on_result(-EAGAIN), TransferStep::kResubmit);
  EXPECT_EQ(on_result(-EAGAIN), TransferStep::kDone);
  EXPECT_EQ(request_.error, EAGAIN);
  EXPECT_EQ(counters_.retries, kRetriesMax);
}

TEST_F(TransferPolicy, OtherErrorsAreFinal) {
  EXPECT_EQ(on_result(2 * kBlock), TransferStep::kResubmit);
  EXPECT_EQ(on_result(-ENOSPC), TransferStep::kDone);
  EXPECT_EQ(request_.error, ENOSPC);
}

TEST_F(TransferPolicy, OurOwnMistakesAreCaught) {
  EXPECT_DEATH(static_cast<void>(on_result(7 * kBlock)), "more bytes moved");
  IoRequest unaligned = request_;
  unaligned.offset_bytes = 512;
  EXPECT_DEATH(Transfer{unaligned}, "unaligned offset");
  IoRequest empty = request_;
  empty.segments = {};
  EXPECT_DEATH(Transfer{empty}, "no segments");
}

}  // namespace
}  // namespace kvslot
