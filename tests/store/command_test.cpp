// SPDX-License-Identifier: Apache-2.0
//
// The cache commands of the real kiln: what they print, and their exit codes.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <chrono>

#include "documents/json.hpp"
#include "sample.hpp"
#include "store/installed.hpp"
#include "store_paths.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

struct Ran {
  int code = 0;
  std::string out;
};

Ran run(const Sample& sample, const std::string& words) {
  const fs::path out = sample.scratch / "stdout";
  const int status =
      std::system((paths::kKiln + (" " + words) + " --cache " + sample.request.cache.string() +
                   " >" + out.string() + " 2>/dev/null")
                      .c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out)};
}

TEST_CASE("commands: cache dir, verify and gc") {
  Sample sample;
  sample.install_version(1);
  CHECK(run(sample, "cache dir").out == sample.request.cache.string() + "\n");
  const Ran verified = run(sample, "cache verify");
  CHECK(verified.code == 0);
  CHECK_CONTAINS(verified.out, "6 files, 0 damaged");
  const auto before = sample.files();
  const Ran dry = run(sample, "cache gc --dry-run --unlocked --json");
  CHECK(dry.code == 0);
  const Json document = Json::parse(dry.out);
  CHECK(document["schema"] == "kiln.gc/1");
  CHECK(document["dry_run"] == true);
  CHECK(document["removed"][0]["what"] == "version");
  CHECK(document["bytes"] > 10000);
  CHECK(sample.files() == before);
  const Ran ran = run(sample, "cache gc --unlocked");
  CHECK(ran.code == 0);
  CHECK_CONTAINS(ran.out, "version  ");
  CHECK(run(sample, "list").out.empty());
}

TEST_CASE("commands: repair restores files, and its exit code says why it could not") {
  Sample sample;
  sample.install_version(1);
  const fs::path config = sample.cache().blob_path(sample.manifest().config.digest);
  CHECK_CONTAINS(run(sample, "cache repair").out, "is whole");
  damage(config);
  CHECK(run(sample, "cache verify").code == static_cast<int>(ErrorCode::kIntegrity));
  CHECK(run(sample, "cache repair --offline").code == static_cast<int>(ErrorCode::kOffline));
  fs::rename(sample.published.root(), sample.scratch / "away");
  CHECK(run(sample, "cache repair").code == static_cast<int>(ErrorCode::kNotFound));
  fs::rename(sample.scratch / "away", sample.published.root());
  const Ran ran = run(sample, "cache repair --json");
  CHECK(ran.code == 0);
  const Json document = Json::parse(ran.out);
  CHECK(document["schema"] == "kiln.repair/1");
  CHECK(document["repaired"][0]["file"] == config.string());
  CHECK(document["repaired"][0]["whole"] == true);
  CHECK(run(sample, "cache verify").code == 0);
}

TEST_CASE("commands: list does not slow with blobs that no version names") {
  Sample sample;
  sample.install_version(1);
  const Cache cache = sample.cache();
  int blobs = 0;
  const auto seconds_with = [&](int count) {  // the best of ten
    for (; blobs < count; ++blobs) {
      const std::string bytes = std::to_string(blobs);
      write_file(cache.blob_path(Digest::of(bytes)), bytes);
    }
    std::chrono::duration<double> best(std::chrono::hours(1));
    for (int i = 0; i < 10; ++i) {
      const auto start = std::chrono::steady_clock::now();
      CHECK(list_installed(cache).size() == 1);
      best =
          std::min<std::chrono::duration<double>>(best, std::chrono::steady_clock::now() - start);
    }
    return best.count();
  };
  const double few = seconds_with(500);
  CHECK(seconds_with(5000) < 4 * few);  // it starts at the refs
}

}  // namespace
}  // namespace kiln::test
