// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "attest/describe.hpp"
#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "base/size.hpp"
#include "documents/json.hpp"
#include "documents/ops.hpp"
#include "install/catalog.hpp"
#include "install/install.hpp"
#include "install/signature_policy.hpp"
#include "install/tested_here.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/advice.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "oci/layer_reader.hpp"
#include "store/installed.hpp"
#include "store/registry.hpp"
#include "store/unpack.hpp"
#include "verify/verify.hpp"

namespace kiln::cli {
namespace {

std::vector<std::string> code_words(const Needs& needs) {
  std::vector<std::string> words;
  for (const DeviceCode& code : needs.device_code) words.push_back(to_string(code));
  return words;
}

/// What a version has beyond its index: documents of each variant, and the schema that every
/// archive carries.
struct Details {
  std::map<std::string, Package> packages;  ///< by variant; those that could be had
  Json schema;                              ///< package.json; null: it could not be had
  std::string problem;                      ///< why not
};

/// What its check found on this machine, whatever the policy.
Json print_tests_here(const Variant& variant) {
  Json documents = Json::array();
  for (const TestRecord& record : records_here(variant.manifest.digest)) {
    print("    here %s its check: %s\n", record.passed() ? "it passed" : "IT FAILED",
          printable(record.place()).c_str());
    documents.push_back({{"passed", record.passed()}, {"place", record.place()}});
  }
  return documents;
}

Json to_json(const Variant& variant, const Details& details) {
  const Needs& needs = variant.needs;
  Json document = {{"variant", variant.id},       {"manifest", variant.manifest.digest.str()},
                   {"cpu", to_string(needs.cpu)}, {"glibc", to_string(needs.glibc)},
                   {"needs", needs.libraries},    {"tested", variant.tested}};
  if (!needs.is_cpu()) {
    document["cuda_toolkit"] = to_string(*needs.toolkit);
    document["min_driver_cuda"] = to_string(*needs.min_driver);
    document["device_code"] = code_words(needs);
  }
  if (const auto found = details.packages.find(variant.id); found != details.packages.end()) {
    document["download_bytes"] = found->second.manifest.layer.size;
    document["unpacked_bytes"] = found->second.manifest.unpacked_size;
  }
  return document;
}

/// "62.4 kB"; empty where it is not known.
std::string download_of(const Variant& variant, const Details& details) {
  const auto found = details.packages.find(variant.id);
  return found == details.packages.end() ? "" : size_text(found->second.manifest.layer.size);
}

void print_variant(const Variant& variant, const Details& details) {
  const Needs& needs = variant.needs;
  std::string facts = to_string(needs.cpu) + ", glibc " + to_string(needs.glibc);
  if (!needs.is_cpu()) {
    facts += ", driver CUDA " + to_string(*needs.min_driver) + ", " + join(code_words(needs), " ");
  }
  print("  %-26s %-48s %8s  %s\n", variant.id.c_str(), facts.c_str(),
        download_of(variant, details).c_str(), variant.tested.c_str());
}

constexpr const char* kSchemaFile = "package.json";

/// The schema of an installed variant; null unless there is one.
Json installed_schema(const Options& options, const Spec& spec, const std::string& registry) {
  const Cache cache(options.request.cache);
  const FileLock used = cache.use();
  for (const InstalledVariant& installed : list_installed(cache)) {
    const Ref& ref = installed.ref;
    if (ref.registry != registry || ref.name != spec.name || ref.version != spec.version) continue;
    for (const ArchiveFile& file : installed.config.files) {
      if (file.path == kSchemaFile) {
        return parse_json(read_unpacked(installed.folder, file, kSchemaFile), kSchemaFile);
      }
    }
  }
  return nullptr;
}

/// The schema out of an archive, which the config promises.
Json schema_in(const std::filesystem::path& layer, const Package& package) {
  std::string text;
  read_layer(layer, package.config, package.manifest.unpacked_size,
             {"read", package.subject, "nothing of it was installed. Tell its publisher"},
             [&](const ArchiveFile& file, const LayerContent& content) {
               content([&](std::string_view piece) {
                 if (file.path == kSchemaFile) text += piece;
               });
             });
  return text.empty() ? Json() : parse_json(text, kSchemaFile);
}

/// Of a version that is not installed the smallest archive is fetched, verified and kept: its
/// install needs no second download.
Details find_details(const Options& options, const Spec& spec, const VersionIndex& version,
                     const std::string& registry) {
  Details details;
  details.schema = installed_schema(options, spec, registry);
  std::vector<const Variant*> readable;
  for (const Variant& variant : version.index.variants) {
    if (variant.unread.empty()) readable.push_back(&variant);
  }
  try {
    const Request request = options.request_for(spec);
    Install install(spec.name, request);
    const FileLock used = install.cache().use_to_write();
    for (Package& each : pull_all(spec.name, request, {}, version, readable, Layers::kLeft)) {
      details.packages.emplace(each.variant.id, std::move(each));
    }
    const auto smallest = std::ranges::min_element(
        details.packages, {}, [](const auto& each) { return each.second.manifest.layer.size; });
    if (details.schema.is_null() && smallest != details.packages.end()) {
      details.schema = schema_in(install.pull_layer(smallest->second), smallest->second);
    }
  } catch (const Error& error) {
    // Offline, and where the cache may not be written, the index alone is what there is.
    if (error.code() != ErrorCode::kOffline && error.code() != ErrorCode::kCache) throw;
    details.problem = error.what();
  }
  return details;
}

std::string column(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text + "  ";
}

/// The arguments of an op, a line each, in columns as wide as their widest text.
std::string arguments_text(const OpText& op) {
  std::size_t names = 0;
  std::size_t dtypes = 0;
  std::size_t shapes = 0;
  for (const TensorText& each : op.tensors) {
    names = std::max(names, each.name.size());
    dtypes = std::max(dtypes, each.dtype.size());
    shapes = std::max(shapes, each.shape.size());
  }
  for (const AttributeText& each : op.attributes) names = std::max(names, each.name.size());
  std::string text;
  const auto add = [&text](std::string line) {
    while (line.ends_with(' ')) line.pop_back();
    text += "  " + line + "\n";
  };
  for (const TensorText& each : op.tensors) {
    std::vector<std::string> words;
    if (each.output) words.emplace_back("output");
    if (each.inout) words.emplace_back("inout");
    if (each.optional) words.emplace_back("optional");
    if (!each.layout.empty()) words.push_back(each.layout);
    add(column(each.name, names) + column(each.dtype, dtypes) + column(each.shape, shapes) +
        join(words, " "));
  }
  for (const AttributeText& each : op.attributes) add(column(each.name, names) + each.meaning);
  return text;
}

std::string ops_text(const JsonView& schema) {
  std::string text;
  for (const OpText& op : read_ops(schema)) {
    text += "op        " + op.signature() + "\n";
    if (!op.doc.empty()) text += "  " + op.doc + "\n";
    text += arguments_text(op);
  }
  return text;
}

void print_schema(const Details& details, const Spec& spec) {
  if (details.schema.is_null()) {
    print("ops       not known before 'kiln install %s': %s\n", spec.text().c_str(),
          details.problem.c_str());
    return;
  }
  const JsonView schema(details.schema, kSchemaFile);
  print("summary   %s\n", schema.string_or("summary", "none").c_str());
  print("license   %s\n", schema.string_or("license", "none").c_str());
  // Whole, or an error and nothing of it.
  print("%s", ops_text(schema).c_str());
}

/// Null where there is none.
Json member_of(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? Json() : *found;
}

// ---- what was signed ----

/// Each statement about the version, and whose it is.
Json print_attestations(const std::vector<attest::Attestation>& list, const Settings& settings,
                        const std::string& registry, const std::string& package) {
  Json documents = Json::array();
  for (const attest::Attestation& one : list) {
    const std::string word = attest::word_of(one.statement);
    const std::vector<std::string> signers = known_signers(one, settings, registry, package);
    const std::string what = attest::describe(one.statement);
    const std::string by =
        join(signers, ", ", [](const std::string& id) { return id.substr(0, 12); });
    print("statement %-10s  %s\n", printable(word).c_str(),
          printable((signers.empty() ? "not verified: signed by no key that you require"
                                     : "signed by " + by) +
                    (what.empty() ? "" : "; " + what))
              .c_str());
    Json document = {{"statement", word},
                     {"predicate_type", one.statement.predicate_type},
                     {"signers", signers},
                     {"says", what}};
    if (word != "sbom") document["predicate"] = parse_json(one.statement.predicate, "predicate");
    documents.push_back(std::move(document));
  }
  return documents;
}

/// What signed advisories say of the version's variants, on whatever machine.
Json print_advisories(const VersionIndex& version, const Settings& settings) {
  VariantDigests variants;
  for (const Variant& each : version.index.variants)
    variants.emplace(each.id, each.manifest.digest);
  Json documents = Json::array();
  for (const Advisory& each : version.advisories) {
    Json document = advice_of(each, version.index.name, version.index.version, variants, settings);
    if (document.is_null()) continue;
    print("advisory  %s %s %s: %s\n", each.id.c_str(),
          document["action"].get_ref<const std::string&>().c_str(), scope_of(each).c_str(),
          text_of(each).c_str());
    documents.push_back(std::move(document));
  }
  return documents;
}

int run_info(const Options& options) {
  Spec spec = options.specs.front();
  const Settings settings = load_settings();
  const std::string registry = canonical_registry(options.request.registry, settings);
  Catalog catalog(spec.name, options.request);
  const std::vector<PublishedVersion> published = catalog.published();
  if (spec.version == 0) spec.version = catalog.newest_version();
  Install install(spec.name, options.request_for(spec));
  install.source().settings.tested = Tested::kAny;  // no choice, and the publisher's own words
  const VersionIndex found = install.choose().version;
  const Details details = find_details(options, spec, found, registry);
  std::vector<int> versions;
  Json yanked = Json::object();
  std::string listed;
  for (const PublishedVersion& each : published) {
    const std::string version = std::to_string(each.version);
    versions.push_back(each.version);
    listed += " " + version;
    if (!each.yanked) continue;
    yanked[version] = *each.yanked;
    listed += " (taken back: " + quote(*each.yanked) + ")";
  }
  print("%s@%d  from %s\n", spec.name.c_str(), spec.version, registry.c_str());
  print("versions %s\nindex     %s\n", listed.c_str(), found.descriptor.digest.str().c_str());
  print_schema(details, spec);
  const Json attestations = print_attestations(install.source().attestations(found.descriptor),
                                               settings, registry, spec.name);
  const Json advisories = print_advisories(found, settings);
  print("variants\n");
  Json variants = Json::array();
  for (const Variant& variant : found.index.variants) {
    print_variant(variant, details);
    variants.push_back(to_json(variant, details));
    variants.back()["tested_here"] = print_tests_here(variant);
  }
  print_json("info", {{"name", spec.name},
                      {"version", spec.version},
                      {"versions", versions},
                      {"yanked", yanked},
                      {"summary", member_of(details.schema, "summary")},
                      {"license", member_of(details.schema, "license")},
                      {"ops", member_of(details.schema, "ops")},
                      {"registry", registry},
                      {"index", found.descriptor.digest.str()},
                      {"attestations", attestations},
                      {"advisories", advisories},
                      {"variants", variants}});
  return 0;
}

}  // namespace

void info(KernelCommand& command) {
  command.takes_package();
  command.takes_choice();
  command.takes_cache();
  command.example("geglu-mlp", "the newest version: its ops, what each variant needs and weighs");
  command.example("geglu-mlp@1", "this version");
  command.runs(run_info);
}

}  // namespace kiln::cli
