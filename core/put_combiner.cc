// Leader and followers.
#include "core/put_combiner.h"

#include <algorithm>
#include <utility>

namespace kvslot {

void PutCombiner::run(std::span<ContentChange> changes, Durability durability) {
  Waiting mine{changes, durability};
  MutexLock lock(mutex_);
  waiting_.push_back(&mine);
  while (!mine.done && has_leader_) changed_.wait(mutex_);
  if (mine.done) return;
  has_leader_ = true;
  std::vector<Waiting*> group = std::exchange(waiting_, {});
  lock.unlock();
  lead(group);
  lock.lock();
  for (Waiting* waiting : group) waiting->done = true;
  has_leader_ = false;
  changed_.notify_all();
}

std::size_t PutCombiner::waiting_count() const {
  MutexLock lock(mutex_);
  return waiting_.size();
}

void PutCombiner::lead(std::vector<Waiting*> group) {
  const bool durable = std::any_of(group.begin(), group.end(), [](const Waiting* waiting) {
    return waiting->durability == Durability::kDurable;
  });
  std::vector<ContentChange> together;
  std::span<ContentChange> changes = group.front()->changes;
  if (group.size() > 1) {
    for (Waiting* waiting : group)
      std::move(waiting->changes.begin(), waiting->changes.end(), std::back_inserter(together));
    changes = together;
  }
  const std::uint64_t sequence = volume_.commit(changes, group.size() > 1 ? "joined" : "direct");
  Result<void> flushed;
  if (durable) flushed = volume_.flush_until(sequence);
  auto from = together.begin();
  for (Waiting* waiting : group) {
    for (ContentChange& change : waiting->changes) {
      if (group.size() > 1) change = std::move(*from++);
      if (waiting->durability == Durability::kDurable && change.result && !flushed)
        change.result = flushed;
    }
  }
}

}  // namespace kvslot
