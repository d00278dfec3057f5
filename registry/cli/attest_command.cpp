// SPDX-License-Identifier: Apache-2.0
#include "registry/cli/attest_command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "attest/statement.hpp"
#include "base/draft.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "registry/attest/attest.hpp"
#include "registry/folder/layout.hpp"
#include "settings/settings.hpp"
#include "store/registry.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

struct Options {
  bool json = false;
  bool quiet = false;
  std::string package;
  std::string registry;
  std::vector<std::string> keys;
  std::vector<std::string> only;
  std::vector<fs::path> records;
  Origin origin;
  fs::path toolchains;
  std::string onto;
  std::string supplier;
};

std::vector<PrivateKey> open_keys(const Options& options) {
  const char* passphrase = std::getenv("KILN_KEY_PASSPHRASE");
  std::vector<PrivateKey> keys;
  for (const std::string& name : options.keys) {
    keys.push_back(PrivateKey::open(name, passphrase == nullptr ? "" : passphrase));
  }
  return keys;
}

/// Nothing where no source is named. kUsage for what is half of one.
std::optional<Origin> origin_of(const Options& options) {
  Origin origin = options.origin;
  if (origin.source.empty() && origin.commit.empty()) return std::nullopt;
  const bool is_commit = (origin.commit.size() == 40 || origin.commit.size() == 64) &&
                         origin.commit.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (origin.source.find("://") == std::string::npos || !is_commit || origin.builder.empty()) {
    throw Error(ErrorCode::kUsage,
                "attest " + quote(options.package) +
                    ": provenance needs --source URL, --commit with the whole hash in lower case, "
                    "and --builder URI; nothing was signed");
  }
  if (!options.toolchains.empty()) {
    origin.pins = parse_pins(read_document(options.toolchains, kMaxDocumentBytes),
                             options.toolchains.string());
  }
  return origin;
}

/// Those that were asked for; else each of which the facts are there.
std::vector<std::string> kinds_of(const Options& options, bool has_origin) {
  std::vector<std::string> kinds;
  for (const attest::Kind& kind : attest::kKinds) {
    const bool lacks_facts = (kind.word == "provenance" && !has_origin) ||
                             (kind.word == "tests" && options.records.empty());
    const bool named = std::ranges::find(options.only, kind.word) != options.only.end();
    if (named && lacks_facts) {
      throw Error(ErrorCode::kUsage,
                  "attest " + quote(options.package) + ": the statement " + std::string(kind.word) +
                      " needs " +
                      (has_origin || kind.word == "tests" ? "--records FILE"
                                                          : "--source, --commit and --builder"));
    }
    if (named || (options.only.empty() && !lacks_facts)) kinds.emplace_back(kind.word);
  }
  return kinds;
}

/// Who supplies the package: whose the sources' repository is, where nobody else is named.
std::string supplier_of(const Options& options) {
  std::string supplier = options.supplier;
  if (supplier.empty() && !options.origin.source.empty()) {
    const std::string& source = options.origin.source;  // "https://host/owner/…"
    const std::size_t host = source.find("://") + 3;
    const std::size_t owner = source.find('/', host);
    const std::size_t end = owner == std::string::npos ? owner : source.find('/', owner + 1);
    supplier = source.substr(host, end == std::string::npos ? end : end - host);
  }
  constexpr std::size_t kMost = 200;
  if (supplier.size() <= kMost && printable(supplier) == supplier) return supplier;
  throw Error(ErrorCode::kUsage, "attest: --supplier is " + quote(supplier) +
                                     ", expected at most 200 bytes of printable text");
}

/// When an SBOM was made: for who builds reproducibly, when the sources were.
std::int64_t creation_time() {
  const char* given = std::getenv("SOURCE_DATE_EPOCH");
  if (given == nullptr) return std::time(nullptr);
  constexpr std::uint64_t kYear9999 = 253'402'300'799;
  if (const auto seconds = parse_decimal(given, kYear9999)) {
    return static_cast<std::int64_t>(*seconds);
  }
  throw Error(ErrorCode::kUsage,
              "attest: SOURCE_DATE_EPOCH is " + quote(given) + ", expected seconds since 1970");
}

void print(const Options& options, const std::vector<AttestedVersion>& versions) {
  Json documents = Json::array();
  for (const AttestedVersion& one : versions) {
    documents.push_back({{"name", one.name},
                         {"version", one.version},
                         {"index", to_json(one.index)},
                         {"added", one.added},
                         {"unchanged", one.unchanged}});
    if (options.json) continue;
    std::cout << one.name << "@" << one.version << " " << one.index.digest.str() << '\n';
    for (const std::string& each : one.added) std::cout << "  added     " << each << '\n';
    for (const std::string& each : one.unchanged) std::cout << "  unchanged " << each << '\n';
  }
  if (!options.json) return;
  std::cout << dump_json({{"schema", "kiln.attest/1"}, {"versions", documents}}) << '\n';
}

int run_attest(const Options& options) {
  if (options.registry.empty()) {
    throw Error(ErrorCode::kUsage,
                "no registry is named: give --registry DIR or set KILN_REGISTRY");
  }
  check_is_path(options.registry, "attest in");
  AttestRequest request;
  request.registry = options.registry;
  request.wanted = parse_wanted(options.package, "attest");
  request.origin = origin_of(options);
  request.kinds = kinds_of(options, request.origin.has_value());
  request.records = options.records;
  request.keys = open_keys(options);
  request.sbom = {creation_time(), supplier_of(options),
                  request.origin ? request.origin->pins : std::vector<Pin>()};
  if (!options.onto.empty()) {
    request.onto = [settings = load_settings(), url = options.onto](const std::string& name,
                                                                    const Descriptor& index) {
      Patience patience;
      patience.limits = settings.limits;
      Traffic traffic;
      const auto there =
          open_place(canonical_registry(url, settings), name, settings, patience, traffic);
      return attest::pull_attestations(*there, index, patience).list;
    };
  }
  const Progress say = [&](const std::string& line) {
    if (!options.quiet) std::cerr << "kiln-registry: " << line << '\n';
  };
  print(options, attest(request, say));
  return 0;
}

CLI::Option* repeatable(CLI::Option* option) {
  return option->expected(1)->take_all()->allow_extra_args(false);
}

}  // namespace

std::function<int()> add_attest_command(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  if (const char* registry = std::getenv("KILN_REGISTRY")) options->registry = registry;
  CLI::App* attest = app.add_subcommand(
      "attest",
      "Sign statements about a version, for Kiln and for cosign: that it is yours, its files and "
      "licences (SPDX), what it was built from (SLSA), where it was tested");
  attest->add_option("package", options->package, "package, or package@version")
      ->type_name("PACKAGE")
      ->required();
  attest
      ->add_option("--registry", options->registry,
                   "Folder with one OCI layout per package; default $KILN_REGISTRY")
      ->type_name("FOLDER");
  repeatable(attest->add_option("--key", options->keys,
                                "Private key, P-256 or Ed25519: a file, or a URI of OpenSSL like "
                                "pkcs11:… (repeatable); $KILN_KEY_PASSPHRASE opens it"))
      ->type_name("KEY")
      ->required();
  std::vector<std::string> words;
  for (const attest::Kind& kind : attest::kKinds) words.emplace_back(kind.word);
  attest
      ->add_option("--only", options->only,
                   "signature, provenance, sbom, tests; default: all whose facts are given")
      ->delimiter(',')
      ->check(CLI::IsMember(words));
  attest
      ->add_option("--onto", options->onto,
                   "Do not sign again what these keys signed in the registry at this URL")
      ->type_name("URL");
  repeatable(attest->add_option("--records", options->records, "Test record (repeatable)"))
      ->type_name("FILE");
  attest->add_option("--source", options->origin.source, "The sources' repository")
      ->type_name("URL");
  attest->add_option("--commit", options->origin.commit, "The sources' commit");
  attest->add_option("--builder", options->origin.builder, "Who runs the build")->type_name("URI");
  attest->add_option("--invocation", options->origin.invocation, "This run of the build")
      ->type_name("URI");
  attest->add_option("--toolchains", options->toolchains, "The compilers' pins: ci/toolchains.lock")
      ->type_name("FILE");
  attest
      ->add_option("--supplier", options->supplier,
                   "Who supplies the package, for the SBOM; default: the owner in --source")
      ->type_name("NAME");
  attest->add_flag("--json", options->json, "Print one JSON document");
  attest->add_flag("-q,--quiet", options->quiet, "No progress on stderr");
  attest->footer(
      "Examples:\n"
      "  kiln registry attest geglu-mlp@1 --registry build/registry --key keys/release\n"
      "  kiln registry attest geglu-mlp --registry build/registry --key keys/builder --records "
      "out/record.json\n"
      "    --source https://github.com/acme/kernels --commit \"$(git rev-parse HEAD)\"\n"
      "    --builder https://ci.example.org --toolchains ci/toolchains.lock");
  return [options, attest] { return attest->parsed() ? run_attest(*options) : -1; };
}

}  // namespace kiln::registry
