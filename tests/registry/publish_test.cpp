// SPDX-License-Identifier: Apache-2.0
//
// Publish into a registry on disk: what changes, what stays, and what it says of each variant.
#include <doctest/doctest.h>

#include <thread>

#include "built_fixture.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "registry/folder/check.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/publish.hpp"

namespace {

using namespace kiln;        // NOLINT(google-build-using-namespace)
using namespace kiln::test;  // NOLINT(google-build-using-namespace)
using kiln::registry::Published;
namespace fs = std::filesystem;

std::vector<Published> publish(const fs::path& registry, const std::vector<fs::path>& built,
                               const std::vector<fs::path>& records = {}) {
  return registry::publish({registry, built, records}, [](const std::string&) {});
}

std::optional<ErrorCode> refusal(const fs::path& registry, const std::vector<fs::path>& built,
                                 std::string* text = nullptr,
                                 const std::vector<fs::path>& records = {}) {
  try {
    publish(registry, built, records);
    return std::nullopt;
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.code();
  }
}

std::vector<std::string> variant_ids(const fs::path& registry) {
  std::vector<std::string> ids;
  for (const auto& version : registry::list_registry(registry)) {
    for (const Variant& variant : version.index.variants) ids.push_back(variant.id);
  }
  return ids;
}

std::string tested(const fs::path& registry, const std::string& id) {
  for (const auto& version : registry::list_registry(registry)) {
    for (const Variant& variant : version.index.variants) {
      if (variant.id == id) return variant.tested;
    }
  }
  return "no such variant";
}

}  // namespace

TEST_CASE("publish: a package becomes readable, best variant first, intact") {
  const TemporaryFolder folder;
  const fs::path built = folder / "built";
  write_built(built, cpu("x86-64-v3"));
  write_built(built, cuda("11.8", "compute_80"));
  write_built(built, cuda("12.9", "sm_80"));
  write_built(built, cuda("12.9", "sm_90a"));
  const auto results = publish(folder / "registry", {built});
  REQUIRE(results.size() == 1);
  CHECK(results[0].name == "tiny-op");
  CHECK(results[0].version == 1);
  CHECK(results[0].changed);
  CHECK(results[0].added.size() == 4);
  CHECK(variant_ids(folder / "registry") ==
        std::vector<std::string>{"cu12.9-sm_90a-x86_64", "cu12.9-sm_80-x86_64",
                                 "cu11.8-compute_80-x86_64", "cpu-x86-64-v3"});

  const registry::Layout layout(folder / "registry/tiny-op");
  const auto references = layout.read();
  REQUIRE(references.size() == 5);
  CHECK(references[0].name == "1");
  CHECK(references[0].descriptor == results[0].index);
  CHECK(registry::find_tag(references, "1-cpu-x86-64-v3") != nullptr);
  const auto mode = fs::status(layout.blob_path(results[0].index.digest)).permissions();
  CHECK((mode & fs::perms::mask) == static_cast<fs::perms>(0444));

  const auto report = registry::check_registry(folder / "registry", [](const auto&) {});
  CHECK(report.problems.empty());
  CHECK(report.variants == 4);
  CHECK(report.blobs == 13);  // an index; a manifest, a config and a layer each
}

TEST_CASE("publish: one variant's folder can be given alone") {
  const TemporaryFolder folder;
  const fs::path one = write_built(folder / "built", cpu("x86-64-v3"));
  write_built(folder / "built", cpu("x86-64-v4"));
  publish(folder / "registry", {one});
  CHECK(variant_ids(folder / "registry") == std::vector<std::string>{"cpu-x86-64-v3"});
}

TEST_CASE("publish: the same bytes again change nothing and say so") {
  const TemporaryFolder folder;
  write_built(folder / "built", cuda("12.9", "sm_90a"));
  const auto first = publish(folder / "registry", {folder / "built"});
  const std::string before = tree_hash(folder / "registry");
  const auto again = publish(folder / "registry", {folder / "built", folder / "built"});
  CHECK_FALSE(again[0].changed);
  CHECK(again[0].added.empty());
  CHECK(again[0].unchanged == std::vector<std::string>{"cu12.9-sm_90a-x86_64"});
  CHECK(again[0].index == first[0].index);
  CHECK(tree_hash(folder / "registry") == before);
}

TEST_CASE("publish: variants join a version, and what was there keeps its digest") {
  const TemporaryFolder folder;
  const fs::path one = write_built(folder / "built", cpu("x86-64-v3"));
  const fs::path two = write_built(folder / "built", cuda("12.9", "sm_90a"));
  const auto first = publish(folder / "registry", {one});
  const auto before = registry::Layout(folder / "registry/tiny-op").read();
  const auto second = publish(folder / "registry", {two});
  CHECK(second[0].added == std::vector<std::string>{"cu12.9-sm_90a-x86_64"});
  CHECK(second[0].index != first[0].index);

  const registry::Layout layout(folder / "registry/tiny-op");
  const auto after = layout.read();
  const auto* old_tag = registry::find_tag(before, "1-cpu-x86-64-v3");
  const auto* new_tag = registry::find_tag(after, "1-cpu-x86-64-v3");
  REQUIRE(old_tag != nullptr);
  REQUIRE(new_tag != nullptr);
  CHECK(old_tag->descriptor == new_tag->descriptor);
  // Whoever pinned the first index still finds it, and collectors see that it is in use.
  CHECK(after.back() == Tag{"", first[0].index});
  CHECK(layout.has_blob(first[0].index));

  // The order of publishing does not show in the index.
  publish(folder / "other", {two});
  CHECK(publish(folder / "other", {one})[0].index == second[0].index);
}

TEST_CASE("publish: versions live side by side") {
  const TemporaryFolder folder;
  Built next = cpu("x86-64-v3");
  next.version = 2;
  publish(folder / "registry",
          {write_built(folder / "one", cpu("x86-64-v3")), write_built(folder / "two", next)});
  const auto versions = registry::list_registry(folder / "registry");
  REQUIRE(versions.size() == 2);
  CHECK(versions[0].index.version == 1);
  CHECK(versions[1].index.version == 2);
}

TEST_CASE("publish: other bytes under a published id are a conflict, and nothing is written") {
  const TemporaryFolder folder;
  publish(folder / "registry", {write_built(folder / "one", cpu("x86-64-v3"))});
  const std::string before = tree_hash(folder / "registry");
  const auto published = registry::list_registry(folder / "registry")[0].index.variants[0];

  Built other = cpu("x86-64-v3");
  other.library = "other bytes";
  write_built(folder / "two", other);
  write_built(folder / "two", cpu("x86-64-v4"));
  Built elsewhere = cpu("x86-64-v3");
  elsewhere.name = "another-op";
  std::string text;
  // Another, faultless package in the same command is not published either.
  const auto code = refusal(folder / "registry",
                            {write_built(folder / "three", elsewhere), folder / "two"}, &text);
  CHECK(code == ErrorCode::kConflict);
  CHECK(text.find(published.manifest.digest.str()) != std::string::npos);
  const std::string given = Digest::of(read_text(folder / "two/cpu-x86-64-v3/manifest.json")).str();
  CHECK(text.find(given) != std::string::npos);
  CHECK(tree_hash(folder / "registry") == before);
}

TEST_CASE("publish: two variants that are equally good for a machine are a conflict") {
  const TemporaryFolder folder;
  Built twin = cuda("12.9", "sm_90");
  twin.id = "cu12.9-hopper-x86_64";
  std::string text;
  write_built(folder / "built", cuda("12.9", "sm_90"));
  write_built(folder / "built", twin);
  CHECK(refusal(folder / "registry", {folder / "built"}, &text) == ErrorCode::kConflict);
  CHECK(text.find("sm_90 of CUDA 12.9") != std::string::npos);
  CHECK_FALSE(fs::exists(folder / "registry"));

  // Also against what is published already.
  publish(folder / "registry", {folder / "built/cu12.9-sm_90-x86_64"});
  CHECK(refusal(folder / "registry", {folder / "built/cu12.9-hopper-x86_64"}) ==
        ErrorCode::kConflict);
}

TEST_CASE("publish: a green record names the GPU, later too, and stays") {
  const TemporaryFolder folder;
  const Built sm90 = cuda("12.9", "sm_90a");
  const fs::path built = write_built(folder / "built", sm90);
  const fs::path registry = folder / "registry";
  publish(registry, {built});
  CHECK(tested(registry, sm90.id) == "untested");
  const auto manifest = registry::list_registry(registry)[0].index.variants[0].manifest;

  const fs::path record = write_record(folder / "h200.json", "NVIDIA H200", sm90, 412, 0);
  const auto upgraded = publish(registry, {built}, {record});
  CHECK(upgraded[0].changed);
  CHECK(upgraded[0].retested == std::vector<std::string>{sm90.id});
  const std::string expected = "NVIDIA H200, driver 580.159.04, 2026-11-21, 412 cases";
  CHECK(tested(registry, sm90.id) == expected);
  CHECK(registry::list_registry(registry)[0].index.variants[0].manifest == manifest);

  CHECK_FALSE(publish(registry, {built})[0].changed);
  CHECK(tested(registry, sm90.id) == expected);
}

TEST_CASE("publish: a record of other bytes does not vouch for a variant") {
  const TemporaryFolder folder;
  const Built sm90 = cuda("12.9", "sm_90a");
  Built older = sm90;
  older.library = "an earlier build";
  const fs::path record = write_record(folder / "old.json", "NVIDIA H200", older, 412, 3);
  publish(folder / "registry", {write_built(folder / "built", sm90)}, {record});
  CHECK(tested(folder / "registry", sm90.id) == "untested");
}

TEST_CASE("publish: a record with failures, or without cases, refuses the variant") {
  for (const auto& [cases, failed] : {std::pair{412, 1}, std::pair{0, 0}}) {
    const TemporaryFolder folder;
    const Built sm90 = cuda("12.9", "sm_90a");
    const fs::path record = write_record(folder / "red.json", "NVIDIA H200", sm90, cases, failed);
    std::string text;
    CHECK(refusal(folder / "registry", {write_built(folder / "built", sm90)}, &text, {record}) ==
          ErrorCode::kIntegrity);
    CHECK(text.find("red.json") != std::string::npos);
    CHECK_FALSE(fs::exists(folder / "registry"));
  }
}

TEST_CASE("publish: a variant without a record is refused unless it may be untested") {
  const TemporaryFolder folder;
  const Built sm90 = cuda("12.9", "sm_90a");
  const Built sm100 = cuda("13.0", "sm_100");
  const fs::path registry = folder / "registry";
  write_built(folder / "built", sm90);
  write_built(folder / "built", sm100);
  const fs::path record = write_record(folder / "h200.json", "NVIDIA H200", sm90, 412, 0);
  const auto attempt = [&](const std::string& allowed, const std::vector<fs::path>& records) {
    return registry::publish({registry, {folder / "built"}, records, allowed},
                             [](const std::string&) {});
  };
  const auto refused = [&](const std::string& allowed, const std::vector<fs::path>& records) {
    try {
      attempt(allowed, records);
      return std::string("not refused");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kNotFound);
      return std::string(error.what());
    }
  };
  const std::string both = refused("", {});
  CHECK(both.find("cu12.9-sm_90a-x86_64 (library sha256:") != std::string::npos);
  CHECK(both.find("--allow-untested 'cu12.9-sm_90a-x86_64,cu13.0-sm_100-x86_64'") !=
        std::string::npos);
  const std::string one = refused("cpu-*,cu*-sm_80-*", {record});
  CHECK(one.find("cu12.9-sm_90a") == std::string::npos);
  CHECK(one.find("cu13.0-sm_100-x86_64") != std::string::npos);
  CHECK(!fs::exists(registry));

  attempt("cpu-*,cu*-sm_100-*", {record});
  CHECK(tested(registry, sm90.id).starts_with("NVIDIA H200"));
  CHECK(tested(registry, sm100.id) == "untested");
  // What an earlier publish knew counts: only the other one lacks a record.
  CHECK_FALSE(attempt("*-sm_100-*", {})[0].changed);
  CHECK(refused("", {}).find("cu12.9") == std::string::npos);
}

TEST_CASE("publish: publishers at the same time lose nothing of each other") {
  const TemporaryFolder folder;
  const std::vector<Built> variants = {cpu("x86-64-v3"), cpu("x86-64-v4"), cuda("12.9", "sm_90a"),
                                       cuda("12.9", "sm_80")};
  std::vector<std::thread> publishers;
  for (const Built& variant : variants) {
    publishers.emplace_back([&folder, one = write_built(folder / "built", variant)] {
      publish(folder / "registry", {one});
    });
  }
  for (std::thread& publisher : publishers) publisher.join();
  CHECK(variant_ids(folder / "registry").size() == variants.size());
  CHECK(registry::check_registry(folder / "registry", [](const auto&) {}).problems.empty());
}

TEST_CASE("publish: an index with variants that only a newer Kiln reads is not touched") {
  const TemporaryFolder folder;
  publish(folder / "registry", {write_built(folder / "built", cpu("x86-64-v3"))});
  const registry::Layout layout(folder / "registry/tiny-op");
  auto references = layout.read();
  Json index = parse_json(layout.read_blob(references[0].descriptor, "test"), "test");
  Json future = index["manifests"][0];
  future["annotations"]["dev.kiln.min-loader"] = "99.0.0";
  SUBCASE("with an id") {
    future["annotations"]["dev.kiln.variant"] = "from-the-future";
  }
  SUBCASE("in a shape of its own") {
    future["annotations"].erase("dev.kiln.variant");
  }
  index["manifests"].push_back(future);
  const std::string bytes = dump_json(index);
  references[0].descriptor = {std::string(kMediaTypeIndex), Digest::of(bytes), bytes.size()};
  {
    const auto held = layout.lock();
    layout.write_blob(references[0].descriptor, bytes);
    layout.write(references);
  }
  const std::string before = tree_hash(folder / "registry");
  std::string text;
  CHECK(refusal(folder / "registry", {write_built(folder / "more", cpu("x86-64-v4"))}, &text) ==
        ErrorCode::kUpgrade);
  CHECK(text.find("newer Kiln") != std::string::npos);
  CHECK(tree_hash(folder / "registry") == before);
}

TEST_CASE("publish: a built variant for a newer Kiln is refused as such") {
  const TemporaryFolder folder;
  Built future = cpu("x86-64-v3");
  future.min_loader = "99.0.0";
  CHECK(refusal(folder / "registry", {write_built(folder / "built", future)}) ==
        ErrorCode::kUpgrade);
  CHECK_FALSE(fs::exists(folder / "registry"));
}

TEST_CASE("publish: many records make a text that readers accept") {
  const TemporaryFolder folder;
  const Built sm90 = cuda("12.9", "sm_90a");
  std::vector<fs::path> records;
  for (int i = 0; i < 9; ++i) {
    const std::string gpu = "GPU number " + std::to_string(i);
    records.push_back(write_record(folder / (gpu + ".json"), gpu, sm90, 10 + i, 0));
  }
  publish(folder / "registry", {write_built(folder / "built", sm90)}, records);
  const std::string text = tested(folder / "registry", sm90.id);
  CHECK(text.find("GPU number 0, driver 580.159.04, 2026-11-21, 10 cases; ") == 0);
  CHECK(text.find(" more") == text.size() - 5);
  // The text is cut for people; a policy reads the names, of which none is lost.
  const auto listed = registry::list_registry(folder / "registry");
  CHECK(listed.front().index.variants.front().tested_on.size() == 9);
  CHECK(text.size() <= 300);
}

TEST_CASE("publish: a file that is no record is refused") {
  const std::vector<std::string> texts = {
      "",
      "[]",
      R"({"schema":"kiln.record/2"})",
      R"({"schema":"kiln.record/1","hardware":"g","driver":"1","date":"never","results":[]})",
      R"({"schema":"kiln.record/1","hardware":"","driver":"1","date":"2026-11-21","results":[]})",
      R"({"schema":"kiln.record/1","hardware":"a\nb","driver":"1","date":"2026-11-21","results":[]})",
      R"({"schema":"kiln.record/1","hardware":"g","driver":"1","date":"2026-11-21","results":[{"variant":"v"}]})",
      R"({"schema":"kiln.record/1","hardware":"g","driver":"1","date":"2026-11-21","results":[)"
      R"({"variant":"v","library":"sha256:1","cases":1,"failed":0}]})"};
  for (const std::string& text : texts) {
    CAPTURE(text);
    const TemporaryFolder folder;
    write_text(folder / "record.json", text);
    CHECK(refusal(folder / "registry", {write_built(folder / "built", cpu("x86-64-v3"))}, nullptr,
                  {folder / "record.json"}) == ErrorCode::kIntegrity);
  }
  const TemporaryFolder folder;
  CHECK(refusal(folder / "registry", {write_built(folder / "built", cpu("x86-64-v3"))}, nullptr,
                {folder / "absent.json"}) == ErrorCode::kNotFound);
}
