// SPDX-License-Identifier: Apache-2.0
#include "install/install.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "install/fallback.hpp"
#include "install/lock.hpp"
#include "install/pull.hpp"
#include "install/select.hpp"
#include "kiln/error.hpp"
#include "store/unpack.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// Whether the variant's files need no work. While refreshing, damaged ones do.
bool is_unpacked(const Selecting& self, const fs::path& folder, const Config& config) {
  try {
    const fs::path relative = folder.lexically_relative(self.cache.root());
    if (!open_folder_inside(self.cache.root(), relative).valid()) return false;
  } catch (const Error& error) {
    if (!self.request.refresh || error.code() != ErrorCode::kIntegrity) throw;
    return false;
  }
  return !self.request.refresh || check_unpacked(folder, config).empty();
}

/// Throws kCache unless there is room for the layer, if it is to be fetched, and for its files.
void check_room_for(const Selecting& self, const VariantManifest& manifest,
                    const std::string& subject) {
  const std::uint64_t layer = self.cache.has_blob(manifest.layer.digest) ? 0 : manifest.layer.size;
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() - layer;
  check_room(self.cache.root(), layer + std::min(most, manifest.unpacked_size), subject);
}

void get_files(Selecting& self, const Variant& variant, const Pulled& pulled,
               const fs::path& folder) {
  const VariantManifest& manifest = pulled.manifest;
  const Config& config = pulled.config;
  const std::string subject = subject_of(self, variant);
  if (is_unpacked(self, folder, config)) return;
  const FileLock held = self.cache.lock(manifest.config.digest);
  if (is_unpacked(self, folder, config)) return;  // another process was faster
  self.cache.make_folder("unpacked");
  if (std::error_code error; fs::symlink_status(folder, error).type() != fs::file_type::not_found) {
    drop_unpacked(folder);
  }
  check_room_for(self, manifest, subject);
  const fs::path layer = pull_layer(self, manifest.layer, variant);
  self.report(Event::Stage::kUnpack, subject, 0, manifest.unpacked_size);
  unpack_layer(layer, config, manifest.unpacked_size, folder, subject);
  self.report(Event::Stage::kUnpack, subject, manifest.unpacked_size, manifest.unpacked_size);
}

/// Whether all that `known` has is in the selected index: then that is the same version, grown.
bool has_grown_from(const Selecting& self, const Descriptor& known) {
  const std::optional<std::string> bytes = read_cached(self, known, "index of " + subject_of(self));
  if (!bytes) return true;
  const Index before = parse_index(*bytes, "index " + subject_of(self));
  const std::vector<Variant>& after = self.selected.index.variants;
  return std::all_of(before.variants.begin(), before.variants.end(), [&](const Variant& old) {
    return std::any_of(after.begin(), after.end(), [&](const Variant& each) {
      return each.id == old.id && each.manifest.digest == old.manifest.digest;
    });
  });
}

/// Remembers which index this version is. Last of all: a ref promises a version that is here.
void remember(Selecting& self) {
  if (self.held) self.cache.add_root(self.held->file);
  if (!self.fetched_index && !self.held) return;
  const Selected& selected = self.selected;
  const int version = self.request.version;
  if (self.fetched_index &&
      !read_cached(self, selected.descriptor, "index of " + subject_of(self))) {
    self.cache.write_document(selected.descriptor, *self.fetched_index);
  }
  std::optional<Ref> known;
  try {
    known = self.cache.read_ref(selected.registry, self.name, version);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;  // damaged: write it anew
  }
  if (known && known->index == selected.descriptor) return;
  // A lock file may pin an older state of the version than the registry gave since.
  if (known && self.held && !has_grown_from(self, known->index)) return;
  self.cache.write_ref({selected.registry, self.name, version, selected.descriptor});
}

}  // namespace

Installed install(std::string_view name, const Request& request) {
  // From the first look to the lease: gc takes nothing that was seen meanwhile.
  FileLock used = Cache(request.cache, request.stop).use();
  Selecting self = select_or_fall_back(name, request);
  const Selected& selected = self.selected;
  if (!selected.resolution.chosen) throw Error(ErrorCode::kNoVariant, selected.no_variant);
  if (!used.held() && self.fetched_index) used = self.cache.use_to_write();

  Installed installed;
  installed.variant = selected.index.variants.at(*selected.resolution.chosen);
  Pulled pulled = pull_documents(self, installed.variant);
  const Digest config = pulled.manifest.config.digest;
  installed.folder = self.cache.unpacked_path(config);
  installed.library = installed.folder / pulled.config.library;
  get_files(self, installed.variant, pulled, installed.folder);
  remember(self);
  installed.config = std::move(pulled.config);
  installed.lease = self.cache.lease(config);
  installed.requests = self.source.requests();
  installed.bytes_fetched = self.source.bytes_fetched();
  installed.selected = std::move(self.selected);
  return installed;
}

}  // namespace kiln
