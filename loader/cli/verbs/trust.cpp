// SPDX-License-Identifier: Apache-2.0
//
// trust: whose metadata vouches for a registry's versions, on this machine for this user.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <memory>
#include <set>

#include "attest/statement.hpp"
#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "documents/json.hpp"
#include "install/signature_policy.hpp"
#include "loader/cli/frame/cancel.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "settings/settings.hpp"
#include "settings/trust_file.hpp"
#include "store/registry.hpp"
#include "trust/metadata_folder.hpp"
#include "trust/trusted_set.hpp"
#include "trust/updater.hpp"

namespace kiln::cli {
namespace {

struct Added {
  std::string registry;
  std::filesystem::path root;
  bool is_unsigned = false;
  bool replace = false;
};

/// "version 3, 2 of 3 keys, expires 2027-11-24T00:00:00Z".
std::string describe(const trust::Root& root) {
  return "version " + std::to_string(root.version) + ", " + std::to_string(root.root.threshold) +
         " of " + std::to_string(root.root.ids.size()) + " keys, expires " +
         trust::to_text(root.expires);
}

trust::Root root_of(std::string_view bytes, const std::string& origin) {
  return trust::TrustedSet(bytes, origin, {std::time(nullptr)}).root();
}

Json document_of(const std::string& registry, const trust::Root& root) {
  return {{"registry", registry},
          {"root",
           {{"version", root.version},
            {"threshold", root.root.threshold},
            {"keys", root.root.ids},
            {"expires", trust::to_text(root.expires)}}}};
}

void add_unsigned(Trust& trust, const std::string& registry) {
  if (trust.root_of(registry) != nullptr) {
    throw Error(ErrorCode::kConflict, "trust " + registry +
                                          ": a root of it is trusted. Run 'kiln trust remove " +
                                          shell_word(registry) + "' first");
  }
  if (!trust.is_unsigned(registry)) trust.unsigned_registries.push_back(registry);
}

void add_root(Trust& trust, const std::string& registry, const std::string& bytes, bool replace) {
  const std::string* const known = trust.root_of(registry);
  if (known != nullptr && *known != bytes && !replace) {
    throw Error(ErrorCode::kConflict,
                "trust " + registry + ": another root is trusted, " +
                    describe(root_of(*known, registry)) +
                    ". A client follows its successors by itself; to exchange it, add --replace");
  }
  trust.roots[registry] = bytes;
  std::erase(trust.unsigned_registries, registry);
}

int run_add(const Added& added, const Options& options) {
  if (added.is_unsigned != added.root.empty()) {
    throw Error(ErrorCode::kUsage,
                "trust add " + quote(added.registry) + ": give either --root FILE or --unsigned");
  }
  const std::string registry = canonical_registry(added.registry, load_settings());
  if (added.is_unsigned) {
    update_trust([&](Trust& trust) { add_unsigned(trust, registry); },
                 waiting_for_others(options.quiet, options.request.stop));
    print_json("trust-add", {{"registry", registry}, {"unsigned", true}});
    print("%s: unsigned. Whoever can write to it, or answers in its place, chooses what runs\n",
          registry.c_str());
    // A bundle's registry need not be on this machine.
    std::error_code unknown;
    if (registry.starts_with('/') && std::filesystem::status(registry, unknown).type() ==
                                         std::filesystem::file_type::not_found) {
      print("%s: there is no such folder. Check its name: whoever makes it is believed\n",
            registry.c_str());
    }
    return 0;
  }
  const std::string bytes = read_document(added.root, trust::kMaxRootBytes);
  const trust::Root root = root_of(bytes, added.root.string());
  update_trust([&](Trust& trust) { add_root(trust, registry, bytes, added.replace); },
               waiting_for_others(options.quiet, options.request.stop));
  print_json("trust-add", document_of(registry, root));
  print("%s: root %s\n  keys %s\n", registry.c_str(), describe(root).c_str(),
        join(root.root.ids, ", ").c_str());
  return 0;
}

struct Required {
  Requirement requirement;
  std::vector<std::filesystem::path> keys;
  bool none = false;
};

Json document_of(const Requirement& one) {
  std::vector<std::string> ids;
  for (const std::string& pem : one.keys) ids.push_back(trust::fingerprint(required_key(pem)));
  return {{"registry", one.registry},
          {"package", one.package},
          {"statement", one.statement},
          {"threshold", one.threshold},
          {"keys", ids}};
}

/// "geglu-* of https://ghcr.io/acme  signature of 1 of 2 keys: 6f01…, 77ab…".
void print_requirement(const Requirement& one) {
  std::vector<std::string> ids;
  for (const std::string& pem : one.keys) ids.push_back(trust::fingerprint(required_key(pem)));
  print("%s of %s  requires the statement %s of %s of %s keys: %s\n", one.package.c_str(),
        one.registry.c_str(), one.statement.c_str(), std::to_string(one.threshold).c_str(),
        std::to_string(ids.size()).c_str(), join(ids, ", ").c_str());
}

/// The root that counts by now: a client follows the trusted one's successors by itself.
trust::Root newest_root(const std::string& bytes, const std::string& registry,
                        const Settings& settings) {
  try {
    const trust::MetadataFolder folder(settings.cache, "tuf/" + Digest::of(registry).hex());
    return trust::Updater(bytes, folder, registry, {std::time(nullptr)}).recall_root();
  } catch (const Error& error) {  // a cache that cannot be read says nothing
    if (error.code() != ErrorCode::kCache) throw;
    return root_of(bytes, registry);
  }
}

int run_list() {
  const Settings settings = load_settings();
  Json documents = Json::array();
  for (const auto& [registry, bytes] : settings.trust.roots) {
    const trust::Root trusted = root_of(bytes, registry);
    const trust::Root root = newest_root(bytes, registry, settings);
    documents.push_back(document_of(registry, root));
    documents.back()["trusted_version"] = trusted.version;
    print("%s  root %s%s\n", registry.c_str(), describe(root).c_str(),
          root.version == trusted.version
              ? ""
              : (", followed from version " + std::to_string(trusted.version)).c_str());
  }
  for (const std::string& registry : settings.trust.unsigned_registries) {
    documents.push_back({{"registry", registry}, {"unsigned", true}});
    print("%s  unsigned\n", registry.c_str());
  }
  Json required = Json::array();
  for (const Requirement& each : settings.trust.required) {
    required.push_back(document_of(each));
    print_requirement(each);
  }
  if (documents.empty()) print("no registry is trusted; see 'kiln trust add --help'\n");
  print_json("trust-list",
             {{"registries", documents}, {"required", required}, {"file", trust_path().string()}});
  return 0;
}

/// Each key once, and none that signs otherwise than others' tools do.
void read_keys(Required& required) {
  std::set<std::string> ids;
  for (const std::filesystem::path& file : required.keys) {
    constexpr std::uint64_t kMaxKeyBytes = 64 << 10;
    const std::string pem = read_document(file, kMaxKeyBytes);
    const std::optional<trust::Key> key = trust::key_in_pem(pem);
    if (!key || key->type == "rsa") {
      throw Error(ErrorCode::kUsage, "trust require: " + quote(file.string()) + " holds " +
                                         (key ? "an RSA key" : "no public key") +
                                         ", expected ECDSA P-256 or Ed25519 in PEM. Give the .pub "
                                         "file of the signer");
    }
    if (ids.insert(trust::fingerprint(*key)).second) required.requirement.keys.push_back(pem);
  }
  if (required.requirement.threshold <= ids.size() && !ids.empty()) return;
  throw Error(ErrorCode::kUsage,
              "trust require: " + std::to_string(required.requirement.threshold) + " of " +
                  std::to_string(ids.size()) +
                  " keys must sign, expected at most all. Give --key for each");
}

/// Whether it requires a statement that there is, of keys that are some.
bool can_be_met(const Requirement& one) {
  return attest::kind_of_word(one.statement) != nullptr &&
         std::ranges::all_of(
             one.keys, [](const std::string& pem) { return trust::key_in_pem(pem).has_value(); });
}

int run_require(Required required, const Options& options) {
  Requirement& wanted = required.requirement;
  if (required.none != required.keys.empty()) {
    throw Error(ErrorCode::kUsage,
                "trust require " + quote(wanted.registry) + ": give either --key FILE or --none");
  }
  wanted.registry = canonical_registry(wanted.registry, load_settings());
  if (!required.none) read_keys(required);
  update_trust(
      [&](Trust& trust) {
        // One for each statement of a package: the last one counts. What nobody can read goes too.
        const std::size_t gone = std::erase_if(trust.required, [&](const Requirement& known) {
          return known.registry == wanted.registry && known.package == wanted.package &&
                 (known.statement == wanted.statement || !can_be_met(known));
        });
        if (!required.none) return trust.required.push_back(wanted);
        if (gone > 0) return;
        throw Error(ErrorCode::kNotFound,
                    "trust require " + wanted.registry + " --none: " + trust_path().string() +
                        " requires no statement " + wanted.statement + " of " +
                        quote(wanted.package) + ". 'kiln trust list' shows what it has");
      },
      waiting_for_others(options.quiet, options.request.stop));
  print_json("trust-require", document_of(wanted));
  if (!required.none) print_requirement(wanted);
  return 0;
}

int run_remove(const std::string& written, const Options& options) {
  const std::string registry = canonical_registry(written, load_settings());
  update_trust(
      [&](Trust& trust) {
        const std::size_t roots = trust.roots.erase(registry);
        if (roots + std::erase(trust.unsigned_registries, registry) > 0) return;
        throw Error(ErrorCode::kNotFound,
                    "trust remove " + registry + ": " + trust_path().string() +
                        " does not name it. 'kiln trust list' shows what it has");
      },
      waiting_for_others(options.quiet, options.request.stop));
  print_json("trust-remove", {{"registry", registry}});
  print("%s is not trusted any more; what is installed of it stays\n", registry.c_str());
  return 0;
}

}  // namespace

void trust_add(KernelCommand& command) {
  const auto added = std::make_shared<Added>();
  command.option("registry", added->registry, "FOLDER|URL", "Folder or URL").required();
  command.option("--root", added->root, "FILE", "Root metadata, from the registry's publisher");
  command.flag("--unsigned", added->is_unsigned, "Believe the registry as it is");
  command.flag("--replace", added->replace, "In the place of another root");
  command.example("https://ghcr.io/acme/kernels --root root.json", "what its signers vouch for");
  command.example("build/registry --unsigned", "a folder that you make yourself");
  command.runs([added](const Options& options) { return run_add(*added, options); });
}

void trust_list(KernelCommand& command) {
  command.example("", "every registry that may be installed from, and by which root");
  command.runs([](const Options&) { return run_list(); });
}

void trust_require(KernelCommand& command) {
  const auto required = std::make_shared<Required>();
  required->requirement.package = "*";
  required->requirement.statement = "signature";
  command.option("registry", required->requirement.registry, "FOLDER|URL", "Folder or URL")
      .required();
  command.option("--key", required->keys, "FILE",
                 "Public key of somebody who must sign, in PEM (repeatable)");
  command.number("--threshold", required->requirement.threshold, 1, 100,
                 "How many of the keys; default 1");
  command.option("--package", required->requirement.package, "PATTERN",
                 "Pattern of package names, like 'geglu-*'; default: all");
  std::vector<std::string> words;
  for (const attest::Kind& kind : attest::kKinds) words.emplace_back(kind.word);
  command
      .option("--statement", required->requirement.statement, "",
              "signature (default), provenance, sbom; or tests: of the very library that is to "
              "run, and on this GPU where the settings say tested: here")
      .one_of(words);
  command.flag("--none", required->none, "Require this statement no longer");
  command.example("https://ghcr.io/acme/kernels --key acme.pub", "only what this key signed");
  command.example("https://ghcr.io/acme/kernels --statement provenance --key builder.pub",
                  "only what this builder built");
  command.runs([required](const Options& options) { return run_require(*required, options); });
}

void trust_remove(KernelCommand& command) {
  const auto registry = std::make_shared<std::string>();
  command.option("registry", *registry, "FOLDER|URL", "Folder or URL").required();
  command.example("https://ghcr.io/acme/kernels", "nothing is installed from it any more");
  command.runs([registry](const Options& options) { return run_remove(*registry, options); });
}

}  // namespace kiln::cli
