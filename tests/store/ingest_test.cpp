// SPDX-License-Identifier: Apache-2.0
//
// Ingest: what a cut download leaves, and how the next one goes on from there.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>

#include "scratch.hpp"
#include "store/cache.hpp"
#include "store/copy.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

const std::string kContent = "the whole content of a blob that came in two parts";
const std::string kFirst = kContent.substr(0, 20);
const std::string kWrong(20, 'x');

/// One blob, as a source has it.
struct Served final : Content {
  Served(const std::string& all, int& count) : bytes(all), fetches(count) {}
  bool exists(const Descriptor&) const override { return true; }
  void open(const Descriptor&, BlobSink& sink, const Asking&) const override {
    ++fetches;
    sink.write(std::string_view(bytes).substr(sink.size()));
  }
  std::string origin(const Descriptor&) const override { return "the test"; }
  std::string advice() const override { return ""; }
  const std::string& bytes;
  int& fetches;
};

/// A cache and one blob that it is to hold.
struct Store {
  Scratch scratch;
  Cache cache{scratch / "cache"};
  Descriptor blob{std::string(kMediaTypeLayer), Digest::of(kContent), kContent.size()};
  Subject subject{"layer of a test", "the test", ""};
  int fetches = 0;

  Store() { cache.use_to_write(); }  // what is planted is planted in a cache

  fs::path part() const { return cache.root() / "ingest" / (blob.digest.hex() + ".part"); }

  /// Fetches from where the sink ends, as a source does.
  fs::path fetch(const std::string& served = kContent) {
    copy(Served(served, fetches), cache, blob, "layer of a test", {});
    return cache.blob_path(blob.digest);
  }

  /// Writes the first bytes, then fails.
  Error cut(ErrorCode code) {
    return error_of([&] {
      cache.write(blob, subject, [&](BlobSink& sink) {
        sink.write(kFirst);
        throw Error(code, "cut");
      });
    });
  }
};

TEST_CASE("ingest: a download that was cut goes on where it ended; one that is wrong does not") {
  struct Case {
    ErrorCode code;
    bool kept;
  };
  for (const Case& each : {Case{ErrorCode::kNetwork, true}, Case{ErrorCode::kCancelled, true},
                           Case{ErrorCode::kIntegrity, false}, Case{ErrorCode::kCache, false}}) {
    CAPTURE(to_string(each.code));
    Store store;
    CHECK(store.cut(each.code).code() == each.code);
    CHECK(fs::exists(store.part()) == each.kept);
    std::uint64_t from = 0;
    store.cache.write(store.blob, store.subject, [&](BlobSink& sink) {
      from = sink.size();
      sink.write(std::string_view(kContent).substr(sink.size()));
    });
    CHECK(from == (each.kept ? kFirst.size() : 0));
    CHECK(read_file(store.cache.blob_path(store.blob.digest)) == kContent);
    CHECK(fs::is_empty(store.cache.root() / "ingest"));
  }
}

TEST_CASE("ingest: room is wanted for the bytes that are missing") {
  Store store;
  const Cache& cache = store.cache;
  CHECK(cache.missing_bytes(store.blob) == kContent.size());
  store.cut(ErrorCode::kNetwork);
  CHECK(cache.missing_bytes(store.blob) == kContent.size() - kFirst.size());
  write_file(store.part(), kContent + "more");
  CHECK(cache.missing_bytes(store.blob) == kContent.size());
  write_file(store.part(), kContent);
  store.fetch();
  CHECK(cache.missing_bytes(store.blob) == 0);
}

TEST_CASE("ingest: what an observer throws keeps the bytes too") {
  Store store;
  CHECK_THROWS_AS(store.cache.write(store.blob, store.subject,
                                    [&](BlobSink& sink) {
                                      sink.write(kFirst);
                                      throw 42;
                                    }),
                  int);
  CHECK(read_file(store.part()) == kFirst);
}

TEST_CASE("ingest: a whole leftover is published without a request") {
  Store store;
  write_file(store.part(), kContent);
  CHECK(read_file(store.fetch()) == kContent);
  CHECK(store.fetches == 0);
}

TEST_CASE("ingest: a leftover with other bytes costs one clean retry") {
  for (const std::string& leftover : {kWrong, kWrong + kContent.substr(20), kContent + "more"}) {
    CAPTURE(leftover);
    Store store;
    write_file(store.part(), leftover);
    CHECK(read_file(store.fetch()) == kContent);
    CHECK(store.fetches == (leftover == kWrong ? 2 : 1));
    CHECK(fs::is_empty(store.cache.root() / "ingest"));
  }
}

TEST_CASE("ingest: bytes that stay wrong are refused after the one retry, and nothing is left") {
  const std::string bad = kContent.substr(0, kContent.size() - 1) + "!";
  for (const bool resumed : {false, true}) {
    CAPTURE(resumed);
    Store store;
    if (resumed) write_file(store.part(), kWrong);
    const Error error = error_of([&] { store.fetch(bad); });
    CHECK(error.code() == ErrorCode::kIntegrity);
    CHECK_CONTAINS(error.what(), Digest::of(bad).str());
    CHECK(store.fetches == (resumed ? 2 : 1));
    CHECK_FALSE(store.cache.has_blob(store.blob.digest));
    CHECK(fs::is_empty(store.cache.root() / "ingest"));
  }
}

TEST_CASE("ingest: what was planted in a leftover's place is replaced, not written through") {
  const std::vector<std::pair<const char*, std::function<void(const fs::path&, const fs::path&)>>>
      plants{
          {"symbolic link",
           [](const fs::path& to, const fs::path& at) { fs::create_symlink(to, at); }},
          {"hard link",
           [](const fs::path& to, const fs::path& at) { fs::create_hard_link(to, at); }},
          {"pipe",
           [](const fs::path&, const fs::path& at) { REQUIRE(::mkfifo(at.c_str(), 0600) == 0); }},
      };
  for (const auto& planting : plants) {
    CAPTURE(planting.first);
    Store store;
    const fs::path victim = store.scratch / "victim";
    write_file(victim, kFirst);
    fs::create_directories(store.part().parent_path());
    planting.second(victim, store.part());
    const fs::path path = store.fetch();
    CHECK(read_file(path) == kContent);
    CHECK_FALSE(fs::is_symlink(path));
    CHECK(read_file(victim) == kFirst);
  }
}

TEST_CASE("ingest: who waits for another one's download can be stopped") {
  Store store;
  const FileLock used = store.cache.use_to_write();
  const FileLock held = store.cache.lock(store.blob.digest);
  REQUIRE(held.held());
  std::stop_source source;
  source.request_stop();
  const Cache stopped(store.cache.root(), source.get_token());
  const Error error = error_of([&] {
    stopped.write(store.blob, store.subject, [](BlobSink&) { FAIL("the lock is held"); });
  });
  CHECK(error.code() == ErrorCode::kCancelled);
  CHECK_CONTAINS(error.what(), store.blob.digest.hex());
}

}  // namespace
}  // namespace kiln::test
