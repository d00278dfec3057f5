// SPDX-License-Identifier: Apache-2.0
//
// The commands around what is installed: install, resolve, list, path.
#include <algorithm>
#include <memory>
#include <optional>

#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "install/install.hpp"
#include "install/parallel.hpp"
#include "install/resolution_json.hpp"
#include "install/tuned.hpp"
#include "install/vouch.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "resolve/explain.hpp"
#include "store/installed.hpp"

namespace kiln::cli {

namespace {

InstallOptions install_options(const Options& options) {
  return {.host = options.host ? &*options.host : nullptr};
}

/// Never silent: whoever reads the result may miss that it is a fallback's.
void tell_refused(const Choice& choice) {
  for (const Resolution& refused : choice.refused) {
    tell("kiln: nothing in %s@%d fits for %s; fell back. %s\n", refused.name.c_str(),
         refused.version, to_string(refused.device).c_str(), refused.hint.c_str());
  }
}

/// "--explain", of all variants or of one.
struct Explain {
  bool asked = false;
  std::string variant;
};

Json to_json(const Explanation& explanation) {
  Json rules = Json::array();
  for (const RuleOutcome& rule : explanation.rules) {
    rules.push_back({{"rule", std::string(to_string(rule.rule))},
                     {"holds", rule.holds},
                     {"detail", rule.detail}});
  }
  return {{"variant", explanation.variant},
          {"rank", explanation.rank},
          {"verdict", explanation.verdict},
          {"ranked", explanation.ranked},
          {"rules", std::move(rules)}};
}

/// What is denied of several packages must be a variant of one of them.
void check_denied(const Options& options, const std::vector<Spec>& specs,
                  const InstallOptions& how) {
  std::vector<std::string> unknown = options.request.deny;
  std::string not_asked;
  for (const Spec& spec : specs) {
    if (unknown.empty()) return;
    Request request = options.request_for(spec);
    request.on_event = nullptr;  // the installs will say the same
    Install one(spec.name, request, how);
    Choice choice = one.choose();
    const std::vector<std::string> lacks = one.unknown_denied(choice, not_asked);
    std::erase_if(unknown, [&](const std::string& entry) {
      return std::ranges::find(lacks, entry) == lacks.end();
    });
  }
  if (!unknown.empty() && not_asked.empty()) fail_unknown_denied(unknown, specs.front().text());
}

int run_resolve(const Options& options, const Explain& asked) {
  const Spec& spec = options.specs.front();
  const Request request = options.request_for(spec);
  Choice choice = Install(spec.name, request, install_options(options)).choose();
  if (choice.resolution.chosen && !options.host) {
    choice.resolution.tuned = read_tuned(choice.resolution, choice.variant()).text;
  }
  std::vector<Explanation> explanations;
  if (asked.asked) {
    Selection selection = selection_of(request, load_settings());
    selection.device = choice.resolution.device;  // a fallback's may be another
    selection.all_gpus = choice.resolution.all_gpus;
    if (!choice.refused.empty()) selection.variant.clear();
    selection.advisories = choice.advised.refusing;
    explanations = explain(choice.resolution, choice.version.index, selection, asked.variant);
  }
  Json document = kiln::to_json(choice);
  if (asked.asked) document["explained"] = Json::array();
  for (const Explanation& each : explanations) document["explained"].push_back(to_json(each));
  print_json("resolve", std::move(document));
  for (const Resolution& refused : choice.refused) {
    print_resolution(refused.explain());
    print("\n");
  }
  print_resolution(choice.resolution.explain());
  for (const Explanation& each : explanations) print("\n%s\n", each.text().c_str());
  if (!options.json) tell_refused(choice);
  if (choice.resolution.chosen) return 0;
  if (!options.json) tell_error(choice.no_variant_brief);
  return static_cast<int>(choice.resolution.code);
}

/// Why its publisher took it back; nothing where that is not known here.
std::optional<std::string> yanked(const Ref& ref, const Settings& settings, const Cache& cache) {
  if (settings.trust.root_of(ref.registry) == nullptr) return std::nullopt;
  try {
    const std::string nowhere;
    Traffic traffic;
    return Vouch(ref.registry, nowhere, settings, cache, {}, traffic)
        .recall_yanked(ref.name, ref.version);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTrust) throw;
    return std::nullopt;  // the next install says what is wrong with the metadata
  }
}

int list_installed(const Options& options) {
  const Cache cache = options.existing_cache();
  const FileLock used = cache.use();
  const Settings settings = load_settings();
  Json documents = Json::array();
  Json damaged = Json::array();
  std::vector<Spec> missing = options.specs;
  const auto is_wanted = [&](const std::string& name, int version) {
    const auto is_it = [&](const Spec& spec) { return spec.names(name, version); };
    std::erase_if(missing, is_it);
    return options.specs.empty() || std::ranges::any_of(options.specs, is_it);
  };
  const auto tell_damaged = [&](const std::string& name, int version, const Error& error) {
    // Version 0: a folder of refs, and who knows which versions were in it.
    if (!is_wanted(name, version) && version != 0) return;
    const std::string subject = Spec{name, version}.text();
    print("%s damaged: %s\n", subject.c_str(), error.what());
    damaged.push_back({{"name", name}, {"version", version}, {"problem", error.what()}});
  };
  for (const InstalledVariant& installed : list_installed(cache, tell_damaged)) {
    const Ref& ref = installed.ref;
    if (!is_wanted(ref.name, ref.version)) continue;
    const std::optional<std::string> taken_back = yanked(ref, settings, cache);
    documents.push_back({{"name", ref.name},
                         {"version", ref.version},
                         {"variant", installed.variant.id},
                         {"registry", ref.registry},
                         {"library", installed.library.string()},
                         {"bytes", installed.bytes},
                         {"yanked", taken_back ? Json(*taken_back) : Json()}});
    print("%s@%d %s  %s%s\n", ref.name.c_str(), ref.version, installed.variant.id.c_str(),
          installed.library.c_str(),
          taken_back ? ("  taken back: " + quote(*taken_back)).c_str() : "");
  }
  if (missing.empty() || !damaged.empty()) {  // else the document is the error's
    print_json("list",
               {{"cache", cache.root().string()}, {"installed", documents}, {"damaged", damaged}});
  }
  if (!options.json) {
    if (options.specs.empty()) tell("in %s\n", cache.root().c_str());
  }
  if (!damaged.empty()) {
    options.tell_repair();
    return static_cast<int>(ErrorCode::kIntegrity);
  }
  if (missing.empty()) return 0;
  throw Error(ErrorCode::kNotFound, "list " + join(missing, " ", &Spec::text) +
                                        ": not installed in " + cache.root().string() +
                                        ". 'kiln list' says what is");
}

/// What the cache alone can tell; nothing if it lacks the version or one of its documents.
std::optional<Package> find_installed(Install& install) {
  try {
    const Choice choice = install.choose();
    return install.pull(choice);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOffline) throw;
    return std::nullopt;
  }
}

/// The dev layer of a version, installed where it is not (unless the request is offline).
DevFiles dev_files(const Options& options, const Spec& spec) {
  return Install(spec.name, options.request_for(spec), install_options(options)).run_dev();
}

Json to_json(const DevFiles& dev) {
  return {{"name", dev.name},
          {"version", dev.version},
          {"include", dev.include.string()},
          {"folder", dev.folder.string()}};
}

/// Installs the dev layers that are named (or locked) and prints the folder of each's headers.
int install_dev(const Options& options) {
  Json documents = Json::array();
  for (const Spec& spec : options.specs_or_locked()) {
    const DevFiles dev = dev_files(options, spec);
    documents.push_back(to_json(dev));
    print("%s@%d dev  %s\n", dev.name.c_str(), dev.version, dev.include.c_str());
  }
  print_json("install", {{"dev", documents}});
  return 0;
}

int run_path_dev(const Options& options) {
  const DevFiles dev = dev_files(options, options.specs.front());
  print_json("path", to_json(dev));
  print_path(dev.include);
  return 0;
}

int run_path(Options options) {
  options.request.offline = true;  // what is installed: nothing to ask anyone
  if (options.dev) return run_path_dev(options);
  const Spec& spec = options.specs.front();
  const Request request = options.request_for(spec);
  const std::string subject = spec.text();
  Install install(spec.name, request, install_options(options));
  const std::optional<Package> package = find_installed(install);
  if (package && stands(package->library, &fail_cache)) {
    install.check_installed(*package);
    print_json("path", {{"variant", package->variant.id}, {"library", package->library.string()}});
    print_path(package->library);
    return 0;
  }
  throw Error(ErrorCode::kNotFound,
              "path " + subject + ": not installed in " + install.cache().root().string() +
                  " from " + install.registry() + "; run 'kiln install " + subject + "'");
}

}  // namespace

int install_all(const Options& options) {
  if (options.dev) return install_dev(options);
  Json documents = Json::array();
  const std::vector<Spec> specs = options.specs_or_locked();
  InstallOptions how = install_options(options);
  how.deny_is_its_own = specs.size() == 1;
  if (!how.deny_is_its_own) check_denied(options, specs, how);
  std::vector<Installed> all(specs.size());
  const Observer on_event = one_at_a_time(options.request.on_event);
  in_parallel(specs.size(), kDownloadsAtOnce, options.request.stop,
              [&](std::size_t i, const std::stop_token& stop) {
                Request request = options.request_for(specs[i]);
                request.on_event = on_event;
                request.stop = stop;
                Install one(specs[i].name, request, how);
                all[i] = one.run();
                // A warm install reads documents alone: the library is hashed before it is named.
                one.check_installed(all[i].package);
              });
  for (const Installed& installed : all) {
    const Package& package = installed.package;
    documents.push_back({{"name", package.config.name},
                         {"version", package.config.version},
                         {"variant", package.variant.id},
                         {"tested", package.variant.tested},
                         {"manifest", package.variant.manifest.digest.str()},
                         {"library", package.library.string()},
                         {"fallback", !installed.choice.refused.empty()},
                         {"registry", installed.choice.registry},
                         {"requests", installed.traffic.requests},
                         {"bytes_fetched", installed.traffic.bytes}});
    if (!options.json) tell_refused(installed.choice);
    print("%s@%d %s  %s\n", package.config.name.c_str(), package.config.version,
          package.variant.id.c_str(), package.library.c_str());
  }
  print_json("install", {{"installed", documents}});
  return 0;
}

std::vector<std::string> installed_packages() {
  const Cache cache;
  const FileLock used = cache.use();
  std::vector<std::string> packages;
  for (const InstalledVariant& installed : list_installed(cache, [](auto&&...) {})) {
    packages.push_back(label(installed.ref.name, installed.ref.version));
  }
  return packages;
}

std::vector<std::string> known_variants(const std::vector<std::string>& words) {
  std::vector<std::string> variants;
  const auto named = std::find_if(words.rbegin(), words.rend(), [](const std::string& word) {
    return word.find('@') != std::string::npos;
  });
  if (named == words.rend()) return variants;
  try {
    const Spec spec = parse_spec(*named);
    Request request;
    request.version = spec.version;
    request.offline = true;
    const Choice choice = Install(spec.name, request).choose();
    for (const Variant& variant : choice.version.index.variants) variants.push_back(variant.id);
  } catch (const Error&) {
    variants.clear();  // a shell that completes has no use for it
  }
  return variants;
}

void install(KernelCommand& command) {
  command.takes_packages();
  command.takes_choice();
  command.takes_lock();
  command.takes_cache();
  command.example("geglu-mlp@1", "what get_kernel then loads without network");
  command.takes_host();
  command.example("geglu-mlp@1 --device cpu", "the CPU variant, whatever GPU there is");
  command.example("geglu-mlp@1 --fallback cpu", "the CPU variant, but only if no other fits");
  command.example("--refresh geglu-mlp@1", "ask again, and replace what is damaged");
  command.example("--locked", "all that kiln.lock has, and only its bytes");
  command.example("--from b.tar geglu-mlp@1", "out of a bundle, on a machine without network");
  command.takes_dev();
  command.example("--dev geglu-mlp@1", "its typed C++ layer, whatever this machine runs");
  command.runs(install_all);
}

void resolve(KernelCommand& command) {
  command.takes_kernel();
  command.example("geglu-mlp@1", "the choice for this machine, and every refusal");
  command.takes_host();
  const auto asked = std::make_shared<Explain>();
  const Option explain = command
                             .option("--explain", asked->variant, "VARIANT",
                                     "What each rule found, for one variant or for all")
                             .value_is_optional();
  command.example("geglu-mlp@1 --json", "the same for a program");
  command.example("geglu-mlp@1 --explain", "what each rule found for each variant");
  command.example("geglu-mlp@1 --host cluster.json", "what the machine of that facts file gets");
  command.runs([asked, explain](const Options& options) {
    asked->asked = explain.is_given();
    return run_resolve(options, *asked);
  });
}

void list(KernelCommand& command) {
  command.takes_packages();
  command.takes_cache();
  command.example("", "every package, version and variant");
  command.example("geglu-mlp", "those of one package");
  command.runs(list_installed);
}

void path(KernelCommand& command) {
  command.takes_kernel();
  command.example("geglu-mlp@1", "for a program that loads the file itself");
  command.takes_dev();
  command.example("--dev geglu-mlp@1", "the folder for a compiler's -I");
  command.runs(run_path);
}

}  // namespace kiln::cli
