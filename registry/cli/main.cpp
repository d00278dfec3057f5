// SPDX-License-Identifier: Apache-2.0
//
// kiln-registry: the embedded registry from the command line; `kiln registry …` runs it. Results go
// to stdout (--json: one document with a "schema"), progress to stderr; the exit code is
// kiln::ErrorCode.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/complete.hpp"
#include "loader/cli/frame/result.hpp"
#include "registry/cli/attest_command.hpp"
#include "registry/cli/signing_commands.hpp"
#include "registry/folder/check.hpp"
#include "registry/folder/client_view.hpp"
#include "registry/folder/publish.hpp"
#include "registry/server/export.hpp"
#include "registry/server/push.hpp"
#include "settings/settings.hpp"
#ifdef KILN_SITE
#include "registry/cli/site_commands.hpp"
#endif
#include "loader/cli/frame/usage.hpp"
#include "store/registry.hpp"

namespace {

using kiln::Json;
namespace registry = kiln::registry;

struct Options {
  std::string registry;
  bool json = false;
  bool quiet = false;
  registry::PublishRequest publish;
  registry::ExportRequest static_export;
  std::string to;
  std::vector<std::string> wanted;
  bool verify_all = false;

  bool is_on_a_server() const {
    return registry.starts_with("https://") || registry.starts_with("http://");
  }

  registry::Progress progress() const {
    if (quiet) return [](const std::string&) {};
    return [](const std::string& line) { std::cerr << "kiln-registry: " << line << '\n'; };
  }
};

void print(const Json& document) {
  std::cout << kiln::dump_json(document) << '\n';
}

std::string ids(const char* verb, const std::vector<std::string>& variants) {
  std::string line;
  for (const std::string& id : variants) line += std::string("  ") + verb + " " + id + "\n";
  return line;
}

Json json_of(const registry::Published& one) {
  return {{"name", one.name},          {"version", one.version}, {"index", to_json(one.index)},
          {"changed", one.changed},    {"added", one.added},     {"retested", one.retested},
          {"unchanged", one.unchanged}};
}

Json json_of(const registry::Pushed& one) {
  Json json = json_of(one.published);
  json.update({{"pushed", one.tags},
               {"blobs_sent", one.blobs_sent},
               {"bytes_sent", one.bytes_sent},
               {"blobs_verified", one.blobs_verified},
               {"bytes_verified", one.bytes_verified},
               {"referrers", one.referrers},
               {"requests", one.requests}});
  return json;
}

void print_text(const registry::Published& one) {
  std::cout << one.name << "@" << one.version << " " << one.index.digest.str()
            << (one.changed ? "" : "  nothing to do: published before with the same bytes") << '\n'
            << ids("added    ", one.added) << ids("retested ", one.retested)
            << ids("unchanged", one.unchanged);
}

/// Which variants they are is what 'kiln registry list' says; of a push it counts what moved.
void print_text(const registry::Pushed& one) {
  const registry::Published& version = one.published;
  std::cout << version.name << "@" << version.version << " " << version.index.digest.str() << '\n'
            << "  " << version.added.size() << " variants added, " << version.retested.size()
            << " retested, " << version.unchanged.size() << " unchanged\n";
  std::cout << "  " << one.blobs_sent << " blobs sent, " << one.bytes_sent << " bytes; "
            << one.blobs_verified << " read back and verified; " << one.requests << " requests\n";
}

template <class Results>
int report(const Options& options, const char* schema, const Results& results,
           Json document = Json::object()) {
  Json packages = Json::array();
  for (const auto& one : results) {
    packages.push_back(json_of(one));
    if (!options.json) print_text(one);
  }
  document.update({{"schema", schema}, {"packages", packages}});
  if (options.json) print(document);
  return 0;
}

/// A server, and how patiently it is asked. kUsage for what is no URL, or one without TLS.
registry::Destination destination(const Options& options, const std::string& url) {
  registry::Destination to;
  to.settings = kiln::load_settings();
  to.registry = kiln::canonical_registry(url, to.settings);
  if (!to.registry.starts_with("http")) {
    throw kiln::Error(kiln::ErrorCode::kUsage,
                      "push to " + url +
                          ": this is no URL, expected https://host[:port][/prefix]. For a folder "
                          "there is 'kiln registry publish'");
  }
  to.patience.limits = to.settings.limits;
  to.patience.on_event = [say = options.progress()](const kiln::Event& event) {
    say(event.subject + ": " + event.note);
  };
  to.verify_all = options.verify_all;
  return to;
}

int run_publish(Options& options) {
  if (options.is_on_a_server()) {
    return report(options, "kiln.publish/1",
                  registry::publish_to(options.publish, destination(options, options.registry),
                                       options.progress()));
  }
  if (options.verify_all) {
    throw kiln::Error(kiln::ErrorCode::kUsage,
                      "publish into " + options.registry +
                          ": --verify reads back from a server, and this is a folder; nothing was "
                          "written. 'kiln registry check' verifies a folder");
  }
  options.publish.registry = options.registry;
  return report(options, "kiln.publish/1", registry::publish(options.publish, options.progress()));
}

int run_push(Options& options) {
  std::vector<registry::Wanted> wanted;
  for (const std::string& text : options.wanted) wanted.push_back(registry::parse_wanted(text));
  const registry::PushReport done = registry::push(
      options.registry, wanted, destination(options, options.to), options.progress());
  Json more = Json::object();
  if (done.timestamp > 0) more["timestamp"] = done.timestamp;
  return report(options, "kiln.push/1", done.versions, std::move(more));
}

int run_export(Options& options) {
  options.static_export.registry = options.registry;
  Json repositories = Json::array();
  for (const registry::Exported& one :
       registry::export_static(options.static_export, options.progress())) {
    repositories.push_back(
        {{"name", one.name}, {"tags", one.tags}, {"files_written", one.files_written}});
    if (options.json) continue;
    std::cout << one.name << ": " << one.tags.size() << " tags, " << one.files_written
              << " files written\n";
  }
  if (options.json) print({{"schema", "kiln.export/1"}, {"repositories", repositories}});
  return 0;
}

/// Until when each document holds: what must be signed again, and how.
Json json_of(const std::vector<registry::RoleState>& roles) {
  Json list = Json::array();
  for (const registry::RoleState& each : roles) {
    list.push_back({{"role", each.role},
                    {"version", each.version},
                    {"expires", kiln::trust::to_text(each.expires)}});
  }
  return list;
}

void print_expiry(const std::vector<registry::RoleState>& roles, const std::string& folder) {
  if (roles.empty()) return;
  const registry::RoleState& first =
      *std::ranges::min_element(roles, {}, &registry::RoleState::expires);
  std::cout << "signed: " << describe(first, std::time(nullptr))
            << "\n  renew it: " << how_to_renew(first, folder) << '\n';
}

/// What clients see of a signed folder; nothing of another one, or where that cannot be told.
std::optional<registry::ClientView> client_view(const Options& options) {
  try {
    return registry::view_as_client(options.registry);
  } catch (const kiln::Error& error) {
    std::cerr << "kiln-registry: what clients see is not known: " << error.what() << '\n';
    return std::nullopt;
  }
}

int run_list(Options& options) {
  Json versions = Json::array();
  const std::vector<registry::ListedVersion> listed = registry::list_registry(options.registry);
  const std::optional<registry::ClientView> view = client_view(options);
  for (const registry::ListedVersion& one : listed) {
    Json variants = Json::array();
    for (const kiln::Variant& variant : one.index.variants) {
      variants.push_back({{"id", variant.id},
                          {"manifest", variant.manifest.digest.str()},
                          {"tested", variant.tested}});
    }
    Json version = {{"name", one.name},
                    {"version", one.index.version},
                    {"index", to_json(one.descriptor)},
                    {"variants", variants}};
    std::string state;
    if (view) {
      const std::string name = kiln::trust::target_name(one.name, one.index.version);
      const auto found = view->listed.targets.find(name);
      const bool is_known = found != view->listed.targets.end();
      const bool is_signed = is_known && found->second.promise.sha256() == one.descriptor.digest;
      const std::optional<std::string> yanked = is_known ? found->second.yanked : std::nullopt;
      version["signed"] = is_signed;
      version["yanked"] = yanked ? Json(*yanked) : Json();
      state = is_signed ? "  signed" : "  not signed: 'kiln registry sign'";
      if (yanked) state += ", taken back: " + kiln::quote(*yanked);
    }
    versions.push_back(std::move(version));
    if (options.json) continue;
    std::cout << one.name << "@" << one.index.version << " " << one.descriptor.digest.str() << state
              << '\n';
    for (const kiln::Variant& variant : one.index.variants) {
      std::cout << "  " << variant.id << "  " << variant.tested << '\n';
    }
  }
  if (options.json) {
    Json document = {{"schema", "kiln.registry-list/1"}, {"versions", versions}};
    if (view) document["metadata"] = json_of(view->roles);
    print(document);
    return 0;
  }
  if (view) print_expiry(view->roles, options.registry);
  if (versions.empty()) {
    std::cerr << "kiln-registry: nothing is published in " << options.registry << '\n';
  }
  return 0;
}

int run_check(Options& options) {
  const registry::CheckReport report =
      registry::check_registry(options.registry, options.progress());
  if (options.json) {
    print({{"schema", "kiln.registry-check/1"},
           {"packages", report.packages},
           {"versions", report.versions},
           {"variants", report.variants},
           {"blobs", report.blobs},
           {"metadata", json_of(report.roles)},
           {"problems", report.problems}});
  } else {
    std::cout << report.packages << " packages, " << report.versions << " versions, "
              << report.variants << " variants, " << report.blobs << " blobs hashed: "
              << (report.problems.empty() ? "all intact"
                                          : std::to_string(report.problems.size()) + " problems")
              << '\n';
    for (const std::string& problem : report.problems) std::cout << "  " << problem << '\n';
    print_expiry(report.roles, options.registry);
  }
  return report.problems.empty() ? 0 : static_cast<int>(kiln::ErrorCode::kIntegrity);
}

void add_common(CLI::App* command, Options& options,
                const std::string& registry = "Folder with one OCI layout per package") {
  command->add_option("--registry", options.registry, registry + "; default $KILN_REGISTRY")
      ->type_name("FOLDER");
  command->add_flag("--json", options.json, "Print one JSON document");
  command->add_flag("-q,--quiet", options.quiet, "No progress on stderr");
}

void add_verify(CLI::App* command, Options& options) {
  command->add_flag("--verify", options.verify_all,
                    "Read back from the server all that the version names, not only what is new");
}

/// Of the commands that do not give their own.
constexpr struct {
  const char* command;
  const char* examples;
} kExamples[] = {
    {"publish",
     "  kiln registry publish --registry build/registry build/kernels/geglu-mlp\n"
     "  kiln registry publish build/kernels/geglu-mlp --allow-untested 'cu*-sm_100-*'"},
    {"export-static", "  kiln registry export-static --registry build/registry --out /srv/www"},
    {"list", "  kiln registry list --registry build/registry"},
    {"check", "  kiln registry check --registry build/registry"},
    {"key",
     "  kiln registry key keys/targets                 for Kiln's metadata\n"
     "  kiln registry key keys/release --type ecdsa    for statements, which cosign verifies"},
    {"init",
     "  kiln registry init --root-key keys/root.pub --targets-key keys/targets.pub\n"
     "    --online-key keys/online.pub --out 1.root.json"},
    {"rotate", "  kiln registry rotate 1.root.json --online-key keys/new.pub --out 2.root.json"},
    {"delegate",
     "  kiln registry delegate acme --package 'acme-*' --role-key acme.pub --key keys/targets\n"
     "    --key keys/online"},
    {"bins", "  kiln registry bins 256 --key keys/targets --key keys/online"},
    {"yank",
     "  kiln registry yank geglu-mlp@1 --reason 'wrong sums for K > 65536' --key keys/targets\n"
     "    --key keys/online"},
};

int run(int argc, char** argv) {
  CLI::App app(
      "Kiln's embedded registry: publish, attest, sign, push, export, list, check, site, serve",
      "kiln-registry");
  app.require_subcommand(1);
  app.set_version_flag("--version", KILN_VERSION);
  Options options;
  // Not CLI11's envname(): it would set the shared value again for each command that was not given.
  if (const char* registry = std::getenv("KILN_REGISTRY")) options.registry = registry;

  CLI::App* publish = app.add_subcommand("publish", "Add built variants; never changes one");
  add_common(publish, options, "Folder with one OCI layout per package, or https://…");
  add_verify(publish, options);
  publish->add_option("--records", options.publish.records, "Test record of a GPU (repeatable)")
      ->type_name("FILE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);  // else it takes all but one of the folders as well
  publish
      ->add_option("--allow-untested", options.publish.may_be_untested,
                   "Variants that need no record, like 'cu*-sm_100-*,*-aarch64'; default: all")
      ->take_last();
  publish
      ->add_option("build_dir", options.publish.built,
                   "build/kernels/<package>, or the folder of one variant")
      ->type_name("FOLDER")
      ->required();

  CLI::App* push =
      app.add_subcommand("push",
                         "Bring versions of a folder to a registry on a server. What is there "
                         "stays; a version is moved "
                         "last, when all of it is there. Logs in as docker, podman and skopeo do");
  add_common(push, options);
  push->add_option("--to", options.to, "https://host[:port][/prefix]; http for this machine alone")
      ->type_name("URL")
      ->required();
  add_verify(push, options);
  push->add_option("package", options.wanted, "package, or package@version; default: all")
      ->type_name("PACKAGE");

  push->footer(
      "Examples:\n"
      "  kiln registry push --registry build/registry --to https://registry.example.org/kernels\n"
      "  kiln registry push --registry build/registry --to https://ghcr.io/acme geglu-mlp@1 "
      "--verify");

  CLI::App* exporting =
      app.add_subcommand("export-static", "Write the files of the OCI pull API for a web server");
  add_common(exporting, options);
  exporting->add_option("--out", options.static_export.out, "Folder to write or update")
      ->type_name("FOLDER")
      ->required();
  exporting->add_option("--prefix", options.static_export.prefix,
                        "In front of each name, like 'kernels'");

  CLI::App* list = app.add_subcommand("list", "Published versions, variants and their tests");
  add_common(list, options);
  CLI::App* check = app.add_subcommand("check", "Verify every blob and every reference");
  add_common(check, options);

  const std::function<int()> run_signing = registry::add_signing_commands(app);
  const std::function<int()> run_attest = registry::add_attest_command(app);
#ifdef KILN_SITE
  const std::function<int()> run_site = registry::add_site_commands(app);
#else
  const std::function<int()> run_site = [] { return -1; };
#endif

  for (const auto& [command, examples] : kExamples) {
    app.get_subcommand(command)->footer(std::string("Examples:\n") + examples);
  }
  app.footer(
      "Examples:\n"
      "  kiln registry publish --registry build/registry build/kernels/geglu-mlp\n"
      "  kiln registry sign --registry build/registry --key keys/targets --key keys/online\n"
      "  kiln registry push --registry build/registry --to https://registry.example.org/kernels");
  if (kiln::cli::asks_to_complete(argc, argv)) return kiln::cli::complete(app, argc, argv);

  if (const std::optional<int> answered = kiln::cli::parse(app, argc, argv)) return *answered;
  for (const std::function<int()>& run_named : {run_signing, run_attest, run_site}) {
    if (const int code = run_named(); code >= 0) return code;
  }
  if (options.registry.empty()) {
    throw kiln::Error(kiln::ErrorCode::kUsage,
                      "no registry is named: give --registry DIR or set KILN_REGISTRY");
  }
  if (publish->parsed()) return run_publish(options);
  if (push->parsed()) return run_push(options);
  if (exporting->parsed()) return run_export(options);
  if (list->parsed()) return run_list(options);
  return run_check(options);
}

}  // namespace

int main(int argc, char** argv) {
  return kiln::cli::run_program("kiln-registry", argc, argv, [&] {
    const int code = run(argc, argv);
    kiln::cli::flush_result();
    return code;
  });
}
