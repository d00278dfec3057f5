// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/publish.hpp"

#include <algorithm>
#include <optional>

#include "base/shell_word.hpp"
#include "oci/tag.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/next_index.hpp"
#include "registry/folder/submission.hpp"
#include "registry/folder/trust_files.hpp"

namespace kiln::registry {
namespace {

/// The version as it will be, computed before anything is written.
struct PublishPlan {
  NextIndex next;
  std::vector<Tag> tags;
  bool changed = false;
};

std::optional<Index> published_index(const Layout& layout, const Submission& submission,
                                     const std::vector<Tag>& tags) {
  const Tag* current = find_tag(tags, std::to_string(submission.version));
  if (current == nullptr) return std::nullopt;
  return read_published_index(
      submission.name, submission.version,
      layout.read_blob(current->descriptor, "index of " + submission.subject()),
      layout.index_path().string());
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

PublishPlan make_plan(const Layout& layout, const Submission& submission,
                      const std::string& may_be_untested) {
  const std::vector<Tag> before = layout.read();
  PublishPlan plan;
  plan.next = next_index(submission, published_index(layout, submission, before), may_be_untested);
  plan.tags = renew_tags(before, plan.next.index, plan.next.descriptor);
  plan.changed = plan.tags != before;
  return plan;
}

Published commit(const Layout& layout, const Submission& submission,
                 const std::string& may_be_untested, const Progress& progress) {
  const FileLock held = layout.lock();
  // Planned again: another publisher may have been here since.
  const PublishPlan plan = make_plan(layout, submission, may_be_untested);
  for (const BuiltVariant& built : submission.built) {
    layout.copy_blob(built.documents.layer, built.layer);
    if (built.documents.has_dev()) layout.copy_blob(built.documents.dev, built.dev);
    layout.write_blob(built.documents.config, built.config_bytes);
    layout.write_blob(built.variant.manifest, built.manifest_bytes);
  }
  layout.write_blob(plan.next.descriptor, plan.next.bytes);
  if (plan.changed) layout.write(plan.tags);
  progress("published " + submission.subject() + " " + plan.next.descriptor.digest.str());
  return {submission.name,    submission.version,  plan.next.descriptor, plan.next.added,
          plan.next.retested, plan.next.unchanged, plan.changed};
}

}  // namespace

std::vector<Published> publish(const PublishRequest& request, const Progress& progress) {
  check_is_path(request.registry, "publish into");
  const std::vector<Submission> submissions =
      read_submissions(request.built, request.records, progress);
  for (const Submission& submission : submissions) {
    make_plan(Layout(request.registry / submission.name), submission, request.may_be_untested);
  }
  std::vector<Published> results;
  results.reserve(submissions.size());
  for (const Submission& submission : submissions) {
    results.push_back(commit(Layout(request.registry / submission.name), submission,
                             request.may_be_untested, progress));
  }
  const bool any = std::ranges::any_of(results, &Published::changed);
  if (any && trust_layout(request.registry).exists()) {
    progress(
        "clients do not see this yet: the registry is signed. Sign it anew: 'kiln registry "
        "sign --registry " +
        shell_word(request.registry.string()) + "'");
  }
  return results;
}

}  // namespace kiln::registry
