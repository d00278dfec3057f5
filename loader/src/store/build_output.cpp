// SPDX-License-Identifier: Apache-2.0
//
// What `kiln build` left in a folder, as a registry with these variants: for an author who
// loads what was built a moment ago. One folder a variant, with its documents and layers. They
// are read anew each time, and verified as those of any registry.
#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/draft.hpp"
#include "documents/build_files.hpp"
#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "kiln/error.hpp"
#include "store/registry.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// Of the folder itself, or of each in it that is a variant.
std::vector<fs::path> variants_in(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / build_files::kDescriptor, error)) return {folder};
  std::vector<fs::path> variants;
  for (fs::directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    std::error_code unknown;
    if (fs::exists(each->path() / build_files::kDescriptor, unknown))
      variants.push_back(each->path());
  }
  std::sort(variants.begin(), variants.end());
  return variants;
}

class BuildOutput final : public Repository {
 public:
  BuildOutput(const fs::path& folder, std::string_view name, Traffic& traffic)
      : folder_(folder), name_(name), traffic_(traffic) {
    for (const fs::path& variant : variants_in(folder)) add(variant);
  }

  bool exists(const Descriptor& descriptor) const override {
    return files_.contains(descriptor.digest);
  }

  void open(const Descriptor& descriptor, BlobSink& sink, const Asking& asking) const override {
    const auto file = files_.find(descriptor.digest);
    if (file == files_.end()) {
      throw Error(ErrorCode::kNotFound, "find " + std::string(asking.what) + " (" +
                                            descriptor.digest.str() + ") in " + folder_.string() +
                                            ": it is not there. " + advice());
    }
    if (sink.size() > 0) sink.restart();
    ++traffic_.requests;
    std::uint64_t rest = descriptor.size;
    stream_file(file->second, [&](std::string_view piece) {
      piece = piece.substr(0, rest + 1);  // one byte too many is enough for the sink to refuse it
      rest -= std::min<std::uint64_t>(rest, piece.size());
      traffic_.bytes += piece.size();
      sink.write(piece);
    });
  }

  std::string origin(const Descriptor& descriptor) const override {
    const auto file = files_.find(descriptor.digest);
    return (file == files_.end() ? folder_ : file->second).string();
  }
  std::string advice() const override { return "Build it again with 'kiln build'"; }

  Document index(int version) const override {
    const auto built = indexes_.find(version);
    if (built == indexes_.end()) fail_no_version(name_, version, folder_.string(), versions());
    const std::string bytes = serialize_index(built->second);
    return {{std::string(kMediaTypeIndex), Digest::of(bytes), bytes.size()}, bytes};
  }

  std::optional<Document> manifest(const std::string&) const override { return std::nullopt; }
  ReferrerList referrers(const Descriptor&) const override { return {}; }

  std::vector<int> versions() const override {
    std::vector<int> versions;
    for (const auto& [version, index] : indexes_) versions.push_back(version);
    return versions;
  }

 private:
  /// A folder may have variants of a version that was built before: each has its own.
  void add(const fs::path& folder) {
    const auto document = [&](const char* file) {
      return read_document(folder / file, kMaxDocumentBytes);
    };
    const std::string where = (folder / build_files::kDescriptor).string();
    const Json json = parse_json(document(build_files::kDescriptor), where);
    Variant variant = parse_variant(JsonView(json, where));
    const Config config =
        parse_config(document(build_files::kConfig), (folder / build_files::kConfig).string());
    if (config.name != name_) {
      throw Error(ErrorCode::kNotFound, "find " + name_ + " in " + folder_.string() +
                                            ": it is a build of " + config.name +
                                            ". Name the folder of that package");
    }
    const VariantManifest manifest = parse_manifest(document(build_files::kManifest),
                                                    (folder / build_files::kManifest).string());
    files_[variant.manifest.digest] = folder / build_files::kManifest;
    files_[manifest.config.digest] = folder / build_files::kConfig;
    files_[manifest.layer.digest] = folder / build_files::kLayer;
    if (manifest.has_dev()) files_[manifest.dev.digest] = folder / build_files::kDev;
    Index& index = indexes_[config.version];
    if (index.variants.empty()) {
      index = {config.name, config.version, variant.requires_, {}};
    }
    index.variants.push_back(std::move(variant));
  }

  fs::path folder_;
  std::string name_;
  Traffic& traffic_;
  std::map<Digest, fs::path> files_;
  std::map<int, Index> indexes_;
};

}  // namespace

std::string build_output_in(const std::string& folder, std::string_view name) {
  if (!folder.starts_with('/')) return {};
  for (const fs::path& each : {fs::path(folder), fs::path(folder) / name}) {
    if (!variants_in(each).empty()) return each.string();
  }
  return {};
}

std::unique_ptr<Repository> open_build_output(const std::string& folder, std::string_view name,
                                              Traffic& traffic) {
  return std::make_unique<BuildOutput>(folder, name, traffic);
}

}  // namespace kiln
