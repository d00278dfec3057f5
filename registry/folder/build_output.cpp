// SPDX-License-Identifier: Apache-2.0
#include "registry/folder/build_output.hpp"

#include <algorithm>

#include "base/draft.hpp"
#include "documents/build_files.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/layer_reader.hpp"
#include "oci/tag.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchemaFile = "package.json";

[[noreturn]] void fail(const std::string& subject, const std::string& found) {
  throw Error(ErrorCode::kIntegrity,
              "check " + subject + ": " + found + "; nothing was written. Build the variant again");
}

void check_promise(const std::string& subject, std::string_view part, const Digest& digest,
                   std::uint64_t size, const Descriptor& promised, std::string_view promised_by) {
  if (size != promised.size) {
    fail(subject, std::string(part) + " has " + std::to_string(size) + " bytes, " +
                      std::string(promised_by) + " says " + std::to_string(promised.size));
  }
  if (digest != promised.digest) {
    fail(subject, std::string(part) + " has digest " + digest.str() + ", " +
                      std::string(promised_by) + " says " + promised.digest.str());
  }
}

void check_layer_bytes(const std::string& subject, const fs::path& layer,
                       const Descriptor& promised) {
  Sha256 hash;
  std::uint64_t size = 0;
  stream_file(layer, [&](std::string_view piece) {
    hash.update(piece);
    size += piece.size();
  });
  check_promise(subject, layer.filename().string(), hash.finish(), size, promised, "its manifest");
}

BuiltVariant read_variant(const fs::path& folder) {
  const auto document = [&](std::string_view name) {
    return read_document(folder / name, kMaxDocumentBytes);
  };
  const std::string subject = folder.string();
  const std::string where = (folder / build_files::kDescriptor).string();
  const Json descriptor = parse_json(document(build_files::kDescriptor), where);
  const Variant variant = parse_variant(JsonView(descriptor, where));
  if (!variant.unread.empty()) {
    throw Error(ErrorCode::kUpgrade, "check " + subject +
                                         ": it needs a newer Kiln than " KILN_VERSION
                                         "; nothing was written. Publish with the newer Kiln");
  }
  if (variant.tested != kUntested || !variant.tested_on.empty()) {
    fail(subject, "descriptor.json claims tested = '" + variant.tested +
                      "', expected 'untested': only a test record (--records) says more");
  }
  BuiltVariant built =
      check_variant(variant, document(build_files::kManifest), document(build_files::kConfig),
                    {folder / build_files::kLayer, folder / build_files::kDev}, subject);
  built.folder = folder;
  return built;
}

std::vector<fs::path> variant_folders(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    fail_no_folder("read build output", folder, "Run 'kiln build' first");
  }
  // Any of the files makes it a variant, so that an incomplete one is refused and not left out.
  const auto is_variant = [](const fs::path& path) {
    const auto parts = {build_files::kDescriptor, build_files::kManifest, build_files::kConfig,
                        build_files::kLayer};
    return std::ranges::any_of(parts,
                               [&](std::string_view part) { return fs::exists(path / part); });
  };
  if (is_variant(folder)) return {folder};
  std::vector<fs::path> folders;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const bool hidden = entry.path().filename().string().front() == '.';
    if (!hidden && is_variant(entry.path())) folders.push_back(entry.path());
  }
  if (folders.empty()) {
    throw Error(ErrorCode::kNotFound,
                "read build output " + folder.string() +
                    ": neither it nor a folder in it has a descriptor.json, expected one folder a "
                    "variant. Run 'kiln build' and give the folder of one package");
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace

BuiltVariant check_variant(const Variant& variant, std::string manifest_bytes,
                           std::string config_bytes, const LayerFiles& layers,
                           const std::string& subject) {
  check_promise(subject, "the manifest", Digest::of(manifest_bytes), manifest_bytes.size(),
                variant.manifest, "its descriptor");
  VariantManifest documents = parse_manifest(manifest_bytes, subject + " manifest");
  check_promise(subject, "the config", Digest::of(config_bytes), config_bytes.size(),
                documents.config, "its manifest");
  Config config = parse_config(config_bytes, subject + " config");
  if (!is_package_name(config.name)) fail(subject, "'" + config.name + "' is not a package name");

  if (config.version < 1 || !is_tag(variant_tag(config.version, variant.id))) {
    fail(subject,
         "version " + std::to_string(config.version) + " with variant id '" + variant.id +
             "' makes no tag, expected a version from 1 and letters, digits, '.', '_', '-'");
  }

  const Index promised{config.name, config.version, variant.requires_, {variant}};
  check_agreement(promised, variant, config);

  check_layer_bytes(subject, layers.layer, documents.layer);
  std::string schema;
  read_layer(layers.layer, config, documents.unpacked_size,
             {"check layer of", subject, "nothing was written. Build the variant again"},
             [&](const ArchiveFile& file, const LayerContent& content) {
               const bool kept = file.path == kSchemaFile && file.size <= kMaxDocumentBytes;
               content([&](std::string_view piece) {
                 if (kept) schema += piece;
               });
             });
  if (documents.has_dev() == config.dev_files.empty()) {
    fail(subject, documents.has_dev() ? "it has a dev layer of which its config lists no file"
                                      : "its config lists files of a dev layer that it lacks");
  }
  if (documents.has_dev()) {
    check_layer_bytes(subject, layers.dev, documents.dev);
    read_layer(
        layers.dev, config.dev_part(), documents.dev_unpacked_size,
        {"check dev layer of", subject, "nothing was written. Build the variant again"},
        [](const ArchiveFile&, const LayerContent& content) { content([](std::string_view) {}); });
  }
  const Digest library = library_file(config).digest;
  return {"",
          variant,
          std::move(documents),
          std::move(config),
          std::move(manifest_bytes),
          std::move(config_bytes),
          layers.layer,
          layers.dev,
          library,
          std::move(schema)};
}

std::vector<BuiltVariant> read_build_output(const fs::path& folder) {
  std::vector<BuiltVariant> all;
  for (const fs::path& one : variant_folders(folder)) {
    all.push_back(read_variant(one));
    const Config& first = all.front().config;
    const Config& last = all.back().config;
    if (first.name != last.name || first.version != last.version) {
      fail(folder.string(), all.front().folder.string() + " is " +
                                label(first.name, first.version) + " and " + one.string() + " is " +
                                label(last.name, last.version) +
                                ", expected one version of one package");
    }
    if (all.front().documents.dev != all.back().documents.dev) {
      fail(folder.string(), "the headers or the card of " + one.string() +
                                " differ from those of " + all.front().folder.string() +
                                ", expected one build of a package");
    }
  }
  return all;
}

}  // namespace kiln::registry
