// SPDX-License-Identifier: Apache-2.0
#include "registry/server/export.hpp"

#include <memory>

#include "documents/json.hpp"
#include "loader/cli/frame/output.hpp"
#include "registry/cli/verbs.hpp"

namespace kiln::registry {
namespace {

int run_export(ExportRequest request, const RegistryCall& call) {
  request.registry = call.registry;
  Json repositories = Json::array();
  for (const Exported& one : export_static(request, call.progress)) {
    repositories.push_back(
        {{"name", one.name}, {"tags", one.tags}, {"files_written", one.files_written}});
    cli::print("%s: %zu tags, %zu files written\n", one.name.c_str(), one.tags.size(),
               one.files_written);
  }
  cli::print_json("export", {{"repositories", repositories}});
  return 0;
}

}  // namespace

void export_verb(RegistryCommand& command) {
  const auto request = std::make_shared<ExportRequest>();
  command.takes_registry();
  command.option("--out", request->out, "FOLDER", "Folder to write or update").required();
  command.option("--prefix", request->prefix, "NAME", "In front of each name, like 'kernels'");
  command.example("--registry build/registry --out /srv/www", "what any web server serves");
  command.runs([request](const RegistryCall& call) { return run_export(*request, call); });
}

}  // namespace kiln::registry
