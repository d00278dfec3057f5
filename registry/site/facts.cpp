// SPDX-License-Identifier: Apache-2.0
#include "registry/site/facts.hpp"

#include <algorithm>
#include <iterator>
#include <map>

#include "attest/describe.hpp"
#include "base/join.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "registry/folder/card.hpp"
#include "registry/folder/check.hpp"
#include "registry/folder/referrers.hpp"
#include "registry/folder/trust_files.hpp"
#include "registry/site/markup.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

/// "nvrtc 13.0.88, zig 0.15.2" of the config's {"nvrtc": …, "source": "sha256:…", "zig": …}.
std::string compilers_of(const std::string& build) {
  if (build.empty()) return "";
  const Json json = parse_json(build, "build");
  std::vector<std::string> words;
  for (const auto& [name, value] : JsonView(json, "build").members()) {
    if (name != "source" && value.json().is_string()) words.push_back(name + " " + value.string());
  }
  return join(words);
}

ErrorFacts errors_of(const JsonView& record) {
  ErrorFacts facts{.measured = record.at("hardware").string() + ", " + record.at("date").string(),
                   .worst = {}};
  for (const JsonView& result : record.at("results").items()) {
    if (!result.has("worst")) continue;
    const std::string variant = result.at("variant").string();
    for (const auto& [kind, error] : result.at("worst").members()) {
      if (!error.json().is_number()) continue;
      ErrorFacts::Worst& worst = facts.worst[kind];
      const auto value = error.json().get<double>();
      if (worst.variant.empty() || value > worst.error) worst = {value, variant};
    }
  }
  return facts;
}

class Gathering {
 public:
  Gathering(const fs::path& registry, const ListedVersion& listed)
      : layout_(registry / listed.name), index_(listed.index) {
    facts_.version = index_.version;
    facts_.index = listed.descriptor;
    facts_.summary = index_.summary;
    facts_.license = index_.license;
    facts_.min_loader = index_.requires_.min_loader;
  }

  VersionFacts run() {
    for (const Variant& variant : index_.variants) {
      facts_.variants.push_back({variant});
      if (variant.unread.empty()) attempt([&] { read_variant(variant, facts_.variants.back()); });
    }
    if (smallest_ != nullptr) attempt([&] { read_schema(); });
    attempt([&] { read_statements(); });
    attempt([&] { facts_.card = read_card(layout_, facts_.index); });
    return std::move(facts_);
  }

 private:
  template <class Step>
  void attempt(Step step) {
    try {
      step();
    } catch (const Error& error) {
      facts_.problems.emplace_back(error.what());
    }
  }

  void read_variant(const Variant& variant, VariantFacts& facts) {
    const std::string subject = label(index_.name, index_.version) + " " + variant.id;
    VariantDocuments read = read_documents(layout_, index_, variant);
    facts.download = read.manifest.layer.size;
    facts.unpacked = read.manifest.unpacked_size;
    facts.compilers = compilers_of(parse_config(read.config_bytes, subject).build);
    if (smallest_ != nullptr && facts.download >= documents_.manifest.layer.size) return;
    smallest_ = &variant;
    documents_ = std::move(read);
  }

  /// Out of the smallest archive.
  void read_schema() {
    const BuiltVariant read = check_published(layout_, index_, *smallest_, std::move(documents_));
    if (read.schema.empty()) return;
    const Json schema = parse_json(read.schema, "package.json");
    facts_.ops = read_ops(JsonView(schema, "package.json"));
  }

  void read_statements() {
    for (const HungReferrer& each : read_referrers(layout_, facts_.index)) {
      for (const Descriptor& blob : each.blobs) {
        if (blob.media_type != attest::kMediaTypeBundle) continue;
        attempt([&] { read_statement(each, blob); });
      }
    }
  }

  void read_statement(const HungReferrer& referrer, const Descriptor& blob) {
    const std::string what = "statement " + referrer.listed.manifest.digest.brief();
    const attest::Statement statement =
        attest::parse_statement(attest::parse_bundle(layout_.read_blob(blob, what), what), what);
    if (!attest::speaks_of(statement, facts_.index.digest)) return;
    const std::string word = attest::word_of(statement);
    facts_.statements.push_back(
        {word, attest::describe(statement), referrer.listed.manifest.digest.str()});
    if (word == "sbom") return read_date(statement);
    if (word != "tests") return;
    const Json predicate = parse_json(statement.predicate, "predicate");
    for (const JsonView& record : JsonView(predicate, "predicate").at("records").items()) {
      ErrorFacts errors = errors_of(record);
      if (!errors.worst.empty()) facts_.errors.push_back(std::move(errors));
    }
  }

  void read_date(const attest::Statement& statement) {
    const Json predicate = parse_json(statement.predicate, "predicate");
    const JsonView view(predicate, "predicate");
    if (!view.has("creationInfo")) return;
    facts_.attested = short_of(view.at("creationInfo").string_or("created", ""));
  }

  Layout layout_;
  const Index& index_;
  VersionFacts facts_;
  const Variant* smallest_ = nullptr;  ///< of those that could be read so far
  VariantDocuments documents_;         ///< its
};

/// What the metadata says of each version.
void read_trust(const fs::path& registry, SiteFacts& site) {
  const TrustFiles files = read_trust_files(registry);
  if (files.empty()) return;
  const auto [set, passed] = follow_all(files, registry.string(), trust::Expiry::kTold);
  for (const trust::PassedRole& each : passed) site.problems.push_back(describe_passed(each));
  const auto is_taken = [&set = set](const std::string& role, const std::string& parent) {
    return set.targets(role, parent) != nullptr;
  };
  site.signed_until = trust::to_text(set.timestamp()->expires);
  for (PackageFacts& package : site.packages) {
    for (VersionFacts& version : package.versions) {
      const std::optional<trust::SignedTarget> found =
          set.search(trust::target_name(package.name, version.version), is_taken);
      version.vouched = SignedState::kNone;
      if (!found) continue;
      const std::optional<Digest> signed_index = found->target.promise.sha256();
      const bool same = signed_index == version.index.digest;
      if (signed_index) version.vouched = same ? SignedState::kSigned : SignedState::kAnother;
      if (signed_index && !same) version.gets = signed_index->str();
      version.keys.assign(found->by.ids.begin(), found->by.ids.end());
      version.threshold = found->by.threshold;
      if (const std::optional<std::string>& yanked = found->target.yanked) {
        version.yanked = yanked->empty() ? "no reason is given" : *yanked;
      }
      std::ranges::copy_if(
          found->advisories, std::back_inserter(version.advisories),
          [&](const Advisory& each) { return speaks_of(each, package.name, version.version); });
    }
  }
}

// ---- changes ----

using Words = std::map<std::string, std::string>;

/// "a, b" of what only `some` has.
std::string only_in(const Words& some, const Words& others) {
  std::vector<std::string> names;
  for (const auto& [name, text] : some) {
    if (!others.contains(name)) names.push_back(name);
  }
  return join(names);
}

Words ops_of(const VersionFacts& facts) {
  Words ops;
  for (const OpText& op : facts.ops) {
    std::string& text = ops[op.name];
    text = op.signature();
    for (const TensorText& each : op.tensors) text += each.dtype + each.shape + each.layout;
    for (const AttributeText& each : op.attributes) text += each.name + each.meaning;
  }
  return ops;
}

Words variants_of(const VersionFacts& facts) {
  Words ids;
  for (const VariantFacts& each : facts.variants) ids[each.variant.id];
  return ids;
}

}  // namespace

const VersionFacts& PackageFacts::current() const {
  const auto newest = std::find_if(versions.rbegin(), versions.rend(),
                                   [](const VersionFacts& each) { return each.installs(); });
  return newest == versions.rend() ? versions.back() : *newest;
}

std::vector<std::string> changes_between(const VersionFacts& before, const VersionFacts& after) {
  std::vector<std::string> lines;
  const auto say = [&](const std::string& what, const std::string& names) {
    if (!names.empty()) lines.push_back(what + names);
  };
  const auto compare = [&](const std::string& what, const std::string& old_value,
                           const std::string& new_value) {
    if (old_value == new_value) return;
    lines.push_back(what + (old_value.empty() ? "none" : old_value) + " -> " +
                    (new_value.empty() ? "none" : new_value));
  };
  const Words old_ops = ops_of(before);
  const Words new_ops = ops_of(after);
  say("New ops: ", only_in(new_ops, old_ops));
  say("Ops that are gone: ", only_in(old_ops, new_ops));
  std::vector<std::string> changed;
  for (const auto& [name, text] : new_ops) {
    const auto found = old_ops.find(name);
    if (found != old_ops.end() && found->second != text) changed.push_back(name);
  }
  say("Ops with other arguments: ", join(changed));
  say("New variants: ", only_in(variants_of(after), variants_of(before)));
  say("Variants that are gone: ", only_in(variants_of(before), variants_of(after)));
  compare("Summary: ", before.summary, after.summary);
  compare("Licence: ", before.license, after.license);
  compare("Oldest Kiln: ", before.min_loader, after.min_loader);
  return lines;
}

SiteFacts gather_site(const fs::path& registry, const Progress& progress) {
  check_is_path(registry, "make a site of");
  SiteFacts site;
  const auto damaged = [&site](const Error& error) { site.problems.emplace_back(error.what()); };
  for (const ListedVersion& listed : list_registry(registry, damaged)) {
    if (site.packages.empty() || site.packages.back().name != listed.name) {
      progress("reading " + listed.name);
      site.packages.push_back({listed.name, {}});
    }
    std::vector<VersionFacts>& versions = site.packages.back().versions;
    VersionFacts facts = Gathering(registry, listed).run();
    if (!versions.empty()) facts.changes = changes_between(versions.back(), facts);
    versions.push_back(std::move(facts));
  }
  read_trust(registry, site);
  return site;
}

}  // namespace kiln::registry
