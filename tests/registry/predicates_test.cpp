// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <map>

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

}  // namespace
}  // namespace kiln::registry
