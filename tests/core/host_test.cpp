// SPDX-License-Identifier: Apache-2.0
//
// The facts of a machine as a document: what goes round, and what is refused.
#include "documents/host.hpp"

#include <string>
#include <vector>

#include "documents/json.hpp"
#include "samples.hpp"

namespace kiln {

using test::check_throws;
using test::cpu_host;
using test::gpu_host;

namespace {

Host cluster() {
  Host host = gpu_host("13.0", "9.0");
  host.driver_version = "580.159.04";
  host.gpus[0].name = "NVIDIA H200";
  host.gpus.push_back({2, "NVIDIA A100-SXM4-40GB MIG 1g.5gb", {8, 0}});
  host.libraries = {"libcublas.so.12"};
  host.absent = {"libcudnn.so.9"};
  host.overridden = {"KILN_OVERRIDE_CUDA"};
  return host;
}

/// The document with one value replaced, or removed where there is none.
std::string changed_host(const char* pointer, const Json& value) {
  Json json = to_json(cluster());
  json[Json::json_pointer(pointer)] = value;
  return json.dump();
}

}  // namespace

TEST_CASE("host: what is written is read back, and written the same") {
  Host none = cpu_host("armv8-a");
  none.glibc.reset();
  for (const Host& host : {cluster(), cpu_host(), none}) {
    const std::string text = serialize_host(host);
    const Host read = parse_host(text, "cluster.json");
    CHECK(serialize_host(read) == text);
    CHECK(read.origin == "cluster.json");
    CHECK(read.arch == host.arch);
    CHECK(read.cpu == host.cpu);
    CHECK(read.glibc == host.glibc);
    CHECK(read.driver == host.driver);
    CHECK(read.driver_version == host.driver_version);
    CHECK(read.libraries == host.libraries);
    CHECK(read.absent == host.absent);
    CHECK(read.overridden == host.overridden);
    REQUIRE(read.gpus.size() == host.gpus.size());
    for (std::size_t i = 0; i < read.gpus.size(); ++i) {
      CHECK(read.gpus[i].ordinal == host.gpus[i].ordinal);
      CHECK(read.gpus[i].name == host.gpus[i].name);
      CHECK(read.gpus[i].capability == host.gpus[i].capability);
    }
  }
  CHECK(serialize_host(cpu_host()) ==
        R"({"arch":"x86_64","cpu":"x86-64-v3","driver":null,"driver_version":null,)"
        R"("glibc":"2.36","gpus":[],"libraries":{},"overridden":[],"schema":"kiln.host/1"})");
}

TEST_CASE("host: a document resolves as the machine that wrote it") {
  const Index index = test::sample_index();
  Host host = gpu_host("12.9", "8.6");
  host.libraries = {"libcublas.so.12", "libcublasLt.so.12"};
  const Resolution there = resolve(host, index, {});
  const Resolution here = resolve(parse_host(serialize_host(host), "f"), index, {});
  REQUIRE(there.chosen == 1);
  CHECK(here.chosen == there.chosen);
  for (std::size_t i = 0; i < there.decisions.size(); ++i) {
    CHECK(here.decisions[i].detail == there.decisions[i].detail);
    CHECK(here.decisions[i].rank == there.decisions[i].rank);
  }
}

TEST_CASE("host: members that this kiln does not know are passed over") {
  CHECK(parse_host(changed_host("/future", {{"a", 1}}), "f").driver == Version{13, 0});
  CHECK(parse_host(changed_host("/gpus/0/future", true), "f").gpus.size() == 2);
}

TEST_CASE("host: a document that does not say the driver's version is read") {
  CHECK(parse_host(changed_host("/driver_version", nullptr), "f").driver_version.empty());
  Json old = to_json(cluster());
  old.erase("driver_version");
  CHECK(parse_host(old.dump(), "f").driver_version.empty());
}

TEST_CASE("host: what breaks the format is refused, with its place") {
  const struct {
    std::string document;
    std::string word;
  } rows[] = {
      {"", "facts file f: not JSON"},
      {"[]", "expected an object"},
      {"{}", "has no \"schema\""},
      {"\xff", "not JSON"},
      {R"({"schema":"kiln.host/1","schema":"kiln.host/1"})", "twice"},
      {serialize_host(cluster()) + "x", "not JSON"},
      {std::string(5u << 20, ' '), "at most"},
      {std::string(100, '[') + std::string(100, ']'), "nested deeper"},
      {changed_host("/schema", "kiln.lock/1"),
       "expected kiln.host/1, as 'kiln host --json' writes it"},
      {changed_host("/schema", 1), "schema"},
      {changed_host("/arch", "sparc"), "expected x86_64 or aarch64"},
      {changed_host("/arch", "aarch64"), "not a level of aarch64"},
      {changed_host("/cpu", "x86-64-v9"), "cpu"},
      {changed_host("/glibc", "2"), "glibc"},
      {changed_host("/glibc", 2.36), "glibc"},
      {changed_host("/driver", "13"), "driver"},
      {changed_host("/driver", "-1.0"), "driver"},
      {changed_host("/driver_version", "13.0"), "driver_version"},
      {changed_host("/driver_version", ""), "driver_version"},
      {changed_host("/driver_version", 580.65), "driver_version"},
      {changed_host("/gpus", Json::object()), "expected an array"},
      {changed_host("/gpus", Json::array({1})), "gpus[0]"},
      {changed_host("/gpus/0/ordinal", -1), "unsigned"},
      {changed_host("/gpus/0/ordinal", 1.5), "unsigned"},
      {changed_host("/gpus/0/ordinal", 4294967296), "too large"},
      {changed_host("/gpus/0/ordinal", 2), "ascending ordinals"},
      {changed_host("/gpus/0/capability", "sm_90"), "capability"},
      {changed_host("/gpus/0/name", "a\x1b[31m"), "one line of text"},
      {changed_host("/gpus/0/name", std::string(400, 'x')), "one line of text"},
      {changed_host("/gpus", Json(std::vector<Json>(1025, Json::object()))), "at most 1024"},
      {changed_host("/libraries", Json::array({"libx.so.1"})), "expected an object"},
      {changed_host("/libraries/libx.so.1", "yes"), "true or false"},
      {changed_host("/libraries", {{"../libx.so.1", true}}), "expected a library's name"},
      {changed_host("/libraries", {{"/tmp/libx.so.1", true}}), "expected a library's name"},
      {changed_host("/overridden", "KILN_OVERRIDE_SM"), "expected an array"},
      {changed_host("/overridden/0", "a\nb"), "one line of text"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.word);
    check_throws(ErrorCode::kIntegrity, {"facts file f", row.word},
                 [&] { parse_host(row.document, "f"); });
  }
  for (const char* member : {"arch", "cpu", "glibc", "driver", "gpus", "libraries"}) {
    Json json = to_json(cluster());
    json.erase(member);
    check_throws(ErrorCode::kIntegrity, {std::string("has no \"") + member},
                 [&] { parse_host(json.dump(), "f"); });
  }
  check_throws(ErrorCode::kUpgrade, {"kiln.host/2", "Upgrade kiln"},
               [] { parse_host(changed_host("/schema", "kiln.host/2"), "f"); });
}

TEST_CASE("host: sonames that the facts say nothing of are known to be unknown") {
  const Index index = test::sample_index();  // one variant looks up cublas and cublasLt
  Host host = gpu_host("12.9", "9.0");
  CHECK(unknown_libraries(host, index) ==
        std::vector<std::string>{"libcublas.so.12", "libcublasLt.so.12"});
  host.libraries = {"libcublas.so.12"};
  host.absent = {"libcublasLt.so.12"};
  CHECK(unknown_libraries(host, index).empty());
  CHECK(unknown_libraries(cpu_host("armv8-a"), index).empty());  // another architecture's
}

}  // namespace kiln
