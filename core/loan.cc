// The register of loans, and what is kept because of them.
#include "core/loan.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace kvslot {
namespace {

struct Register {
  std::atomic<std::size_t> loan_count{0};  // so that a Buffer costs nothing while there are none
  Mutex mutex;                             // before the mutexes of pools
  std::vector<const Loan*> loans GUARDED_BY(mutex);
  std::vector<Buffer> kept GUARDED_BY(mutex);

  [[nodiscard]] bool is_lent(const Buffer& buffer) const REQUIRES(mutex) {
    const std::byte* const begin = buffer.data();
    const std::byte* const end = begin + buffer.capacity();
    const auto overlaps = [&](const iovec& segment) {
      const auto* const first = static_cast<const std::byte*>(segment.iov_base);
      return first < end && begin < first + segment.iov_len;
    };
    return std::ranges::any_of(
        loans, [&](const Loan* loan) { return std::ranges::any_of(loan->segments(), overlaps); });
  }
};

// Never destroyed: loans may end as late as the process.
Register& loan_register() {
  static Register& instance = *new Register();
  return instance;
}

}  // namespace

Loan::Loan(std::vector<iovec> segments) : segments_(std::move(segments)) {
  Register& r = loan_register();
  const MutexLock lock(r.mutex);
  r.loans.push_back(this);
  r.loan_count.fetch_add(1);
}

Loan::~Loan() {
  Register& r = loan_register();
  const MutexLock lock(r.mutex);
  std::erase(r.loans, this);
  r.loan_count.fetch_sub(1);
  std::vector<Buffer> still;
  for (Buffer& buffer : r.kept) {
    if (r.is_lent(buffer))
      still.push_back(std::move(buffer));
    else
      buffer.give_back();
  }
  r.kept = std::move(still);
}

bool Loan::keep(Buffer& buffer) {
  Register& r = loan_register();
  if (r.loan_count.load() == 0) return false;
  const MutexLock lock(r.mutex);
  if (!r.is_lent(buffer)) return false;
  r.kept.push_back(std::move(buffer));
  return true;
}

std::size_t Loan::forget(const BufferPool& pool) {
  Register& r = loan_register();
  const MutexLock lock(r.mutex);
  std::size_t size_bytes = 0;
  for (Buffer& buffer : r.kept) {
    if (buffer.pool_ != &pool) continue;
    size_bytes += buffer.capacity_;
    buffer.data_ = nullptr;
  }
  std::erase_if(r.kept, [](const Buffer& buffer) { return !buffer; });
  return size_bytes;
}

std::size_t Loan::kept_count() {
  Register& r = loan_register();
  const MutexLock lock(r.mutex);
  return r.kept.size();
}

}  // namespace kvslot
