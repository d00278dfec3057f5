// SPDX-License-Identifier: Apache-2.0
#include "documents/variant.hpp"

#include "base/quote.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"

namespace kiln {

const Variant* find_variant(const Index& index, std::string_view id) {
  for (const Variant& variant : index.variants) {
    if (variant.id == id) return &variant;
  }
  return nullptr;
}

const Variant* find_lost(const Index& before, const Index& after) {
  for (const Variant& old : before.variants) {
    const Variant* const now = find_variant(after, old.id);
    if (now == nullptr || now->manifest != old.manifest) return &old;
  }
  return nullptr;
}

const ArchiveFile& library_file(const Config& config) {
  for (const ArchiveFile& file : config.files) {
    if (file.path == config.library) return file;
  }
  throw Error(ErrorCode::kInternal, "find the library of " + label(config.name, config.version) +
                                        " " + config.variant + ": its config does not list " +
                                        quote(config.library));
}

}  // namespace kiln
