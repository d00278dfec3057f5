// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "commands.hpp"
#include "documents/json.hpp"
#include "install/attested.hpp"
#include "install/install.hpp"
#include "oci/layer_reader.hpp"
#include "output.hpp"
#include "store/installed.hpp"
#include "store/registry.hpp"
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

/// A document of an installed variant, verified. Its config may promise any size.
std::string read_installed(const InstalledVariant& installed, const ArchiveFile& promised) {
  const std::filesystem::path path = installed.folder / promised.path;
  NamedFile read = read_named_file(path, kMaxDocumentBytes);
  if (!read.problem.empty()) {
    throw Error(ErrorCode::kIntegrity,
                "read " + path.string() + ": " + read.problem + ". " + kFetchAgain);
  }
  verify_bytes(read.text, {"", promised.digest, promised.size},
               {promised.path, path.string(), kFetchAgain});
  return std::move(read.text);
}

/// The schema of an installed variant; null unless there is one.
Json installed_schema(const Options& options, const Spec& spec, const std::string& registry) {
  const Cache cache(options.request.cache);
  const FileLock used = cache.use();
  for (const InstalledVariant& installed : list_installed(cache)) {
    const Ref& ref = installed.ref;
    if (ref.registry != registry || ref.name != spec.name || ref.version != spec.version) continue;
    for (const ArchiveFile& file : installed.config.files) {
      if (file.path == kSchemaFile) {
        return parse_json(read_installed(installed, file), kSchemaFile);
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

/// "forward(x, gate, [gate_bias]) -> y"
std::string signature(const JsonView& op) {
  std::string inputs;
  std::string outputs;
  for (const JsonView& tensor : op.at("tensors").items()) {
    const bool output = tensor.has("output") && tensor.at("output").boolean();
    const bool optional = tensor.has("optional") && tensor.at("optional").boolean();
    const std::string name = tensor.at("name").string();
    std::string& list = output ? outputs : inputs;
    list += (list.empty() ? "" : ", ") + (optional ? "[" + name + "]" : name);
  }
  return op.at("name").string() + "(" + inputs + ") -> " + outputs;
}

/// "bfloat16, float16" or, of one that follows another tensor of its op, "as x".
std::string dtype_of(const JsonView& tensor, const std::vector<JsonView>& tensors) {
  const JsonView dtype = tensor.at("dtype");
  if (!dtype.json().is_string()) return join(dtype.items(), ", ", &JsonView::string);
  const bool follows = std::ranges::any_of(
      tensors, [&](const JsonView& other) { return other.at("name").string() == dtype.string(); });
  return (follows ? "as " : "") + dtype.string();
}

/// "N" of a symbol, "4" of a number.
std::string extent_of(const JsonView& extent) {
  return extent.json().is_string() ? extent.string() : std::to_string(extent.unsigned_integer());
}

std::string column(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text + " ";
}

std::string tensor_text(const JsonView& tensor, const std::vector<JsonView>& tensors) {
  const auto is = [&](const char* key) { return tensor.has(key) && tensor.at(key).boolean(); };
  const std::string shape = "[" + join(tensor.at("shape").items(), ", ", extent_of) + "]";
  const std::string layout = tensor.string_or("layout", "");
  std::string text = "  " + column(tensor.at("name").string(), 12);
  text += column(dtype_of(tensor, tensors), 28) + column(shape, 12);
  if (is("output")) text += " output";
  if (is("optional")) text += " optional";
  if (!layout.empty()) text += " " + layout;
  return text + "\n";
}

std::string attribute_text(const JsonView& attribute) {
  std::string text = "  " + column(attribute.at("name").string(), 12);
  text += attribute.at("type").string();
  if (attribute.has("values")) {
    text += ": " + join(attribute.at("values").items(), ", ", &JsonView::string);
  }
  if (attribute.has("default")) text += ", default " + attribute.at("default").json().dump();
  return text + "\n";
}

std::string ops_text(const Json& schema) {
  std::string text;
  for (const JsonView& op : JsonView(schema, kSchemaFile).at("ops").items()) {
    text += "op        " + signature(op) + "\n";
    if (const std::string doc = op.string_or("doc", ""); !doc.empty()) text += "  " + doc + "\n";
    const std::vector<JsonView> tensors = op.at("tensors").items();
    for (const JsonView& tensor : tensors) text += tensor_text(tensor, tensors);
    if (!op.has("attributes")) continue;
    for (const JsonView& attribute : op.at("attributes").items()) text += attribute_text(attribute);
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
  if (schema.has("ops")) print("%s", ops_text(details.schema).c_str());
}

/// Null where there is none.
Json member_of(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? Json() : *found;
}

// ---- what was signed ----

/// The keys that this user requires of the package and that signed a statement, by fingerprint.
std::vector<std::string> signers_of(const attest::Attestation& one, const Settings& settings,
                                    const std::string& registry, const std::string& package) {
  std::set<std::string> signers;
  for (const Requirement& each : settings.trust.required) {
    if (!each.covers(registry, package)) continue;
    for (const std::string& pem : each.keys) {
      const trust::Key key = required_key(pem);
      if (attest::signed_by(one.envelope, key)) signers.insert(trust::fingerprint(key));
    }
  }
  return {signers.begin(), signers.end()};
}

std::string describe_provenance(const JsonView& predicate) {
  const JsonView build = predicate.at("buildDefinition");
  std::string text = "built by " + predicate.at("runDetails").at("builder").at("id").string();
  std::string from = " of ";
  for (const JsonView& each : build.at("resolvedDependencies").items()) {
    text += from + each.at("uri").string();
    from = text.find(" with ") == std::string::npos ? " with " : ", ";
  }
  return text;
}

std::string describe_tests(const JsonView& predicate) {
  std::vector<std::string> places;
  for (const JsonView& record : predicate.at("records").items()) {
    std::vector<std::string> variants;
    for (const JsonView& result : record.at("results").items()) {
      const bool passed = result.at("failed").unsigned_integer() == 0;
      variants.push_back(result.at("variant").string() + (passed ? "" : " FAILED"));
    }
    places.push_back(record.at("hardware").string() + " (" + record.at("date").string() +
                     "): " + join(variants));
  }
  return join(places, "; ");
}

/// What it says, in a line. A statement of another shape than Kiln's says so itself.
std::string describe(const attest::Statement& statement, std::string_view word) {
  try {
    const Json json = parse_json(statement.predicate, "predicate");
    const JsonView predicate(json, "predicate");
    if (word == "provenance") return describe_provenance(predicate);
    if (word == "tests") return describe_tests(predicate);
    if (word != "sbom") return "";
    return predicate.at("spdxVersion").string() + ", " +
           std::to_string(predicate.at("packages").items().size()) + " packages, " +
           std::to_string(predicate.at("files").items().size()) + " files";
  } catch (const Error& error) {
    return std::string("not as Kiln writes it: ") + error.what();
  }
}

/// Each statement about the version, and whose it is.
Json print_attestations(const std::vector<attest::Attestation>& list, const Settings& settings,
                        const std::string& registry, const std::string& package) {
  Json documents = Json::array();
  for (const attest::Attestation& one : list) {
    const attest::Kind* const kind = attest::kind_of_type(one.statement.predicate_type);
    const std::string word(kind == nullptr ? one.statement.predicate_type : kind->word);
    const std::vector<std::string> signers = signers_of(one, settings, registry, package);
    const std::string what = describe(one.statement, word);
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

int run_info(const Options& options) {
  Spec spec = options.specs.front();
  const Settings settings = load_settings();
  const std::string registry = canonical_registry(options.request.registry, settings);
  const std::vector<int> versions = Install(spec.name, options.request).known_versions();
  if (spec.version == 0) spec.version = Install(spec.name, options.request).newest_version();
  Install install(spec.name, options.request_for(spec));
  const VersionIndex found = install.choose().version;
  const Details details = find_details(options, spec, found, registry);
  std::string published;
  for (const int version : versions) published += " " + std::to_string(version);
  print("%s@%d  from %s\n", spec.name.c_str(), spec.version, registry.c_str());
  print("versions %s\nindex     %s\n", published.c_str(), found.descriptor.digest.str().c_str());
  print_schema(details, spec);
  const Json attestations =
      print_attestations(install.attestations(found), settings, registry, spec.name);
  print("variants\n");
  Json variants = Json::array();
  for (const Variant& variant : found.index.variants) {
    print_variant(variant, details);
    variants.push_back(to_json(variant, details));
  }
  print_json("info", {{"name", spec.name},
                      {"version", spec.version},
                      {"versions", versions},
                      {"summary", member_of(details.schema, "summary")},
                      {"license", member_of(details.schema, "license")},
                      {"ops", member_of(details.schema, "ops")},
                      {"registry", registry},
                      {"index", found.descriptor.digest.str()},
                      {"attestations", attestations},
                      {"variants", variants}});
  return 0;
}

}  // namespace

void info(Command& command) {
  command.takes_package();
  command.takes_choice();
  command.takes_cache();
  command.example("geglu-mlp", "the newest version: its ops, what each variant needs and weighs");
  command.example("geglu-mlp@1", "this version");
  command.runs(run_info);
}

}  // namespace kiln::cli
