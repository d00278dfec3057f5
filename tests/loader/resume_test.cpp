// SPDX-License-Identifier: Apache-2.0
//
// Fetch over HTTP, once more: what was cut is continued, what failed is asked again, a mirror
// that fails is left; and a stop ends all of it.
#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "blob_sink.hpp"
#include "documents/json.hpp"
#include "install/install.hpp"
#include "kiln/request.hpp"
#include "published.hpp"
#include "scratch.hpp"
#include "server.hpp"
#include "store/copy.hpp"
#include "store/registry.hpp"

namespace kiln::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// The package "sample" of a registry, and what it cost to ask it.
struct Asker {
  explicit Asker(const std::string& url, Observer on_event = {}, std::stop_token stop = {})
      : settings(load_settings()),
        patience{settings.limits, std::move(on_event), std::move(stop)},
        repository(open_repository(url, "sample", settings, patience, traffic)) {}
  void copy_to(Blob& blob) const {
    copy(*repository, Memory(blob), blob.descriptor, "the blob", patience);
  }

  Settings settings;
  Patience patience;
  Traffic traffic;
  std::unique_ptr<Repository> repository;
};

Answer whole(const std::string& body) {
  return {200, body, {}, {}, false};
}
Answer cut(const std::string& body, std::size_t at) {
  return {200, body.substr(0, at), {}, body.size(), false};
}
Answer part(const std::string& body, std::size_t from, const std::string& range) {
  return {206, body.substr(from), {"Content-Range: " + range}, {}, false};
}

TEST_CASE("resume: a blob goes on where it ends, and begins anew where that cannot be trusted") {
  const std::string body = sample_library();
  const std::size_t half = body.size() / 2;
  const std::string total = std::to_string(body.size());
  const std::string last = std::to_string(body.size() - 1);
  const std::string from_half = "bytes " + std::to_string(half) + "-" + last + "/" + total;
  const std::string ask_half = "bytes=" + std::to_string(half) + "-";
  struct Case {
    const char* name;
    std::string old;              // what the sink has before
    std::vector<Answer> answers;  // in this order; the last one for all that follow
    std::vector<std::string> ranges;
    int requests;
    int restarts;
    ErrorCode code = ErrorCode::kInternal;  // kInternal: it arrives
  };
  const std::vector<Case> cases{
      {"old bytes, a server that knows ranges",
       body.substr(0, half),
       {part(body, half, from_half)},
       {ask_half},
       1,
       0},
      {"a total that is not told",
       body.substr(0, half),
       {part(body, half, "bytes " + std::to_string(half) + "-" + last + "/*")},
       {ask_half},
       1,
       0},
      {"everything is there: nothing is asked", body, {}, {}, 0, 0},
      {"a server that ignores ranges", body.substr(0, half), {whole(body)}, {ask_half}, 1, 1},
      {"a range that starts elsewhere",
       body.substr(0, half),
       {part(body, half, "bytes 0-" + last + "/" + total), whole(body)},
       {ask_half},
       2,
       1},
      {"a range of another total",
       body.substr(0, half),
       {part(body, half, "bytes " + std::to_string(half) + "-" + last + "/9"), whole(body)},
       {ask_half},
       2,
       1},
      {"a range without Content-Range",
       body.substr(0, half),
       {{206, body.substr(half), {}, {}, false}, whole(body)},
       {ask_half},
       2,
       1},
      {"416",
       body.substr(0, half),
       {{416, "", {"Content-Range: bytes */3"}, {}, false}, whole(body)},
       {ask_half},
       2,
       1},
      {"416 for a request without a range",
       "",
       {{416, "", {}, {}, false}},
       {},
       1,
       0,
       ErrorCode::kNetwork},
      {"old bytes that are wrong",
       std::string(half, 'x'),
       {part(body, half, from_half), whole(body)},
       {ask_half},
       2,
       1},
      {"old bytes that are wrong, and a registry that is too",
       std::string(half, 'x'),
       {part(body, half, from_half), whole(std::string(body.size(), 'y'))},
       {ask_half},
       2,
       1,
       ErrorCode::kIntegrity},
      {"a cut in the middle", "", {cut(body, half), part(body, half, from_half)}, {ask_half}, 2, 0},
      {"a cut of another blob",
       "",
       {cut(std::string(body.size(), 'y'), half), part(body, half, from_half), whole(body)},
       {ask_half},
       3,
       1},
      {"five cuts without a new byte", "", {cut(body, 0)}, {}, 5, 0, ErrorCode::kNetwork},
      {"another digest at once: not asked again",
       "",
       {whole(std::string(body.size(), 'y'))},
       {},
       1,
       0,
       ErrorCode::kIntegrity},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    std::size_t next = 0;
    const Server server("/nowhere", [&](const Asked&) -> std::optional<Answer> {
      return each.answers.at(std::min(next++, each.answers.size() - 1));
    });
    std::vector<std::string> notes;
    const Asker asker(server.url(), [&](const Event& event) {
      CHECK(event.stage == Event::Stage::kRetry);
      notes.push_back(event.note);
    });
    Blob blob(body);
    blob.start_with(each.old);
    if (each.code == ErrorCode::kInternal) {
      asker.copy_to(blob);
      CHECK(blob.bytes == body);
    } else {
      CHECK(error_of([&] { asker.copy_to(blob); }).code() == each.code);
    }
    CHECK(server.ranges() == each.ranges);
    CHECK(asker.traffic.requests == each.requests);
    CHECK(blob.restarts == each.restarts);
    CHECK(notes.size() == static_cast<std::size_t>(std::max(0, each.requests - 1)));
  }
}

TEST_CASE("retry: a status that may pass is asked again, another is not") {
  struct Case {
    int status;
    int requests;
  };
  for (const Case& each :
       {Case{408, 5}, Case{429, 5}, Case{500, 5}, Case{502, 5}, Case{503, 5}, Case{504, 5},
        Case{400, 1}, Case{403, 1}, Case{406, 1}, Case{410, 1}, Case{501, 1}, Case{407, 1}}) {
    CAPTURE(each.status);
    const Server server("/nowhere", [&](const Asked&) -> std::optional<Answer> {
      return Answer{each.status, "", {}, {}, false};
    });
    std::vector<std::string> notes;
    const Asker asker(server.url(), [&](const Event& event) { notes.push_back(event.note); });
    const Error error = error_of([&] { asker.repository->versions(); });
    CHECK(error.code() == ErrorCode::kNetwork);
    CHECK_CONTAINS(error.what(), "status " + std::to_string(each.status));
    CHECK(asker.traffic.requests == each.requests);
    CHECK(notes.size() == static_cast<std::size_t>(each.requests - 1));
    if (each.requests == 1) continue;
    CHECK_CONTAINS(error.what(), "gave up after 5 tries");
    CHECK_CONTAINS(notes.at(0), "status " + std::to_string(each.status));
    CHECK_CONTAINS(notes.at(0), "again in ");
  }
}

TEST_CASE("retry: what the registry tells about the time is kept, within the deadline") {
  Scratch scratch;
  write_file(
      scratch / "config.json",
      R"({"schema": "kiln.settings/1", "network": {"backoff_ms": 1, "deadline_seconds": 3}})");
  const Environment settings("KILN_CONFIG", (scratch / "config.json").string());
  struct Case {
    int status;
    const char* header;
    bool waits;  // a second
    bool arrives;
  };
  for (const Case& each :
       {Case{429, "1", true, true}, Case{503, "1", true, true}, Case{500, "60", false, true},
        Case{503, "-5", false, true}, Case{503, "soon", false, true},
        Case{503, "99999999999999999999999", false, false}, Case{429, "4", false, false}}) {
    CAPTURE(each.status);
    CAPTURE(each.header);
    int asked = 0;
    const Server server("/nowhere", [&](const Asked&) -> std::optional<Answer> {
      if (++asked > 1) return Answer{200, R"({"tags":["1"]})", {}, {}, false};
      return Answer{each.status, "", {std::string("Retry-After: ") + each.header}, {}, false};
    });
    const Asker asker(server.url());
    const auto start = steady_clock::now();
    if (each.arrives) {
      CHECK(asker.repository->versions() == std::vector<int>{1});
      if (each.waits) CHECK(steady_clock::now() - start >= milliseconds(1000));
    } else {
      CHECK(error_of([&] { asker.repository->versions(); }).code() == ErrorCode::kNetwork);
      CHECK(asked == 1);
    }
  }
}

/// How long a registry is asked that is stopped after a moment.
steady_clock::duration cancelled_after(const std::string& url, std::stop_source& stop) {
  const Asker asker(url, {}, stop.get_token());
  std::thread stopper([&] {
    std::this_thread::sleep_for(milliseconds(200));
    stop.request_stop();
  });
  const auto start = steady_clock::now();
  const Error error = error_of([&] { asker.repository->versions(); });
  const steady_clock::duration took = steady_clock::now() - start;
  stopper.join();
  CHECK(error.code() == ErrorCode::kCancelled);
  return took;
}

TEST_CASE("stop: a wait and a transfer end within a moment, as cancelled") {
  for (const bool waiting : {true, false}) {
    CAPTURE(waiting);
    std::stop_source stop;
    const Server server("/nowhere", [&](const Asked&) -> std::optional<Answer> {
      if (waiting) return Answer{503, "", {"Retry-After: 60"}, {}, false};
      Answer answer{200, "", {}, 1000, false};
      answer.stall = [&] { return stop.stop_requested(); };
      return answer;
    });
    CHECK(cancelled_after(server.url(), stop) < std::chrono::seconds(20));  // of 60
  }
}

TEST_CASE("stop: a name server that does not answer is not waited for") {
  std::stop_source stop;
  CHECK(cancelled_after("https://" + std::string(kSilentName), stop) < kSilence);
}

TEST_CASE("stop: an install that is stopped leaves the cache whole, and goes on afterwards") {
  using Stage = Event::Stage;
  for (const Stage stage : {Stage::kIndex, Stage::kConfig, Stage::kLayer, Stage::kUnpack}) {
    CAPTURE(static_cast<int>(stage));
    Scratch scratch;
    Published published(scratch / "registry");
    published.publish({cpu_draft(sample_library())});
    const Server server(published.root());
    std::stop_source stop;
    Request request{.version = 1,
                    .device = Device::cpu(),
                    .registry = server.url(),
                    .cache = scratch / "cache",
                    .stop = stop.get_token()};
    request.on_event = [&](const Event& event) {
      if (event.stage == stage) stop.request_stop();
    };
    CHECK(error_of([&] { install("sample", request); }).code() == ErrorCode::kCancelled);
    request.on_event = {};
    request.stop = {};
    CHECK(std::filesystem::exists(install("sample", request).package.library));
  }
}

TEST_CASE("mirrors: asked first, left where they fail; the registry's name stays") {
  Scratch scratch;
  Published published(scratch / "registry");
  published.publish({cpu_draft(sample_library())});
  enum class Mirror {
    kGood,
    kAbsent,
    kLacksBlob,
    kCorruptsBlob,
    kCutsBlob,
    kPortal,
    kFolder,
    kNone
  };
  struct Case {
    Mirror mirror;
    bool origin_is_asked;
    const char* note;  // of the retry event; empty: none
  };
  for (const Case& each :
       {Case{Mirror::kGood, false, ""}, Case{Mirror::kAbsent, true, "there is no such package"},
        Case{Mirror::kLacksBlob, true, "status 404"},
        Case{Mirror::kCorruptsBlob, true, "digest is"},
        Case{Mirror::kCutsBlob, true, "transfer closed"}, Case{Mirror::kPortal, true, "text/html"},
        Case{Mirror::kFolder, false, ""}, Case{Mirror::kNone, true, "there is no such folder"}}) {
    CAPTURE(static_cast<int>(each.mirror));
    const Server origin(published.root());
    const Server mirror(published.root(), [&](const Asked& asked) -> std::optional<Answer> {
      const bool blob = asked.path.find("/blobs/") != std::string::npos;
      switch (each.mirror) {
        case Mirror::kAbsent:
          return Answer{404, "", {}, {}, false};
        case Mirror::kLacksBlob:
          if (blob) return Answer{404, "", {}, {}, false};
          return std::nullopt;
        case Mirror::kCorruptsBlob: {
          if (!blob) return std::nullopt;
          std::string body = read_file(published.blob(
              "sample", Digest::parse(asked.path.substr(asked.path.rfind('/') + 1))));
          body.front() ^= 1;
          return whole(body);
        }
        case Mirror::kCutsBlob:
          if (blob) return Answer{200, "", {}, 100, false};
          return std::nullopt;
        case Mirror::kPortal:
          return Answer{200, "<html>", {"Content-Type: text/html"}, {}, false};
        default:
          return std::nullopt;
      }
    });
    std::string place = mirror.url();
    if (each.mirror == Mirror::kFolder) place = published.root().string();
    if (each.mirror == Mirror::kNone) place = (scratch / "none").string();
    const std::string config = Json{
        {"schema", "kiln.settings/1"},
        {"mirrors", {{origin.url(), {place}}}},
        {"network",
         {{"backoff_ms", 1}}}}.dump();
    write_file(scratch / "config.json", config);
    const Environment settings("KILN_CONFIG", (scratch / "config.json").string());
    const Scratch cache;
    std::vector<std::string> notes;
    Request request{
        .version = 1, .device = Device::cpu(), .registry = origin.url(), .cache = cache.path()};
    request.on_event = [&](const Event& event) {
      if (event.stage == Event::Stage::kRetry) notes.push_back(event.note);
    };
    const Installed installed = install("sample", request);
    CHECK(installed.choice.registry == origin.url());
    CHECK(installed.traffic.requests >= 4);
    CHECK(origin.asked().empty() == !each.origin_is_asked);
    if (*each.note == '\0') {
      CHECK(notes.empty());
    } else {
      REQUIRE(!notes.empty());
      CHECK_CONTAINS(notes.back(), "mirror " + place + " is left: ");
      CHECK_CONTAINS(notes.back(), each.note);
      CHECK_CONTAINS(notes.back(), "asking " + origin.url());
    }
  }
}

TEST_CASE("mirrors: the beginning of a document that one cut is not put before another one's") {
  Scratch scratch;
  Published published(scratch / "registry");
  const Descriptor index = published.publish({cpu_draft(sample_library())});
  const Server origin(published.root());
  const Server mirror(published.root(), [&](const Asked& asked) -> std::optional<Answer> {
    if (asked.path.find("/manifests/") == std::string::npos) return std::nullopt;
    return cut(read_file(published.blob("sample", index.digest)), index.size / 2);
  });
  const std::string config = Json{
      {"schema", "kiln.settings/1"},
      {"mirrors", {{origin.url(), {mirror.url()}}}},
      {"network",
       {{"backoff_ms", 1}}}}.dump();
  write_file(scratch / "config.json", config);
  const Environment settings("KILN_CONFIG", (scratch / "config.json").string());
  const Asker asker(origin.url());
  CHECK(Digest::of(read_document(*asker.repository, index, "the index", asker.patience)) ==
        index.digest);
  CHECK(mirror.count("/manifests/") > 1);
}

TEST_CASE("tags: pages are read to the last one, on the same server only") {
  const auto list = [](const std::string& next) {
    return [next](const Asked& asked) -> std::optional<Answer> {
      if (asked.path.ends_with("last=2")) return Answer{200, R"({"tags":["3"]})", {}, {}, false};
      return Answer{200, R"({"tags":["1","2"]})", {"Link: " + next}, {}, false};
    };
  };
  {
    const Server server("/nowhere", list(R"(</v2/sample/tags/list?n=2&last=2>; rel="next")"));
    CHECK(Asker(server.url()).repository->versions() == std::vector<int>{1, 2, 3});
  }
  {
    const Server server("/nowhere", list(R"(<http://127.0.0.2:1/v2/x>; rel="next")"));
    const Error error = error_of([&] { Asker(server.url()).repository->versions(); });
    CHECK(error.code() == ErrorCode::kNetwork);
    CHECK_CONTAINS(error.what(), "goes on at http://127.0.0.2:1/v2/x");
  }
  {
    const Server server("/nowhere", list(R"(<list?again>; rel="next")"));
    const Error error = error_of([&] { Asker(server.url()).repository->versions(); });
    CHECK(error.code() == ErrorCode::kNetwork);
    CHECK_CONTAINS(error.what(), "more than 100 pages");
  }
}

}  // namespace
}  // namespace kiln::test
