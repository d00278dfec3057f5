// SPDX-License-Identifier: Apache-2.0
#include "documents/manifest.hpp"

#include <algorithm>
#include <string>

#include "documents/json.hpp"
#include "documents/names.hpp"
#include "samples.hpp"

namespace kiln {

using test::check_throws;
using test::fields;

TEST_CASE("manifest: what is written reads back as it was, and is written as the same bytes") {
  const Index index = test::sample_index();
  const std::string index_bytes = serialize_index(index);
  CHECK(fields(parse_index(index_bytes, "index")) == fields(index));
  CHECK(serialize_index(parse_index(index_bytes, "index")) == index_bytes);

  const VariantManifest manifest = test::sample_manifest();
  const std::string manifest_bytes = serialize_manifest(manifest, "x.tar.zst");
  const VariantManifest read = parse_manifest(manifest_bytes, "manifest");
  CHECK(read.config == manifest.config);
  CHECK(read.layer == manifest.layer);
  CHECK(read.unpacked_size == manifest.unpacked_size);

  for (Config config : {test::sample_config()}) {
    const std::string bytes = serialize_config(config);
    CHECK(fields(parse_config(bytes, "config")) == fields(config));
    config.needs = test::cpu_needs("armv8-a");
    config.needs.libraries = {"libm.so.6"};
    config.build.clear();
    CHECK(fields(parse_config(serialize_config(config), "config")) == fields(config));
  }
}

TEST_CASE("manifest: what an index says of the package reads back, and is left out where empty") {
  Index index = test::sample_index();
  CHECK(serialize_index(index).find("org.opencontainers.image.description") == std::string::npos);
  index.summary = "y = 2 x";
  index.license = "Apache-2.0";
  const Index read = parse_index(serialize_index(index), "index");
  CHECK(read.summary == "y = 2 x");
  CHECK(read.license == "Apache-2.0");
  index.summary = "a\x1b[2J";
  CHECK_THROWS_AS(parse_index(serialize_index(index), "index"), Error);
}

TEST_CASE("manifest: the order in which facts were collected does not change the bytes") {
  Index index = test::sample_index();
  const std::string bytes = serialize_index(index);
  for (Variant& variant : index.variants) {
    std::reverse(variant.needs.device_code.begin(), variant.needs.device_code.end());
    std::reverse(variant.needs.libraries.begin(), variant.needs.libraries.end());
  }
  CHECK(serialize_index(index) == bytes);
  Config config = test::sample_config();
  const std::string config_bytes = serialize_config(config);
  std::reverse(config.files.begin(), config.files.end());
  CHECK(serialize_config(config) == config_bytes);
}

TEST_CASE("manifest: an index carries documents of its variants") {
  Index index = test::sample_index();
  const std::string without = serialize_index(index);
  CHECK(without.find("dev.kiln.config") == std::string::npos);
  index.variants.at(1).carried = {R"({"a":"\u0001 \" \\"})", "{}"};
  const Index read = parse_index(serialize_index(index), "index");
  CHECK(read.variants.at(1).carried.manifest == R"({"a":"\u0001 \" \\"})");
  CHECK(read.variants.at(1).carried.config == "{}");
  CHECK(read.variants.at(0).carried.manifest.empty());
  CHECK(serialize_index(read) == serialize_index(index));

  const Index left = parse_index(serialize_index(index), "index", CarriedTexts::kLeft);
  CHECK(fields(left) == fields(index));
  CHECK(left.variants.at(1).carried.manifest.empty());
  CHECK(serialize_index(left) == without);
}

TEST_CASE("manifest: the bytes that releases before this one have written still mean the same") {
  // Written by hand after the format's description, not by serialize_index.
  const std::string hex(64, '1');
  const std::string bytes =
      R"({"annotations":{"dev.kiln.abi":"1","dev.kiln.kernel":"rms-norm","dev.kiln.min-loader":)"
      R"("0.1.0","org.opencontainers.image.version":"12"},"artifactType":)"
      R"("application/vnd.kiln.kernel.v1","manifests":[{"annotations":{"dev.kiln.abi":"1",)"
      R"("dev.kiln.cuda.min-driver":"12.0","dev.kiln.cuda.ptx":"compute_80","dev.kiln.cuda.sass":)"
      R"("sm_80,sm_90a","dev.kiln.cuda.toolkit":"12.9","dev.kiln.host.arch":"x86_64",)"
      R"("dev.kiln.host.cpu":"x86-64","dev.kiln.host.glibc":"2.17","dev.kiln.min-loader":"0.1.0",)"
      R"("dev.kiln.needs":"libcublasLt.so.12","dev.kiln.tested":"untested","dev.kiln.variant":)"
      R"("cu12.9-sm_90a-x86_64"},"digest":"sha256:)" +
      hex +
      R"(","mediaType":"application/vnd.oci.image.manifest.v1+json","platform":{"architecture":)"
      R"("amd64","os":"linux"},"size":936}],"mediaType":"application/vnd.oci.image.index.v1+json",)"
      R"("schemaVersion":2})";
  const Index index = parse_index(bytes, "index");
  CHECK(index.name == "rms-norm");
  CHECK(index.version == 12);
  REQUIRE(index.variants.size() == 1);
  const Variant& variant = index.variants.front();
  CHECK(variant.manifest == Descriptor{"application/vnd.oci.image.manifest.v1+json",
                                       Digest::parse("sha256:" + hex), 936});
  CHECK(fields(variant.needs) ==
        "x86_64 x86-64 2.17 12.9 12.0 sm_80 sm_90a compute_80 libcublasLt.so.12");
  CHECK(serialize_index(index) == bytes);
}

TEST_CASE("manifest: descriptors in an index carry a platform and no artifactType") {
  const Json json = parse_json(serialize_index(test::sample_index()), "index");
  CHECK(json.at("artifactType") == "application/vnd.kiln.kernel.v1");
  for (const Json& descriptor : json.at("manifests")) CHECK(!descriptor.contains("artifactType"));
  CHECK(json["manifests"][0]["platform"] == Json{{"os", "linux"}, {"architecture", "amd64"}});
  CHECK(json["manifests"][2]["platform"] == Json{{"os", "linux"}, {"architecture", "arm64"}});
  const Json manifest = parse_json(serialize_manifest(test::sample_manifest(), "x.tar.zst"), "m");
  CHECK(manifest.at("artifactType") == "application/vnd.kiln.variant.v1");
  CHECK(manifest["layers"][0]["annotations"]["org.opencontainers.image.title"] == "x.tar.zst");
}

TEST_CASE("manifest: a dev layer and its files read back, and the other layer is as without it") {
  VariantManifest manifest = test::sample_manifest();
  const Json without = parse_json(serialize_manifest(manifest, "x.tar.zst"), "m");
  manifest.dev = {std::string(kMediaTypeLayer), Digest::of("dev"), 3};
  manifest.dev_unpacked_size = 70;
  const std::string bytes = serialize_manifest(manifest, "x.tar.zst");
  const Json with = parse_json(bytes, "m");
  CHECK(with["layers"][0] == without["layers"][0]);
  CHECK(with["layers"][1]["annotations"]["org.opencontainers.image.title"] == "dev-x.tar.zst");
  const VariantManifest read = parse_manifest(bytes, "m");
  CHECK(read.has_dev());
  CHECK(read.dev == manifest.dev);
  CHECK(read.dev_unpacked_size == 70);
  CHECK_FALSE(parse_manifest(without.dump(), "m").has_dev());

  Config config = test::sample_config();
  config.dev_files = {{"include/kiln/layers/x.hpp", Digest::of("a"), 1},
                      {"CARD.md", Digest::of("b"), 1}};
  const Config again = parse_config(serialize_config(config), "c");
  REQUIRE(again.dev_part().files.size() == 2);
  CHECK(again.dev_part().files[0].path == "CARD.md");
  CHECK(again.files.size() == config.files.size());
  CHECK(parse_config(serialize_config(test::sample_config()), "c").dev_files.empty());
}

TEST_CASE("manifest: one descriptor reads back from its annotations") {
  for (const Variant& variant : test::sample_index().variants) {
    Json descriptor = to_json(variant.manifest);
    descriptor["annotations"] = variant_annotations(variant);
    CHECK(fields(parse_variant(JsonView(descriptor, "descriptor"))) == fields(variant));
  }
}

TEST_CASE("manifest: unknown fields pass in all three documents") {
  const auto grown = [](const std::string& bytes) {
    Json json = parse_json(bytes, "document");
    json["newField"] = {{"deep", Json::array({1, nullptr, "x"})}};
    json["annotations"]["org.example.new"] = "word";
    return json;
  };
  Json index = grown(serialize_index(test::sample_index()));
  for (Json& descriptor : index["manifests"]) {
    descriptor["urls"] = Json::array({"https://elsewhere.example/x"});
    descriptor["annotations"]["dev.kiln.future"] = "1";
  }
  CHECK(fields(parse_index(index.dump(), "index")) == fields(test::sample_index()));
  Json manifest = grown(serialize_manifest(test::sample_manifest(), "x"));
  manifest["layers"][0]["data"] = "AAAA";
  CHECK(parse_manifest(manifest.dump(), "manifest").layer == test::sample_manifest().layer);
  Json config = grown(serialize_config(test::sample_config()));
  config["files"][0]["mode"] = 420;
  CHECK(fields(parse_config(config.dump(), "config")) == fields(test::sample_config()));
}

TEST_CASE("manifest: a document for a newer kiln says so, whatever else has changed in it") {
  const std::string upgrade = "needs kiln >= 7.0.0, this is kiln " KILN_VERSION "; upgrade kiln";
  const struct {
    std::string text;
    std::string word;
  } rows[] = {
      {R"({"annotations":{"dev.kiln.min-loader":"7.0.0"}})", upgrade},
      {R"({"annotations":{"dev.kiln.min-loader":"7.0.0"},"manifests":{"future":true}})", upgrade},
      {R"({"annotations":{"dev.kiln.min-loader":"7.0.0","dev.kiln.abi":[1]},"mediaType":7})",
       upgrade},
      {R"({"annotations":{"dev.kiln.min-loader":"7.0.0","dev.kiln.kernel":null},"schemaVersion":"9"})",
       upgrade},
      {R"({"annotations":{"dev.kiln.min-loader":"7.0.0-rc.1"}})", "this is kiln"},
      {R"({"annotations":{"dev.kiln.min-loader":"7"}})", "needs kiln >= 7"},
      {R"({"annotations":{"dev.kiln.min-loader":"0.1.1"}})", "needs kiln >= 0.1.1"},
      {R"({"annotations":{"dev.kiln.min-loader":"0.2"}})", "needs kiln >= 0.2"},
      {R"({"annotations":{"dev.kiln.min-loader":"0.1.0","dev.kiln.abi":"2"}})", "package ABI 2"},
      {R"({"annotations":{"dev.kiln.min-loader":5,"dev.kiln.abi":2}})", "package ABI 2"},
  };
  for (const auto& row : rows) {
    check_throws(ErrorCode::kUpgrade, {"index x@1: ", row.word, "upgrade kiln"},
                 [&] { parse_index(row.text, "index x@1"); });
    check_throws(ErrorCode::kUpgrade, {row.word}, [&] { parse_manifest(row.text, "manifest"); });
  }
  for (const std::string text :
       {R"({"min_loader":"7.0.0"})", R"({"min_loader":"7.0.0","abi":"x","files":7})",
        R"({"abi":2})", R"({"abi":99999999999999999999,"min_loader":"7.0.0"})"}) {
    check_throws(ErrorCode::kUpgrade, {"config x: ", "upgrade kiln"},
                 [&] { parse_config(text, "config x"); });
  }
}

TEST_CASE(
    "manifest: one variant for a newer kiln stays in the index, unread, and is written back") {
  const auto with = [](const Json& descriptor) {
    Json json = parse_json(serialize_index(test::sample_index()), "index");
    json["manifests"].push_back(descriptor);
    return dump_json(json);
  };
  const std::string digest = Digest::of("future").str();
  const Json futures[] = {
      {{"mediaType", "application/vnd.oci.image.index.v1+json"},
       {"digest", digest},
       {"size", 99},
       {"annotations", {{"dev.kiln.variant", "rocm7-gfx950"}, {"dev.kiln.min-loader", "2.0.0"}}}},
      {{"mediaType", 7},
       {"digest", {{"blake3", "x"}}},
       {"annotations", {{"dev.kiln.variant", "rocm7-gfx950"}, {"dev.kiln.min-loader", "2.0.0"}}}},
      {{"annotations",
        {{"dev.kiln.variant", "rocm7-gfx950"},
         {"dev.kiln.abi", "2"},
         {"dev.kiln.min-loader", "0.1.0"},
         {"dev.kiln.host.arch", "riscv64"}}}},
  };
  for (const Json& future : futures) {
    const std::string bytes = with(future);
    const Index index = parse_index(bytes, "index");
    REQUIRE(index.variants.size() == 4);
    CHECK(index.variants[3].id == "rocm7-gfx950");
    CHECK(serialize_index(index) == bytes);
  }
  CHECK(parse_index(with(futures[0]), "index").variants[3].manifest.digest.str() == digest);
  CHECK(parse_index(with(futures[0]), "index").variants[3].requires_.min_loader == "2.0.0");
  CHECK(parse_index(with(futures[2]), "index").variants[3].requires_.abi == 2);

  const Json nameless = {{"annotations", {{"dev.kiln.min-loader", "2.0.0"}}}};
  CHECK(parse_index(with(nameless), "index").variants.size() == 3);
  check_throws(ErrorCode::kIntegrity, {"manifests[3]", "second variant"}, [&] {
    Json twin = futures[0];
    twin["annotations"]["dev.kiln.variant"] = "cpu-armv8-a";
    parse_index(with(twin), "index");
  });
}

TEST_CASE("manifest: a config that says other than the index is refused, fact by fact") {
  const Index index = test::sample_index();
  const Variant& variant = index.variants.front();
  check_agreement(index, variant, test::sample_config());

  using Change = void (*)(Config&);
  const struct {
    std::string word;
    Change change;
  } rows[] = {
      {"name is \"other\"", [](Config& c) { c.name = "other"; }},
      {"version is \"2\", the index says \"1\"", [](Config& c) { c.version = 2; }},
      {"dev.kiln.variant", [](Config& c) { c.variant = "cu12.9-sm_90-x86_64"; }},
      {"dev.kiln.min-loader", [](Config& c) { c.requires_.min_loader = "0.0.9"; }},
      {"dev.kiln.abi", [](Config& c) { c.requires_.abi = 2; }},
      {"dev.kiln.host.arch",
       [](Config& c) {
         c.needs.cpu = {Arch::kAarch64, 1};
       }},
      {"dev.kiln.host.cpu", [](Config& c) { c.needs.cpu.level = 3; }},
      {"dev.kiln.host.glibc",
       [](Config& c) {
         c.needs.glibc = {2, 36};
       }},
      {"dev.kiln.cuda.toolkit",
       [](Config& c) {
         c.needs.toolkit = Version{13, 0};
       }},
      {"dev.kiln.cuda.toolkit is \"\"", [](Config& c) { c.needs.toolkit.reset(); }},
      {"dev.kiln.cuda.min-driver",
       [](Config& c) {
         c.needs.min_driver = Version{12, 8};
       }},
      {"dev.kiln.cuda.sass", [](Config& c) { c.needs.device_code.front().suffix = 0; }},
      {"dev.kiln.cuda.ptx",
       [](Config& c) {
         c.needs.device_code.push_back({DeviceCode::Kind::kPtx, {9, 0}, 0});
       }},
      {"dev.kiln.needs", [](Config& c) { c.needs.libraries = {"libx.so.1"}; }},
  };
  for (const auto& row : rows) {
    Config config = test::sample_config();
    row.change(config);
    check_throws(
        ErrorCode::kIntegrity,
        {"config of geglu-mlp@1 cu12.9-sm_90a-x86_64: ", row.word, "nothing was installed"},
        [&] { check_agreement(index, variant, config); });
  }
}

TEST_CASE("manifest: package names are path components") {
  for (const std::string& name : {std::string("geglu-mlp"), std::string("a"), std::string("3d"),
                                  std::string("a-b-c9"), std::string(64, 'a')}) {
    CHECK_MESSAGE(is_package_name(name), name);
  }
  for (const std::string& name :
       {std::string(), std::string("-a"), std::string("a-"), std::string("a--b"), std::string("A"),
        std::string("a_b"), std::string("a.b"), std::string("a/b"), std::string(".."),
        std::string("a b"), std::string("a\n"), std::string("a\0b", 3), std::string("\xc3\xa9"),
        std::string(65, 'a')}) {
    CHECK_MESSAGE(!is_package_name(name), name);
  }
}

}  // namespace kiln
