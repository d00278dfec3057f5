// SPDX-License-Identifier: Apache-2.0
//
// The publisher's order and the rule against ties, as pure functions.
#include <doctest/doctest.h>

#include <algorithm>

#include "built_fixture.hpp"
#include "kiln/error.hpp"
#include "registry/folder/variant_order.hpp"

namespace {

using namespace kiln;  // NOLINT(google-build-using-namespace)

Variant variant(const test::Built& built) {
  return {.manifest = {std::string(kMediaTypeManifest), Digest::of(built.id), 1},
          .id = built.id,
          .needs = built.needs,
          .tested = "untested"};
}

}  // namespace

TEST_CASE("order: any permutation gives the publisher's order, best first") {
  const std::vector<Variant> expected = {
      variant(test::cuda("13.0", "sm_90")),
      variant(test::cuda("12.9", "sm_100a")),
      variant(test::cuda("12.9", "sm_90a")),
      variant(test::cuda("12.9", "sm_100f")),
      variant(test::cuda("12.9", "sm_120")),
      variant(test::cuda("12.9", "sm_80")),
      variant(test::cuda("12.9", "compute_80")),
      variant(test::cuda("11.8", "sm_90")),
      variant(test::cpu("x86-64-v4")),
      variant(test::cpu("x86-64-v3")),
      variant(test::cpu("armv8-a")),
  };
  std::vector<Variant> shuffled(expected.rbegin(), expected.rend());
  for (std::size_t turn = 0; turn < expected.size(); ++turn) {
    std::rotate(shuffled.begin(), shuffled.begin() + 1, shuffled.end());
    std::vector<Variant> sorted = shuffled;
    std::sort(sorted.begin(), sorted.end(), registry::better);
    for (std::size_t i = 0; i < expected.size(); ++i) CHECK(sorted[i].id == expected[i].id);
  }
  CHECK_NOTHROW(registry::check_distinct(expected, "tiny-op@1"));
}

TEST_CASE("order: a tie is refused and both variants are named") {
  struct Row {
    Variant left;
    Variant right;
    bool tie;
  };
  Variant wide = variant(test::cuda("12.9", "sm_80"));
  wide.id = "cu12.9-all-x86_64";
  wide.needs.device_code.push_back(parse_device_code("sm_90").value());
  Variant renamed = variant(test::cpu("x86-64-v3"));
  renamed.id = "cpu-again";
  Variant arm = variant(test::cuda("12.9", "sm_90"));
  arm.id = "cu12.9-sm_90-aarch64";
  arm.needs.cpu.arch = Arch::kAarch64;
  const Variant sm90 = variant(test::cuda("12.9", "sm_90"));
  const std::vector<Row> rows = {
      {sm90, wide, true},
      {sm90, sm90, true},
      {variant(test::cpu("x86-64-v3")), renamed, true},
      {sm90, arm, false},
      {sm90, variant(test::cuda("12.9", "sm_90a")), false},
      {sm90, variant(test::cuda("12.8", "sm_90")), false},
      {sm90, variant(test::cuda("12.9", "compute_90")), false},
      {variant(test::cpu("x86-64-v4")), renamed, false},
  };
  for (const Row& row : rows) {
    CAPTURE(row.left.id);
    CAPTURE(row.right.id);
    std::string text;
    try {
      registry::check_distinct({row.left, row.right}, "tiny-op@1");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kConflict);
      text = error.what();
    }
    CHECK(text.empty() != row.tie);
    if (!row.tie) continue;
    CHECK(text.find(row.left.id) != std::string::npos);
    CHECK(text.find(row.right.id) != std::string::npos);
  }
}
