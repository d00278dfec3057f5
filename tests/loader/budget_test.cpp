// SPDX-License-Identifier: Apache-2.0
//
// What a hostile registry can make Kiln do: no more requests than Limits::tries without progress,
// and no error text that is longer than a screen.
#include <doctest/doctest.h>

#include <functional>

#include "blob_sink.hpp"
#include "kiln/kiln.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "server.hpp"
#include "settings/settings.hpp"
#include "store/copy.hpp"
#include "store/registry.hpp"

namespace kiln::test {
namespace {

constexpr std::size_t kKiB = 1024;

TEST_CASE("budget: n tries are at most n requests without progress, however an answer is cut") {
  const std::string body(300 * kKiB, 'x');
  const Descriptor blob{std::string(kMediaTypeLayer), Digest::of(body), body.size()};
  struct Case {
    const char* name;
    std::function<Answer(const Asked&)> answer;
    int with_progress = 0;  // requests that each brought bytes that stay
  };
  const std::vector<Case> cases{
      {"cut after 64 KiB, ranges ignored",
       [&](const Asked&) {
         return Answer{200, body.substr(0, 64 * kKiB), {}, body.size(), false};
       },
       1},
      {"cut after 200 KiB, ranges ignored",
       [&](const Asked&) {
         return Answer{200, body.substr(0, 200 * kKiB), {}, body.size(), false};
       },
       1},
      {"cut at once",
       [&](const Asked&) {
         return Answer{200, "", {}, body.size(), false};
       }},
      {"hangs up",
       [](const Asked&) {
         return Answer{200, "", {}, {}, true};
       }},
      {"busy",
       [](const Asked&) {
         return Answer{503, "", {}, {}, false};
       }},
      {"one byte each time",
       [&](const Asked& asked) {
         if (asked.range.empty()) return Answer{200, "x", {}, body.size(), false};
         const std::string from = asked.range.substr(6, asked.range.size() - 7);
         return Answer{206,
                       "x",
                       {"Content-Range: bytes " + from + "-" + std::to_string(body.size() - 1) +
                        "/" + std::to_string(body.size())},
                       body.size() - std::stoul(from),
                       false};
       }},
      {"bytes, then 416",
       [&](const Asked& asked) {
         if (!asked.range.empty()) return Answer{416, "", {}, {}, false};
         return Answer{200, body.substr(0, 10 * kKiB), {}, body.size(), false};
       }},
  };
  for (const Case& each : cases) {
    for (const int tries : {1, 2, 5}) {
      CAPTURE(each.name);
      CAPTURE(tries);
      const Server server("/nowhere", [&](const Asked& asked) -> std::optional<Answer> {
        return each.answer(asked);
      });
      Settings settings;
      settings.limits.tries = tries;
      settings.limits.backoff = std::chrono::milliseconds(1);
      const Patience patience{settings.limits, {}, {}};
      Traffic traffic;
      const auto from = open_repository(server.url(), "sample", settings, patience, traffic);
      Blob kept(body);
      const Error error = error_of([&] { copy(*from, Memory(kept), blob, "the blob", patience); });
      CHECK(error.code() == ErrorCode::kNetwork);
      CHECK(traffic.requests <= tries + each.with_progress);
      CHECK(server.asked().size() == static_cast<std::size_t>(traffic.requests));
    }
  }
}

TEST_CASE("budget: a document and a list of tags are asked for n times as well") {
  for (const bool list : {true, false}) {
    CAPTURE(list);
    const Server server("/nowhere", [](const Asked&) -> std::optional<Answer> {
      return Answer{200, std::string(100 * kKiB, ' '), {}, 200 * kKiB, false};
    });
    Settings settings;
    settings.limits.tries = 3;
    settings.limits.backoff = std::chrono::milliseconds(1);
    const Patience patience{settings.limits, {}, {}};
    Traffic traffic;
    const auto from = open_repository(server.url(), "sample", settings, patience, traffic);
    const Descriptor manifest{std::string(kMediaTypeManifest), Digest::of("x"), 200 * kKiB};
    const Error error = error_of([&] {
      if (list) {
        from->versions();
      } else {
        read_document(*from, manifest, "manifest", patience);
      }
    });
    CHECK(error.code() == ErrorCode::kNetwork);
    CHECK(traffic.requests == 3);
  }
}

TEST_CASE("budget: an error names the newest of many versions, and stays short") {
  std::string tags = R"({"tags":["1")";
  for (int version = 2; version <= 50'000; ++version) {
    tags += ",\"" + std::to_string(version) + "\"";
  }
  tags += "]}";
  const Server server("/nowhere", [&](const Asked& asked) -> std::optional<Answer> {
    if (asked.path.find("/tags/") == std::string::npos) return Answer{404, "", {}, {}, false};
    return Answer{200, tags, {}, {}, false};
  });
  Scratch scratch;
  const Error error = error_of([&] {
    get_kernel("sample", {.version = 60'000,
                          .device = Device::cpu(),
                          .registry = server.url(),
                          .cache = scratch / "cache"});
  });
  CHECK(error.code() == ErrorCode::kNotFound);
  CHECK_CONTAINS(error.what(), "published: 49980 older ones, 49981, ");
  CHECK(std::string(error.what()).size() < 4 * kKiB);
}

TEST_CASE("budget: a page of tags of more than 1 MiB is refused") {
  const Server server("/nowhere", [](const Asked&) -> std::optional<Answer> {
    return Answer{200, std::string(2 * kKiB * kKiB, ' '), {}, {}, false};
  });
  Traffic traffic;
  const auto from = open_repository(server.url(), "sample", {}, {}, traffic);
  const Error error = error_of([&] { from->versions(); });
  CHECK(error.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(error.what(), "more than 1048576 bytes");
}

}  // namespace
}  // namespace kiln::test
