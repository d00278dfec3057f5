// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "commands.hpp"
#include "documents/json.hpp"
#include "install/attested.hpp"
#include "install/install.hpp"
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

Json to_json(const Variant& variant) {
  const Needs& needs = variant.needs;
  Json document = {{"variant", variant.id},       {"manifest", variant.manifest.digest.str()},
                   {"cpu", to_string(needs.cpu)}, {"glibc", to_string(needs.glibc)},
                   {"needs", needs.libraries},    {"tested", variant.tested}};
  if (!needs.is_cpu()) {
    document["cuda_toolkit"] = to_string(*needs.toolkit);
    document["min_driver_cuda"] = to_string(*needs.min_driver);
    document["device_code"] = code_words(needs);
  }
  return document;
}

void print_variant(const Variant& variant) {
  const Needs& needs = variant.needs;
  std::string facts = to_string(needs.cpu) + ", glibc " + to_string(needs.glibc);
  if (!needs.is_cpu()) {
    facts += ", driver CUDA " + to_string(*needs.min_driver) + ", " + join(code_words(needs), " ");
  }
  print("  %-26s %-48s %s\n", variant.id.c_str(), facts.c_str(), variant.tested.c_str());
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

/// The ops' entries of the schema that the archive carries; null unless a variant is installed.
Json installed_ops(const Options& options, const Spec& spec, const std::string& registry) {
  for (const InstalledVariant& installed : list_installed(Cache(options.request.cache))) {
    const Ref& ref = installed.ref;
    if (ref.registry != registry || ref.name != spec.name || ref.version != spec.version) continue;
    for (const ArchiveFile& file : installed.config.files) {
      if (file.path != kSchemaFile) continue;
      const Json schema = parse_json(read_installed(installed, file), kSchemaFile);
      return JsonView(schema, kSchemaFile).at("ops").json();
    }
  }
  return nullptr;
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

void print_ops(const Json& ops, const Spec& spec) {
  if (ops.is_null()) {
    print("ops       not known before 'kiln install %s@%d'\n", spec.name.c_str(), spec.version);
    return;
  }
  for (const JsonView& op : JsonView(ops, "ops of " + spec.name).items()) {
    print("op        %s\n", printable(signature(op)).c_str());
  }
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
  if (spec.version == 0) spec.version = versions.back();
  Install install(spec.name, options.request_for(spec));
  const VersionIndex found = install.choose().version;
  const Json ops = installed_ops(options, spec, registry);
  std::string published;
  for (const int version : versions) published += " " + std::to_string(version);
  print("%s@%d  from %s\n", spec.name.c_str(), spec.version, registry.c_str());
  print("versions %s\nindex     %s\n", published.c_str(), found.descriptor.digest.str().c_str());
  print_ops(ops, spec);
  const Json attestations =
      print_attestations(install.attestations(found), settings, registry, spec.name);
  print("variants\n");
  Json variants = Json::array();
  for (const Variant& variant : found.index.variants) {
    print_variant(variant);
    variants.push_back(to_json(variant));
  }
  print_json("info", {{"name", spec.name},
                      {"version", spec.version},
                      {"versions", versions},
                      {"ops", ops},
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
  command.example("geglu-mlp", "the newest version");
  command.example("geglu-mlp@1", "this version");
  command.runs(run_info);
}

}  // namespace kiln::cli
