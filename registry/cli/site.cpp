// SPDX-License-Identifier: Apache-2.0
//
// describe, site and serve: what people see of a registry.
#include <unistd.h>

#include <csignal>
#include <memory>
#include <utility>

#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/output.hpp"
#include "registry/cli/verbs.hpp"
#include "registry/folder/card.hpp"
#include "registry/site/serve.hpp"
#include "registry/site/write.hpp"

namespace kiln::registry {
namespace {

struct CardWords {
  std::string package;
  std::filesystem::path file;
};

int run_describe(const CardWords& card, const RegistryCall& call) {
  const DescribedVersion done =
      describe(call.registry, parse_package_versions(card.package, "describe"), card.file);
  cli::print_json("describe", {{"name", done.name},
                               {"version", done.version},
                               {"index", to_json(done.index)},
                               {"changed", done.changed}});
  cli::print("%s@%d %s%s\n", done.name.c_str(), done.version, done.index.digest.str().c_str(),
             done.changed ? "  has its card" : "  nothing to do: it has this card");
  return 0;
}

int run_site(SiteRequest request, const RegistryCall& call) {
  request.registry = call.registry;
  const SiteReport report = write_site(request, call.progress);
  cli::print_json("site", {{"packages", report.packages},
                           {"versions", report.versions},
                           {"files", report.files},
                           {"written", report.written},
                           {"problems", report.problems}});
  cli::print("%s: %zu packages, %zu versions; %zu of %zu files written\n",
             (request.out / "index.html").c_str(), report.packages, report.versions, report.written,
             report.files);
  for (const std::string& problem : report.problems) {
    cli::tell("%s: not on the site: %s\n", call.command.c_str(), problem.c_str());
  }
  return report.problems.empty() ? 0 : static_cast<int>(ErrorCode::kIntegrity);
}

/// Until Ctrl-C, or SIGTERM.
int run_serve(ServeRequest request, const RegistryCall& call) {
  request.registry = call.registry;
  // At once, whatever is under way: also a first page that takes long. There is nothing to undo.
  for (const int each : {SIGINT, SIGTERM}) {
    // nohup, and a shell's background jobs, ignore signals on purpose.
    if (std::signal(each, [](int) { ::_exit(0); }) == SIG_IGN) std::signal(each, SIG_IGN);
  }
  Server server(std::move(request));
  const char* const url = server.url().c_str();
  cli::print_json("serve", {{"url", url}});
  cli::print("%s\n", url);
  cli::flush_result();
  call.progress("serving " + call.registry +
                " to this machine; Ctrl-C ends it. Kernels install from it after\n  kiln trust "
                "add " +
                server.url() +
                " --unsigned   # or --root root.json\n  export KILN_REGISTRY=" + server.url());
  server.run();
  return 0;
}

}  // namespace

void describe_verb(RegistryCommand& command) {
  const auto card = std::make_shared<CardWords>();
  command.takes_registry();
  command.option("package", card->package, "PACKAGE", "package, or package@version").required();
  command.option("card", card->file, "FILE", "CARD.md, in Markdown").required();
  command.example("geglu-mlp@1 packages/geglu-mlp/CARD.md --registry build/registry",
                  "the page that its author wrote");
  command.runs([card](const RegistryCall& call) { return run_describe(*card, call); });
}

void site_verb(RegistryCommand& command) {
  const auto request = std::make_shared<SiteRequest>();
  command.takes_registry();
  command.option("out", request->out, "FOLDER", "Folder to write or update").required();
  command.option("--title", request->title, "TEXT", "What the site is called; default: Kernels");
  command.option("--url", request->url, "URL", "Where users install from, for the lines to type");
  command.example("build/site --registry build/registry", "for a look");
  command.example(
      "/srv/www --registry /srv/kernels --title 'Kernels of Acme' --url "
      "https://kernels.example.org",
      "");
  command.runs([request](const RegistryCall& call) { return run_site(*request, call); });
}

void serve_verb(RegistryCommand& command) {
  const auto request = std::make_shared<ServeRequest>();
  command.takes_registry();
  command.number("--port", request->port, 0, 65535, "Port of 127.0.0.1; default: a free one");
  command.option("--title", request->title, "TEXT", "What the site is called; default: Kernels");
  command.example("--registry build/registry --port 8080", "until Ctrl-C");
  command.runs([request](const RegistryCall& call) { return run_serve(*request, call); });
}

}  // namespace kiln::registry
