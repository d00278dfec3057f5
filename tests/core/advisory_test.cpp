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
  advisory.from_driver = "570.86";
  advisory.to_driver = "570.124";
  return advisory;
}

/// With this driver and these GPUs.
bool speaks_on(const Advisory& advisory, const std::string& driver,
               const std::vector<const Gpu*>& gpus) {
  Host host;
  host.driver_version = driver;
  return speaks_of_machine(advisory, gpus, host);
}

Advisory read_again(const Advisory& advisory) {
  const Json document = parse_json(dump_json(to_json(advisory)), "advisory");
  return parse_advisory(JsonView(document, "advisory"), advisory.id);
}

TEST_CASE("advisory: what is written is read again") {
  Advisory advisory = whole();
  CHECK(read_again(advisory) == advisory);
  CHECK(scope_of(advisory) ==
        "geglu-*, versions 1 to 3, 2 variants, on GPUs 9.0 10.0, on drivers 570.86 to 570.124");
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
  CHECK(speaks_on(advisory, "570.124.06", {&ada, &hopper}));
  CHECK_FALSE(speaks_on(advisory, "570.124.06", {&ada}));
  CHECK_FALSE(speaks_on(advisory, "570.124.06", {}));  // the CPU
  CHECK(speaks_on({}, "", {}));

  Advisory lifted = advisory;
  lifted.lifted = 1;
  CHECK_FALSE(speaks_of(lifted, "geglu-mlp", 1));
  CHECK_FALSE(names_variant(lifted, "cpu-x86-64-v3", Digest::of("y")));
  Advisory unread;
  unread.is_unread = true;
  CHECK_FALSE(speaks_of(unread, "geglu-mlp", 1));
}

TEST_CASE("advisory: its drivers are a range of versions, and an end covers what begins with it") {
  const Gpu gpu{0, "H100", {9, 0}};
  const struct {
    const char* from;
    const char* to;
    const char* driver;
    bool speaks;
  } rows[] = {
      {"570.86", "570.124", "570.86.15", true},
      {"570.86", "570.124", "570.124.06", true},
      {"570.86", "570.124", "570.133.07", false},
      {"570.86", "570.124", "565.57.01", false},
      {"570.86", "570.124", "580.65", false},
      {"570.124", "570.124", "570.124.06", true},
      {"570.124.06", "570.124.06", "570.124.04", false},
      {"570.124.06", "", "570.124.06", true},
      {"570.124.06", "", "570.86.15", false},
      {"570.124.06", "", "1000.1", true},
      {"", "570.124", "418.40.04", true},
      {"", "570.124", "580.65.06", false},
      {"570.124.06", "580.65", "", true},  // who cannot tell is not safe
      {"", "", "", true},
  };
  for (const auto& row : rows) {
    CAPTURE(row.from);
    CAPTURE(row.to);
    CAPTURE(row.driver);
    Advisory advisory;
    advisory.from_driver = row.from;
    advisory.to_driver = row.to;
    CHECK(speaks_on(advisory, row.driver, {&gpu}) == row.speaks);
  }
  Advisory advisory;
  advisory.to_driver = "570.124";
  CHECK_FALSE(speaks_on(advisory, "", {}));  // the CPU needs no driver
}

TEST_CASE("advisory: what cannot be judged is said") {
  Advisory advisory;
  advisory.id = "KA-9";
  advisory.text = "slow";
  Host host;
  CHECK(text_for(advisory, host) == "advisory KA-9: slow");
  advisory.from_driver = "570.86";
  CHECK(text_for(advisory, host) ==
        "advisory KA-9: slow; it is about drivers from 570.86, and this machine's "
        "driver version is not known: set KILN_OVERRIDE_DRIVER to it");
  host.origin = "hosts/old.json";
  CHECK(text_for(advisory, host) ==
        "advisory KA-9: slow; it is about drivers from 570.86, and this machine's "
        "driver version is not known: give it as \"driver_version\" in hosts/old.json");
  host.driver_version = "570.124.06";
  CHECK(text_for(advisory, host) == "advisory KA-9: slow");
}

TEST_CASE("advisory: drivers that are no range of NVIDIA's versions are refused") {
  const struct {
    const char* range;
    const char* word;
  } rows[] = {
      {R"({"from":"12.0","to":"12.4"})", "not CUDA's"},
      {R"({"to":"570"})", "a driver's version"},
      {R"({"to":570.124})", "expected a string"},
      {R"({"from":"580.65","to":"570.124.06"})", "ends before it begins"},
      {R"({"from":"570.124.10","to":"570.124.06"})", "ends before it begins"},
      {R"({})", "neither"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.range);
    Json document = to_json(whole());
    document["drivers"] = parse_json(row.range, "range");
    check_throws(ErrorCode::kIntegrity, {"drivers", row.word},
                 [&] { parse_advisory(JsonView(document, "advisory"), "KA-7"); });
  }
  Json document = to_json(whole());
  document["drivers"] = {{"from", "570.124.06"}, {"to", "570.124"}};
  CHECK(parse_advisory(JsonView(document, "advisory"), "KA-7").to_driver == "570.124");
}

TEST_CASE("advisory: resolve passes over what one refuses, as over a denied variant") {
  Host host = gpu_host("12.4", "9.0");
  host.driver_version = "570.124.06";
  const Index index = index_of({variant_of("exact", gpu_needs("12.4", "12.0", {"sm_90a"})),
                                variant_of("same", gpu_needs("12.4", "12.0", {"sm_90"}))});
  const Resolution before = resolve(host, index, {});
  REQUIRE(before.chosen);
  const std::string best = index.variants[*before.chosen].id;
  CHECK(best == "exact");
  Advisory advisory = whole();
  advisory.variants = {best};
  advisory.to_driver.clear();
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
  selection.advisories[0].gpus.clear();
  selection.advisories[0].to_driver = "570.86";
  CHECK(resolve(host, index, selection).chosen == before.chosen);
  host.driver_version.clear();
  const Resolution unknown = resolve(host, index, selection);
  CHECK(unknown.chosen == after.chosen);
  CHECK(unknown.decisions.at(*before.chosen).detail.ends_with("set KILN_OVERRIDE_DRIVER to it"));
}

}  // namespace
}  // namespace kiln::test
