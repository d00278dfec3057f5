// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "samples.hpp"

namespace kiln {

using test::check_throws;

namespace {

/// A JSON pointer and the value to put there; discarded: remove the member.
struct Change {
  std::string pointer;
  Json value;
  std::string word;  ///< of the error
};
const Json kRemoved = Json(Json::value_t::discarded);

std::string changed(const std::string& bytes, const Change& change) {
  Json json = parse_json(bytes, "document");
  const Json::json_pointer pointer(change.pointer);
  if (change.value.is_discarded()) {
    json[pointer.parent_pointer()].erase(pointer.back());
  } else {
    json[pointer] = change.value;
  }
  return json.dump();
}

std::string many_names(int count) {
  std::string names = R"("GPU")";
  while (--count > 0) names += R"(,"GPU")";
  return names;
}

std::string annotation(const std::string& key) {
  return "/manifests/0/annotations/dev.kiln." + key;
}

const std::string kUpper = "sha256:" + std::string(64, 'A');

}  // namespace

TEST_CASE("index: whatever breaks the format is refused, with the path of it") {
  const Change rows[] = {
      {"/schemaVersion", 1, "schemaVersion: found 1, expected 2"},
      {"/schemaVersion", "2", "schemaVersion"},
      {"/schemaVersion", kRemoved, "has no \"schemaVersion\""},
      {"/mediaType", "application/vnd.oci.image.manifest.v1+json", "mediaType"},
      {"/mediaType", kRemoved, "mediaType"},
      {"/artifactType", "application/vnd.example", "artifactType"},
      {"/artifactType", kRemoved, "artifactType"},
      {"/annotations", Json::array(), "annotations"},
      {"/annotations", kRemoved, "annotations"},
      {"/annotations/dev.kiln.kernel", "../x", "dev.kiln.kernel"},
      {"/annotations/dev.kiln.kernel", kRemoved, "dev.kiln.kernel"},
      {"/annotations/dev.kiln.abi", "0", "dev.kiln.abi"},
      {"/annotations/dev.kiln.abi", "one", "dev.kiln.abi"},
      {"/annotations/dev.kiln.abi", kRemoved, "dev.kiln.abi"},
      {"/annotations/dev.kiln.min-loader", "new", "dev.kiln.min-loader"},
      {"/annotations/dev.kiln.min-loader", "1.2.3.4", "dev.kiln.min-loader"},
      {"/annotations/dev.kiln.min-loader", kRemoved, "dev.kiln.min-loader"},
      {"/annotations/org.opencontainers.image.version", 1, "image.version: found number"},
      {"/annotations/org.opencontainers.image.version", "0", "image.version"},
      {"/annotations/org.opencontainers.image.version", "01", "image.version"},
      {"/annotations/org.opencontainers.image.version", "-1", "image.version"},
      {"/annotations/org.opencontainers.image.version", "2147483648", "image.version"},
      {"/annotations/org.opencontainers.image.version", "1.0", "image.version"},
      {"/manifests", kRemoved, "has no \"manifests\""},
      {"/manifests", Json::object(), "manifests: found object, expected an array"},
      {"/manifests/0", "x", "manifests[0]"},
      {"/manifests/0", nullptr, "manifests[0]"},
      {"/manifests/0/mediaType", "application/vnd.oci.image.index.v1+json",
       "manifests[0].mediaType"},
      {"/manifests/0/mediaType", "application/vnd.docker.distribution.manifest.v2+json",
       "mediaType"},
      {"/manifests/0/mediaType", kRemoved, "manifests[0]: has no \"mediaType\""},
      {"/manifests/0/digest", kUpper, "manifests[0].digest: digest"},
      {"/manifests/0/digest", "sha512:" + std::string(128, 'a'), "manifests[0].digest"},
      {"/manifests/0/digest", "sha256:../../x", "manifests[0].digest"},
      {"/manifests/0/digest", 7, "manifests[0].digest"},
      {"/manifests/0/size", -1, "manifests[0].size: found -1"},
      {"/manifests/0/size", 3.9, "manifests[0].size: found 3.9"},
      {"/manifests/0/size", "936", "manifests[0].size"},
      {"/manifests/0/size", (4u << 20) + 1, "manifests[0].size"},
      {"/manifests/0/annotations", kRemoved, "manifests[0]: has no \"annotations\""},
      {annotation("variant"), kRemoved, "dev.kiln.variant"},
      {annotation("variant"), "", "dev.kiln.variant"},
      {annotation("variant"), "../../x", "dev.kiln.variant"},
      {annotation("variant"), "-rf", "dev.kiln.variant"},
      {annotation("variant"), std::string(101, 'a'), "dev.kiln.variant"},
      {annotation("variant"), "cpu-armv8-a", "manifests[2]: is the second variant"},
      {annotation("abi"), kRemoved, "manifests[0].annotations: has no \"dev.kiln.abi\""},
      {annotation("min-loader"), kRemoved, "dev.kiln.min-loader"},
      {annotation("min-loader"), 1, "dev.kiln.min-loader"},
      {annotation("host.arch"), "amd64", "expected x86_64 or aarch64"},
      {annotation("host.arch"), "aarch64", "CPU level x86-64 for aarch64"},
      {annotation("host.arch"), kRemoved, "dev.kiln.host.arch"},
      {annotation("host.cpu"), "x86-64-v9", "dev.kiln.host.cpu"},
      {annotation("host.cpu"), kRemoved, "dev.kiln.host.cpu"},
      {annotation("host.glibc"), "2", "dev.kiln.host.glibc"},
      {annotation("host.glibc"), kRemoved, "dev.kiln.host.glibc"},
      {annotation("cuda.toolkit"), "12.9.1", "dev.kiln.cuda.toolkit"},
      {annotation("cuda.toolkit"), kRemoved, "no CUDA toolkit"},
      {annotation("cuda.min-driver"), "", "dev.kiln.cuda.min-driver"},
      {annotation("cuda.min-driver"), kRemoved, "no lowest driver"},
      {annotation("cuda.sass"), "sm_90b", "dev.kiln.cuda.sass: found \"sm_90b\""},
      {annotation("cuda.sass"), "sm_90a,", "dev.kiln.cuda.sass: found \"\""},
      {annotation("cuda.sass"), "sm_90a,,sm_80", "dev.kiln.cuda.sass"},
      {annotation("cuda.sass"), "sm_90a,sm_90a", "sm_90a twice"},
      {annotation("cuda.sass"), "compute_80", "machine code"},
      {annotation("cuda.sass"), kRemoved, "no device code"},
      {annotation("cuda.ptx"), "sm_80", "PTX"},
      {annotation("cuda.ptx"), Json::array({"compute_80"}), "dev.kiln.cuda.ptx: found array"},
      {annotation("needs"), "/tmp/evil.so", "dev.kiln.needs"},
      {annotation("needs"), "evil.so", "dev.kiln.needs"},
      {annotation("needs"), "lib../../x.so", "dev.kiln.needs"},
      {annotation("needs"), "libm", "dev.kiln.needs"},
      {annotation("tested"), "a\x1b[31mb", "dev.kiln.tested: found \"a\\x1b[31mb\""},
      {annotation("tested"),
       "a\xc2\x9b"
       "31m",
       "dev.kiln.tested: found \"a\\xc2\\x9b31m\""},
      {annotation("tested"),
       "\xe2\x80\xae"
       "on",
       "dev.kiln.tested: found \"\\xe2\\x80\\xaeon\""},
      {annotation("tested"), std::string(301, 'x'), "dev.kiln.tested"},
      {annotation("tested-on"), "NVIDIA H200", "dev.kiln.tested-on: not JSON"},
      {annotation("tested-on"), "[1]", "dev.kiln.tested-on[0]"},
      {annotation("tested-on"), R"(["a\u001b"])", "dev.kiln.tested-on[0]"},
      {annotation("tested-on"), "[" + many_names(65) + "]", "has 65 names, at most 64 are read"},
  };
  const std::string bytes = serialize_index(test::sample_index());
  for (const Change& row : rows) {
    CAPTURE(row.pointer);
    check_throws(ErrorCode::kIntegrity, {"index geglu-mlp@1: ", row.word},
                 [&] { parse_index(changed(bytes, row), "index geglu-mlp@1"); });
  }
  for (const std::string text : {"7", "[]", "\"x\"", "null", "{}"}) {
    check_throws(ErrorCode::kIntegrity, {"index: "}, [&] { parse_index(text, "index"); });
  }
}

TEST_CASE("index: no variants, and a hundred thousand broken ones, end in an answer") {
  CHECK(parse_index(serialize_index(test::index_of({})), "index").variants.empty());
  std::string many = R"({"annotations":{"dev.kiln.abi":"1","dev.kiln.kernel":"x",)"
                     R"("dev.kiln.min-loader":"0.1.0","org.opencontainers.image.version":"1"},)"
                     R"("artifactType":"application/vnd.kiln.kernel.v1","mediaType":)"
                     R"("application/vnd.oci.image.index.v1+json","schemaVersion":2,"manifests":[)";
  for (int i = 0; i < 100000; ++i) many += "{},";
  many.back() = ']';
  many += '}';
  check_throws(ErrorCode::kIntegrity, {"manifests[0]"}, [&] { parse_index(many, "index"); });
}

TEST_CASE("manifest: whatever breaks the format is refused, with the path of it") {
  const Json dev = {{"annotations", {{"dev.kiln.layer", "dev"}}}};
  const Json other = {{"annotations", {{"dev.kiln.layer", "docs"}}}};
  const Json empty = {{"annotations", {{"dev.kiln.layer", "dev"}, {"dev.kiln.unpacked-size", "0"}}},
                      {"mediaType", "application/vnd.oci.image.layer.v1.tar+zstd"},
                      {"digest", Digest::of("").str()},
                      {"size", 0}};
  const Change rows[] = {
      {"/schemaVersion", 3, "schemaVersion"},
      {"/mediaType", "application/vnd.oci.image.index.v1+json", "mediaType"},
      {"/artifactType", "application/vnd.kiln.kernel.v1", "artifactType"},
      {"/config", kRemoved, "has no \"config\""},
      {"/config/mediaType", "application/vnd.oci.empty.v1+json", "config.mediaType"},
      {"/config/size", (4u << 20) + 1, "config.size"},
      {"/config/digest", kUpper, "config.digest"},
      {"/layers", kRemoved, "has no \"layers\""},
      {"/layers", Json::array(), "layers: found 0 layers"},
      {"/layers/1", Json::object(), "layers[1]: has no \"annotations\""},
      {"/layers/1", dev, "layers[1]: has no \"mediaType\""},
      {"/layers/1", other, "dev.kiln.layer: found \"docs\", expected dev"},
      {"/layers/1", empty, "layers[1].size: found 0 bytes"},
      {"/layers", Json::array({1, 2, 3}), "layers: found 3 layers"},
      {"/layers/0/mediaType", "application/vnd.oci.image.layer.v1.tar+gzip", "layers[0].mediaType"},
      {"/layers/0/size", -5, "layers[0].size"},
      {"/layers/0/digest", kRemoved, "layers[0]: has no \"digest\""},
      {"/layers/0/annotations", kRemoved, "layers[0]: has no \"annotations\""},
      {"/layers/0/annotations/dev.kiln.unpacked-size", kRemoved, "unpacked-size"},
      {"/layers/0/annotations/dev.kiln.unpacked-size", 123, "unpacked-size: found number"},
      {"/layers/0/annotations/dev.kiln.unpacked-size", "-1", "unpacked-size"},
      {"/layers/0/annotations/dev.kiln.unpacked-size", "1e3", "unpacked-size"},
      {"/layers/0/annotations/dev.kiln.unpacked-size", "1099511627777", "at most 1 TiB"},
      {"/layers/0/annotations/dev.kiln.unpacked-size", "99999999999999999999999", "unpacked-size"},
  };
  const std::string bytes = serialize_manifest(test::sample_manifest(), "x.tar.zst");
  for (const Change& row : rows) {
    CAPTURE(row.pointer);
    check_throws(ErrorCode::kIntegrity, {"manifest of x: ", row.word},
                 [&] { parse_manifest(changed(bytes, row), "manifest of x"); });
  }
}

TEST_CASE("config: whatever breaks the format is refused, with the path of it") {
  const Json twin = {{"path", "LICENSE"}, {"digest", Digest::of("x").str()}, {"size", 1}};
  const Json inside = {{"path", "LICENSE/x"}, {"digest", Digest::of("x").str()}, {"size", 1}};
  const std::string digest = Digest::of("x").str();
  const Change rows[] = {
      {"/schemaVersion", 2, "schemaVersion: found 2, expected 1"},
      {"/name", "Geglu", "name"},
      {"/name", kRemoved, "has no \"name\""},
      {"/version", 0, "version"},
      {"/version", "1", "version"},
      {"/version", 2147483648u, "version"},
      {"/version", 1.0, "version: found 1.0"},
      {"/variant", "a/b", "variant"},
      {"/min_loader", kRemoved, "min_loader"},
      {"/min_loader", "x", "min_loader"},
      {"/abi", 0, "abi"},
      {"/abi", -1, "abi"},
      {"/host", kRemoved, "has no \"host\""},
      {"/host/os", "windows", "host.os: found \"windows\", expected linux"},
      {"/host/arch", "ppc64le", "host.arch"},
      {"/host/arch", "aarch64", "CPU level"},
      {"/host/cpu", "core2", "host.cpu"},
      {"/host/glibc", 2.17, "host.glibc"},
      {"/cuda", 7, "cuda"},
      {"/cuda/toolkit", kRemoved, "cuda: has no \"toolkit\""},
      {"/cuda/min_driver", "x", "cuda.min_driver"},
      {"/cuda/sass", "sm_90a", "cuda.sass: found string"},
      {"/cuda/sass/0", "sm_90z", "cuda.sass[0]"},
      {"/cuda/sass", Json::array(), "no device code"},
      {"/cuda/ptx/0", "sm_90", "cuda.ptx[0]"},
      {"/needs", kRemoved, "has no \"needs\""},
      {"/needs/0", "../libx.so", "needs[0]"},
      {"/files", kRemoved, "has no \"files\""},
      {"/files", Json::array(), "entry.library"},
      {"/files/0/path", "../x", "files[0].path"},
      {"/files/0/path", "/etc/passwd", "files[0].path"},
      {"/files/0/path", "a/../../b", "files[0].path"},
      {"/files/0/path", "a/./b", "files[0].path"},
      {"/files/0/path", "a//b", "files[0].path"},
      {"/files/0/path", "a/", "files[0].path"},
      {"/files/0/path", "", "files[0].path"},
      {"/files/0/path", ".", "files[0].path"},
      {"/files/0/path", "C:\\x", "files[0].path"},
      {"/files/0/path", "a b", "files[0].path"},
      {"/files/0/path", std::string("a\0b", 3), "files[0].path: found \"a\\x00b\""},
      {"/files/0/path", std::string(256, 'a'), "files[0].path"},
      {"/files/0/path", 5, "files[0].path"},
      {"/files/0/digest", kUpper, "files[0].digest"},
      {"/files/0/size", -1, "files[0].size"},
      {"/files/0/size", (std::uint64_t{1} << 40) + 1, "more than 1 TiB"},
      {"/files/0/size", ~std::uint64_t{0}, "more than 1 TiB"},
      {"/files/2", twin, "names LICENSE twice"},
      {"/files/2", inside, "LICENSE as a file and as a folder"},
      {"/entry", kRemoved, "has no \"entry\""},
      {"/entry/library", "lib/other.so", "entry.library"},
      {"/entry/symbol", "", "entry.symbol"},
      {"/entry/symbol", "1x", "entry.symbol"},
      {"/entry/symbol", "a-b", "entry.symbol"},
      {"/build_id", "", "build_id"},
      {"/build_id", "a b", "build_id"},
      {"/build_id", kRemoved, "build_id"},
  };
  const std::string bytes = serialize_config(test::sample_config());
  for (const Change& row : rows) {
    CAPTURE(row.pointer);
    check_throws(ErrorCode::kIntegrity, {"config of x: ", row.word},
                 [&] { parse_config(changed(bytes, row), "config of x"); });
  }
}

TEST_CASE("manifest: no damage to the bytes leads to anything but a value or an Error") {
  const std::function<void(std::string_view)> read_index = [](std::string_view text) {
    const Index index = parse_index(text, "index");
    serialize_index(index);
    resolve(test::gpu_host("12.9", "9.0"), index, {}).explain();
  };
  const std::function<void(std::string_view)> read_manifest = [](std::string_view text) {
    parse_manifest(text, "manifest");
  };
  const std::function<void(std::string_view)> read_config = [](std::string_view text) {
    const Config config = parse_config(text, "config");
    serialize_config(config);
    const Index index = test::sample_index();
    check_agreement(index, index.variants.front(), config);
  };
  const struct {
    std::string bytes;
    const std::function<void(std::string_view)>& read;
  } documents[] = {
      {serialize_index(test::sample_index()), read_index},
      {serialize_manifest(test::sample_manifest(), "x.tar.zst"), read_manifest},
      {serialize_config(test::sample_config()), read_config},
  };
  std::mt19937 random(20261121);  // NOLINT: the same damage in every run
  for (const auto& [bytes, read] : documents) {
    std::size_t refused = 0;
    const auto attempt = [&refused, &read = read](std::string_view text) {
      try {
        read(text);
      } catch (const Error&) {
        ++refused;
      }
    };
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      attempt(std::string_view(bytes).substr(0, size));
    }
    CHECK(refused == bytes.size());  // no proper prefix is a document

    std::string damaged = bytes;
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      for (const int flip : {0x01, 0x20, 0x80, static_cast<int>(random() % 255) + 1}) {
        damaged[at] = static_cast<char>(bytes[at] ^ flip);
        attempt(damaged);
      }
      damaged[at] = bytes[at];
      attempt(bytes.substr(0, at) + bytes.substr(at + 1));
    }
    CHECK(refused > 2 * bytes.size());
  }
}

}  // namespace kiln
