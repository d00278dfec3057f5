// SPDX-License-Identifier: Apache-2.0
//
// Growth: a published version only grows. A later index of it may add variants; it never loses one
// and never names other bytes for it. For who publishes an index and who takes a newer one. Pure.
#pragma once

#include <string_view>

namespace kiln {

struct Index;  // documents/variant.hpp
struct Variant;

/// The variant with this id, or null.
const Variant* find_variant(const Index& index, std::string_view id);

/// The first variant of `before` that `after` lacks or has with another manifest; null if the
/// version only grew.
const Variant* find_lost(const Index& before, const Index& after);

inline bool grows_from(const Index& before, const Index& after) {
  return find_lost(before, after) == nullptr;
}

}  // namespace kiln
