// SPDX-License-Identifier: Apache-2.0
//
// Json, by name alone, for headers that take or return it: documents/json.hpp, which reads all of
// nlohmann/json, is for sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "documents/json_memory.hpp"

namespace kiln {

/// nlohmann::json in all but how it is allocated.
using Json = nlohmann::basic_json<std::map, std::vector, std::string, bool, std::int64_t,
                                  std::uint64_t, double, JsonMemory>;
class JsonView;

}  // namespace kiln

/// The stack on which a Json is taken apart, and nothing else: JsonMemory has all that it holds.
template <>
struct std::allocator<kiln::Json> {
  using value_type = kiln::Json;
  allocator() = default;
  template <class Other>
  allocator(const std::allocator<Other>&) {}
  kiln::Json* allocate(std::size_t count);
  void deallocate(kiln::Json* memory, std::size_t) { kiln::give_json_stack(memory); }
  bool operator==(const allocator&) const = default;
};
