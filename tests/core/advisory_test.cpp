// SPDX-License-Identifier: Apache-2.0
//
// Advisory: what is read of one, which variants and machines it speaks of, and what resolve makes
// of it. Documents that are refused: tests/trust/rules_test.py.
#include "documents/advisory.hpp"

#include <doctest/doctest.h>

#include "base/utc.hpp"
#include "documents/json.hpp"
#include "resolve/resolve.hpp"
#include "samples.hpp"

namespace kiln::test {
namespace {

Advisory whole() {
  Advisory advisory;
  advisory.id = "KA-7";
  advisory.text = "wrong sums for odd D";
  advisory.link = "https://example.org/ka-7";
  advisory.refuses = true;
  advisory.published = *parse_time("2026-11-26T00:00:00Z");
  advisory.package = "geglu-*";
  advisory.from_version = 1;
  advisory.to_version = 3;
  advisory.variants = {"cpu-x86-64-v3", Digest::of("x").str()};
  advisory.gpus = {{9, 0}, {10, 0}};
  advisory.from_driver = Version{12, 0};
  advisory.to_driver = Version{12, 4};
  return advisory;
}

Advisory read_again(const Advisory& advisory) {
  const Json document = parse_json(dump_json(to_json(advisory)), "advisory");
  return parse_advisory(JsonView(document, "advisory"), advisory.id);
}

TEST_CASE("advisory: what is written is read again") {
  Advisory advisory = whole();
  CHECK(read_again(advisory) == advisory);
  CHECK(scope_of(advisory) ==
        "geglu-*, versions 1 to 3, 2 variants, on GPUs 9.0 10.0, on drivers 12.0 to 12.4");
  CHECK(text_of(advisory) == "advisory KA-7: wrong sums for odd D (https://example.org/ka-7)");
  advisory.lifted = advisory.published;
  CHECK(read_again(advisory) == advisory);
  Advisory least;
  least.id = "KA-8";
  least.text = "slow";
  CHECK(read_again(least) == least);
  CHECK(scope_of(least) == "every package");
}

TEST_CASE("advisory: each condition narrows it, and one that is left out holds") {
  const Advisory advisory = whole();
  CHECK(speaks_of(advisory, "geglu-mlp", 1));
  CHECK(speaks_of(advisory, "geglu-mlp", 3));
  CHECK_FALSE(speaks_of(advisory, "geglu-mlp", 4));
  CHECK_FALSE(speaks_of(advisory, "swiglu-mlp", 1));
  CHECK(names_variant(advisory, "cpu-x86-64-v3", Digest::of("y")));
  CHECK(names_variant(advisory, "another", Digest::of("x")));
  CHECK_FALSE(names_variant(advisory, "another", Digest::of("y")));
  const Gpu hopper{0, "H100", {9, 0}};
  const Gpu ada{1, "L4", {8, 9}};
  CHECK(speaks_of_machine(advisory, {&ada, &hopper}, Version{12, 4}));
  CHECK_FALSE(speaks_of_machine(advisory, {&ada}, Version{12, 4}));
  CHECK_FALSE(speaks_of_machine(advisory, {&hopper}, Version{12, 5}));
  CHECK_FALSE(speaks_of_machine(advisory, {&hopper}, Version{11, 8}));
  CHECK_FALSE(speaks_of_machine(advisory, {&hopper}, std::nullopt));
  CHECK_FALSE(speaks_of_machine(advisory, {}, Version{12, 4}));  // the CPU
  CHECK(speaks_of_machine({}, {}, std::nullopt));

  Advisory lifted = advisory;
  lifted.lifted = 1;
  CHECK_FALSE(speaks_of(lifted, "geglu-mlp", 1));
  CHECK_FALSE(names_variant(lifted, "cpu-x86-64-v3", Digest::of("y")));
  Advisory unread;
  unread.is_unread = true;
  CHECK_FALSE(speaks_of(unread, "geglu-mlp", 1));
}

TEST_CASE("advisory: resolve passes over what one refuses, as over a denied variant") {
  const Host host = gpu_host("12.4", "9.0");
  const Index index = index_of({variant_of("exact", gpu_needs("12.4", "12.0", {"sm_90a"})),
                                variant_of("same", gpu_needs("12.4", "12.0", {"sm_90"}))});
  const Resolution before = resolve(host, index, {});
  REQUIRE(before.chosen);
  const std::string best = index.variants[*before.chosen].id;
  CHECK(best == "exact");
  Advisory advisory = whole();
  advisory.variants = {best};
  advisory.to_driver = Version{99, 0};
  Selection selection;
  selection.advisories = {advisory};
  const Resolution after = resolve(host, index, selection);
  REQUIRE(after.chosen);
  CHECK(index.variants[*after.chosen].id != best);
  const Decision& refused = after.decisions.at(*before.chosen);
  CHECK(refused.refusal == Refusal::kPolicy);
  CHECK(refused.detail ==
        "fits, but its publisher warns of it: advisory KA-7: wrong sums for odd D "
        "(https://example.org/ka-7)");
  selection.advisories[0].gpus = {{8, 0}};
  CHECK(resolve(host, index, selection).chosen == before.chosen);
}

}  // namespace
}  // namespace kiln::test
