// SPDX-License-Identifier: Apache-2.0
#include "registry/cli/site_commands.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "registry/folder/card.hpp"
#include "registry/site/serve.hpp"
#include "registry/site/write.hpp"

namespace kiln::registry {
namespace {

struct Options {
  std::string registry;
  bool json = false;
  bool quiet = false;
  std::string package;
  std::filesystem::path card;
  SiteRequest site;
  ServeRequest serve;
};

Progress progress_of(const Options& options) {
  return [quiet = options.quiet](const std::string& line) {
    if (!quiet) std::cerr << "kiln-registry: " << line << '\n';
  };
}

void check_registry_is_named(const Options& options) {
  if (!options.registry.empty()) return;
  throw Error(ErrorCode::kUsage, "no registry is named: give --registry DIR or set KILN_REGISTRY");
}

int run_describe(const Options& options) {
  const DescribedVersion done =
      describe(options.registry, parse_wanted(options.package, "describe"), options.card);
  if (options.json) {
    std::cout << dump_json({{"schema", "kiln.describe/1"},
                            {"name", done.name},
                            {"version", done.version},
                            {"index", to_json(done.index)},
                            {"changed", done.changed}})
              << '\n';
  } else {
    std::cout << done.name << "@" << done.version << " " << done.index.digest.str()
              << (done.changed ? "  has its card" : "  nothing to do: it has this card") << '\n';
  }
  return 0;
}

int run_site(Options& options) {
  options.site.registry = options.registry;
  const SiteReport report = write_site(options.site, progress_of(options));
  if (options.json) {
    std::cout << dump_json({{"schema", "kiln.site/1"},
                            {"packages", report.packages},
                            {"versions", report.versions},
                            {"files", report.files},
                            {"written", report.written},
                            {"problems", report.problems}})
              << '\n';
  } else {
    std::cout << (options.site.out / "index.html").string() << ": " << report.packages
              << " packages, " << report.versions << " versions; " << report.written << " of "
              << report.files << " files written\n";
  }
  if (report.problems.empty()) return 0;
  for (const std::string& problem : report.problems) {
    std::cerr << "kiln-registry: not on the site: " << printable_lines(problem) << '\n';
  }
  return static_cast<int>(ErrorCode::kIntegrity);
}

/// Until Ctrl-C, or SIGTERM.
int run_serve(Options& options) {
  options.serve.registry = options.registry;
  // At once, whatever is under way: also a first page that takes long. There is nothing to undo.
  for (const int each : {SIGINT, SIGTERM}) {
    // nohup, and a shell's background jobs, ignore signals on purpose.
    if (std::signal(each, [](int) { ::_exit(0); }) == SIG_IGN) std::signal(each, SIG_IGN);
  }
  Server server(options.serve);
  std::cout << server.url() << std::endl;
  if (!options.quiet) {
    std::cerr << "kiln-registry: serving " << options.registry
              << " to this machine; Ctrl-C ends it. Kernels install from it after\n"
              << "  kiln trust add " << server.url() << " --unsigned   # or --root root.json\n"
              << "  export KILN_REGISTRY=" << server.url() << '\n';
  }
  server.run();
  return 0;
}

void add_common(CLI::App* command, Options& options) {
  command
      ->add_option("--registry", options.registry,
                   "Folder with one OCI layout per package; default $KILN_REGISTRY")
      ->type_name("FOLDER");
  command->add_flag("-q,--quiet", options.quiet, "No progress on stderr");
}

}  // namespace

std::function<int()> add_site_commands(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  if (const char* registry = std::getenv("KILN_REGISTRY")) options->registry = registry;

  CLI::App* describing =
      app.add_subcommand("describe", "Hang a card on a version: the page that its author wrote");
  add_common(describing, *options);
  describing->add_flag("--json", options->json, "Print one JSON document");
  describing->add_option("package", options->package, "package, or package@version")
      ->type_name("PACKAGE")
      ->required();
  describing->add_option("card", options->card, "CARD.md, in Markdown")
      ->type_name("FILE")
      ->required();
  describing->footer(
      "Examples:\n"
      "  kiln registry describe geglu-mlp@1 packages/geglu-mlp/CARD.md --registry build/registry");

  CLI::App* site =
      app.add_subcommand("site", "Write a static site: a page per package and version");
  add_common(site, *options);
  site->add_flag("--json", options->json, "Print one JSON document");
  site->add_option("out", options->site.out, "Folder to write or update")
      ->type_name("FOLDER")
      ->required();
  site->add_option("--title", options->site.title, "What the site is called; default: Kernels");
  site->add_option("--url", options->site.url, "Where users install from, for the lines to type")
      ->type_name("URL");
  site->footer(
      "Examples:\n"
      "  kiln registry site build/site --registry build/registry\n"
      "  kiln registry site /srv/www --registry /srv/kernels --title 'Kernels of Acme' --url "
      "https://kernels.example.org");

  CLI::App* serve = app.add_subcommand(
      "serve", "Serve the site and the pull API to this machine, for a try; Ctrl-C ends it");
  add_common(serve, *options);
  serve->add_option("--port", options->serve.port, "Port of 127.0.0.1; default: a free one")
      ->check(CLI::Range(0, 65535));
  serve->add_option("--title", options->serve.title, "What the site is called; default: Kernels");
  serve->footer(
      "Examples:\n"
      "  kiln registry serve --registry build/registry --port 8080");

  return [=] {
    const bool named = describing->parsed() || site->parsed() || serve->parsed();
    if (!named) return -1;
    check_registry_is_named(*options);
    if (describing->parsed()) return run_describe(*options);
    return site->parsed() ? run_site(*options) : run_serve(*options);
  };
}

}  // namespace kiln::registry
