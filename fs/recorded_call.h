// Callbacks whose effect is recorded for the next commit. Where so much is recorded already that
// the call would wait for a commit, it goes on from the pool of readers: over io_uring a callback
// that waits stops everything that comes by the same core.
// Used by the tables of callbacks in fs/operations*.cc.
#pragma once

#include <kvslot/volume.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "fs/reader_pool.h"
#include "fs/reply.h"
#include "fs/request.h"

namespace kvslot {

// An argument of a callback, kept beyond it: libfuse takes its memory back when it returns.
template <typename T>
struct Kept {
  explicit Kept(T given) : value(given) {}
  T get() { return value; }
  T value;
};
template <typename T>
struct Kept<T*> {
  explicit Kept(T* given) {
    if (given != nullptr) value = *given;
  }
  T* get() { return value ? &*value : nullptr; }
  std::optional<T> value;
};
template <>
struct Kept<const char*> {
  explicit Kept(const char* given) : value(given) {}
  const char* get() { return value.c_str(); }
  std::string value;
};
template <>
struct Kept<std::string_view> {
  explicit Kept(std::string_view given) : value(given) {}
  std::string_view get() { return value; }
  std::string value;
};

template <auto operation, typename... Arguments>
void run_recorded(const Volume& volume, ReaderPool& pool, const Request& request,
                  Arguments... arguments) {
  if (volume.has_room_to_record()) return operation(request, arguments...);
  pool.post([request, kept = std::tuple<Kept<Arguments>...>(arguments...)]() mutable {
    std::apply([&](auto&... each) { operation(request, each.get()...); }, kept);
  });
}

// The callback for libfuse, as kCallback.
template <auto operation>
struct RecordedCallback;
template <typename... Arguments, void (*operation)(const Request&, Arguments...)>
struct RecordedCallback<operation> {
  static void call(fuse_req_t raw, Arguments... arguments) {
    const Request request(raw);
    const MountContext& context = context_of(request);
    run_recorded<operation>(context.filesystem->volume(), *context.reader_pool, request,
                            arguments...);
  }
};
template <auto operation>
inline constexpr auto kRecordedCallback = &RecordedCallback<operation>::call;

}  // namespace kvslot
