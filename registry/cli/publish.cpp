// SPDX-License-Identifier: Apache-2.0
//
// publish and push: built variants into a folder or to a server, and versions of a folder to a
// server.
#include "registry/folder/publish.hpp"

#include <memory>
#include <utility>

#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/output.hpp"
#include "registry/cli/verbs.hpp"
#include "registry/server/push.hpp"
#include "store/registry.hpp"

namespace kiln::registry {
namespace {

void print_variants(const char* verb, const std::vector<std::string>& variants) {
  for (const std::string& id : variants) cli::print("  %s %s\n", verb, id.c_str());
}

void print(const Published& one) {
  cli::print("%s@%d %s%s\n", one.name.c_str(), one.version, one.index.digest.str().c_str(),
             one.changed ? "" : "  nothing to do: published before with the same bytes");
  print_variants("added    ", one.added);
  print_variants("retested ", one.retested);
  print_variants("unchanged", one.unchanged);
}

/// Which variants they are is what 'kiln registry list' says; of a push it counts what moved.
void print(const Pushed& one) {
  const Published& version = one.published;
  cli::print("%s@%d %s\n  %zu variants added, %zu retested, %zu unchanged\n", version.name.c_str(),
             version.version, version.index.digest.str().c_str(), version.added.size(),
             version.retested.size(), version.unchanged.size());
  cli::print("  %zu blobs sent, %llu bytes; %zu read back and verified; %d requests\n",
             one.blobs_sent, static_cast<unsigned long long>(one.bytes_sent), one.blobs_verified,
             one.requests);
}

Json json_of(const Published& one) {
  return {{"name", one.name},          {"version", one.version}, {"index", to_json(one.index)},
          {"changed", one.changed},    {"added", one.added},     {"retested", one.retested},
          {"unchanged", one.unchanged}};
}

Json json_of(const Pushed& one) {
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

template <class Results>
int report(const Results& results, std::string_view kind, Json document = Json::object()) {
  document["packages"] = Json::array();
  for (const auto& one : results) {
    document["packages"].push_back(json_of(one));
    print(one);
  }
  cli::print_json(kind, std::move(document));
  return 0;
}

/// A server, and how patiently it is asked. kUsage for a path, and for a URL without TLS.
Destination destination(const std::string& url, bool verify_all, const Progress& progress) {
  Destination to;
  to.settings = load_settings();
  to.registry = canonical_registry(url, to.settings);
  if (!to.registry.starts_with("http")) {
    throw Error(ErrorCode::kUsage,
                "push to " + url +
                    ": this is not a URL, expected https://host[:port][/prefix]. For a folder "
                    "there is 'kiln registry publish'");
  }
  to.patience.limits = to.settings.limits;
  to.patience.on_event = [progress](const Event& event) {
    progress(event.subject + ": " + event.note);
  };
  to.verify_all = verify_all;
  return to;
}

void takes_verify(RegistryCommand& command, bool& verify_all) {
  command.flag("--verify", verify_all,
               "Read back from the server all that the version names, not only what is new");
}

int run_publish(PublishRequest request, bool verify_all, const RegistryCall& call) {
  if (call.registry.starts_with("https://") || call.registry.starts_with("http://")) {
    return report(
        publish_to(request, destination(call.registry, verify_all, call.progress), call.progress),
        "publish");
  }
  if (verify_all) {
    throw Error(ErrorCode::kUsage,
                "publish into " + call.registry +
                    ": --verify reads back from a server, and this is a folder; nothing was "
                    "written. 'kiln registry check' verifies a folder");
  }
  request.registry = call.registry;
  return report(publish(request, call.progress), "publish");
}

struct PushWords {
  std::string to;
  std::vector<std::string> packages;
  bool verify_all = false;
};

int run_push(const PushWords& words, const RegistryCall& call) {
  std::vector<PackageVersions> wanted;
  for (const std::string& text : words.packages) {
    wanted.push_back(parse_package_versions(text, "push"));
  }
  const PushReport done = push(
      call.registry, wanted, destination(words.to, words.verify_all, call.progress), call.progress);
  Json more = Json::object();
  if (done.timestamp > 0) more["timestamp"] = done.timestamp;
  return report(done.versions, "push", std::move(more));
}

}  // namespace

void publish_verb(RegistryCommand& command) {
  const auto request = std::make_shared<PublishRequest>();
  const auto verify_all = std::make_shared<bool>(false);
  command.takes_registry(
      "Folder with one OCI layout per package, or https://…; default $KILN_REGISTRY");
  takes_verify(command, *verify_all);
  command.option("--records", request->records, "FILE", "Test record of a GPU (repeatable)");
  command
      .option("--allow-untested", request->may_be_untested, "PATTERNS",
              "Variants that need no record, like 'cu*-sm_100-*,*-aarch64'; default: all")
      .may_be_empty()
      .last_counts();
  command
      .option("build_dir", request->built, "FOLDER",
              "build/kernels/<package>, or the folder of one variant")
      .required();
  command.example("--registry build/registry build/kernels/geglu-mlp", "all of its variants");
  command.example("build/kernels/geglu-mlp --allow-untested 'cu*-sm_100-*'",
                  "all others have a record");
  command.runs([=](const RegistryCall& call) { return run_publish(*request, *verify_all, call); });
}

void push_verb(RegistryCommand& command) {
  const auto words = std::make_shared<PushWords>();
  command.takes_registry();
  command
      .option("--to", words->to, "URL", "https://host[:port][/prefix]; http for this machine alone")
      .required();
  takes_verify(command, words->verify_all);
  command.option("package", words->packages, "PACKAGE",
                 "package, or package@version; default: all");
  command.example("--registry build/registry --to https://registry.example.org/kernels",
                  "all that the folder has");
  command.example("--registry build/registry --to https://ghcr.io/acme geglu-mlp@1 --verify",
                  "one version, read back whole");
  command.runs([words](const RegistryCall& call) { return run_push(*words, call); });
}

}  // namespace kiln::registry
