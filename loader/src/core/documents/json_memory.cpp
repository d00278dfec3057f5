// SPDX-License-Identifier: Apache-2.0
#include "documents/json_memory.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <new>

#include "documents/json.hpp"

namespace kiln {
namespace {

constexpr std::size_t kReserveBytes = std::size_t{256} << 10;
constexpr std::size_t kAlignment = alignof(std::max_align_t);

alignas(
    kAlignment) std::array<std::byte, kReserveBytes> reserve;  // costs no memory until it is used

/// How much of the reserve is taken, and by how many: one value, so that giving the last piece
/// back frees all of it. Aligned as one word: clang 14 calls libatomic for less.
struct alignas(std::uint64_t) Taken {
  std::uint32_t bytes = 0;
  std::uint32_t pieces = 0;
};
std::atomic<Taken> taken;
static_assert(std::atomic<Taken>::is_always_lock_free);

}  // namespace

void* take_json_stack(std::size_t bytes) {
  if (void* const memory = ::operator new(bytes, std::nothrow)) return memory;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  Taken before = taken.load();
  do {
    if (rounded > kReserveBytes - before.bytes) throw std::bad_alloc();
  } while (!taken.compare_exchange_weak(
      before, {before.bytes + static_cast<std::uint32_t>(rounded), before.pieces + 1}));
  return reserve.data() + before.bytes;
}

void give_json_stack(void* memory) noexcept {
  const std::less<const void*> is_below;
  if (is_below(memory, reserve.data()) || !is_below(memory, reserve.data() + kReserveBytes)) {
    return ::operator delete(memory);
  }
  Taken before = taken.load();
  while (!taken.compare_exchange_weak(before,
                                      {before.pieces == 1 ? 0 : before.bytes, before.pieces - 1})) {
  }
}

}  // namespace kiln

kiln::Json* std::allocator<kiln::Json>::allocate(std::size_t count) {
  return static_cast<kiln::Json*>(kiln::take_json_stack(count * sizeof(kiln::Json)));
}
