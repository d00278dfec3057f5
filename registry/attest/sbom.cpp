// SPDX-License-Identifier: Apache-2.0
#include "registry/attest/sbom.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "oci/layer_reader.hpp"
#include "trust/metadata.hpp"

namespace kiln::registry {
namespace {

constexpr const char* kNoAssertion = "NOASSERTION";
constexpr const char* kCutlass = "nvidia-cutlass";
constexpr const char* kCudaLicense = "LicenseRef-NVIDIA-CUDA-EULA";

std::string spdx_id(const std::string& kind, const std::string& name) {
  std::string id = "SPDXRef-" + kind + "-";
  for (const char c : name) id += is_word({&c, 1}, ".-") && c != '_' ? c : '-';
  return id;
}

Json relation(const std::string& from, const char* type, const std::string& to) {
  return {{"spdxElementId", from}, {"relationshipType", type}, {"relatedSpdxElement", to}};
}

Json checksum(const char* algorithm, const std::string& value) {
  return {{"algorithm", algorithm}, {"checksumValue", value}};
}

/// SPDX 2.3 wants it of every file, next to better digests.
class Sha1 {
 public:
  Sha1() { EVP_DigestInit_ex(context_.get(), EVP_sha1(), nullptr); }
  void update(std::string_view bytes) {
    EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
  }
  std::string finish() {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_.get(), bytes, &size);
    return hex_of({reinterpret_cast<const char*>(bytes), size});
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free};
};

std::string organization(const std::string& name) {
  return name.empty() ? kNoAssertion : "Organization: " + name;
}

struct Part {
  std::string id;
  std::string name;
  std::string version;
  std::string license;
  std::string supplier;
  std::string purl;
};

Json spdx_package(const Part& part) {
  return {{"SPDXID", part.id},
          {"name", part.name},
          {"versionInfo", part.version},
          {"supplier", part.supplier},
          {"downloadLocation", kNoAssertion},
          {"filesAnalyzed", false},
          {"licenseConcluded", part.license},
          {"licenseDeclared", part.license},
          {"copyrightText", kNoAssertion},
          {"externalRefs", Json::array({{{"referenceCategory", "PACKAGE-MANAGER"},
                                         {"referenceType", "purl"},
                                         {"referenceLocator", part.purl}}})}};
}

/// Of a package of Kiln's: the document in a registry that has this digest.
std::string purl_of(const std::string& package, const Digest& digest) {
  return "pkg:oci/" + package + "@sha256%3A" + digest.hex();
}

bool is_of_cuda(const std::string& pin) {
  return pin.starts_with("nvidia-cuda-");
}

std::string supplier_of(const std::string& pin) {
  if (is_of_cuda(pin) || pin == kCutlass) return organization("NVIDIA Corporation");
  return pin == "ziglang" ? organization("Zig Software Foundation") : kNoAssertion;
}

std::string license_of(const std::string& pin) {
  if (is_of_cuda(pin)) return kCudaLicense;
  if (pin == kCutlass) return "BSD-3-Clause";
  return pin == "ziglang" || pin == "triton" ? "MIT" : kNoAssertion;
}

/// Whether it is the wheel of Triton for a version of Python, "triton-3.11".
bool is_triton(const std::string& compiler) {
  return compiler.starts_with("triton-");
}

/// The wheel of a compiler, or of headers, by the names that their makers give them.
std::string pin_of(const std::string& compiler, const Config& config) {
  if (is_triton(compiler)) return "triton";
  if (compiler == "zig") return "ziglang";
  if (compiler == "cccl") return "nvidia-cuda-cccl";
  if (compiler == "cutlass") return kCutlass;
  if (compiler != "nvrtc") return compiler;
  const int major = config.needs.toolkit ? config.needs.toolkit->major : 0;
  constexpr int kFirstWithoutSuffix = 13;
  return major < kFirstWithoutSuffix ? "nvidia-cuda-nvrtc-cu" + std::to_string(major)
                                     : "nvidia-cuda-nvrtc";
}

/// A name that nobody else has, of these bytes: a version 8 UUID (RFC 9562).
std::string urn_of(std::string_view bytes) {
  std::string hex = Digest::of(bytes).hex().substr(0, 32);
  hex[12] = '8';
  hex[16] = "89ab"[static_cast<unsigned char>(hex[16]) % 4];
  for (const std::size_t at : {20U, 16U, 12U, 8U}) hex.insert(at, "-");
  return "urn:uuid:" + hex;
}

class Sbom {
 public:
  Sbom(const WholeVersion& version, const SbomFacts& facts) : version_(version), facts_(facts) {
    const std::string package = label(version.index.name, version.index.version);
    Json creators = Json::array({"Tool: kiln-" KILN_VERSION});
    if (!facts.supplier.empty()) creators.push_back(organization(facts.supplier));
    document_ = {
        {"spdxVersion", "SPDX-2.3"},
        {"dataLicense", "CC0-1.0"},
        {"SPDXID", "SPDXRef-DOCUMENT"},
        {"name", package},
        {"creationInfo", {{"created", trust::to_text(facts.created)}, {"creators", creators}}},
        {"packages", Json::array()},
        {"files", Json::array()},
        {"relationships", Json::array()}};
  }

  Json make() {
    for (const BuiltVariant& variant : version_.variants) add(variant);
    const Index& index = version_.index;
    Json package = spdx_package({kPackage, index.name, std::to_string(index.version), license_,
                                 organization(facts_.supplier),
                                 purl_of(index.name, version_.descriptor.digest)});
    package["checksums"] = Json::array({checksum("SHA256", version_.descriptor.digest.hex())});
    document_["packages"].push_back(std::move(package));
    document_["relationships"].push_back(relation("SPDXRef-DOCUMENT", "DESCRIBES", kPackage));
    if (has_cuda_) {
      document_["hasExtractedLicensingInfos"] =
          Json::array({{{"licenseId", kCudaLicense},
                        {"name", "NVIDIA CUDA Toolkit End User License Agreement"},
                        {"extractedText", "See https://docs.nvidia.com/cuda/eula/index.html"}}});
    }
    Json timeless = document_;
    timeless.erase("creationInfo");
    document_["documentNamespace"] = urn_of(dump_json(timeless));
    return std::move(document_);
  }

 private:
  static constexpr const char* kPackage = "SPDXRef-Package";

  void add(const BuiltVariant& built) {
    const Config& config = built.config;
    const std::string id = spdx_id("Variant", config.variant);
    const std::string license =
        add_layer(id, config.name + " " + config.variant, config.variant, kNoAssertion,
                  {built.layer, config, built.documents.layer, built.documents.unpacked_size,
                   purl_of(config.name, built.variant.manifest.digest)});
    if (license_ == kNoAssertion) license_ = license;
    document_["relationships"].push_back(relation(kPackage, "CONTAINS", id));
    if (built.documents.has_dev()) add_dev(id, license, built);
    for (const auto& [compiler, version] : compilers_of(config)) {
      add_runtime(id, compiler, version, config);
      add_tools(id, compiler, config);
    }
  }

  /// Of several variants that have the same one: once.
  void add_dev(const std::string& variant, const std::string& license, const BuiltVariant& built) {
    const Descriptor& layer = built.documents.dev;
    const std::string name = "dev-" + layer.digest.hex().substr(0, 16);
    const std::string id = spdx_id("Layer", name);
    document_["relationships"].push_back(relation(variant, "CONTAINS", id));
    if (!parts_.insert(id).second) return;
    add_layer(id, built.config.name + " dev layer", name, license,
              {built.dev, built.config.dev_part(), layer, built.documents.dev_unpacked_size,
               purl_of(built.config.name, layer.digest)});
  }

  struct Layer {
    std::filesystem::path path;
    Config config;  ///< that lists its files
    Descriptor descriptor;
    std::uint64_t unpacked_size;
    std::string purl;
  };

  /// An archive and its files; `license` where it has no package.json that gives one. Returns what
  /// that gives.
  std::string add_layer(const std::string& id, const std::string& title, const std::string& name,
                        std::string license, const Layer& layer) {
    const Config& config = layer.config;
    std::vector<std::string> sha1s;
    std::string schema;
    read_layer(layer.path, config, layer.unpacked_size,
               {"attest", label(config.name, config.version) + " " + name,
                "nothing was signed. Publish it again"},
               [&](const ArchiveFile& file, const LayerContent& content) {
                 Sha1 sha1;
                 content([&](std::string_view piece) {
                   sha1.update(piece);
                   if (file.path == "package.json") schema += piece;
                 });
                 sha1s.push_back(sha1.finish());
                 add_file(id, name, file, config.library, sha1s.back());
               });
    if (!schema.empty()) license = license_in(schema);
    Json package = spdx_package({id, title, std::to_string(config.version), license,
                                 organization(facts_.supplier), layer.purl});
    package["filesAnalyzed"] = true;
    package["packageFileName"] = name + ".tar.zst";
    package["checksums"] = Json::array({checksum("SHA256", layer.descriptor.digest.hex())});
    std::ranges::sort(sha1s);
    Sha1 all;
    for (const std::string& each : sha1s) all.update(each);
    package["packageVerificationCode"] = {{"packageVerificationCodeValue", all.finish()}};
    package["licenseInfoFromFiles"] = Json::array({kNoAssertion});
    document_["packages"].push_back(std::move(package));
    return license;
  }

  void add_file(const std::string& package, const std::string& layer, const ArchiveFile& file,
                const std::string& library, const std::string& sha1) {
    const std::string base = spdx_id("File", layer + "-" + file.path);
    std::string id = base;
    // Two paths may differ in what an id cannot have.
    for (int n = 2; !parts_.insert(id).second; ++n) id = base + "-" + std::to_string(n);
    const bool is_library = file.path == library || file.path.ends_with(".so");
    document_["files"].push_back(
        {{"SPDXID", id},
         {"fileName", "./" + file.path},
         {"fileTypes", Json::array({is_library ? "BINARY" : "TEXT"})},
         {"checksums",
          Json::array({checksum("SHA1", sha1), checksum("SHA256", file.digest.hex())})},
         {"licenseConcluded", kNoAssertion},
         {"licenseInfoInFiles", Json::array({kNoAssertion})},
         {"copyrightText", kNoAssertion}});
    document_["relationships"].push_back(relation(package, "CONTAINS", id));
  }

  /// What a compiler puts of its own into what it makes.
  void add_runtime(const std::string& variant, const std::string& compiler,
                   const std::string& version, const Config& config) {
    const std::string pin = pin_of(compiler, config);
    const std::string what = compiler == "nvrtc"   ? "CUDA device library of NVRTC"
                             : compiler == "zig"   ? "zig compiler-rt"
                             : is_triton(compiler) ? "CUDA device library of Triton"
                                                   : compiler + " headers";
    const std::string id = spdx_id("Runtime", compiler + "-" + version);
    if (parts_.insert(id).second) {
      Json package = spdx_package({id, what, version, license_of(pin), supplier_of(pin),
                                   registry::purl_of(Pin{"", pin, version, {}})});
      package["comment"] =
          "What the compiler puts of its own into its output, where that needs it.";
      document_["packages"].push_back(std::move(package));
    }
    has_cuda_ = has_cuda_ || is_of_cuda(pin);
    document_["relationships"].push_back(relation(variant, "STATIC_LINK", id));
  }

  /// What it was made with, of what is pinned for its compiler.
  void add_tools(const std::string& variant, const std::string& compiler, const Config& config) {
    const std::string component = component_of(compiler, config);
    for (const Pin& pin : facts_.pins) {
      if (pin.component != component) continue;
      const std::string id = spdx_id("Tool", pin.name + "-" + pin.version);
      if (parts_.insert(id).second) {
        Json package = spdx_package({id, pin.name, pin.version, license_of(pin.name),
                                     supplier_of(pin.name), registry::purl_of(pin)});
        package["checksums"] = Json::array({checksum("SHA256", pin.digest.hex())});
        document_["packages"].push_back(std::move(package));
      }
      has_cuda_ = has_cuda_ || is_of_cuda(pin.name);
      document_["relationships"].push_back(relation(id, "BUILD_TOOL_OF", variant));
    }
  }

  static std::string license_in(const std::string& schema) {
    const Json json = parse_json(schema, "package.json");
    return JsonView(json, "package.json").string_or("license", kNoAssertion);
  }

  const WholeVersion& version_;
  const SbomFacts& facts_;
  Json document_;
  std::string license_ = kNoAssertion;
  std::set<std::string> parts_;
  bool has_cuda_ = false;
};

}  // namespace

Json sbom(const WholeVersion& version, const SbomFacts& facts) {
  return Sbom(version, facts).make();
}

}  // namespace kiln::registry
