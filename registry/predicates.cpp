// SPDX-License-Identifier: Apache-2.0
#include "predicates.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "documents/descriptor.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/layer_reader.hpp"
#include "records.hpp"
#include "trust/metadata.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBuildType = "https://kiln.dev/build/v1";
constexpr const char* kNoAssertion = "NOASSERTION";
constexpr const char* kCudaLicense = "LicenseRef-NVIDIA-CUDA-EULA";

// ---- compilers ----

/// What the builder wrote of a variant's compilers into its config: {"zig": "0.15.2", …}.
std::map<std::string, std::string> compilers_of(const Config& config) {
  std::map<std::string, std::string> compilers;
  if (config.build.empty()) return compilers;
  const Json json = parse_json(config.build, "build of " + config.variant);
  for (const auto& [name, value] : JsonView(json, "build of " + config.variant).members()) {
    if (name != "source") compilers.emplace(name, value.string());
  }
  return compilers;
}

/// The section of the lock file that has a variant's compiler.
std::string component_of(const std::string& compiler, const Config& config) {
  if (compiler == "nvrtc" && config.needs.toolkit)
    return "cuda-" + to_string(*config.needs.toolkit);
  return compiler;
}

/// All pins of the components that a variant was made with; the compiler's own has its version.
void add_pins(const Config& config, const std::vector<Pin>& pins,
              std::map<std::string, Pin>& used) {
  for (const auto& [compiler, version] : compilers_of(config)) {
    const std::string component = component_of(compiler, config);
    bool found = false;
    for (const Pin& pin : pins) {
      if (pin.component != component) continue;
      used.emplace(pin.name, pin);
      found = found || pin.version == version;
    }
    if (found) continue;
    std::string text = "attest " + label(config.name, config.version) + " " + config.variant;
    text.append(": it was made with ").append(compiler).append(" ").append(version);
    text.append(", and no line of [").append(component);
    throw Error(ErrorCode::kIntegrity, text +
                                           "] pins that version; nothing was signed. Give the "
                                           "toolchains.lock that it was built with");
  }
}

Json dependency(const Pin& pin) {
  return {{"name", pin.name},
          {"uri", "pkg:pypi/" + pin.name + "@" + pin.version},
          {"digest", {{"sha256", pin.digest.hex()}}}};
}

// ---- SPDX ----

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

/// SPDX 2.3 wants it of every file, beside better ones.
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

Json spdx_package(const std::string& id, const std::string& name, const std::string& version,
                  const std::string& license) {
  Json package = {{"SPDXID", id},
                  {"name", name},
                  {"downloadLocation", kNoAssertion},
                  {"filesAnalyzed", false},
                  {"licenseConcluded", license},
                  {"licenseDeclared", license},
                  {"copyrightText", kNoAssertion}};
  if (!version.empty()) package["versionInfo"] = version;
  return package;
}

class Sbom {
 public:
  Sbom(const Attested& version, std::int64_t created) : version_(version) {
    const std::string package = label(version.index.name, version.index.version);
    document_ = {{"spdxVersion", "SPDX-2.3"},
                 {"dataLicense", "CC0-1.0"},
                 {"SPDXID", "SPDXRef-DOCUMENT"},
                 {"name", package},
                 {"documentNamespace",
                  "https://kiln.dev/spdx/" + package + "/" + version.descriptor.digest.hex()},
                 {"creationInfo",
                  {{"created", trust::to_text(created)},
                   {"creators", Json::array({"Tool: kiln-" KILN_VERSION})}}},
                 {"packages", Json::array()},
                 {"files", Json::array()},
                 {"relationships", Json::array()}};
  }

  Json make() {
    for (const BuiltVariant& variant : version_.variants) add(variant);
    const Index& index = version_.index;
    Json package = spdx_package(kPackage, index.name, std::to_string(index.version), license_);
    package["checksums"] = Json::array({checksum("SHA256", version_.descriptor.digest.hex())});
    document_["packages"].push_back(std::move(package));
    document_["relationships"].push_back(relation("SPDXRef-DOCUMENT", "DESCRIBES", kPackage));
    if (has_cuda_) {
      document_["hasExtractedLicensingInfos"] =
          Json::array({{{"licenseId", kCudaLicense},
                        {"name", "NVIDIA CUDA Toolkit End User License Agreement"},
                        {"extractedText", "See https://docs.nvidia.com/cuda/eula/index.html"}}});
    }
    return std::move(document_);
  }

 private:
  static constexpr const char* kPackage = "SPDXRef-Package";

  void add(const BuiltVariant& built) {
    const Config& config = built.config;
    const std::string id = spdx_id("Variant", config.variant);
    std::vector<std::string> sha1s;
    std::string schema;
    read_layer(built.layer, config, built.documents.unpacked_size,
               {"attest", label(config.name, config.version) + " " + config.variant,
                "nothing was signed. Publish it again"},
               [&](const ArchiveFile& file, const LayerContent& content) {
                 Sha1 sha1;
                 content([&](std::string_view piece) {
                   sha1.update(piece);
                   if (file.path == "package.json") schema += piece;
                 });
                 sha1s.push_back(sha1.finish());
                 add_file(id, config, file, sha1s.back());
               });
    const std::string license = license_in(schema);
    if (license_ == kNoAssertion) license_ = license;
    Json package = spdx_package(id, config.name + " " + config.variant,
                                std::to_string(config.version), license);
    package["filesAnalyzed"] = true;
    package["packageFileName"] = config.variant + ".tar.zst";
    package["checksums"] = Json::array({checksum("SHA256", built.documents.layer.digest.hex())});
    std::ranges::sort(sha1s);
    Sha1 all;
    for (const std::string& each : sha1s) all.update(each);
    package["packageVerificationCode"] = {{"packageVerificationCodeValue", all.finish()}};
    package["licenseInfoFromFiles"] = Json::array({kNoAssertion});
    document_["packages"].push_back(std::move(package));
    document_["relationships"].push_back(relation(kPackage, "CONTAINS", id));
    for (const auto& [compiler, version] : compilers_of(config)) {
      add_runtime(id, compiler, version);
    }
  }

  void add_file(const std::string& variant, const Config& config, const ArchiveFile& file,
                const std::string& sha1) {
    const std::string id = spdx_id("File", config.variant + "-" + file.path);
    const bool is_library = file.path == config.library;
    document_["files"].push_back(
        {{"SPDXID", id},
         {"fileName", "./" + file.path},
         {"fileTypes", Json::array({is_library ? "BINARY" : "TEXT"})},
         {"checksums",
          Json::array({checksum("SHA1", sha1), checksum("SHA256", file.digest.hex())})},
         {"licenseConcluded", kNoAssertion},
         {"licenseInfoInFiles", Json::array({kNoAssertion})},
         {"copyrightText", kNoAssertion}});
    document_["relationships"].push_back(relation(variant, "CONTAINS", id));
  }

  /// What a compiler puts of its own into what it makes.
  void add_runtime(const std::string& variant, const std::string& compiler,
                   const std::string& version) {
    const bool cuda = compiler == "nvrtc";
    has_cuda_ = has_cuda_ || cuda;
    const std::string id = spdx_id("Runtime", compiler + "-" + version);
    if (runtimes_.insert(id).second) {
      Json package =
          spdx_package(id, cuda ? "CUDA device library of NVRTC" : compiler + " compiler-rt",
                       version, cuda ? kCudaLicense : "MIT");
      package["comment"] =
          "What the compiler puts of its own into its output, where that needs it.";
      document_["packages"].push_back(std::move(package));
    }
    document_["relationships"].push_back(relation(variant, "STATIC_LINK", id));
  }

  static std::string license_in(const std::string& schema) {
    if (schema.empty()) return kNoAssertion;
    const Json json = parse_json(schema, "package.json");
    return JsonView(json, "package.json").string_or("license", kNoAssertion);
  }

  const Attested& version_;
  Json document_;
  std::string license_ = kNoAssertion;
  std::set<std::string> runtimes_;
  bool has_cuda_ = false;
};

/// Some letters, digits and characters of `more`, and no others.
bool is_plain(std::string_view text, std::string_view more) {
  return !text.empty() && std::ranges::all_of(text, [more](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           more.find(c) != std::string_view::npos;
  });
}

/// What blanks part.
std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r\v\f";
  std::vector<std::string_view> words;
  for (std::size_t at = line.find_first_not_of(kBlanks); at != std::string_view::npos;
       at = line.find_first_not_of(kBlanks, at)) {
    words.push_back(line.substr(at, line.find_first_of(kBlanks, at) - at));
    at += words.back().size();
  }
  return words;
}

}  // namespace

std::vector<Pin> parse_pins(const std::string& text, const std::string& file) {
  std::vector<Pin> pins;
  std::string component;
  for (const std::string_view line : split(text, '\n')) {
    std::vector<std::string_view> words = words_of(line.substr(0, line.find('#')));
    if (words.empty()) continue;
    const std::string_view first = words.front();
    if (words.size() == 1 && first.starts_with('[') && first.ends_with(']')) {
      component = first.substr(1, first.size() - 2);
      if (is_plain(component, ".-")) continue;
    }
    const std::size_t equal = std::min(first.find("=="), first.size());
    const std::string_view name = first.substr(0, equal);
    const std::string_view version = first.substr(std::min(equal + 2, first.size()));
    constexpr std::string_view kHash = "--hash=sha256:";
    std::optional<Digest> digest;
    if (words.size() == 2 && words[1].starts_with(kHash)) {
      digest = Digest::from_hex(words[1].substr(kHash.size()));
    }
    if (!digest || !is_plain(name, "._-") || !is_plain(version, "._+-")) {
      throw Error(ErrorCode::kIntegrity,
                  "read " + file + ": found the line " + quote(line) +
                      ", expected [section] or name==version --hash=sha256:…");
    }
    pins.push_back({component, std::string(name), std::string(version), *digest});
  }
  return pins;
}

Json provenance(const Attested& version, const Origin& origin) {
  std::map<std::string, Pin> used;
  Json ids = Json::array();
  Json details = Json::object();
  for (const BuiltVariant& each : version.variants) {
    const Config& config = each.config;
    add_pins(config, origin.pins, used);
    ids.push_back(config.variant);
    details[config.variant] = {{"manifest", each.variant.manifest.digest.str()},
                               {"library", each.library.str()},
                               {"build_id", config.build_id}};
    if (!config.build.empty()) {
      details[config.variant]["build"] = parse_json(config.build, "build of " + config.variant);
    }
  }
  Json dependencies = Json::array();
  dependencies.push_back({{"uri", "git+" + origin.source + "@" + origin.commit},
                          {"digest", {{"gitCommit", origin.commit}}}});
  for (const auto& [name, pin] : used) dependencies.push_back(dependency(pin));
  Json run = {{"builder", {{"id", origin.builder}, {"version", {{"kiln", KILN_VERSION}}}}}};
  if (!origin.invocation.empty()) run["metadata"] = {{"invocationId", origin.invocation}};
  return {{"buildDefinition",
           {{"buildType", kBuildType},
            {"externalParameters",
             {{"package", version.index.name},
              {"version", version.index.version},
              {"source", origin.source},
              {"commit", origin.commit},
              {"variants", ids}}},
            {"internalParameters", {{"variants", details}}},
            {"resolvedDependencies", dependencies}}},
          {"runDetails", run}};
}

Json sbom(const Attested& version, std::int64_t created) {
  return Sbom(version, created).make();
}

Json tests(const Attested& version, const std::vector<fs::path>& records) {
  const std::vector<TestResult> results = read_records(records);
  std::set<std::string> libraries;
  for (const BuiltVariant& each : version.variants) {
    tested_text(results, each.library, label(version.index.name, version.index.version));
    libraries.insert(each.library.str());
  }
  Json kept = Json::array();
  for (const fs::path& file : records) {
    Json record = parse_json(read_document(file, kMaxDocumentBytes), file.string());
    Json of_these = Json::array();
    for (Json& result : record["results"]) {
      if (libraries.contains(result["library"])) of_these.push_back(std::move(result));
    }
    if (of_these.empty()) continue;
    record["results"] = std::move(of_these);
    kept.push_back(std::move(record));
  }
  if (kept.empty()) return nullptr;
  return {{"records", kept}};
}

}  // namespace kiln::registry
