// SPDX-License-Identifier: Apache-2.0
#include "registry/attest/attest.hpp"

#include <algorithm>
#include <ctime>
#include <memory>

#include "attest/statement.hpp"
#include "base/draft.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/output.hpp"
#include "registry/cli/verbs.hpp"
#include "registry/folder/layout.hpp"
#include "settings/environment.hpp"
#include "settings/settings.hpp"
#include "store/registry.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

struct AttestWords {
  std::string package;
  std::vector<std::string> keys;
  std::vector<std::string> only;
  std::vector<fs::path> records;
  Origin origin;
  fs::path toolchains;
  std::string onto;
  std::string supplier;
};

std::vector<Pin> pins_of(const AttestWords& words) {
  if (words.toolchains.empty()) return {};
  return parse_pins(read_document(words.toolchains, kMaxDocumentBytes), words.toolchains.string());
}

/// Nothing where nothing of it is named. kUsage for what is a part of one.
std::optional<Origin> origin_of(const AttestWords& words, const std::vector<Pin>& pins) {
  Origin origin = words.origin;
  if ((origin.source + origin.commit + origin.builder + origin.invocation).empty()) {
    return std::nullopt;
  }
  const bool is_commit = (origin.commit.size() == 40 || origin.commit.size() == 64) &&
                         origin.commit.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (origin.source.find("://") == std::string::npos || !is_commit || origin.builder.empty()) {
    throw Error(ErrorCode::kUsage,
                "attest " + quote(words.package) +
                    ": provenance needs --source URL, --commit with the whole hash in lower case, "
                    "and --builder URI; nothing was signed");
  }
  origin.pins = pins;
  return origin;
}

/// Those that were asked for; else each of which the facts are there.
std::vector<std::string> kinds_of(const AttestWords& words, bool has_origin) {
  std::vector<std::string> kinds;
  for (const attest::Kind& kind : attest::kKinds) {
    const bool lacks_facts = (kind.word == "provenance" && !has_origin) ||
                             (kind.word == "tests" && words.records.empty());
    const bool named = std::ranges::find(words.only, kind.word) != words.only.end();
    if (named && lacks_facts) {
      throw Error(ErrorCode::kUsage,
                  "attest " + quote(words.package) + ": the statement " + std::string(kind.word) +
                      " needs " +
                      (has_origin || kind.word == "tests" ? "--records FILE"
                                                          : "--source, --commit and --builder"));
    }
    if (named || (words.only.empty() && !lacks_facts)) kinds.emplace_back(kind.word);
  }
  return kinds;
}

/// Who supplies the package: whose the sources' repository is, where nobody else is named.
std::string supplier_of(const AttestWords& words) {
  std::string supplier = words.supplier;
  if (supplier.empty() && !words.origin.source.empty()) {
    const std::string& source = words.origin.source;  // "https://host/owner/…"
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

/// When an SBOM was made. A reproducible build sets it to the time of its sources.
std::int64_t creation_time() {
  const char* given = environment().get("SOURCE_DATE_EPOCH");
  if (given == nullptr) return std::time(nullptr);
  constexpr std::uint64_t kYear9999 = 253'402'300'799;
  if (const auto seconds = parse_decimal(given, kYear9999)) {
    return static_cast<std::int64_t>(*seconds);
  }
  throw Error(ErrorCode::kUsage,
              "attest: SOURCE_DATE_EPOCH is " + quote(given) + ", expected seconds since 1970");
}

void print(const std::vector<AttestedVersion>& versions) {
  Json documents = Json::array();
  for (const AttestedVersion& one : versions) {
    documents.push_back({{"name", one.name},
                         {"version", one.version},
                         {"index", to_json(one.index)},
                         {"added", one.added},
                         {"unchanged", one.unchanged}});
    cli::print("%s@%d %s\n", one.name.c_str(), one.version, one.index.digest.str().c_str());
    for (const std::string& each : one.added) cli::print("  added     %s\n", each.c_str());
    for (const std::string& each : one.unchanged) cli::print("  unchanged %s\n", each.c_str());
  }
  cli::print_json("attest", {{"versions", documents}});
}

/// What is said of an index in the registry at a URL.
std::vector<attest::Attestation> attestations_at(const std::string& url, const std::string& name,
                                                 const Descriptor& index) {
  const Settings settings = load_settings();
  Patience patience;
  patience.limits = settings.limits;
  Traffic traffic;
  const auto there =
      open_place(canonical_registry(url, settings), name, settings, patience, traffic);
  return attest::pull_attestations(*there, index, patience).list;
}

int run_attest(const AttestWords& words, const RegistryCall& call) {
  check_is_path(call.registry, "attest in");
  AttestRequest request;
  request.registry = call.registry;
  request.versions = parse_package_versions(words.package, "attest");
  const std::vector<Pin> pins = pins_of(words);
  request.origin = origin_of(words, pins);
  request.kinds = kinds_of(words, request.origin.has_value());
  request.records = words.records;
  request.keys = open_keys(words.keys);
  request.sbom = {creation_time(), supplier_of(words), pins};
  if (!words.onto.empty()) {
    request.onto = [&](const std::string& name, const Descriptor& index) {
      return attestations_at(words.onto, name, index);
    };
  }
  print(attest(request, call.progress));
  return 0;
}

}  // namespace

void attest_verb(RegistryCommand& command) {
  const auto words = std::make_shared<AttestWords>();
  command.option("package", words->package, "PACKAGE", "package, or package@version").required();
  command.takes_registry();
  command.takes_keys(words->keys).required();
  std::vector<std::string> kinds;
  for (const attest::Kind& kind : attest::kKinds) kinds.emplace_back(kind.word);
  command
      .option("--only", words->only, "",
              "signature, provenance, sbom, tests; default: all whose facts are given")
      .separated_by(',')
      .one_of(kinds);
  command.option("--onto", words->onto, "URL",
                 "Do not sign again what these keys signed in the registry at this URL");
  command.option("--records", words->records, "FILE", "Test record (repeatable)");
  command.option("--source", words->origin.source, "URL", "The sources' repository");
  command.option("--commit", words->origin.commit, "HASH", "The sources' commit");
  command.option("--builder", words->origin.builder, "URI", "Who runs the build");
  command.option("--invocation", words->origin.invocation, "URI", "This run of the build");
  command.option("--toolchains", words->toolchains, "FILE",
                 "The compilers' pins: ci/toolchains.lock");
  command.option("--supplier", words->supplier, "NAME",
                 "Who supplies the package, for the SBOM; default: the owner in --source");
  command.example("geglu-mlp@1 --registry build/registry --key keys/release", "that it is yours");
  command.example(
      "geglu-mlp --registry build/registry --key keys/builder --records out/record.json "
      "--source https://github.com/acme/kernels --commit \"$(git rev-parse HEAD)\" "
      "--builder https://ci.example.org --toolchains ci/toolchains.lock",
      "");
  command.runs([words](const RegistryCall& call) { return run_attest(*words, call); });
}

}  // namespace kiln::registry
