// SPDX-License-Identifier: Apache-2.0
//
// kiln bundle: kernels into one file, and out of it on a machine without a network.
#include "install/bundle.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "install/install.hpp"
#include "install/lock.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "settings/settings.hpp"
#include "store/registry.hpp"

namespace kiln::cli {
namespace {

struct Creating {
  std::string file;
  bool all_variants = false;
  std::vector<std::string> variants;
};

int run_create(const Creating& creating, const Options& options) {
  std::vector<BundlePart> parts;
  for (const Spec& spec : options.specs_or_locked()) {
    parts.push_back({spec.name, options.request_for(spec), options.host, creating.all_variants,
                     creating.variants});
  }
  Json documents = Json::array();
  for (const BundledKernel& kernel : create_bundle(parts, creating.file)) {
    documents.push_back({{"name", kernel.name},
                         {"version", kernel.version},
                         {"index", kernel.index.digest.str()},
                         {"variants", kernel.variants}});
    for (const std::string& id : kernel.variants) {
      print("%s@%d %s\n", kernel.name.c_str(), kernel.version, id.c_str());
    }
    if (kernel.left_out.empty()) continue;
    const std::string lock = locked_option(lockfile_of(options.request, load_settings()));
    tell(
        "note: %s has no signed metadata in the bundle: %s. Install it there with the lock file: "
        "'kiln bundle install %s%s'\n",
        label(kernel.name, kernel.version).c_str(), kernel.left_out.c_str(),
        shell_word(creating.file).c_str(), lock.c_str());
  }
  print_json("bundle-create", {{"file", creating.file}, {"kernels", documents}});
  return 0;
}

/// "bundle b.tar has geglu-mlp@1 of https://ghcr.io/acme/kernels, signed".
std::string describe(const std::string& file, const std::vector<BundledKernel>& kernels) {
  const BundledKernel& first = kernels.front();
  return "bundle " + file + " has " +
         join(kernels, ", ",
              [](const BundledKernel& each) { return label(each.name, each.version); }) +
         " of " + printable(first.registry) + (first.is_signed ? ", signed" : ", unsigned");
}

/// The registry that the bundle says it is of, where nobody here names another. That is the file's
/// word: it is taken for one whose signatures decide, and else for what the user trusts and names.
std::string registry_of(const std::string& file, const std::vector<BundledKernel>& kernels) {
  const std::string& registry = kernels.front().registry;
  for (const BundledKernel& each : kernels) {
    if (each.registry == registry) continue;
    throw Error(ErrorCode::kUsage, "install " + file + ": its kernels are of " +
                                       printable(registry) + " and of " + printable(each.registry) +
                                       ". Name one of them with --registry, and its packages");
  }
  if (registry.empty()) return {};  // of an older Kiln, or another tool
  const Settings settings = load_settings();
  std::string name = canonical_registry(registry, settings);
  if (settings.trust.root_of(name) != nullptr) return name;
  const bool is_unsigned = settings.trust.is_unsigned(name);
  const std::string install = "kiln bundle install " + shell_word(file);
  name = shell_word(name);
  std::string next =
      "get its root.json from its publisher, by another way than the bundle, then run "
      "'kiln trust add " +
      name + " --root root.json' and '" + install + "'";
  if (!kernels.front().is_signed) {
    next = "if you know where the file comes from, " +
           (is_unsigned ? std::string() : "run 'kiln trust add " + name + " --unsigned', then ") +
           "name it: '" + install + " --registry " + name + "'";
  }
  throw Error(ErrorCode::kTrust, describe(file, kernels) +
                                     "; this machine has no root of it, so nobody vouches for it, "
                                     "and nothing was installed. To install it, " +
                                     next);
}

int run_install(const std::string& file, const Options& options) {
  Options from = options;
  from.request.from = absolute_path(file).string();
  std::vector<BundledKernel> kernels = bundle_contents(file);
  if (from.specs.empty()) {
    for (const BundledKernel& kernel : kernels) {
      from.specs.push_back({kernel.name, kernel.version});
    }
  } else {
    std::erase_if(kernels, [&](const BundledKernel& kernel) {
      return std::ranges::find(from.specs, kernel.name, &Spec::name) == from.specs.end();
    });
  }
  const bool is_named = !options.request.registry.empty() || !load_settings().registry.empty() ||
                        !lockfile_of(options.request, load_settings()).empty();
  if (!is_named && !kernels.empty()) {
    from.request.registry = registry_of(file, kernels);
    if (!from.request.registry.empty()) {
      tell("kiln: %s; programs find it with KILN_REGISTRY=%s\n", describe(file, kernels).c_str(),
           from.request.registry.c_str());
    }
  }
  return install_all(from);
}

}  // namespace

void bundle_create(KernelCommand& command) {
  command.takes_packages();
  command.takes_registry();
  command.takes_device();
  command.takes_host();
  command.takes_lock();
  command.takes_cache();
  const auto creating = std::make_shared<Creating>();
  command.option("-o,--output", creating->file, "FILE", "The bundle to write").required();
  const Option all =
      command.flag("--all-variants", creating->all_variants, "Every variant, for any machine");
  command
      .option("--variant", creating->variants, "VARIANT",
              "This variant; may be given several times")
      .not_with(all);
  command.example("geglu-mlp@1 -o b.tar", "the variant for this machine");
  command.example("geglu-mlp@1 --host h200.json -o b.tar", "the one for the machine of that file");
  command.example("--locked --all-variants -o b.tar", "all that kiln.lock has");
  command.runs([creating](const Options& options) { return run_create(*creating, options); });
}

void bundle_install(KernelCommand& command) {
  const auto file = std::make_shared<std::string>();
  command.option("bundle", *file, "FILE", "The bundle").required();
  command.takes_packages();
  command.takes_choice();
  command.takes_lock();
  command.takes_cache();
  command.example("b.tar", "what this machine takes of each kernel inside");
  command.example("b.tar --locked", "the same, if kiln.lock has these bytes");
  command.runs([file](const Options& options) { return run_install(*file, options); });
}

}  // namespace kiln::cli
