// SPDX-License-Identifier: Apache-2.0
#include "install/find_index.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "documents/names.hpp"
#include "install/pull.hpp"
#include "kiln/error.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

/// A published version only grows. A variant that changed or went means that the registry, or
/// someone in front of it, answers with other bytes for the same version.
void check_only_grown(const Index& before, const Index& after, const std::string& registry,
                      const std::filesystem::path& ref) {
  for (const Variant& old : before.variants) {
    const auto same = std::find_if(after.variants.begin(), after.variants.end(),
                                   [&](const Variant& each) { return each.id == old.id; });
    const bool gone = same == after.variants.end();
    if (!gone && same->manifest.digest == old.manifest.digest) continue;
    throw Error(
        ErrorCode::kIntegrity,
        "verify index of " + label(before.name, before.version) + ": variant " + old.id +
            (gone ? " is gone, it was " : " is now " + same->manifest.digest.str() + ", it was ") +
            old.manifest.digest.str() + " (from " + registry +
            "); a published version never changes, nothing was loaded. Tell the registry's "
            "publisher; if you rebuilt it yourself, remove " +
            ref.string());
  }
}

}  // namespace

Index read_index(const std::string& bytes, std::string_view name, int version,
                 const std::string& registry) {
  Index index = parse_index(bytes, "index " + label(name, version));
  if (index.name != name || index.version != version) {
    throw Error(ErrorCode::kIntegrity, "read index of " + label(name, version) +
                                           ": it is the one of " +
                                           label(index.name, index.version) + " (from " + registry +
                                           "); nothing was loaded. Tell the registry's publisher");
  }
  return index;
}

bool recall_index(Selecting& self) {
  const int version = self.request.version;
  try {
    const std::optional<Ref> ref = self.cache.read_ref(self.source.registry(), self.name, version);
    if (!ref) return false;
    const std::optional<std::string> bytes =
        self.cache.read_document(ref->index, "index of " + label(self.name, version));
    if (!bytes) return false;
    self.selected.index = read_index(*bytes, self.name, version, self.source.registry());
    self.selected.descriptor = ref->index;
    self.recalled = true;
  } catch (const Error& error) {
    if (!self.request.refresh || error.code() != ErrorCode::kIntegrity) throw;
  }
  return self.recalled;
}

void ask_index(Selecting& self) {
  const int version = self.request.version;
  self.report(Event::Stage::kIndex, label(self.name, version), 0, 0);
  const std::string package = label(self.name, version);
  Document document = self.source.open(package, "index of " + package).index(self.name, version);
  Index index = read_index(document.bytes, self.name, version, self.source.registry());
  if (self.recalled) {
    check_only_grown(self.selected.index, index, self.source.registry(),
                     self.cache.ref_path(self.source.registry(), self.name, version));
  }
  self.report(Event::Stage::kIndex, label(self.name, version), document.bytes.size(),
              document.bytes.size());
  self.selected.descriptor = document.descriptor;
  self.selected.index = std::move(index);
  self.fetched_index = std::move(document.bytes);
  self.recalled = false;
}

void take_locked_index(Selecting& self) {
  const LockedKernel& locked = self.held->kernel;
  const std::string package = label(self.name, locked.version);
  const std::string what = "index of " + package;
  std::optional<std::string> bytes = read_cached(self, locked.index, what);
  if (!bytes) {
    Source& source = self.source.open(package, what);
    self.report(Event::Stage::kIndex, package, 0, locked.index.size);
    try {
      bytes = source.manifest(self.name, locked.index);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kNotFound) throw;
      throw Error(ErrorCode::kLock, "lock " + package + ": " + self.held->file.string() +
                                        " names index " + locked.index.digest.str() + ", which " +
                                        source.registry() + " does not have (" + error.what() +
                                        "). Run 'kiln lock' to take the one that it has");
    }
    verify_bytes(*bytes, locked.index, {what, source.registry(), ""});
    self.report(Event::Stage::kIndex, package, bytes->size(), locked.index.size);
    self.fetched_index = bytes;
  }
  self.selected.descriptor = locked.index;
  self.selected.index = read_index(*bytes, self.name, locked.version, self.source.registry());
}

void find_newest_index(Selecting& self) {
  if (self.held) return take_locked_index(self);
  if (!recall_index(self) || !self.source.offline()) ask_index(self);
}

}  // namespace kiln
