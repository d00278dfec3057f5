// SPDX-License-Identifier: Apache-2.0
//
// kiln bundle: kernels into one file, and out of it on a machine without a network.
#include "install/bundle.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.hpp"
#include "documents/json.hpp"
#include "install/install.hpp"
#include "output.hpp"

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
  }
  print_json("bundle-create", {{"file", creating.file}, {"kernels", documents}});
  return 0;
}

int run_install(const std::string& file, const Options& options) {
  Options from = options;
  from.request.from = std::filesystem::absolute(file).string();
  if (from.specs.empty()) {
    for (const BundledKernel& kernel : bundle_contents(file)) {
      from.specs.push_back({kernel.name, kernel.version});
    }
  }
  return install_all(from);
}

}  // namespace

void bundle_create(Command& command) {
  command.takes_packages();
  command.takes_registry();
  command.takes_device();
  command.takes_host();
  command.takes_lock();
  command.takes_cache();
  const auto creating = std::make_shared<Creating>();
  command.app()
      .add_option("-o,--output", creating->file, "The bundle to write")
      ->type_name("FILE")
      ->required();
  CLI::Option* const all = command.app().add_flag("--all-variants", creating->all_variants,
                                                  "Every variant, for any machine");
  command.app()
      .add_option("--variant", creating->variants, "This variant; may be given several times")
      ->type_name("VARIANT")
      ->allow_extra_args(false)
      ->excludes(all);
  command.example("geglu-mlp@1 -o b.tar", "the variant for this machine");
  command.example("geglu-mlp@1 --host h200.json -o b.tar", "the one for the machine of that file");
  command.example("--locked --all-variants -o b.tar", "all that kiln.lock has");
  command.runs([creating](const Options& options) { return run_create(*creating, options); });
}

void bundle_install(Command& command) {
  const auto file = std::make_shared<std::string>();
  command.app().add_option("bundle", *file, "The bundle")->type_name("FILE")->required();
  command.takes_packages();
  command.takes_choice();
  command.takes_lock();
  command.takes_cache();
  command.example("b.tar", "what this machine takes of each kernel inside");
  command.example("b.tar --locked", "the same, if kiln.lock has these bytes");
  command.runs([file](const Options& options) { return run_install(*file, options); });
}

}  // namespace kiln::cli
