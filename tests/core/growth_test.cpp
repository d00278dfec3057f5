// SPDX-License-Identifier: Apache-2.0
#include "documents/variant.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

namespace kiln {
namespace {

/// Each variant as its id and what its manifest is made of.
Index growing_index(const std::vector<std::pair<std::string, std::string>>& variants) {
  Index index{"sample", 1, {}, {}};
  for (const auto& [id, manifest] : variants) {
    Variant variant;
    variant.id = id;
    variant.manifest = {std::string(kMediaTypeManifest), Digest::of(manifest), manifest.size()};
    index.variants.push_back(std::move(variant));
  }
  return index;
}

}  // namespace

TEST_CASE("a version grows by variants and by nothing else") {
  const Index before = growing_index({{"a", "1"}, {"b", "2"}});
  struct Case {
    const char* what;
    Index after;
    const char* lost;  // null: it grew
  };
  const std::vector<Case> cases{
      {"the same", before, nullptr},
      {"more, in another order", growing_index({{"c", "3"}, {"b", "2"}, {"a", "1"}}), nullptr},
      {"one is gone", growing_index({{"a", "1"}, {"c", "3"}}), "b"},
      {"one has other bytes", growing_index({{"a", "9"}, {"b", "2"}}), "a"},
      {"all are gone", growing_index({}), "a"}};
  for (const Case& each : cases) {
    CAPTURE(each.what);
    const Variant* lost = find_lost(before, each.after);
    CHECK(grows_from(before, each.after) == (each.lost == nullptr));
    CHECK((lost == nullptr) == (each.lost == nullptr));
    if (lost != nullptr && each.lost != nullptr) CHECK(lost->id == each.lost);
  }
  CHECK(grows_from(growing_index({}), before));
}

TEST_CASE("a variant is found by its id") {
  const Index index = growing_index({{"a", "1"}, {"b", "2"}});
  CHECK(find_variant(index, "b") == &index.variants[1]);
  CHECK(find_variant(index, "c") == nullptr);
}

}  // namespace kiln
