// SPDX-License-Identifier: Apache-2.0
#include "documents/growth.hpp"

#include <algorithm>

#include "documents/variant.hpp"

namespace kiln {
namespace {

const Variant* address(const std::vector<Variant>& variants,
                       std::vector<Variant>::const_iterator found) {
  return found == variants.end() ? nullptr : &*found;
}

}  // namespace

const Variant* find_variant(const Index& index, std::string_view id) {
  return address(index.variants,
                 std::find_if(index.variants.begin(), index.variants.end(),
                              [&](const Variant& variant) { return variant.id == id; }));
}

const Variant* find_lost(const Index& before, const Index& after) {
  return address(
      before.variants,
      std::find_if(before.variants.begin(), before.variants.end(), [&](const Variant& old) {
        const Variant* now = find_variant(after, old.id);
        return now == nullptr || now->manifest != old.manifest;
      }));
}

}  // namespace kiln
