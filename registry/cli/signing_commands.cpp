// SPDX-License-Identifier: Apache-2.0
#include "registry/cli/signing_commands.hpp"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "registry/server/push.hpp"
#include "registry/trust/keys.hpp"
#include "registry/trust/review.hpp"
#include "registry/trust/root_draft.hpp"
#include "registry/trust/sign/sign.hpp"
#include "settings/settings.hpp"
#include "store/registry.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kDay = 24L * 60 * 60;

struct Options {
  bool json = false;
  fs::path key_file;
  KeyType key_type = KeyType::kEd25519;
  std::vector<fs::path> root_keys, targets_keys, online_keys;
  std::uint64_t threshold = 0, targets_threshold = 0, online_threshold = 0;
  int root_days = 365;
  fs::path root;
  fs::path out;
  std::string registry;
  std::vector<std::string> keys;
  std::vector<fs::path> roots;
  std::vector<fs::path> drafts;
  std::set<std::string> only;
  std::string onto;
  int days = 14;
  std::string package;
  std::string reason;
  std::string role;
  std::vector<std::string> packages;
  std::vector<fs::path> role_keys;
  bool dismiss = false;
  std::size_t bins = 0;
};

/// Of the private keys: in the environment, so that no process list shows it.
std::string passphrase() {
  const char* text = std::getenv("KILN_KEY_PASSPHRASE");
  return text == nullptr ? "" : text;
}

std::vector<PrivateKey> open_keys(const Options& options) {
  std::vector<PrivateKey> keys;
  keys.reserve(options.keys.size());
  for (const std::string& name : options.keys) {
    keys.push_back(PrivateKey::open(name, passphrase()));
  }
  return keys;
}

std::vector<trust::Key> read_keys(const std::vector<fs::path>& files) {
  std::vector<trust::Key> keys;
  keys.reserve(files.size());
  for (const fs::path& file : files) keys.push_back(read_public_key(file));
  return keys;
}

RootKeys root_keys(const Options& options) {
  return {read_keys(options.root_keys),    options.threshold,
          read_keys(options.targets_keys), options.targets_threshold,
          read_keys(options.online_keys),  options.online_threshold};
}

void print(const Options& options, const char* schema, Json document, const std::string& text) {
  document["schema"] = std::string("kiln.") + schema + "/1";
  std::cout << (options.json ? dump_json(document) + "\n" : text);
}

int run_key(const Options& options) {
  const PrivateKey key =
      write_key(PrivateKey::make(options.key_type), options.key_file, passphrase());
  const std::string id = trust::key_id(key.key());
  print(options, "registry-key", {{"file", options.key_file.string()}, {"id", id}},
        "key " + id + "\n  " + options.key_file.string() +
            (passphrase().empty() ? "      private, not encrypted: KILN_KEY_PASSPHRASE is not set\n"
                                  : "      private, encrypted\n") +
            "  " + options.key_file.string() + ".pub  for 'kiln registry init' and 'rotate'\n");
  return 0;
}

void write_root(const Options& options, const fs::path& path, const std::string& bytes) {
  const fs::path file = fs::absolute(path);
  publish_bytes(file.parent_path(), file, bytes, 0644);
  const Signatures found = signatures_of(bytes);
  std::string text = "root " + std::to_string(found.version) + ": signed by " +
                     std::to_string(found.have) + " of " + std::to_string(found.need) +
                     " needed keys of its own\n";
  if (found.have < found.need) text += "  may sign: " + join(found.missing, ", ") + "\n";
  print(options, "registry-root",
        {{"file", path.string()},
         {"version", found.version},
         {"signed", found.have},
         {"needed", found.need},
         {"missing", found.missing}},
        text);
}

int run_init(const Options& options) {
  const std::int64_t expires = std::time(nullptr) + options.root_days * kDay;
  write_root(options, options.out, first_root(root_keys(options), expires));
  return 0;
}

int run_rotate(const Options& options) {
  const std::int64_t expires = std::time(nullptr) + options.root_days * kDay;
  const std::string before = read_document(options.root, trust::kMaxRootBytes);
  write_root(options, options.out, next_root(before, root_keys(options), expires));
  return 0;
}

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

SignRequest sign_request(const Options& options) {
  if (options.registry.empty()) {
    throw Error(ErrorCode::kUsage,
                "no registry is named: give --registry DIR or set KILN_REGISTRY; for a root draft, "
                "name its file");
  }
  SignRequest request;
  request.registry = options.registry;
  request.keys = open_keys(options);
  request.roots = options.roots;
  request.drafts = options.drafts;
  request.only = options.only;
  request.days = options.days;
  if (!options.onto.empty()) request.onto = files_at(options.onto);
  return request;
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

std::string text_of(const std::vector<Missing>& missing) {
  std::string text;
  for (const Missing& each : missing) {
    text += "  " + printable(each.role) + " " + std::to_string(each.version) + ": signed by " +
            std::to_string(each.have) + " of " + std::to_string(each.need) +
            " needed keys; may sign: " + printable(join(each.may_sign, ", ")) + "\n";
  }
  return text;
}

/// "targets 3 with 12 versions, timestamp 7".
std::string seen_text(const Signed& result) {
  if (result.timestamp == 0) return "clients see nothing yet";
  return "root " + std::to_string(result.root) + ", targets " + std::to_string(result.targets) +
         (result.names ? " with " + std::to_string(*result.names) + " versions" : "") +
         ", timestamp " + std::to_string(result.timestamp) + "; sign again before " +
         trust::to_text(result.expires);
}

int report(const Options& options, const Signed& result) {
  std::string text = options.registry + ": " + seen_text(result) + "\n";
  for (const std::string& name : result.changed) text += "  signed " + name + "\n";
  for (const std::string& name : result.waiting) text += "  not visible yet: " + name + "\n";
  text += text_of(result.missing);
  if (!result.draft.empty()) {
    text += "  draft: " + result.draft.string() + "\n    here: 'kiln registry sign --registry " +
            options.registry +
            " --key KEY'; elsewhere: 'kiln registry sign FILE --root ROOT --key KEY', and then "
            "here with --draft FILE\n";
  }
  Json document = {{"visible", result.is_visible},      {"root", result.root},
                   {"targets", result.targets},         {"timestamp", result.timestamp},
                   {"changed", result.changed},         {"waiting", result.waiting},
                   {"missing", json_of(result.missing)}};
  if (result.names) document["versions"] = *result.names;
  if (result.timestamp > 0) document["expires"] = trust::to_text(result.expires);
  if (!result.draft.empty()) document["draft"] = result.draft.string();
  print(options, "registry-sign", std::move(document), text);
  return 0;
}

int run_review(const Options& options) {
  const Reviewed result = review_draft(options.root, open_keys(options), options.roots);
  std::string text = options.root.string() + ":\n";
  for (const std::string& line : result.changes) text += "  " + line + "\n";
  text += result.missing.empty() ? "  all have signed who must\n" : text_of(result.missing);
  print(options, "registry-draft",
        {{"file", options.root.string()},
         {"changes", result.changes},
         {"missing", json_of(result.missing)}},
        text);
  return 0;
}

int run_sign(const Options& options) {
  if (options.root.empty()) return report(options, sign_registry(sign_request(options)));
  if (is_trust_draft(options.root)) return run_review(options);
  write_root(options, options.root,
             add_signatures(read_document(options.root, trust::kMaxRootBytes), open_keys(options)));
  return 0;
}

int run_delegate(const Options& options) {
  SignRequest request = sign_request(options);
  if (options.dismiss) {
    request.dismissed = options.role;
  } else {
    request.publisher =
        Publisher{options.role, options.packages, read_keys(options.role_keys), options.threshold};
  }
  return report(options, sign_registry(request));
}

int run_bins(const Options& options) {
  SignRequest request = sign_request(options);
  request.bins = options.bins;
  return report(options, sign_registry(request));
}

int run_yank(const Options& options) {
  const Wanted wanted = parse_wanted(options.package);
  if (wanted.version == 0 || options.reason.empty()) {
    throw Error(ErrorCode::kUsage, "yank " + options.package +
                                       ": expected one version, like geglu-mlp@1, and a --reason "
                                       "that its users will read. Give both");
  }
  SignRequest request = sign_request(options);
  request.yanked[trust::target_name(wanted.name, wanted.version)] = options.reason;
  return report(options, sign_registry(request));
}

void add_role_keys(CLI::App* command, Options& options) {
  command->add_option("--root-key", options.root_keys, "Public key of a root signer (repeatable)")
      ->type_name("FILE.pub");
  command->add_option("--threshold", options.threshold, "How many root signers must sign")
      ->check(CLI::Range(1, 1000));
  command
      ->add_option("--targets-key", options.targets_keys,
                   "Public key that says what a version is (repeatable)")
      ->type_name("FILE.pub");
  command
      ->add_option("--targets-threshold", options.targets_threshold,
                   "How many of the targets keys must sign; default 1")
      ->check(CLI::Range(1, 1000));
  command
      ->add_option("--online-threshold", options.online_threshold,
                   "How many of the online keys must sign; default 1")
      ->check(CLI::Range(1, 1000));
  command
      ->add_option("--online-key", options.online_keys,
                   "Public key that says what is newest (repeatable)")
      ->type_name("FILE.pub");
  command->add_option("--root-days", options.root_days, "How long this root holds; default 365")
      ->check(CLI::Range(1, 36500));
  command->add_option("--out", options.out, "The draft to write")->type_name("FILE")->required();
}

void add_keys(CLI::App* command, Options& options) {
  command
      ->add_option("--key", options.keys,
                   "Private key: a file, or a URI of OpenSSL like pkcs11:… (repeatable); "
                   "$KILN_KEY_PASSPHRASE opens it")
      ->type_name("KEY")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
}

void add_registry(CLI::App* command, Options& options) {
  command
      ->add_option("--registry", options.registry,
                   "Folder with one OCI layout per package; default $KILN_REGISTRY")
      ->type_name("FOLDER");
  command
      ->add_option("--onto", options.onto,
                   "Sign on top of what the registry at this URL has, if it is ahead")
      ->type_name("URL");
  command
      ->add_option("--draft", options.drafts,
                   "The registry's draft as it came back from another signer (repeatable)")
      ->type_name("FILE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--days", options.days, "How long 'this is the newest' holds; default 14")
      ->check(CLI::Range(1, 3650));
}

void add_roots(CLI::App* command, Options& options) {
  command
      ->add_option("--root", options.roots,
                   "A finished root to add; for a registry's draft, one that you know (repeatable)")
      ->type_name("FILE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
}

}  // namespace

std::function<int()> add_signing_commands(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  if (const char* registry = std::getenv("KILN_REGISTRY")) options->registry = registry;

  CLI::App* key = app.add_subcommand("key", "Make a key: FILE, private, and FILE.pub");
  key->add_option("file", options->key_file, "Where to write it")->type_name("FILE")->required();
  key->add_option("--type", options->key_type, "ed25519 (default), ecdsa or rsa")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, KeyType>{{"ed25519", KeyType::kEd25519},
                                                                 {"ecdsa", KeyType::kEcdsa},
                                                                 {"rsa", KeyType::kRsa}})
              .description(""))
      ->type_name("ed25519|ecdsa|rsa");

  CLI::App* init =
      app.add_subcommand("init", "Draft a registry's first root: whose keys sign what");
  add_role_keys(init, *options);

  CLI::App* rotate = app.add_subcommand(
      "rotate", "Draft the next root: other keys for the roles named, the rest as before");
  rotate->add_option("root", options->root, "The newest root")->type_name("FILE")->required();
  add_role_keys(rotate, *options);

  CLI::App* sign = app.add_subcommand(
      "sign",
      "Sign a registry folder: what each version is, and that this is the newest. What fewer keys "
      "sign than must stays a draft that no client sees. With a FILE: add signatures to that "
      "draft; without keys, see what it changes");
  sign->add_option("file", options->root, "A draft: of a root, or of a registry")
      ->type_name("FILE");
  add_registry(sign, *options);
  add_roots(sign, *options);
  sign->add_option("--only", options->only, "Look at this package alone (repeatable)")
      ->type_name("PACKAGE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  add_keys(sign, *options);
  sign->footer(
      "Examples:\n"
      "  kiln registry sign 1.root.json --key keys/root\n"
      "  kiln registry sign --registry build/registry --root 1.root.json --key keys/targets --key "
      "keys/online\n"
      "  kiln registry sign build/registry/kiln.tuf/draft --root 1.root.json --key keys/second");

  CLI::App* delegate = app.add_subcommand(
      "delegate", "Leave packages to another publisher, who signs them with keys of its own");
  delegate->add_option("role", options->role, "The publisher's name")->required();
  delegate
      ->add_option("--package", options->packages,
                   "A package, or the beginning of its name like 'acme-*' (repeatable)")
      ->type_name("PACKAGE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  delegate->add_option("--role-key", options->role_keys, "Public key of the publisher (repeatable)")
      ->type_name("FILE.pub")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  delegate->add_option("--threshold", options->threshold, "How many of its keys must sign")
      ->check(CLI::Range(1, 1000));
  delegate->add_flag("--dismiss", options->dismiss,
                     "Take all from it: clients find its versions no more");
  add_registry(delegate, *options);
  add_roots(delegate, *options);
  add_keys(delegate, *options);

  CLI::App* bins = app.add_subcommand(
      "bins",
      "Spread a large registry's versions over many documents, of which a client fetches one");
  bins->add_option("count", options->bins, "A power of two; 256 do for a million versions")
      ->check(CLI::Range(2, 2048))
      ->required();
  add_registry(bins, *options);
  add_roots(bins, *options);
  add_keys(bins, *options);

  CLI::App* yank =
      app.add_subcommand("yank", "Take a version back: clients refuse it, and say why");
  yank->add_option("package", options->package, "package@version")
      ->type_name("PACKAGE")
      ->required();
  yank->add_option("--reason", options->reason, "What its users will read")->required();
  add_registry(yank, *options);
  add_roots(yank, *options);
  add_keys(yank, *options);

  const std::vector<std::pair<CLI::App*, int (*)(const Options&)>> commands = {
      {key, run_key},           {init, run_init}, {rotate, run_rotate}, {sign, run_sign},
      {delegate, run_delegate}, {bins, run_bins}, {yank, run_yank}};
  for (const auto& [command, run] : commands) {
    command->add_flag("--json", options->json, "Print one JSON document");
  }
  return [options, commands] {
    for (const auto& [command, run] : commands) {
      if (command->parsed()) return run(*options);
    }
    return -1;
  };
}

}  // namespace kiln::registry
