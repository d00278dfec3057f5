// SPDX-License-Identifier: Apache-2.0
//
// advisory publish, lift, list: what a publisher warns of, or has refused, in signed metadata.
#include <ctime>
#include <memory>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "base/utc.hpp"
#include "documents/advisory.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/output.hpp"
#include "registry/attest/affected.hpp"
#include "registry/cli/signing.hpp"
#include "registry/cli/verbs.hpp"
#include "registry/folder/client_view.hpp"

namespace kiln::registry {
namespace {

struct AdvisoryWords {
  SignWords signing;
  Advisory advisory;
  bool refuse = false;
  std::string versions;
  std::vector<std::string> gpus;
  std::string drivers;
  std::string compiler;
  std::string compiler_digest;
  std::string code;
  std::string before;
};

[[noreturn]] void fail(const std::string& option, const std::string& found, const char* expected) {
  throw Error(ErrorCode::kUsage,
              "advisory publish: " + option + " is " + quote(found) + ", expected " + expected);
}

std::int64_t moment(const std::string& text) {
  if (const auto time = parse_time(text)) return *time;
  if (const auto day = parse_time(text + "T00:00:00Z")) return *day;
  fail("--before", text, "a day like 2026-11-26, or a time like 2026-11-26T12:00:00Z");
}

/// "1..3", "2..", "..3" or "2".
template <class Parse>
void read_range(const std::string& text, const Parse& parse, auto& from, auto& to) {
  if (text.empty()) return;
  const std::size_t dots = text.find("..");
  const std::string first = text.substr(0, dots);
  const std::string last = dots == std::string::npos ? first : text.substr(dots + 2);
  if (!first.empty()) from = parse(first);
  if (!last.empty()) to = parse(last);
}

MadeWith made_with(const AdvisoryWords& words) {
  MadeWith made;
  const std::size_t at = words.compiler.find('@');
  made.compiler = words.compiler.substr(0, at);
  if (at != std::string::npos) made.version = words.compiler.substr(at + 1);
  if (!words.compiler_digest.empty()) {
    const std::string_view text = words.compiler_digest;
    constexpr std::string_view kSha256 = "sha256:";
    made.digest = Digest::from_hex(text.substr(text.starts_with(kSha256) ? kSha256.size() : 0));
    if (!made.digest) fail("--compiler-digest", words.compiler_digest, "sha256:… of its download");
  }
  made.code = words.code;
  if (!made.code.empty() && !parse_device_code(made.code)) {
    fail("--code", made.code, "device code like sm_90a or compute_80");
  }
  if (!words.before.empty()) made.before = moment(words.before);
  return made;
}

/// The advisory as it was typed, and as a client would read it.
Advisory read_words(const AdvisoryWords& words) {
  Advisory advisory = words.advisory;
  advisory.refuses = words.refuse;
  advisory.published = std::time(nullptr);
  read_range(
      words.versions,
      [&](const std::string& text) {
        const int version = parse_version_number(text);
        if (version == 0) fail("--versions", words.versions, "versions like 2, 1..3 or 2..");
        return version;
      },
      advisory.from_version, advisory.to_version);
  read_range(
      words.drivers,
      [&](const std::string& text) {
        if (!is_driver_version(text)) {
          fail("--drivers", words.drivers,
               "drivers' versions like 570.124.06 or 580.65, or a range of them, not CUDA's");
        }
        return text;
      },
      advisory.from_driver, advisory.to_driver);
  for (const std::string& each : words.gpus) {
    const std::optional<Version> found = parse_version(each);
    if (!found) fail("--gpu", each, "two numbers like 9.0");
    advisory.gpus.push_back(*found);
  }
  const Json document = to_json(advisory);
  try {
    return parse_advisory(JsonView(document, "advisory " + quote(advisory.id)), advisory.id);
  } catch (const Error& error) {
    throw Error(ErrorCode::kUsage, "advisory publish: " + std::string(error.what()));
  }
}

int run_publish(AdvisoryWords& words, const RegistryCall& call) {
  Advisory advisory = read_words(words);
  const MadeWith made = made_with(words);
  if (made.is_given()) {
    const Affected affected = find_affected(call.registry, advisory, made);
    for (const std::string& each : affected.unknown) {
      cli::tell(
          "%s: %s has no provenance here, so it is not named: 'kiln registry attest' says "
          "what it was made with\n",
          call.command.c_str(), each.c_str());
    }
    if (affected.manifests.empty()) {
      throw Error(ErrorCode::kNotFound,
                  "advisory publish " + advisory.id + ": no variant in " + call.registry +
                      " was made so; nothing was signed. Check --compiler, --code and --before");
    }
    if (affected.manifests.size() > kMaxAdvisedVariants) {
      throw Error(ErrorCode::kUsage, "advisory publish " + advisory.id + ": it means " +
                                         std::to_string(affected.manifests.size()) +
                                         " variants, at most " +
                                         std::to_string(kMaxAdvisedVariants) +
                                         " are named by one. Publish one for each package");
    }
    advisory.variants = affected.manifests;
    cli::print("%s names %zu variants of %s\n", advisory.id.c_str(), affected.manifests.size(),
               join(affected.versions).c_str());
  } else if (const std::string absent = find_absent(call.registry, advisory); !absent.empty()) {
    throw Error(ErrorCode::kNotFound,
                "advisory publish " + advisory.id + ": " + call.registry + " has no " + absent +
                    ", so it would speak of nothing; nothing was signed. Check --package, "
                    "--versions and --variant; 'kiln registry list' says what there is");
  }
  words.signing.request.advisories.push_back(std::move(advisory));
  return sign(words.signing, call);
}

int list_advisories(const RegistryCall& call) {
  Json list = Json::array();
  const std::optional<ClientView> view = view_as_client(call.registry);
  if (!view) {
    throw Error(ErrorCode::kTrust, "advisory list " + call.registry +
                                       ": it is not signed, so it has none. Sign it: 'kiln "
                                       "registry sign'");
  }
  for (const Advisory& each : view->advisories) {
    Json one = each.is_unread ? Json{{"id", each.id}} : to_json(each);
    one.erase("schema");
    list.push_back(std::move(one));
    const char* const state = each.is_unread ? "not read"
                              : each.lifted  ? "lifted"
                              : each.refuses ? "refuses"
                                             : "warns";
    cli::print("%s  %s  %s\n  %s%s%s\n", each.id.c_str(), state, scope_of(each).c_str(),
               printable(each.text).c_str(), each.link.empty() ? "" : "  ", each.link.c_str());
  }
  if (list.empty() && !call.json) cli::tell("%s has no advisory\n", call.registry.c_str());
  cli::print_json("registry-advisories", {{"advisories", list}});
  return 0;
}

void takes_role(RegistryCommand& command, SignWords& words) {
  command.option("--role", words.request.advising_role, "NAME",
                 "The publisher whose packages it speaks of; default: targets, of all packages");
}

}  // namespace

void advisory_publish_verb(RegistryCommand& command) {
  const auto words = std::make_shared<AdvisoryWords>();
  Advisory& advisory = words->advisory;
  command.option("id", advisory.id, "ID", "Its name; one that is there is replaced").required();
  command.option("--text", advisory.text, "TEXT", "What its users will read").required();
  command.option("--link", advisory.link, "URL", "Where more of it stands, https://…");
  command.flag("--refuse", words->refuse, "Clients load nothing that it names; else they warn");
  command.option("--package", advisory.package, "PACKAGE",
                 "A package, or the beginning of names like 'geglu-*'; default: every one");
  command.option("--versions", words->versions, "RANGE", "2, 1..3, 2.. or ..3");
  command.option("--variant", advisory.variants, "VARIANT",
                 "Its id, or the digest of its manifest (repeatable)");
  command.option("--gpu", words->gpus, "CAPABILITY",
                 "On GPUs of this compute capability, like 9.0 (repeatable)");
  command.option("--drivers", words->drivers, "RANGE",
                 "On drivers of these versions, like 570.86..570.124");
  command.option("--compiler", words->compiler, "NAME[@VERSION]",
                 "Variants that it made, as their configs say");
  command.option("--compiler-digest", words->compiler_digest, "SHA256",
                 "Variants that this download made, as their provenance says");
  command.option("--code", words->code, "CODE", "Variants with this device code, like sm_90a");
  command.option("--before", words->before, "TIME", "Of versions that were published before");
  takes_role(command, words->signing);
  command.takes_registry();
  takes_signing(command, words->signing);
  command.example(
      "KA-7 --text 'wrong sums for odd D' --package geglu-mlp --refuse --key keys/targets --key "
      "keys/online",
      "");
  command.example(
      "KA-9 --text 'hangs' --gpu 9.0 --drivers 570.86.15..570.124 --key keys/targets --key "
      "keys/online",
      "570.124 is every 570.124.x");
  command.example(
      "KA-8 --text 'miscompiles loops' --compiler nvrtc@12.9.86 --code sm_90a --before 2026-11-26 "
      "--key keys/targets --key keys/online",
      "");
  command.runs([=](const RegistryCall& call) { return run_publish(*words, call); });
}

void advisory_lift_verb(RegistryCommand& command) {
  const auto words = std::make_shared<SignWords>();
  const auto id = std::make_shared<std::string>();
  command.option("id", *id, "ID", "The advisory that speaks of nothing any more").required();
  takes_role(command, *words);
  command.takes_registry();
  takes_signing(command, *words);
  command.example("KA-7 --key keys/targets --key keys/online", "");
  command.runs([=](const RegistryCall& call) {
    words->request.lifted = {*id};
    return sign(*words, call);
  });
}

void advisory_list_verb(RegistryCommand& command) {
  command.takes_registry();
  command.example("--registry build/registry", "");
  command.runs(list_advisories);
}

}  // namespace kiln::registry
