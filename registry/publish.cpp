// SPDX-License-Identifier: Apache-2.0
#include "publish.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "base/join.hpp"
#include "built.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "documents/requires.hpp"
#include "kiln/error.hpp"
#include "layout.hpp"
#include "oci/tag.hpp"
#include "order.hpp"
#include "records.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

/// What is given for one version of one package.
struct Batch {
  std::string name;
  int version = 0;
  std::vector<BuiltVariant> built;
  std::vector<std::string> tested;  ///< for each of them; empty where no record speaks of it

  std::string subject() const { return label(name, version); }
};

/// The version as it will be, computed before anything is written.
struct Plan {
  Published result;
  std::string index_bytes;
  std::vector<Tag> tags;
};

std::vector<Batch> read_batches(const PublishRequest& request, const Progress& progress) {
  std::map<std::pair<std::string, int>, Batch> batches;
  for (const fs::path& folder : request.built) {
    for (BuiltVariant& built : read_built(folder)) {
      progress("checked " + built.folder.string());
      Batch& batch = batches[{built.config.name, built.config.version}];
      batch.name = built.config.name;
      batch.version = built.config.version;
      const auto manifest_of = [](const BuiltVariant& each) { return each.variant.manifest; };
      if (std::ranges::find(batch.built, manifest_of(built), manifest_of) != batch.built.end()) {
        continue;  // given twice
      }
      batch.built.push_back(std::move(built));
    }
  }
  const std::vector<TestResult> results = read_records(request.records);
  std::vector<Batch> list;
  for (auto& [key, batch] : batches) {
    for (const BuiltVariant& built : batch.built) {
      batch.tested.push_back(
          tested_text(results, built.library, batch.subject() + " " + built.variant.id));
    }
    list.push_back(std::move(batch));
  }
  return list;
}

/// A loader must be able to read the index if it can run one variant of it.
Requires lowest_requirement(const std::vector<Variant>& variants) {
  Requires lowest = variants.front().requires_;
  for (const Variant& variant : variants) {
    if (parse_loader_version(variant.requires_.min_loader) <
        parse_loader_version(lowest.min_loader)) {
      lowest.min_loader = variant.requires_.min_loader;
    }
    lowest.abi = std::min(lowest.abi, variant.requires_.abi);
  }
  return lowest;
}

/// A variant that only a newer Kiln can read could get lost, or a place that is not its own.
void check_understood(const Batch& batch, const Index& index, const std::string& bytes) {
  const std::size_t published =
      parse_json(bytes, "index of " + batch.subject()).at("manifests").size();
  const bool all_read = std::ranges::all_of(
      index.variants, [](const Variant& variant) { return variant.unread.empty(); });
  if (all_read && index.variants.size() == published) return;
  throw Error(ErrorCode::kUpgrade,
              "publish " + batch.subject() +
                  ": the published index has variants that only a newer Kiln than " KILN_VERSION
                  " reads; nothing was written. Publish with the newer Kiln");
}

Index published_index(const Layout& layout, const Batch& batch, const Tag* current) {
  if (current == nullptr) return Index{batch.name, batch.version, {}, {}};
  const std::string what = "index of " + batch.subject();
  const std::string bytes = layout.read_blob(current->descriptor, what);
  Index index = parse_index(bytes, what);
  check_understood(batch, index, bytes);
  if (index.name != batch.name || index.version != batch.version) {
    throw Error(ErrorCode::kIntegrity, "publish " + batch.subject() + ": tag '" + current->name +
                                           "' in " + layout.index_path().string() + " names " +
                                           label(index.name, index.version) +
                                           "; nothing was written. Run 'kiln-registry check'");
  }
  return index;
}

[[noreturn]] void fail_conflict(const Batch& batch, const Variant& published,
                                const Variant& given) {
  throw Error(ErrorCode::kConflict,
              "publish " + batch.subject() + ": variant " + given.id + " is published as " +
                  published.manifest.digest.str() + ", the one given is " +
                  given.manifest.digest.str() +
                  "; nothing was written. A published version never changes: raise \"version\" in "
                  "package.json and build again");
}

/// Adds what is given to what is published, and says of each variant what happened to it.
void merge_variants(const Batch& batch, Index& index, Published& result) {
  for (std::size_t i = 0; i < batch.built.size(); ++i) {
    Variant given = batch.built[i].variant;
    const std::string& tested = batch.tested[i];
    const auto found = std::ranges::find(index.variants, given.id, &Variant::id);
    if (found == index.variants.end()) {
      if (!tested.empty()) given.tested = tested;
      result.added.push_back(given.id);
      index.variants.push_back(std::move(given));
      continue;
    }
    if (found->manifest != given.manifest) fail_conflict(batch, *found, given);
    // Without a record, what an earlier publish knew about tests stays.
    const bool retested = !tested.empty() && tested != found->tested;
    (retested ? result.retested : result.unchanged).push_back(given.id);
    if (retested) found->tested = tested;
  }
}

/// What was published as tested stays so; only what is given now needs a record.
void check_tested(const Batch& batch, const Index& index, const std::string& may_be_untested) {
  std::vector<std::string> missing;
  std::vector<std::string> patterns;
  for (const BuiltVariant& built : batch.built) {
    const std::string& id = built.variant.id;
    if (find_variant(index, id)->tested != kUntested || matches(id, may_be_untested)) continue;
    missing.push_back(id + " (library " + built.library.str() + ")");
    patterns.push_back(id);
  }
  if (missing.empty()) return;
  throw Error(ErrorCode::kNotFound,
              "publish " + batch.subject() + ": no test record speaks of " + join(missing) +
                  "; nothing was written. Run the package's check where these run and give its "
                  "record with --records, or publish them as untested: --allow-untested '" +
                  join(patterns, ",") + "'");
}

/// `before` with the tags of this version renewed; a replaced index stays, without a tag.
std::vector<Tag> renew_tags(const std::vector<Tag>& before, const Index& index,
                            const Descriptor& descriptor) {
  std::vector<Tag> wanted{{std::to_string(index.version), descriptor}};
  for (const Variant& variant : index.variants) {
    wanted.push_back({variant_tag(index.version, variant.id), variant.manifest});
  }
  const auto is_there = [&](const Tag& tag) {
    return std::ranges::find(before, tag) != before.end();
  };
  if (std::ranges::all_of(wanted, is_there)) return before;

  std::vector<Tag> after;
  std::vector<Tag> superseded;
  for (const Tag& old : before) {
    const Tag* renewed = find_tag(wanted, old.name);
    if (old.name.empty() || (renewed != nullptr && renewed->descriptor != old.descriptor)) {
      if (old.descriptor != descriptor) superseded.push_back({"", old.descriptor});
    } else if (renewed == nullptr) {
      after.push_back(old);
    }
  }
  after.insert(after.end(), wanted.begin(), wanted.end());
  after.insert(after.end(), superseded.begin(), superseded.end());
  return after;
}

Plan make_plan(const Layout& layout, const Batch& batch, const std::string& may_be_untested) {
  const std::vector<Tag> before = layout.read();
  Index index = published_index(layout, batch, find_tag(before, std::to_string(batch.version)));
  Plan plan;
  plan.result.name = batch.name;
  plan.result.version = batch.version;
  merge_variants(batch, index, plan.result);
  check_tested(batch, index, may_be_untested);
  check_distinct(index.variants, batch.subject());
  std::sort(index.variants.begin(), index.variants.end(), better);
  index.requires_ = lowest_requirement(index.variants);

  plan.index_bytes = serialize_index(index);
  if (plan.index_bytes.size() > kMaxDocumentBytes) {
    throw Error(ErrorCode::kUsage, "publish " + batch.subject() + ": the index would have " +
                                       std::to_string(plan.index_bytes.size()) +
                                       " bytes, at most " + std::to_string(kMaxDocumentBytes) +
                                       " are read; nothing was written. Publish fewer variants");
  }
  plan.result.index = {std::string(kMediaTypeIndex), Digest::of(plan.index_bytes),
                       plan.index_bytes.size()};
  plan.tags = renew_tags(before, index, plan.result.index);
  plan.result.changed = plan.tags != before;
  return plan;
}

Published commit(const Layout& layout, const Batch& batch, const std::string& may_be_untested,
                 const Progress& progress) {
  const FileLock held = layout.lock();
  // Planned again: another publisher may have been here since.
  const Plan plan = make_plan(layout, batch, may_be_untested);
  for (const BuiltVariant& built : batch.built) {
    layout.copy_blob(built.documents.layer, built.layer);
    layout.write_blob(built.documents.config, built.config_bytes);
    layout.write_blob(built.variant.manifest, built.manifest_bytes);
  }
  layout.write_blob(plan.result.index, plan.index_bytes);
  if (plan.result.changed) layout.write(plan.tags);
  progress("published " + batch.subject() + " " + plan.result.index.digest.str());
  return plan.result;
}

}  // namespace

std::vector<Published> publish(const PublishRequest& request, const Progress& progress) {
  check_is_path(request.registry, "publish into");
  const std::vector<Batch> batches = read_batches(request, progress);
  for (const Batch& batch : batches) {
    make_plan(Layout(request.registry / batch.name), batch, request.may_be_untested);
  }
  std::vector<Published> results;
  results.reserve(batches.size());
  for (const Batch& batch : batches) {
    results.push_back(
        commit(Layout(request.registry / batch.name), batch, request.may_be_untested, progress));
  }
  return results;
}

}  // namespace kiln::registry
