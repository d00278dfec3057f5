// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/next_index.hpp"

#include <algorithm>
#include <utility>

#include "base/join.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "documents/needed_loader.hpp"
#include "kiln/error.hpp"
#include "registry/folder/variant_order.hpp"

namespace kiln::registry {
namespace {

/// A loader must be able to read the index if it can run one variant of it.
NeededLoader lowest_requirement(const std::vector<Variant>& variants) {
  NeededLoader lowest = variants.front().requires_;
  for (const Variant& variant : variants) {
    if (parse_loader_version(variant.requires_.min_loader) <
        parse_loader_version(lowest.min_loader)) {
      lowest.min_loader = variant.requires_.min_loader;
    }
    lowest.abi = std::min(lowest.abi, variant.requires_.abi);
  }
  return lowest;
}

[[noreturn]] void fail_conflict(const Submission& submission, const Variant& published,
                                const Variant& given) {
  throw Error(ErrorCode::kConflict,
              "publish " + submission.subject() + ": variant " + given.id + " is published as " +
                  published.manifest.digest.str() + ", the one given is " +
                  given.manifest.digest.str() +
                  "; nothing was written. A published version never changes: raise \"version\" in "
                  "package.json and build again");
}

/// As far as the index carries it.
std::string carried(const std::string& document) {
  return document.size() <= kMaxCarriedBytes ? document : std::string();
}

/// A library passes on all the hardware where it once did: it is the same bytes.
std::vector<std::string> joined(std::vector<std::string> known,
                                const std::vector<std::string>& more) {
  known.insert(known.end(), more.begin(), more.end());
  std::ranges::sort(known);
  known.erase(std::unique(known.begin(), known.end()), known.end());
  known.resize(std::min(known.size(), kMaxTestedOn));
  return known;
}

/// Adds what is given to what is published, and says of each variant what happened to it.
void merge_variants(const Submission& submission, NextIndex& next) {
  for (std::size_t i = 0; i < submission.built.size(); ++i) {
    const BuiltVariant& built = submission.built[i];
    Variant given = built.variant;
    const TestedPlaces& tested = submission.tested[i];
    const auto found = std::ranges::find(next.index.variants, given.id, &Variant::id);
    if (found == next.index.variants.end()) {
      if (!tested.hardware.empty()) {
        given.tested = tested.text;
        given.tested_on = tested.hardware;
      }
      given.carried = {carried(built.manifest_bytes), carried(built.config_bytes)};
      next.added.push_back(given.id);
      next.index.variants.push_back(std::move(given));
      continue;
    }
    if (found->manifest != given.manifest) fail_conflict(submission, *found, given);
    // Without a record, what an earlier publish knew about tests stays.
    const std::vector<std::string> hardware = joined(found->tested_on, tested.hardware);
    const bool retested =
        !tested.hardware.empty() && (tested.text != found->tested || hardware != found->tested_on);
    (retested ? next.retested : next.unchanged).push_back(given.id);
    if (!retested) continue;
    found->tested = tested.text;
    found->tested_on = hardware;
  }
}

/// What the package says of itself, for lists of a registry. Lines that an index cannot hold are
/// left out: they decide nothing.
void describe(const Submission& submission, Index& index) {
  for (const BuiltVariant& built : submission.built) {
    if (built.schema.empty()) continue;
    const Json json = parse_json(built.schema, "package.json of " + submission.subject());
    const JsonView schema(json, "package.json of " + submission.subject());
    const auto line = [&](std::string_view key, std::string& to) {
      const std::string text = schema.string_or(key, "");
      if (is_text(text)) to = text;
    };
    line("summary", index.summary);
    line("license", index.license);
    return;
  }
}

/// What was published as tested stays so; only what is given now needs a record.
void check_tested(const Submission& submission, const Index& index,
                  const std::string& may_be_untested) {
  std::vector<std::string> missing;
  std::vector<std::string> patterns;
  for (const BuiltVariant& built : submission.built) {
    const std::string& id = built.variant.id;
    if (!find_variant(index, id)->tested_on.empty() || matches(id, may_be_untested)) continue;
    missing.push_back(id + " (library " + built.library.str() + ")");
    patterns.push_back(id);
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::kNotFound,
              "publish " + submission.subject() + ": no test record speaks of " + join(missing) +
                  "; nothing was written. Run the package's check where these run and give its "
                  "record with --records, or publish them as untested: --allow-untested '" +
                  join(patterns, ",") + "'");
}

}  // namespace

Index read_published_index(const std::string& name, int version, const std::string& bytes,
                           const std::string& where) {
  const std::string subject = label(name, version);
  Index index = parse_index(bytes, "index of " + subject);
  const std::size_t published = parse_json(bytes, "index of " + subject).at("manifests").size();
  const bool all_read = std::ranges::all_of(
      index.variants, [](const Variant& variant) { return variant.unread.empty(); });
  // A variant that only a newer Kiln can read could get lost, or a place that is not its own.
  if (!all_read || index.variants.size() != published) {
    throw Error(ErrorCode::kUpgrade,
                "publish " + subject +
                    ": the published index has variants that only a newer Kiln than " KILN_VERSION
                    " reads; nothing was written. Publish with the newer Kiln");
  }
  if (index.name != name || index.version != version) {
    throw Error(ErrorCode::kIntegrity, "publish " + subject + ": tag '" + std::to_string(version) +
                                           "' in " + where + " names " +
                                           label(index.name, index.version) +
                                           "; nothing was written. Run 'kiln-registry check'");
  }
  return index;
}

NextIndex next_index(const Submission& submission, const std::optional<Index>& published,
                     const std::string& may_be_untested) {
  NextIndex next;
  next.index = published.value_or(Index{submission.name, submission.version, {}, {}});
  merge_variants(submission, next);
  describe(submission, next.index);
  check_tested(submission, next.index, may_be_untested);
  check_distinct(next.index.variants, submission.subject());
  std::sort(next.index.variants.begin(), next.index.variants.end(), better);
  next.index.requires_ = lowest_requirement(next.index.variants);
  next.bytes = serialize_index(next.index);
  if (next.bytes.size() > kMaxDocumentBytes) {
    throw Error(ErrorCode::kUsage, "publish " + submission.subject() + ": the index would have " +
                                       std::to_string(next.bytes.size()) + " bytes, at most " +
                                       std::to_string(kMaxDocumentBytes) +
                                       " are read; nothing was written. Publish fewer variants");
  }
  next.descriptor = {std::string(kMediaTypeIndex), Digest::of(next.bytes), next.bytes.size()};
  return next;
}

}  // namespace kiln::registry
