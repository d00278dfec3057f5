// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "built_fixture.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "registry/attest/predicates.hpp"
#include "registry/attest/sbom.hpp"
#include "registry/folder/build_output.hpp"

namespace kiln::registry {
namespace {

const std::string kHex(64, 'a');

WholeVersion version_of(const std::string& build, const std::string& toolkit) {
  BuiltVariant built;
  built.config.name = "tiny-op";
  built.config.version = 1;
  built.config.variant = "the-variant";
  built.config.build = build;
  if (!toolkit.empty()) built.config.needs.toolkit = Version{12, 9};
  built.library = Digest::of("library");
  built.variant.manifest.digest = Digest::of("manifest");
  return {{"tiny-op", 1, {}, {}}, {"", Digest::of("index"), 9}, {built}};
}

Origin origin_with(const std::string& pins) {
  return {"https://git.example/x", std::string(40, '0'), "https://ci.example/", "",
          parse_pins(pins, "toolchains.lock")};
}

TEST_CASE("a lock of compilers is sections of pins, and nothing else") {
  const std::vector<Pin> pins =
      parse_pins("# why\n\n[zig]\nziglang==0.15.2 --hash=sha256:" + kHex + "  # 9 bytes\n", "lock");
  REQUIRE(pins.size() == 1);
  CHECK(pins[0].component == "zig");
  CHECK(pins[0].name == "ziglang");
  CHECK(pins[0].version == "0.15.2");
  CHECK(pins[0].digest.hex() == kHex);
  const std::vector<std::string> broken = {"ziglang==0.15.2", "ziglang>=1 --hash=sha256:" + kHex,
                                           "[zig", "z==1 --hash=sha256:" + kHex.substr(1),
                                           "z==1 --hash=sha256:" + kHex + " more"};
  for (const std::string& wrong : broken) {
    CHECK_THROWS_AS(parse_pins(wrong, "lock"), Error);
  }
}

TEST_CASE("provenance names the compilers of each variant, as they are pinned") {
  const std::string pins = "[zig]\nziglang==0.15.2 --hash=sha256:" + kHex +
                           "\n[cuda-12.9]\nnvrtc-cu12==12.9.86 --hash=sha256:" + kHex +
                           "\nruntime-cu12==12.9.79 --hash=sha256:" + kHex +
                           "\n[cuda-13.0]\nnvrtc==13.0.88 --hash=sha256:" + kHex + "\n";
  const auto uris = [&](const std::string& build, const std::string& toolkit) {
    std::vector<std::string> found;
    const Json said = provenance(version_of(build, toolkit), origin_with(pins));
    for (const Json& each : said["buildDefinition"]["resolvedDependencies"]) {
      found.push_back(each["uri"]);
    }
    return found;
  };
  const std::string git = "git+https://git.example/x@" + std::string(40, '0');
  CHECK(uris(R"({"source":"sha256:0","zig":"0.15.2"})", "") ==
        std::vector<std::string>{git, "pkg:pypi/ziglang@0.15.2"});
  CHECK(uris(R"({"nvrtc":"12.9.86","zig":"0.15.2"})", "12.9") ==
        std::vector<std::string>{git, "pkg:pypi/nvrtc-cu12@12.9.86",
                                 "pkg:pypi/runtime-cu12@12.9.79", "pkg:pypi/ziglang@0.15.2"});
  CHECK(uris("", "") == std::vector<std::string>{git});
  for (const auto& [build, toolkit] :
       std::vector<std::pair<std::string, std::string>>{{R"({"zig":"0.15.3"})", ""},
                                                        {R"({"nvrtc":"12.9.87"})", "12.9"},
                                                        {R"({"gcc":"1"})", ""}}) {
    try {
      provenance(version_of(build, toolkit), origin_with(pins));
      FAIL("a compiler that nothing pins");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kIntegrity);
      CHECK(std::string(error.what()).find("no line of [") != std::string::npos);
    }
  }
}

TEST_CASE("an SBOM names every part of the toolchain, its supplier and its purl") {
  const test::TemporaryFolder folder;
  const test::Built variant = test::cuda("12.9", "sm_90a");
  const auto made_with = [](Config& config) {
    config.build =
        R"({"cutlass":"4.2.0.0","nvrtc":"12.9.86","triton-3.11":"3.9.0","zig":"0.15.2"})";
  };
  const auto built =
      read_build_output(test::write_built(folder / "built", variant, {made_with, {}, {}, {}}));
  const std::vector<Pin> pins =
      parse_pins("[zig]\nziglang==0.15.2 --hash=sha256:" + kHex +
                     "\n[cutlass]\nnvidia-cutlass==4.2.0.0 --hash=sha256:" + kHex +
                     "\n[triton-3.11]  # on request\ntriton==3.9.0 --hash=sha256:" + kHex +
                     "\n[cuda-12.9]\nnvidia-cuda-nvrtc-cu12==12.9.86 --hash=sha256:" + kHex +
                     "\nnvidia-cuda-runtime-cu12==12.9.79 --hash=sha256:" + kHex +
                     "\n[cuda-13.0]\nnvidia-cuda-nvrtc==13.0.88 --hash=sha256:" + kHex + "\n",
                 "toolchains.lock");
  const WholeVersion version{{"tiny-op", 1, {}, {}}, {"", Digest::of("index"), 9}, built};
  const Json document = sbom(version, {1'800'000'000, "Acme", pins});
  std::map<std::string, std::string> suppliers;
  for (const Json& each : document["packages"]) {
    suppliers[each["externalRefs"][0]["referenceLocator"]] = each["supplier"];
    CHECK(each["versionInfo"] != "");
    if (each["name"] == "cutlass headers") CHECK(each["licenseDeclared"] == "BSD-3-Clause");
    if (each["name"] == "triton") CHECK(each["licenseDeclared"] == "MIT");
    CHECK(each["name"] != "triton-3.11 headers");
  }
  const std::string oci = "pkg:oci/tiny-op@sha256%3A";
  CHECK(suppliers ==
        std::map<std::string, std::string>{
            {oci + Digest::of("index").hex(), "Organization: Acme"},
            {oci + built[0].variant.manifest.digest.hex(), "Organization: Acme"},
            {"pkg:pypi/nvidia-cutlass@4.2.0.0", "Organization: NVIDIA Corporation"},
            {"pkg:pypi/triton@3.9.0", "NOASSERTION"},
            {"pkg:pypi/ziglang@0.15.2", "Organization: Zig Software Foundation"},
            {"pkg:pypi/nvidia-cuda-nvrtc-cu12@12.9.86", "Organization: NVIDIA Corporation"},
            {"pkg:pypi/nvidia-cuda-runtime-cu12@12.9.79", "Organization: NVIDIA Corporation"}});
  const Json later = sbom(version, {1'900'000'000, "Acme", pins});
  CHECK(later["documentNamespace"] == document["documentNamespace"]);
  CHECK(std::string(document["documentNamespace"]).starts_with("urn:uuid:"));
}

TEST_CASE("an SBOM names every file of every layer, a dev layer that variants share once") {
  const test::TemporaryFolder folder;
  const auto built_with = [&](const std::string& name, const std::string& header) {
    for (test::Built each : {test::cpu("x86-64-v3"), test::cuda("12.9", "sm_90a")}) {
      each.header = header;
      test::Tamper more;  // paths that differ in what an id cannot have
      more.config = [](Config& config) {
        for (const char* path : {"python/a-b.py", "python/a_b.py"}) {
          config.dev_files.push_back({path, Digest::of(""), 0});
        }
      };
      more.dev = [&](std::string& dev) {
        dev = test::make_layer(
            {{"include/x.hpp", header}, {"python/a-b.py", ""}, {"python/a_b.py", ""}});
      };
      test::write_built(folder / name, each, more);
    }
    return read_build_output(folder / name);
  };
  std::vector<BuiltVariant> built = built_with("built", "// a header\n");
  // A variant that joined the version later may have another one.
  built.push_back(built_with("later", "// another header\n").front());
  built.back().config.variant = "later";
  const WholeVersion version{{"tiny-op", 1, {}, {}}, {"", Digest::of("index"), 9}, built};
  const Json document = sbom(version, {1'800'000'000, "Acme", {}});

  std::map<std::string, std::string> files;  // SHA-256 by id
  for (const Json& each : document["files"]) {
    CHECK(files.emplace(each["SPDXID"], each["checksums"][1]["checksumValue"]).second);
  }
  std::map<std::string, std::vector<std::string>> contains;
  for (const Json& each : document["relationships"]) {
    if (each["relationshipType"] != "CONTAINS") continue;
    contains[each["spdxElementId"]].push_back(each["relatedSpdxElement"]);
  }
  std::map<std::string, int> archives;  // by the digest of their bytes
  for (const Json& each : document["packages"]) {
    if (!each["filesAnalyzed"]) continue;
    const std::string id = each["SPDXID"];
    ++archives[each["checksums"][0]["checksumValue"]];
    CHECK(std::string(each["packageVerificationCode"]["packageVerificationCodeValue"]).size() ==
          40);
    CHECK(contains.contains(id));
  }
  std::size_t listed = 0;
  std::set<Digest> shared;
  for (const BuiltVariant& each : built) {
    CHECK(archives[each.documents.layer.digest.hex()] > 0);
    CHECK(archives[each.documents.dev.digest.hex()] == 1);
    listed += each.config.files.size();
    if (shared.insert(each.documents.dev.digest).second) listed += each.config.dev_files.size();
    // Every file of both layers is below the variant.
    std::multiset<std::string> below;
    std::vector<std::string> next = {"SPDXRef-Variant-" + each.config.variant};
    std::ranges::replace(next.front(), '_', '-');  // which an id cannot have
    while (!next.empty()) {
      const std::string at = next.back();
      next.pop_back();
      for (const std::string& id : contains[at]) next.push_back(id);
      if (files.contains(at)) below.insert(files[at]);
    }
    std::multiset<std::string> expected;
    for (const auto& list : {each.config.files, each.config.dev_files}) {
      for (const ArchiveFile& file : list) expected.insert(file.digest.hex());
    }
    CAPTURE(each.config.variant);
    CHECK(below == expected);
  }
  CHECK(shared.size() == 2);
  CHECK(files.size() == listed);
}

}  // namespace
}  // namespace kiln::registry
