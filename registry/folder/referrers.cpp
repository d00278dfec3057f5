// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/referrers.hpp"

#include <algorithm>

#include "kiln/error.hpp"
#include "oci/tag.hpp"

namespace kiln::registry {
namespace {

ReferrerList read_list(const Layout& layout, const std::vector<Tag>& tags, const std::string& tag) {
  const Tag* const found = find_tag(tags, tag);
  if (found == nullptr) return {};
  return parse_referrers(layout.read_blob(found->descriptor, "referrers " + tag), tag);
}

[[noreturn]] void fail_subject(const std::string& what, const std::string& found,
                               const std::string& expected) {
  throw Error(ErrorCode::kIntegrity, "verify " + what + ": its subject is " + found +
                                         ", expected " + expected +
                                         ". Remove the tag, and attest again");
}

}  // namespace

std::vector<HungReferrer> read_referrers(const Layout& layout, const Descriptor& index) {
  std::vector<HungReferrer> hung;
  const std::string tag = referrers_tag(index.digest);
  const std::string promised =
      index.digest.str() + ", as the tag " + tag + " of " + layout.index_path().string() + " says";
  for (ListedReferrer& listed : read_list(layout, layout.read(), tag)) {
    const std::string what = "referrer " + listed.manifest.digest.str();
    HungReferrer one{std::move(listed), {}, {}};
    one.manifest = layout.read_blob(one.listed.manifest, what);
    const Referrer referrer = parse_referrer(one.manifest, what);
    if (!referrer.subject || referrer.subject->digest != index.digest) {
      fail_subject(what, referrer.subject ? referrer.subject->digest.str() : "nothing", promised);
    }
    one.blobs = referrer.layers;
    one.blobs.push_back(referrer.config);
    std::ranges::sort(one.blobs, {}, [](const Descriptor& blob) { return blob.digest.hex(); });
    one.blobs.erase(std::unique(one.blobs.begin(), one.blobs.end()), one.blobs.end());
    for (const Descriptor& blob : one.blobs) layout.check_blob(blob, "blob of " + what);
    hung.push_back(std::move(one));
  }
  return hung;
}

void add_referrers(const Layout& layout, const Descriptor& index, const ReferrerList& added) {
  std::vector<Tag> tags = layout.read();
  const std::string name = referrers_tag(index.digest);
  const ReferrerList before = read_list(layout, tags, name);
  const ReferrerList after = join_referrers(before, added);
  if (after == before) return;
  const std::string bytes = serialize_referrers(after);
  const Descriptor list{std::string(kMediaTypeIndex), Digest::of(bytes), bytes.size()};
  layout.write_blob(list, bytes);
  std::erase_if(tags, [&](const Tag& tag) { return tag.name == name; });
  tags.push_back({name, list});
  layout.write(tags);
}

}  // namespace kiln::registry
