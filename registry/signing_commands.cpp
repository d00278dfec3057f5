// SPDX-License-Identifier: Apache-2.0
#include "signing_commands.hpp"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "documents/json.hpp"
#include "keys.hpp"
#include "kiln/error.hpp"
#include "push.hpp"
#include "root_draft.hpp"
#include "settings/settings.hpp"
#include "sign.hpp"
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
  std::uint64_t threshold = 0;
  int root_days = 365;
  fs::path root;
  fs::path out;
  std::string registry;
  std::vector<std::string> keys;
  std::vector<fs::path> roots;
  std::string onto;
  int days = 14;
  std::string package;
  std::string reason;
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

RootKeys root_keys(const Options& options) {
  const auto read = [](const std::vector<fs::path>& files) {
    std::vector<trust::Key> keys;
    keys.reserve(files.size());
    for (const fs::path& file : files) keys.push_back(read_public_key(file));
    return keys;
  };
  return {read(options.root_keys), options.threshold, read(options.targets_keys),
          read(options.online_keys)};
}

void print(const Options& options, const char* schema, Json document, const std::string& text) {
  document["schema"] = std::string("kiln.") + schema + "/1";
  std::cout << (options.json ? dump_json(document) + "\n" : text);
}

int run_key(const Options& options) {
  const PrivateKey key = PrivateKey::make(options.key_type);
  write_key(key, options.key_file, passphrase());
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
      *open_place(registry, trust::kTrustRepository, settings, patience, traffic), patience);
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
  request.days = options.days;
  if (!options.onto.empty()) request.onto = files_at(options.onto);
  return request;
}

int report(const Options& options, const Signed& result) {
  std::string text = options.registry + ": root " + std::to_string(result.root.version) +
                     ", targets " + std::to_string(result.targets) + " with " +
                     std::to_string(result.names) + " versions, timestamp " +
                     std::to_string(result.timestamp) + "; sign again before " +
                     trust::to_text(result.expires) + "\n";
  for (const std::string& name : result.changed) text += "  signed " + name + "\n";
  print(options, "registry-sign",
        {{"root", result.root.version},
         {"targets", result.targets},
         {"timestamp", result.timestamp},
         {"versions", result.names},
         {"changed", result.changed},
         {"expires", trust::to_text(result.expires)}},
        text);
  return 0;
}

int run_sign(const Options& options) {
  if (options.root.empty()) return report(options, sign_registry(sign_request(options)));
  write_root(options, options.root,
             add_signatures(read_document(options.root, trust::kMaxRootBytes), open_keys(options)));
  return 0;
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
      ->allow_extra_args(false)
      ->required();
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
  command->add_option("--days", options.days, "How long 'this is the newest' holds; default 14")
      ->check(CLI::Range(1, 3650));
}

}  // namespace

std::function<int()> add_signing_commands(CLI::App& app) {
  const auto options = std::make_shared<Options>();
  if (const char* registry = std::getenv("KILN_REGISTRY")) options->registry = registry;

  CLI::App* key = app.add_subcommand("key", "Make a key: FILE, private, and FILE.pub");
  key->add_option("file", options->key_file, "Where to write it")->type_name("FILE")->required();
  key->add_option("--type", options->key_type, "ed25519 (default), ecdsa or rsa")
      ->transform(CLI::CheckedTransformer(std::map<std::string, KeyType>{
          {"ed25519", KeyType::kEd25519}, {"ecdsa", KeyType::kEcdsa}, {"rsa", KeyType::kRsa}}));

  CLI::App* init =
      app.add_subcommand("init", "Draft a registry's first root: whose keys sign what");
  add_role_keys(init, *options);

  CLI::App* rotate = app.add_subcommand(
      "rotate", "Draft the next root: other keys for the roles named, the rest as before");
  rotate->add_option("root", options->root, "The newest root")->type_name("FILE")->required();
  add_role_keys(rotate, *options);

  CLI::App* sign = app.add_subcommand(
      "sign",
      "Sign a registry folder: what each version is, and that this is the newest. With a "
      "FILE: add signatures to that root draft");
  sign->add_option("draft", options->root, "A root draft")->type_name("FILE");
  add_registry(sign, *options);
  sign->add_option("--root", options->roots, "A finished root to add (repeatable)")
      ->type_name("FILE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  add_keys(sign, *options);
  sign->footer(
      "Examples:\n"
      "  kiln registry sign 1.root.json --key keys/root\n"
      "  kiln registry sign --registry build/registry --root 1.root.json --key keys/targets --key "
      "keys/online");

  CLI::App* yank =
      app.add_subcommand("yank", "Take a version back: clients refuse it, and say why");
  yank->add_option("package", options->package, "package@version")
      ->type_name("PACKAGE")
      ->required();
  yank->add_option("--reason", options->reason, "What its users will read")->required();
  add_registry(yank, *options);
  add_keys(yank, *options);

  const std::vector<std::pair<CLI::App*, int (*)(const Options&)>> commands = {
      {key, run_key}, {init, run_init}, {rotate, run_rotate}, {sign, run_sign}, {yank, run_yank}};
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
