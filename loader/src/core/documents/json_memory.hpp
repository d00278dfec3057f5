// SPDX-License-Identifier: Apache-2.0
//
// Json memory: why no Json ends the process where there is no memory left. nlohmann/json takes a
// value apart on a stack that its destructor allocates, as a std::vector<Json>: a bad_alloc there
// is std::terminate. So std::allocator<Json> has a reserve for that one use; what a value holds is
// allocated by JsonMemory, as usual. Below json. Safe from several threads, and across a fork.
#pragma once

#include <cstddef>
#include <memory>

namespace kiln {

/// std::allocator under another name.
template <class T>
struct JsonMemory {
  using value_type = T;
  JsonMemory() = default;
  template <class Other>
  JsonMemory(const JsonMemory<Other>&) {}
  T* allocate(std::size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* memory, std::size_t count) { std::allocator<T>().deallocate(memory, count); }
  bool operator==(const JsonMemory&) const = default;
};

/// Of the process, or else of a reserve of 256 KiB, which is enough for a value with 5,000 members.
/// Throws bad_alloc.
void* take_json_stack(std::size_t bytes);
void give_json_stack(void* memory) noexcept;

}  // namespace kiln
