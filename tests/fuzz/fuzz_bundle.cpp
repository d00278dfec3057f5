// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a bundle: refused by name, or kernels whose documents are what their digests say.
// The first byte says whether the headers' checksums are corrected.
#include <fstream>

#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "fuzz.hpp"
#include "fuzz_tar.hpp"
#include "install/bundle.hpp"
#include "settings/settings.hpp"
#include "store/copy.hpp"
#include "store/registry.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  static const fuzz::Folder folder;
  if (size == 0) return 0;
  std::string bytes(fuzz::text_of(data + 1, size - 1));
  if (data[0] % 2 == 1) fuzz::mend_checksums(bytes);
  const std::filesystem::path file = folder.path / "x.tar";
  std::ofstream(file, std::ios::binary) << bytes;

  fuzz::accepts({ErrorCode::kIntegrity, ErrorCode::kUpgrade, ErrorCode::kNotFound}, [&] {
    for (const BundledKernel& kernel : bundle_contents(file)) {
      fuzz::require(is_package_name(kernel.name) && kernel.version >= 1, "a kernel has a name");
      Traffic traffic;
      const std::unique_ptr<Repository> bundle =
          open_repository(file.string(), kernel.name, {}, {}, traffic);
      const Document index = bundle->index(kernel.version);
      fuzz::require(Digest::of(index.bytes) == index.descriptor.digest, "an index is verified");
      for (const Variant& variant : parse_index(index.bytes, "index").variants) {
        const std::string manifest = read_document(*bundle, variant.manifest, "manifest", {});
        fuzz::require(Digest::of(manifest) == variant.manifest.digest, "a manifest is verified");
      }
    }
  });
  return 0;
}
