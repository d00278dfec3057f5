// SPDX-License-Identifier: Apache-2.0
//
// kiln audit: which advisories, and which yanks, of the registries' signed metadata speak of the
// variants in a lock file, in the cache, in a bundle or in a registry.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "install/catalog.hpp"
#include "install/install.hpp"
#include "install/lock.hpp"
#include "install/vouch.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/advice.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "probe/probe.hpp"
#include "settings/settings.hpp"
#include "store/bundle.hpp"
#include "store/installed.hpp"

namespace kiln::cli {
namespace {

namespace fs = std::filesystem;

/// By registry, name and version: the digest of each variant's manifest, by its id.
using Named = std::pair<std::string, int>;
using Variants = VariantDigests;
using HeldKernels = std::map<std::string, std::map<Named, Variants>>;

/// What is looked into, and where that was found.
struct Subject {
  std::string of;  ///< "kiln.lock"
  HeldKernels held;
  std::map<Named, std::string> damaged = {};  ///< installed; why its documents say nothing
};

struct Audit {
  Json hits = Json::array();
  Json yanked = Json::array();
  Json unknown = Json::array();  ///< kernels of which nothing is known, and why
  bool refuses = false;
  bool is_damaged = false;
};

Subject of_lock(const fs::path& file) {
  Subject subject{file.string(), {}};
  for (const auto& [name, kernel] : read_lockfile(file)) {
    Variants& variants = subject.held[kernel.registry][{name, kernel.version}];
    for (const auto& [id, locked] : kernel.variants) variants.emplace(id, locked.manifest.digest);
  }
  return subject;
}

Subject of_cache(const Options& options) {
  const Cache cache = options.existing_cache();
  const FileLock used = cache.use();
  Subject subject{cache.root().string(), {}};
  const auto note_damaged = [&](const std::string& name, int version, const Error& error) {
    subject.damaged.emplace(Named(name, version), error.what());
  };
  for (const InstalledVariant& each : list_installed(cache, note_damaged)) {
    subject.held[each.ref.registry][{each.ref.name, each.ref.version}].emplace(
        each.variant.id, each.variant.manifest.digest);
  }
  return subject;
}

/// As its index has them. Of a version that was taken back, none: nothing of it is fetched.
Variants variants_of(const Named& kernel, const Options& options, const std::string& registry) {
  Request request = options.request;
  request.registry = registry;
  request.version = kernel.second;
  Variants variants;
  try {
    Install install(kernel.first, request, {.hold_to_lock = false});
    for (const Variant& each : install.find_newest_index().index.variants) {
      variants.emplace(each.id, each.manifest.digest);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTrust) throw;
  }
  return variants;
}

Subject of_bundle(const fs::path& file, const Options& options) {
  Subject subject{file.string(), {}};
  for (const BundledKernel& each : bundle_contents(file)) {
    const std::string registry = canonical_registry(
        options.request.registry.empty() ? each.registry : options.request.registry,
        load_settings());
    const Named kernel(each.name, each.version);
    Variants& variants = subject.held[registry][kernel];
    for (const auto& [id, digest] : variants_of(kernel, options, registry)) {
      const bool is_inside = std::ranges::find(each.variants, id) != each.variants.end();
      if (is_inside) variants.emplace(id, digest);
    }
  }
  return subject;
}

Subject of_registry(const Options& options) {
  const std::string registry = canonical_registry(options.request.registry, load_settings());
  Subject subject{registry, {}};
  std::vector<Spec> specs = options.specs;
  if (specs.empty()) {
    for (const FoundPackage& each : search(options.request, {}).packages) {
      specs.push_back({each.name, 0});
    }
  }
  for (const Spec& spec : specs) {
    std::vector<int> versions = {spec.version};
    if (spec.version == 0) {
      versions = Catalog(spec.name, options.request).known_versions();
    }
    for (const int version : versions) {
      const Named kernel(spec.name, version);
      subject.held[registry][kernel] = variants_of(kernel, options, registry);
    }
  }
  return subject;
}

Subject held_by(const fs::path& lock, const Options& options) {
  const Request& request = options.request;
  std::error_code none;
  const bool is_file = !request.from.empty() && request.from.find("://") == std::string::npos &&
                       !fs::is_directory(request.from, none);
  if (is_file) return of_bundle(request.from, options);
  if (!request.registry.empty() || !request.from.empty()) return of_registry(options);
  if (!lock.empty()) return of_lock(lock);
  if (stands("kiln.lock", &fail_file)) return of_lock("kiln.lock");
  const fs::path named = load_settings().lock;
  return named.empty() ? of_cache(options) : of_lock(named);
}

/// Those that are named on the command line. Throws kNotFound for one that is not among them.
void keep_named(Subject& subject, const std::vector<Spec>& specs) {
  if (specs.empty()) return;
  std::set<std::string> found;
  const auto is_other = [&](const auto& each) {
    const auto is_it = [&](const Spec& spec) {
      return spec.names(each.first.first, each.first.second);
    };
    const auto spec = std::ranges::find_if(specs, is_it);
    if (spec != specs.end()) found.insert(spec->text());
    return spec == specs.end();
  };
  for (auto& [registry, kernels] : subject.held) std::erase_if(kernels, is_other);
  std::erase_if(subject.damaged, is_other);
  for (const Spec& spec : specs) {
    if (found.contains(spec.text())) continue;
    throw Error(ErrorCode::kNotFound, "audit " + spec.text() + ": " + subject.of +
                                          " does not have it. 'kiln audit' looks at all that it "
                                          "has");
  }
}

void note_unknown(const Named& kernel, const std::string& registry, const std::string& why,
                  Audit& audit) {
  audit.unknown.push_back(
      {{"name", kernel.first}, {"version", kernel.second}, {"registry", registry}, {"why", why}});
  print("not known: %s, %s\n", label(kernel.first, kernel.second).c_str(), why.c_str());
}

/// What one advisory says of one kernel.
void note_hit(const Advisory& advisory, const Named& kernel, const std::string& registry,
              const Variants& held, const Settings& settings, const Host& host, Audit& audit) {
  Json hit = advice_of(advisory, kernel.first, kernel.second, held, settings);
  if (hit.is_null()) return;
  std::vector<const Gpu*> gpus;
  for (const Gpu& gpu : host.gpus) gpus.push_back(&gpu);
  const bool cannot_tell = gpus.empty() && !host.driver_problem.empty();
  const bool here = cannot_tell || speaks_of_machine(advisory, gpus, host);
  audit.refuses = audit.refuses || hit["action"] == "refuses";
  print("%s %s %s: %s%s\n  %s\n", advisory.id.c_str(),
        hit["action"].get_ref<const std::string&>().c_str(),
        label(kernel.first, kernel.second).c_str(),
        join(hit["variants"].get<std::vector<std::string>>()).c_str(),
        here ? "" : " (not on this machine)",
        (here ? text_for(advisory, host) : text_of(advisory)).c_str());
  const std::string doubt = here ? doubt_of(advisory, host) : "";
  hit.update({{"name", kernel.first},
              {"version", kernel.second},
              {"registry", registry},
              {"here", here},
              {"doubt", doubt.empty() ? Json() : Json(doubt)}});
  audit.hits.push_back(std::move(hit));
}

/// All kernels of one registry, after one refresh of its metadata.
void audit_registry(const std::string& registry, const std::map<Named, Variants>& kernels,
                    const Options& options, const Host& host, Audit& audit) {
  Request request = options.request;
  request.registry = registry;
  const Settings settings = load_settings();
  const bool has_root = settings.trust.root_of(registry) != nullptr;
  if (!has_root) {
    for (const auto& [kernel, variants] : kernels) {
      note_unknown(kernel, registry,
                   "no root of " + registry + " is trusted here, so nobody signs advisories",
                   audit);
    }
    return;
  }
  Source source(kernels.begin()->first.first, request);
  source.choose_registry(registry);
  Vouch::Words words;
  for (const auto& each : kernels) words[each.first];
  source.vouch().look_up(words, source.may_ask());
  std::set<std::string> unread;
  for (const auto& [kernel, variants] : kernels) {
    const std::optional<trust::SignedTarget>& word = words[kernel];
    if (!word) {
      note_unknown(kernel, registry,
                   source.may_ask() ? "the signed metadata of " + registry + " does not name it"
                                    : "the cache has no signed metadata that names it",
                   audit);
      continue;
    }
    if (word->target.yanked) {
      audit.refuses = true;
      audit.yanked.push_back({{"name", kernel.first},
                              {"version", kernel.second},
                              {"registry", registry},
                              {"reason", *word->target.yanked}});
      print("%s was taken back by its publisher: %s\n", label(kernel.first, kernel.second).c_str(),
            quote(*word->target.yanked).c_str());
    }
    for (const Advisory& each : word->advisories) {
      note_hit(each, kernel, registry, variants, settings, host, audit);
      if (!each.is_unread || !unread.insert(each.id).second) continue;
      note_unknown(kernel, registry, "advisory " + each.id + " is of a newer Kiln: upgrade", audit);
    }
  }
}

int run_audit(const fs::path& lock, const Options& options) {
  Subject subject = held_by(lock, options);
  keep_named(subject, options.specs);
  const Host host = options.host ? *options.host : probe_host();
  Audit audit;
  std::size_t looked_at = 0;
  for (const auto& [kernel, why] : subject.damaged) {
    audit.is_damaged = true;
    note_unknown(kernel, {},
                 why + ". Run 'kiln cache repair', then install it again with --refresh", audit);
  }
  for (const auto& [registry, kernels] : subject.held) {
    if (kernels.empty()) continue;
    looked_at += kernels.size();
    audit_registry(registry, kernels, options, host, audit);
  }
  if (audit.hits.empty() && audit.yanked.empty() && audit.unknown.empty()) {
    print("%s: %zu kernels, no advisory\n", subject.of.c_str(), looked_at);
  }
  print_json("audit", {{"of", subject.of},
                       {"kernels", looked_at},
                       {"advisories", audit.hits},
                       {"yanked", audit.yanked},
                       {"unknown", audit.unknown}});
  if (audit.refuses) return static_cast<int>(ErrorCode::kTrust);
  return audit.is_damaged ? static_cast<int>(ErrorCode::kIntegrity) : 0;
}

}  // namespace

void audit(KernelCommand& command) {
  command.takes_packages();
  command.takes_registry();
  command.takes_cache();
  command.takes_host();
  const auto lock = std::make_shared<fs::path>();
  command.option("--lock", *lock, "FILE",
                 "The lock file; default kiln.lock, else $KILN_LOCK, else what is installed");
  command.example("", "kiln.lock's variants; without one, those that are installed");
  command.example("--offline", "by the signed metadata that the cache has");
  command.example("--from b.tar", "what is in a bundle");
  command.example("--registry https://kernels.example.org", "all that a registry has");
  command.runs([lock](const Options& options) { return run_audit(*lock, options); });
}

}  // namespace kiln::cli
