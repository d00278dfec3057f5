// SPDX-License-Identifier: Apache-2.0
//
// Settings and retry, the pure parts: what a file may say, what a registry may tell about time.
#include "settings/settings.hpp"
#include "store/registry.hpp"

#include <doctest/doctest.h>

#include "http/retry.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("settings: every member is read") {
  const Settings settings = parse_settings(R"({
    "schema": "kiln.settings/1",
    "registry": "https://ghcr.io/acme",
    "mirrors": {"https://ghcr.io/acme": ["https://mirror.lan/acme", "/srv/kiln"]},
    "insecure_http": ["mirror.lan:5000"],
    "deny": ["cu12.9-sm_90a-x86_64"],
    "network": {"tries": 2, "connect_seconds": 3, "stall_seconds": 4, "deadline_seconds": 5,
                "backoff_ms": 6}})",
                                           "config.json");
  Settings expected;
  expected.registry = "https://ghcr.io/acme";
  expected.mirrors["https://ghcr.io/acme"] = {"https://mirror.lan/acme", "/srv/kiln"};
  expected.insecure_http = {"mirror.lan:5000"};
  expected.deny = {"cu12.9-sm_90a-x86_64"};
  expected.limits = {2, seconds(3), seconds(4), seconds(5), milliseconds(6)};
  CHECK(settings == expected);
  CHECK(parse_settings(R"({"schema": "kiln.settings/1"})", "x") == Settings{});
  CHECK(parse_settings(R"({"schema": "kiln.settings/1", "tested": "here"})", "x").tested ==
        Tested::kHere);
  const auto after = [](const std::string& text) {
    return parse_settings(R"({"schema": "kiln.settings/1", "newest_after": ")" + text + "\"}", "x")
        .newest_after;
  };
  CHECK(after("7 days") == std::chrono::hours(168));
  CHECK(after("1 day") == std::chrono::hours(24));
  CHECK(after("36 hours") == std::chrono::hours(36));
  CHECK(after("0") == seconds(0));
  CHECK(age_text(after("7 days")) == "7 days");
  CHECK(age_text(after("1 day")) == "1 day");
  CHECK(age_text(after("36 hours")) == "36 hours");
  const Settings warned = parse_settings(
      R"({"schema": "kiln.settings/1", "advisories": "warn", "accept_advisories": ["KA-7"]})", "x");
  CHECK(warned.advisories == Advice::kWarns);
  CHECK(warned.accepted_advisories == std::vector<std::string>{"KA-7"});
}

TEST_CASE("settings: a user's file is read over the administrator's, and lifts no ban") {
  const std::string head = R"({"schema": "kiln.settings/1", )";
  const Settings machine = parse_settings(
      head + R"("registry": "/srv/kiln", "deny": ["a"], "insecure_http": ["lan"], "tested": "here",
               "network": {"tries": 2, "stall_seconds": 9}})",
      "/etc/kiln/config.json");
  const Settings both = parse_settings(
      head + R"("deny": ["b"], "insecure_http": ["b.lan"], "network": {"tries": 3}})",
      "config.json", machine);
  CHECK(both.registry == "/srv/kiln");
  CHECK(both.deny == std::vector<std::string>{"a", "b"});
  CHECK(both.insecure_http == std::vector<std::string>{"lan", "b.lan"});
  CHECK(both.tested == Tested::kHere);
  CHECK(both.limits.tries == 3);
  CHECK(both.limits.stall == seconds(9));
  CHECK(parse_settings(head + R"("registry": "https://b"})", "config.json", machine).registry ==
        "https://b");
}

TEST_CASE("settings: no variable names a file in the place of an administrator's") {
  const std::string users = error_of([] { parse_settings("{", "/home/me/config.json"); }).what();
  CHECK_CONTAINS(users, ". Correct the file, or name another in KILN_CONFIG");
  const std::string machines =
      error_of([] { parse_settings("{", "/etc/kiln/config.json"); }).what();
  CHECK_CONTAINS(machines, ". It counts for all users of this machine: have its administrator");
  CHECK(machines.find("KILN_CONFIG") == std::string::npos);
}

TEST_CASE("settings: what is wrong is refused with its place") {
  struct Case {
    const char* text;
    const char* found;
  };
  const std::vector<Case> cases{
      {"", "config.json"},
      {"[]", "found array, expected an object"},
      {"{}", "schema"},
      {R"({"schema": "kiln.trust/1"})", "expected kiln.settings/1"},
      {R"({"schema": "kiln.settings/1", "\u001b[2J": []})", R"(has "\x1b[2J", which)"},
      {R"({"schema": "kiln.settings/1", "mirrors": {"https://\u001b": ["b"]}})",
       R"("https://\x1b")"},
      {R"({"schema": "kiln.settings/1", "dney": []})", R"(has "dney", which Kiln)"},
      {R"({"schema": "kiln.settings/1", "registry": "kernels"})", "an absolute folder"},
      {R"({"schema": "kiln.settings/1", "registry": ""})", "an absolute folder"},
      {R"({"schema": "kiln.settings/1", "deny": "x"})", "deny"},
      {R"({"schema": "kiln.settings/1", "newest_after": "a week"})", "like \"7 days\""},
      {R"({"schema": "kiln.settings/1", "advisories": "off"})", "'obey', 'warn' or 'refuse'"},
      {R"({"schema": "kiln.settings/1", "newest_after": "7"})", "like \"7 days\""},
      {R"({"schema": "kiln.settings/1", "newest_after": "-1 days"})", "like \"7 days\""},
      {R"({"schema": "kiln.settings/1", "newest_after": 7})", "string"},
      {R"({"schema": "kiln.settings/1", "deny": [""]})", "is empty"},
      {R"({"schema": "kiln.settings/1", "mirrors": []})", "mirrors: is not an object"},
      {R"({"schema": "kiln.settings/1", "mirrors": {"ghcr.io": []}})", "the URL of a registry"},
      {R"({"schema": "kiln.settings/1", "mirrors": {"https://a": ["b"]}})", "an absolute folder"},
      {R"({"schema": "kiln.settings/1", "mirrors": {"https://a": [1]}})", "string"},
      {R"({"schema": "kiln.settings/1", "insecure_http": ["http://lan"]})", "expected a host"},
      {R"({"schema": "kiln.settings/1", "network": {"tries": 0}})", "expected 1 to 100"},
      {R"({"schema": "kiln.settings/1", "network": {"tries": -1}})", "tries"},
      {R"({"schema": "kiln.settings/1", "network": {"deadline_seconds": 86401}})", "86400"},
      {R"({"schema": "kiln.settings/1", "network": {"retries": 3}})", R"(has "retries")"},
      {R"({"schema": "kiln.settings/1", "deny": [], "deny": []})", "deny"},
      {R"({"schema": "kiln.settings/1", "tested": "yes"})",
       "expected 'any', 'somewhere' or 'here'"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.text);
    const Error error = error_of([&] { parse_settings(each.text, "config.json"); });
    CHECK(error.code() == ErrorCode::kUsage);
    CHECK_CONTAINS(error.what(), "read settings config.json: ");
    CHECK_CONTAINS(error.what(), each.found);
  }
  const Error newer = error_of(
      [] { parse_settings(R"({"schema": "kiln.settings/2", "colour": 1})", "config.json"); });
  CHECK(newer.code() == ErrorCode::kUpgrade);
  CHECK_CONTAINS(newer.what(), R"(config.json: schema: found "kiln.settings/2")");
}

TEST_CASE("settings: where the file is, and that a named one must be there") {
  Scratch scratch;
  {
    const Environment config("KILN_CONFIG", std::nullopt);
    const Environment xdg("XDG_CONFIG_HOME", scratch.path().string());
    CHECK(settings_path() == scratch / "kiln/config.json");
    CHECK(load_settings().limits == Limits{});
    CHECK(load_settings().mirrors.empty());
    const Environment unset("XDG_CONFIG_HOME", std::nullopt);
    const Environment home("HOME", scratch.path().string());
    CHECK(settings_path() == scratch / ".config/kiln/config.json");
    const Environment homeless("HOME", std::nullopt);
    CHECK(load_settings().limits == Limits{});
    CHECK(load_settings().mirrors.empty());
  }
  const Environment config("KILN_CONFIG", (scratch / "absent.json").string());
  const Error error = error_of([] { load_settings(); });
  CHECK(error.code() == ErrorCode::kUsage);
  CHECK_CONTAINS(error.what(), "absent.json: No such file");
}

TEST_CASE(
    "settings: a word of a variable that could never count is refused, and an empty one left out") {
  struct Case {
    const char* variable;
    const char* value;
    const char* found;  // empty: taken
  };
  for (const Case& each :
       {Case{"KILN_UNSIGNED", "build/registry", "build/registry"},
        Case{"KILN_UNSIGNED", "/srv/kiln,mirror.lan", "mirror.lan"},
        Case{"KILN_UNSIGNED", "file:///srv/kiln", "file:///srv/kiln"},
        Case{"KILN_UNSIGNED", "/srv/kiln,,https://mirror.lan,", ""}, Case{"KILN_UNSIGNED", "/", ""},
        Case{"KILN_INSECURE_HTTP", "http://mirror.lan", "http://mirror.lan"},
        Case{"KILN_INSECURE_HTTP", "other.lan,mirror.lan:5000/kiln", "mirror.lan:5000/kiln"},
        Case{"KILN_INSECURE_HTTP", "mirror.lan:5000,other.lan", ""}}) {
    CAPTURE(std::string(each.value));
    const Environment variable(each.variable, each.value);
    if (*each.found == '\0') {
      CHECK_NOTHROW(load_settings());
      continue;
    }
    const Error error = error_of([] { load_settings(); });
    CHECK(error.code() == ErrorCode::kUsage);
    const std::string text = error.what();
    CHECK(text.find(each.variable) != std::string::npos);
    CHECK(text.find("it has \"" + std::string(each.found) + "\"") != std::string::npos);
  }
}

TEST_CASE("settings: the longest entry names a registry's mirrors") {
  Settings settings;
  settings.mirrors["https://GHCR.io:443/"] = {"https://all.lan"};
  settings.mirrors["https://ghcr.io/acme"] = {"https://acme.lan/x/", "/srv/acme"};
  using Places = std::vector<std::string>;
  CHECK(mirrors_of("https://ghcr.io/acme", settings) == Places{"https://acme.lan/x", "/srv/acme"});
  CHECK(mirrors_of("https://ghcr.io/acme/kernels", settings) ==
        Places{"https://acme.lan/x/kernels", "/srv/acme/kernels"});
  CHECK(mirrors_of("https://ghcr.io/acmes", settings) == Places{"https://all.lan/acmes"});
  CHECK(mirrors_of("https://quay.io/acme", settings).empty());
}

TEST_CASE("retry: what Retry-After may say") {
  constexpr std::time_t kNow = 1'790'000'000;  // 2026-09-21 14:13:20 UTC
  struct Case {
    const char* value;
    std::optional<seconds> expected;
  };
  for (const Case& each :
       {Case{"0", seconds(0)}, Case{"7", seconds(7)}, Case{"120", seconds(120)},
        Case{"3600", seconds(120)}, Case{"99999999999999999999", seconds(120)},
        Case{"Mon, 21 Sep 2026 14:13:30 GMT", seconds(10)},
        Case{"Monday, 21-Sep-26 14:13:30 GMT", seconds(10)},
        Case{"Mon Sep 21 14:13:30 2026", seconds(10)},
        Case{"Mon, 21 Sep 2026 15:13:20 GMT", seconds(120)},
        Case{"Mon, 21 Sep 2026 14:13:10 GMT", std::nullopt}, Case{"", std::nullopt},
        Case{"-1", std::nullopt}, Case{"1.5", std::nullopt}, Case{"soon", std::nullopt},
        Case{"Soon", std::nullopt}, Case{"20260921", seconds(120)}, Case{" 7", std::nullopt}}) {
    CAPTURE(each.value);
    CHECK(parse_retry_after(each.value, kNow) == each.expected);
  }
}

TEST_CASE("retry: waits double at most, end with the tries, and begin again after progress") {
  const TryAgain failure("get x: cut", "Try again");
  const auto later = [&](int told) {
    TryAgain again = failure;
    again.after = seconds(told);
    return again;
  };
  Tries tries({.tries = 4, .backoff = milliseconds(100)}, seconds(0));
  for (const int most : {100, 200, 400}) {
    const auto wait = tries.next(failure);
    REQUIRE(wait);
    CHECK(*wait <= milliseconds(most));
  }
  CHECK(!tries.next(failure));
  CHECK(tries.next(failure, true));
  const auto told = tries.next(later(5));
  REQUIRE(told);
  CHECK(*told >= seconds(5));
  CHECK(*told < seconds(5) + milliseconds(100));
  Tries brief({.deadline = seconds(1)}, seconds(0));
  CHECK(!brief.next(later(2)));
  Tries longer({.deadline = seconds(1)}, seconds(9));
  CHECK(longer.next(later(2)));
  TryAgain at_once = failure;
  at_once.at_once = true;
  CHECK(Tries({}, seconds(0)).next(at_once) == milliseconds(0));
  TryAgain twice = failure;
  twice.most_tries = 2;
  Tries few({.backoff = milliseconds(1)}, seconds(0));
  CHECK(few.next(twice));
  CHECK(!few.next(twice));
}

}  // namespace
}  // namespace kiln::test
