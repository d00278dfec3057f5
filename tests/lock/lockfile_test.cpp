// SPDX-License-Identifier: Apache-2.0
//
// The lock file and the requirements as text: what is read, what is refused and with which code,
// what is written, and what two of them differ in.
#include "documents/lockfile.hpp"

#include <doctest/doctest.h>

#include <functional>

#include "documents/json.hpp"
#include "documents/requirements.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

Descriptor descriptor(std::string_view media_type, const std::string& bytes) {
  return {std::string(media_type), Digest::of(bytes), bytes.size()};
}

LockedVariant variant(const std::string& seed) {
  return {descriptor(kMediaTypeManifest, seed + "m"), descriptor(kMediaTypeConfig, seed + "c"),
          descriptor(kMediaTypeLayer, seed + "l"), "lib/libsample.so", Digest::of(seed)};
}

Lockfile sample() {
  return {{"sample",
           {"https://kernels.example",
            3,
            descriptor(kMediaTypeIndex, "index"),
            {{"cpu-x86-64-v3", variant("a")}, {"cu12.9-sm_90a-x86_64", variant("b")}}}},
          {"other",
           {"/srv/kernels", 1, descriptor(kMediaTypeIndex, "other"), {{"cpu", variant("c")}}}}};
}

/// The sample's text after a change.
std::string changed(const std::function<void(Json&)>& change) {
  Json json = Json::parse(serialize_lockfile(sample()));
  change(json);
  return json.dump();
}

TEST_CASE("lockfile: what is written is read back, sorted, and the same every time") {
  const std::string text = serialize_lockfile(sample());
  CHECK(parse_lockfile(text, "kiln.lock") == sample());
  CHECK(serialize_lockfile(parse_lockfile(text, "kiln.lock")) == text);
  CHECK(text.back() == '\n');
  CHECK(text.find("\"other\"") < text.find("\"sample\""));
  CHECK(serialize_lockfile({}) == "{\n  \"kernels\": {},\n  \"lockfileVersion\": 1\n}\n");
  CHECK(parse_lockfile(serialize_lockfile({}), "kiln.lock").empty());
}

TEST_CASE("lockfile: a name is refused before it is written, or read back as it was") {
  std::vector<std::string> names = {"", "\xe6\xa0\xb8", "\xe2\x80\xae", "\xf0\x9f\x94\xa5",
                                    "a\"b\\c"};
  for (int byte = 0; byte < 256; ++byte) {
    names.push_back("/srv/a" + std::string(1, static_cast<char>(byte)) + "b");
    names.push_back("\xe2" + std::string(1, static_cast<char>(byte)));
  }
  for (const std::size_t size : {1023U, 1024U, 1025U, 4095U, 4096U, 4097U}) {
    names.emplace_back(size, 'a');
  }
  std::size_t written = 0;
  for (const std::string& name : names) {
    for (const bool registry : {true, false}) {
      Lockfile lock = sample();
      LockedKernel& kernel = lock.at("sample");
      (registry ? kernel.registry : kernel.variants.begin()->second.library) = name;
      CAPTURE(name);
      try {
        const std::string text = serialize_lockfile(lock);
        CHECK(parse_lockfile(text, "kiln.lock") == lock);
        ++written;
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kUsage);
        CHECK_CONTAINS(error.what(), registry ? "lock sample: its registry is \""
                                              : "lock sample: its library is \"");
      }
    }
  }
  CHECK(written > 190);
  CHECK(written < names.size());
}

TEST_CASE("lockfile: members of a later Kiln are passed over") {
  const std::string text = changed([](Json& json) {
    json["comment"] = {1, 2};
    json["kernels"]["sample"]["trust"] = {{"root", 3}};
    json["kernels"]["sample"]["variants"]["cpu-x86-64-v3"]["signature"] = "x";
  });
  CHECK(parse_lockfile(text, "kiln.lock") == sample());
}

TEST_CASE("lockfile: a file for a newer Kiln asks for an upgrade, whatever else it holds") {
  const Error error = error_of(
      [] { parse_lockfile(R"({"lockfileVersion": 2, "kernels": "of another shape"})", "k.lock"); });
  CHECK(error.code() == ErrorCode::kUpgrade);
  CHECK_CONTAINS(error.what(), "k.lock: lockfileVersion is 2");
  CHECK_CONTAINS(error.what(), "Upgrade kiln");
}

TEST_CASE("lockfile: what is no lock file is refused with the place and the way out") {
  const std::string good = serialize_lockfile(sample());
  struct Row {
    std::string text;
    const char* says;
  };
  const auto at = [](const char* pointer, Json value) {
    return changed([&](Json& json) { json[Json::json_pointer(pointer)] = std::move(value); });
  };
  const auto without = [](const char* parent, const char* key) {
    return changed([&](Json& json) { json[Json::json_pointer(parent)].erase(key); });
  };
  const std::string kVariant = "/kernels/sample/variants/cpu-x86-64-v3";
  const std::vector<Row> rows = {
      {"", "not JSON"},
      {"[]", "expected an object"},
      {"null", "expected an object"},
      {good.substr(0, good.size() / 2), "not JSON"},
      {good + "{}", "not JSON"},
      {good + std::string("\0", 1), "NUL"},
      {"\xef\xbb\xbf" + good, "byte order mark"},
      {std::string(5u << 20, ' '), "bytes; at most"},
      {std::string(40, '[') + std::string(40, ']'), "nested deeper"},
      {R"({"lockfileVersion":1,"lockfileVersion":1,"kernels":{}})", "twice"},
      {R"({"lockfileVersion":1,"kernels":{"a":{},"a":{}}})", "twice"},
      {without("", "kernels"), "has no \"kernels\""},
      {without("", "lockfileVersion"), "has no \"lockfileVersion\""},
      {at("/lockfileVersion", "1"), "lockfileVersion: found string"},
      {at("/lockfileVersion", 0), "lockfileVersion: is not a version"},
      {at("/lockfileVersion", -1), "expected an unsigned integer"},
      {at("/kernels", Json::array()), "kernels: found array, expected an object"},
      {at("/kernels/..~1..~1etc", Json::object()), "is not a package name"},
      {at("/kernels/Sample", Json::object()), "is not a package name"},
      {without("/kernels/sample", "requested"), "has no \"requested\""},
      {at("/kernels/sample/requested/version", 0), "expected a version"},
      {at("/kernels/sample/requested/version", 1.5), "expected an unsigned integer"},
      {at("/kernels/sample/requested/version", 4294967297), "expected a version"},
      {without("/kernels/sample", "registry"), "has no \"registry\""},
      {at("/kernels/sample/registry", ""), "expected printable text"},
      {at("/kernels/sample/registry", "https://a\x1b[2J"), "expected printable text"},
      {at("/kernels/sample/registry", std::string(5000, 'a')), "expected printable text"},
      {without("/kernels/sample", "index"), "has no \"index\""},
      {at("/kernels/sample/index/digest", "sha256:short"), "index.digest"},
      {at("/kernels/sample/index/digest", "sha256:" + std::string(64, 'A')), "index.digest"},
      {at("/kernels/sample/index/size", 5u << 20), "expected at most"},
      {at("/kernels/sample/index/size", -5), "expected an unsigned integer"},
      {without("/kernels/sample", "variants"), "has no \"variants\""},
      {at("/kernels/sample/variants", 7), "expected an object"},
      {at("/kernels/sample/variants/..", Json::object()), "variants.."},
      {at("/kernels/sample/variants/a b", Json::object()), "a b"},
      {at(kVariant.c_str(), nullptr), "expected an object"},
      {without(kVariant.c_str(), "manifest"), "has no \"manifest\""},
      {without(kVariant.c_str(), "config"), "has no \"config\""},
      {without(kVariant.c_str(), "layer"), "has no \"layer\""},
      {without(kVariant.c_str(), "library"), "has no \"library\""},
      {at((kVariant + "/layer/size").c_str(), std::uint64_t{1} << 41), "expected at most"},
      {at((kVariant + "/config/size").c_str(), "12"), "expected an unsigned integer"},
      {at((kVariant + "/library/sha256").c_str(), "sha512:00"), "library.sha256"},
      {at((kVariant + "/library/path").c_str(), ""), "expected printable text"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.says);
    const Error error = error_of([&] { parse_lockfile(row.text, "a/kiln.lock"); });
    CHECK(error.code() == ErrorCode::kLock);
    CHECK_CONTAINS(error.what(), row.says);
    CHECK_CONTAINS(error.what(), "a/kiln.lock");
  }
}

TEST_CASE("lockfile: differences are told in words") {
  const Lockfile before = sample();
  CHECK(differences(before, before).empty());
  Lockfile after = before;
  after.erase("other");
  after["third"] = {"r", 2, {}, {}};
  after["sample"].variants.erase("cpu-x86-64-v3");
  after["sample"].variants["cpu-x86-64-v4"] = variant("d");
  after["sample"].variants["cu12.9-sm_90a-x86_64"] = variant("e");
  after["sample"].index = descriptor(kMediaTypeIndex, "grown");
  after["sample"].registry = "https://mirror.example";
  const auto brief = [](const std::string& bytes) { return Digest::of(bytes).brief(); };
  CHECK(differences(before, after) ==
        std::vector<std::string>{
            "- other@1",
            "sample@3: registry https://kernels.example -> https://mirror.example",
            "sample@3: index " + brief("index") + " -> " + brief("grown"),
            "sample@3: - variant cpu-x86-64-v3",
            "sample@3: variant cu12.9-sm_90a-x86_64 " + brief("bm") + " -> " + brief("em"),
            "sample@3: + variant cpu-x86-64-v4",
            "+ third@2",
        });
  after = before;
  after["sample"].version = 4;
  CHECK(differences(before, after) == std::vector<std::string>{"sample: version 3 -> 4"});
}

TEST_CASE("lockfile: a version may grow, and may not change or shrink") {
  const LockedKernel before = sample().at("sample");
  LockedKernel after = before;
  after.variants["cpu-x86-64-v4"] = variant("d");
  after.index = descriptor(kMediaTypeIndex, "grown");
  CHECK_NOTHROW(check_only_grown("sample", before, after));

  LockedKernel other = after;
  other.variants["cpu-x86-64-v3"] = variant("z");
  const Error differs = error_of([&] { check_only_grown("sample", before, other); });
  CHECK(differs.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(differs.what(), "lock sample@3: variant cpu-x86-64-v3 is locked as manifest");
  CHECK_CONTAINS(differs.what(), Digest::of("am").str());
  CHECK_CONTAINS(differs.what(),
                 "https://kernels.example now has manifest " + Digest::of("zm").str());

  after.variants.erase("cpu-x86-64-v3");
  const Error gone = error_of([&] { check_only_grown("sample", before, after); });
  CHECK(gone.code() == ErrorCode::kIntegrity);
  CHECK_CONTAINS(gone.what(), "has it no more");
}

TEST_CASE("requirements: a project's kernels") {
  const Requirements full = parse_requirements(
      R"({"schema": "kiln.requirements/1", "registry": "https://kernels.example", "note": 1,
          "kernels": {"b": {"version": 2}, "a": {"version": 1, "note": "speed"}}})",
      "kiln.json");
  CHECK(full.registry == "https://kernels.example");
  CHECK(full.kernels == std::map<std::string, int>{{"a", 1}, {"b", 2}});
  CHECK(parse_requirements(R"({"schema": "kiln.requirements/1", "kernels": {}})", "k").registry ==
        "");
  struct Row {
    const char* text;
    ErrorCode code;
    const char* says;
  };
  const std::vector<Row> rows = {
      {"", ErrorCode::kUsage, "not JSON"},
      {R"({"kernels": {}})", ErrorCode::kUsage, "has no \"schema\""},
      {R"({"schema": "kiln.lock/1", "kernels": {}})", ErrorCode::kUsage, "expected kiln.requ"},
      {R"({"schema": "kiln.requirements/x", "kernels": {}})", ErrorCode::kUsage, "expected kiln"},
      {R"({"schema": "kiln.requirements/2", "kernels": 1})", ErrorCode::kUpgrade, "Upgrade kiln"},
      {R"({"schema": "kiln.requirements/1"})", ErrorCode::kUsage, "has no \"kernels\""},
      {R"({"schema": "kiln.requirements/1", "kernels": []})", ErrorCode::kUsage,
       "expected an object"},
      {R"({"schema": "kiln.requirements/1", "kernels": {"A": {}}})", ErrorCode::kUsage,
       "is not a package name"},
      {R"({"schema": "kiln.requirements/1", "kernels": {"a": 1}})", ErrorCode::kUsage,
       "expected an object"},
      {R"({"schema": "kiln.requirements/1", "kernels": {"a": {"version": 0}}})", ErrorCode::kUsage,
       "expected a version"},
      {R"({"schema": "kiln.requirements/1", "kernels": {"a": {"version": "1"}}})",
       ErrorCode::kUsage, "expected an unsigned integer"},
      {R"({"schema": "kiln.requirements/1", "kernels": {"a": {"version": 1}, "a": {}}})",
       ErrorCode::kUsage, "twice"},
      {R"({"schema": "kiln.requirements/1", "regstry": "/x", "kernels": {}})", ErrorCode::kUsage,
       "has \"regstry\", which Kiln"},
      {R"({"schema": "kiln.requirements/1", "kernels": {"a": {"version": 1, "devcie": "cpu"}}})",
       ErrorCode::kUsage, "kernels.a: has \"devcie\", which Kiln"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const Error error = error_of([&] { parse_requirements(row.text, "kiln.json"); });
    CHECK(error.code() == row.code);
    CHECK_CONTAINS(error.what(), row.says);
    CHECK_CONTAINS(error.what(), "kiln.json");
  }
}

}  // namespace
}  // namespace kiln::test
