// SPDX-License-Identifier: Apache-2.0
//
// sign, delegate and yank: what a registry's metadata says of its versions, and by whose keys.
#include "registry/trust/sign/sign.hpp"

#include <memory>
#include <utility>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "loader/cli/frame/cancel.hpp"
#include "loader/cli/frame/output.hpp"
#include "registry/cli/root.hpp"
#include "registry/cli/signing.hpp"
#include "registry/cli/verbs.hpp"
#include "registry/folder/package_versions.hpp"
#include "registry/trust/review.hpp"
#include "registry/trust/root_draft.hpp"
#include "settings/settings.hpp"
#include "store/registry.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {

std::vector<cli::Option> takes_signing(RegistryCommand& command, SignWords& words) {
  std::vector<cli::Option> of_registry = {
      command.option("--onto", words.onto, "URL",
                     "Sign on top of what the registry at this URL has"),
      command.option("--draft", words.request.drafts, "FILE",
                     "The registry's draft as it came back from another signer (repeatable)"),
      command.number("--days", words.request.days, 1, 3650,
                     "How long 'this is the newest' holds; default 14")};
  command.option("--root", words.request.roots, "FILE",
                 "A finished root to add; of a draft, one that you know (repeatable)");
  command.takes_keys(words.keys);
  return of_registry;
}

namespace {

namespace fs = std::filesystem;

/// The metadata that the registry at a URL has.
TrustFiles files_at(const std::string& url) {
  const Settings settings = load_settings();
  const std::string registry = canonical_registry(url, settings);
  Patience patience;
  patience.limits = settings.limits;
  Traffic traffic;
  return read_trust_files(
      *open_place(registry, trust::kTrustRepository, settings, patience, traffic), patience,
      Roles::kAll);
}

Json json_of(const std::vector<Missing>& missing) {
  Json list = Json::array();
  for (const Missing& each : missing) {
    list.push_back({{"role", each.role},
                    {"version", each.version},
                    {"signed", each.have},
                    {"needed", each.need},
                    {"may_sign", each.may_sign}});
  }
  return list;
}

void print(const std::vector<Missing>& missing) {
  for (const Missing& each : missing) {
    cli::print("  %s %llu: signed by %zu of %llu needed keys; may sign: %s\n", each.role.c_str(),
               static_cast<unsigned long long>(each.version), each.have,
               static_cast<unsigned long long>(each.need), join(each.may_sign).c_str());
  }
}

/// "targets 3 with 12 versions, timestamp 7".
std::string visible_text(const SignReport& report) {
  if (report.timestamp == 0) return "clients see nothing yet";
  return "root " + std::to_string(report.root) + ", targets " + std::to_string(report.targets) +
         (report.names ? " with " + std::to_string(*report.names) + " versions" : "") +
         ", timestamp " + std::to_string(report.timestamp) + "; sign again before " +
         trust::to_text(report.expires);
}

}  // namespace

int sign(SignWords& words, const RegistryCall& call) {
  SignRequest& request = words.request;
  request.registry = call.registry;
  request.keys = open_keys(words.keys);
  request.only = {words.only.begin(), words.only.end()};
  if (!words.onto.empty()) request.onto = files_at(words.onto);
  const SignReport report = sign_registry(request);
  Json waiting = Json::array();
  for (const auto& each : report.waiting) waiting.push_back(each.first);
  Json document = {
      {"expires", report.timestamp > 0 ? Json(trust::to_text(report.expires)) : Json()},
      {"versions", report.names ? Json(*report.names) : Json()},
      {"visible", report.is_visible},
      {"root", report.root},
      {"targets", report.targets},
      {"timestamp", report.timestamp},
      {"changed", report.changed},
      {"waiting", waiting},
      {"missing", json_of(report.missing)}};
  if (!report.draft.empty()) document["draft"] = report.draft.string();
  if (report.waiting_root != 0) document["waiting_root"] = report.waiting_root;
  cli::print_json("registry-sign", std::move(document));
  cli::print("%s: %s\n", call.registry.c_str(), visible_text(report).c_str());
  for (const std::string& name : report.changed) cli::print("  signed %s\n", name.c_str());
  if (report.waiting_root != 0) {
    cli::print("  not visible yet: root %llu\n",
               static_cast<unsigned long long>(report.waiting_root));
  }
  for (const auto& [name, is_yank] : report.waiting) {
    cli::print("  not visible yet: %s%s\n", name.c_str(), is_yank ? " (yank)" : "");
  }
  print(report.missing);
  if (report.draft.empty()) return 0;
  cli::print(
      "  draft: %s\n    here: 'kiln registry sign --registry %s --key KEY'; elsewhere: 'kiln "
      "registry sign FILE --root ROOT --key KEY', and then here with --draft FILE\n",
      report.draft.c_str(), shell_word(call.registry).c_str());
  return 0;
}

namespace {

int review(const SignWords& words, const fs::path& draft, const std::vector<PrivateKey>& keys) {
  const Reviewed result = review_draft(draft, keys, words.request.roots);
  cli::print_json("registry-draft", {{"file", draft.string()},
                                     {"changes", result.changes},
                                     {"missing", json_of(result.missing)}});
  cli::print("%s:\n", draft.c_str());
  for (const std::string& line : result.changes) cli::print("  %s\n", line.c_str());
  if (result.missing.empty()) cli::print("  all have signed who must\n");
  print(result.missing);
  return 0;
}

int sign_root(const SignWords& words, const fs::path& file, const std::vector<PrivateKey>& keys) {
  std::string bytes = read_document(file, trust::kMaxRootBytes);
  std::string before;
  for (const fs::path& root : words.request.roots) {
    before = read_document(root, trust::kMaxRootBytes);
  }
  const std::vector<std::string> changes = changes_of_root(before, bytes);
  if (!keys.empty()) {
    bytes = add_signatures(bytes, keys);
    replace_file(file, bytes, 0644);
  }
  print_root(file, bytes, changes);
  return 0;
}

/// Others may sign the same file at once: from the read to the write it is this process's alone.
std::vector<FileLock> lock_file(const fs::path& file, bool quiet) {
  const fs::path itself = followed_to_write(file);
  const fs::path registry = itself.parent_path().parent_path();
  std::vector<FileLock> held;
  if (itself == draft_path(registry)) {  // which sign_registry changes, too
    held.push_back(trust_layout(registry).lock());
    return held;
  }
  return lock_folders_of({itself}, cli::waiting_for_others(quiet, cli::stop_on_signals()));
}

int run_sign(SignWords& words, const fs::path& file, const RegistryCall& call) {
  if (file.empty()) {
    if (call.registry.empty()) fail_without_registry(call);
    return sign(words, call);
  }
  const bool is_draft = is_trust_draft(file);
  const std::vector<PrivateKey> keys = open_keys(words.keys);
  std::vector<FileLock> alone;
  if (!keys.empty()) alone = lock_file(file, call.quiet);
  return is_draft ? review(words, file, keys) : sign_root(words, file, keys);
}

struct Yanked {
  std::string package;
  std::string reason;
};

int run_yank(SignWords& words, const Yanked& yanked, const RegistryCall& call) {
  const PackageVersions one = parse_package_versions(yanked.package, "yank");
  if (one.version == 0 || yanked.reason.empty()) {
    throw Error(ErrorCode::kUsage, "yank " + yanked.package +
                                       ": expected one version, like geglu-mlp@1, and a --reason "
                                       "that its users will read. Give both");
  }
  if (!is_text(yanked.reason)) {
    throw Error(ErrorCode::kUsage, "yank " + yanked.package + ": --reason is " +
                                       quote(yanked.reason) + ", expected one line of at most " +
                                       std::to_string(kMaxText) +
                                       " bytes; nothing was signed. Shorten it");
  }
  words.request.yanked[trust::target_name(one.name, one.version)] = yanked.reason;
  return sign(words, call);
}

struct PublisherWords {
  Publisher publisher;
  std::vector<fs::path> keys;
  bool dismiss = false;
};

int run_delegate(SignWords& words, PublisherWords& named, const RegistryCall& call) {
  if (named.dismiss) {
    words.request.dismissed = named.publisher.role;
  } else {
    named.publisher.keys = read_keys(named.keys);
    words.request.publisher = named.publisher;
  }
  return sign(words, call);
}

}  // namespace

void sign_verb(RegistryCommand& command) {
  const auto words = std::make_shared<SignWords>();
  const auto file = std::make_shared<fs::path>();
  cli::Option of_file =
      command.option("file", *file, "FILE", "A draft: of a root, or of a registry");
  command.may_take_registry();
  for (const cli::Option& each : takes_signing(command, *words)) of_file.not_with(each);
  of_file.not_with(
      command.option("--only", words->only, "PACKAGE", "Look at this package alone (repeatable)"));
  command.example("2.root.json --root 1.root.json", "what it changes");
  command.example("2.root.json --key keys/root", "one more signature under a root");
  command.example(
      "--registry build/registry --root 1.root.json --key keys/targets --key keys/online", "");
  command.example("build/registry/kiln.tuf/draft --root 1.root.json --key keys/second",
                  "one more under a registry's draft");
  command.runs([=](const RegistryCall& call) { return run_sign(*words, *file, call); });
}

void delegate_verb(RegistryCommand& command) {
  const auto words = std::make_shared<SignWords>();
  const auto named = std::make_shared<PublisherWords>();
  command.option("role", named->publisher.role, "NAME", "The publisher's name").required();
  command.option("--package", named->publisher.packages, "PACKAGE",
                 "A package, or the beginning of its name like 'acme-*' (repeatable)");
  command.option("--role-key", named->keys, "FILE.pub", "Public key of the publisher (repeatable)");
  command.number("--threshold", named->publisher.threshold, 1, 1000,
                 "How many of its keys must sign");
  command.flag("--dismiss", named->dismiss, "Take all from it: clients find its versions no more");
  command.takes_registry();
  takes_signing(command, *words);
  command.example(
      "acme --package 'acme-*' --role-key acme.pub --key keys/targets --key keys/online", "");
  command.runs([=](const RegistryCall& call) { return run_delegate(*words, *named, call); });
}

void yank_verb(RegistryCommand& command) {
  const auto words = std::make_shared<SignWords>();
  const auto yanked = std::make_shared<Yanked>();
  command.option("package", yanked->package, "PACKAGE", "package@version").required();
  command.option("--reason", yanked->reason, "TEXT", "What its users will read").required();
  command.takes_registry();
  takes_signing(command, *words);
  command.example(
      "geglu-mlp@1 --reason 'wrong sums for K > 65536' --key keys/targets --key keys/online", "");
  command.runs([=](const RegistryCall& call) { return run_yank(*words, *yanked, call); });
}

}  // namespace kiln::registry
