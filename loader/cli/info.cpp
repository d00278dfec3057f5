// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>
#include <utility>

#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "commands.hpp"
#include "documents/json.hpp"
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

int run_info(const Options& options) {
  Spec spec = options.specs.front();
  const std::string registry = canonical_registry(options.request.registry, load_settings());
  const std::vector<int> versions = Install(spec.name, options.request).known_versions();
  if (spec.version == 0) spec.version = versions.back();
  const VersionIndex found = Install(spec.name, options.request_for(spec)).choose().version;
  const Json ops = installed_ops(options, spec, registry);
  std::string published;
  for (const int version : versions) published += " " + std::to_string(version);
  print("%s@%d  from %s\n", spec.name.c_str(), spec.version, registry.c_str());
  print("versions %s\nindex     %s\n", published.c_str(), found.descriptor.digest.str().c_str());
  print_ops(ops, spec);
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
