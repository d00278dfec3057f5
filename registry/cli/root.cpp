// SPDX-License-Identifier: Apache-2.0
//
// key, init and rotate: a registry's keys, and its root metadata, which names them.
#include "registry/cli/root.hpp"

#include <ctime>
#include <memory>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "documents/json.hpp"
#include "loader/cli/frame/output.hpp"
#include "registry/cli/verbs.hpp"
#include "registry/trust/root_draft.hpp"
#include "trust/repository_source.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostSigners = 1000;

struct KeyWords {
  fs::path file;
  std::string type = "ed25519";
};

int run_key(const KeyWords& words) {
  const KeyType type = words.type == "ecdsa" ? KeyType::kEcdsa
                       : words.type == "rsa" ? KeyType::kRsa
                                             : KeyType::kEd25519;
  const PrivateKey key = write_key(PrivateKey::make(type), words.file, passphrase());
  const std::string id = trust::key_id(key.key());
  cli::print_json("registry-key", {{"file", words.file.string()}, {"id", id}});
  cli::print("key %s\n  %s      private, %s\n", id.c_str(), words.file.c_str(),
             passphrase().empty() ? "not encrypted: KILN_KEY_PASSPHRASE is not set" : "encrypted");
  cli::print(
      "  %s.pub  for 'kiln registry init', rotate and delegate, and for kiln trust require\n",
      words.file.c_str());
  return 0;
}

struct RootWords {
  fs::path before;  ///< the newest root; of rotate
  std::vector<fs::path> root_keys, targets_keys, online_keys;
  RootKeys keys;  ///< with the thresholds
  int days = 365;
  fs::path out;
};

void takes_roles(RegistryCommand& command, RootWords& words) {
  RootKeys& keys = words.keys;
  command.option("--root-key", words.root_keys, "FILE.pub",
                 "Public key of a root signer (repeatable)");
  command.number("--threshold", keys.threshold, 1, kMostSigners, "How many root signers must sign");
  command.option("--targets-key", words.targets_keys, "FILE.pub",
                 "Public key that says what a version is (repeatable)");
  command.number("--targets-threshold", keys.targets_threshold, 1, kMostSigners,
                 "How many of the targets keys must sign; default 1");
  command.number("--online-threshold", keys.online_threshold, 1, kMostSigners,
                 "How many of the online keys must sign; default 1");
  command.option("--online-key", words.online_keys, "FILE.pub",
                 "Public key that says what is newest (repeatable)");
  command.number("--root-days", words.days, 1, 36500, "How long this root holds; default 365");
  command.option("--out", words.out, "FILE", "The draft to write").required();
}

int run_root(RootWords& words) {
  words.keys.root = read_keys(words.root_keys);
  words.keys.targets = read_keys(words.targets_keys);
  words.keys.online = read_keys(words.online_keys);
  constexpr std::int64_t kDay = 24L * 60 * 60;
  const std::int64_t expires = std::time(nullptr) + words.days * kDay;
  const std::string root =
      words.before.empty()
          ? first_root(words.keys, expires)
          : next_root(read_document(words.before, trust::kMaxRootBytes), words.keys, expires);
  replace_file(words.out, root, 0644);
  print_root(words.out, root);
  return 0;
}

}  // namespace

void print_root(const fs::path& path, const std::string& bytes,
                const std::vector<std::string>& changes) {
  const Signatures found = signatures_of(bytes);
  Json document = {{"file", path.string()},
                   {"version", found.version},
                   {"signed", found.have},
                   {"needed", found.need},
                   {"missing", found.missing}};
  if (!changes.empty()) document["changes"] = changes;
  cli::print_json("registry-root", std::move(document));
  cli::print("root %llu: signed by %zu of %llu needed keys of its own\n",
             static_cast<unsigned long long>(found.version), found.have,
             static_cast<unsigned long long>(found.need));
  for (const std::string& line : changes) cli::print("  %s\n", line.c_str());
  if (found.have < found.need) cli::print("  may sign: %s\n", join(found.missing).c_str());
}

void key_verb(RegistryCommand& command) {
  const auto words = std::make_shared<KeyWords>();
  command.option("file", words->file, "FILE", "Where to write it").required();
  command.option("--type", words->type, "", "ed25519 (default), ecdsa or rsa")
      .one_of({"ed25519", "ecdsa", "rsa"});
  command.example("keys/targets", "for Kiln's metadata");
  command.example("keys/release --type ecdsa", "for statements, which cosign verifies");
  command.runs([words](const RegistryCall&) { return run_key(*words); });
}

void init_verb(RegistryCommand& command) {
  const auto words = std::make_shared<RootWords>();
  takes_roles(command, *words);
  command.example(
      "--root-key keys/root.pub --targets-key keys/targets.pub --online-key keys/online.pub "
      "--out 1.root.json",
      "");
  command.runs([words](const RegistryCall&) { return run_root(*words); });
}

void rotate_verb(RegistryCommand& command) {
  const auto words = std::make_shared<RootWords>();
  command.option("root", words->before, "FILE", "The newest root").required();
  takes_roles(command, *words);
  command.example("1.root.json --online-key keys/new.pub --out 2.root.json",
                  "another online key, all else as before");
  command.runs([words](const RegistryCall&) { return run_root(*words); });
}

}  // namespace kiln::registry
