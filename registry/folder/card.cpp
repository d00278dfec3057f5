// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/card.hpp"

#include "base/number.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "oci/tag.hpp"
#include "registry/folder/referrers.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  NamedFile read = read_named_file(path, kMaxCardBytes);
  if (read.problem.empty() && !is_utf8(read.text)) read.problem = "it is not UTF-8";
  if (read.problem.empty()) return std::move(read.text);
  throw Error(ErrorCode::kUsage, "describe: " + path.string() + ": " + read.problem +
                                     "; expected a card in Markdown, at most 1 MiB. Nothing was "
                                     "written");
}

/// The newest of them.
Tag find_version(const fs::path& registry, const PackageVersions& versions) {
  return version_tags(registry, versions, "describe", "nothing was written").back();
}

struct Card {
  std::uint64_t number = 0;  ///< 0: no card yet
  std::string text;
};

/// The one that counts. A referrer of another shape is somebody else's.
Card find_card(const Layout& layout, const Descriptor& index) {
  constexpr std::uint64_t kMostCards = 1'000'000;
  Card card;
  for (const HungReferrer& each : read_referrers(layout, index)) {
    if (each.listed.artifact_type != kArtifactTypeCard) continue;
    const Json manifest = parse_others_json(each.manifest, "manifest of a card");
    const JsonView view(manifest, "manifest of a card");
    const std::string text =
        view.has("annotations") ? view.at("annotations").string_or(kCardNumber, "") : "";
    const std::uint64_t number = parse_decimal(text, kMostCards).value_or(0);
    for (const Descriptor& blob : each.blobs) {
      if (blob.media_type != kArtifactTypeCard || blob.size > kMaxCardBytes) continue;
      if (number > card.number) card = {number, layout.read_blob(blob, "card")};
    }
  }
  return card;
}

}  // namespace

DescribedVersion describe(const fs::path& registry, const PackageVersions& versions,
                          const fs::path& card) {
  check_is_path(registry, "describe in");
  const std::string text = read_file(card);
  const Layout layout(registry / versions.name);
  find_version(registry, versions);  // before the lock, which makes folders
  const FileLock held = layout.lock();
  const Tag tag = find_version(registry, versions);
  DescribedVersion done{versions.name, version_of_tag(tag.name), tag.descriptor};
  const Card before = find_card(layout, done.index);
  if (before.number != 0 && before.text == text) return done;
  const MadeReferrer made = make_referrer(done.index, kArtifactTypeCard, text,
                                          {{kCardNumber, std::to_string(before.number + 1)}});
  layout.write_blob(made.config, kEmptyConfig);
  layout.write_blob(made.layer, text);
  layout.write_blob(made.listed.manifest, made.manifest);
  add_referrers(layout, done.index, {made.listed});
  done.changed = true;
  return done;
}

std::string read_card(const Layout& layout, const Descriptor& index) {
  return find_card(layout, index).text;
}

}  // namespace kiln::registry
