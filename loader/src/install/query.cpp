// SPDX-License-Identifier: Apache-2.0
//
// Query: has_kernel, what get_kernel would do offline. It runs the same stages up to the load;
// where install would unpack a cached layer, it hashes that layer and looks whether there is a
// place.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "install/fallback.hpp"
#include "install/install.hpp"
#include "install/pull.hpp"
#include "kiln/error.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// The file that is loaded, hashed as the load will hash it.
void check_library(const Config& config, const fs::path& folder, const std::string& subject) {
  const auto library =
      std::find_if(config.files.begin(), config.files.end(),
                   [&](const ArchiveFile& file) { return file.path == config.library; });
  const fs::path path = folder / config.library;
  const FileDescriptor file = open_inside(folder, config.library);
  if (!file.valid()) fail_cache("open", path, errno);
  StreamVerifier verifier({"", library->digest, library->size},
                          {"library of " + subject, path.string(), kFetchAgain});
  read_pieces(file.get(), path, [&](std::string_view piece) { verifier.update(piece); });
  verifier.finish();
}

/// Not unpacked yet: install would do it, from the layer in the cache.
void check_layer(Selecting& self, const VariantManifest& manifest, const std::string& subject) {
  const std::string what = "layer of " + subject;
  if (!self.cache.verify_blob(manifest.layer, what, kFetchAgain)) {
    self.source.open(subject_of(self), what);  // throws kOffline: nothing may be fetched
  }
  if (::access(self.cache.root().c_str(), W_OK) != 0) {
    fail_cache("unpack into", self.cache.root(), errno);
  }
}

}  // namespace

Availability has_kernel(std::string_view name, const Request& request) {
  Availability answer;
  try {
    check_loadable(name, request);
    Request offline = request;
    offline.offline = true;
    offline.refresh = false;
    offline.from.clear();
    offline.on_event = {};
    const FileLock used = Cache(offline.cache, offline.stop).use();  // gc takes nothing meanwhile
    Selecting self = select_or_fall_back(name, offline);
    const Selected& selected = self.selected;
    answer.device = selected.resolution.device;
    answer.version = selected.index.version;
    if (!selected.resolution.chosen) throw Error(ErrorCode::kNoVariant, selected.no_variant);
    const Variant& variant = selected.index.variants.at(*selected.resolution.chosen);
    answer.variant = variant.id;
    const std::string subject = subject_of(self, variant);
    const Pulled pulled = pull_documents(self, variant);
    const fs::path folder = self.cache.unpacked_path(pulled.manifest.config.digest);
    const fs::path relative = folder.lexically_relative(self.cache.root());
    if (open_folder_inside(self.cache.root(), relative).valid()) {
      check_library(pulled.config, folder, subject);
    } else {
      check_layer(self, pulled.manifest, subject);
    }
    answer.available = true;
  } catch (const Error& error) {
    answer.code = error.code();
    answer.reason = error.what();
  }
  return answer;
}

}  // namespace kiln
