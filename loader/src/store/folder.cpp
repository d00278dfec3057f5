// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/posix.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "store/source.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTagAnnotation = "org.opencontainers.image.ref.name";
constexpr std::string_view kNextStep =
    "The registry folder is damaged: copy it again from where it came from";

class FolderSource final : public Source {
 public:
  explicit FolderSource(const std::string& folder) : Source(folder), root_(folder) {
    std::error_code error;
    if (!fs::is_directory(root_, error)) {
      throw Error(ErrorCode::kNotFound, "open registry " + folder +
                                            ": there is no such folder. Name a registry in the "
                                            "request or in KILN_REGISTRY");
    }
  }

  Document index(std::string_view name, int version) override {
    const std::string tag = std::to_string(version);
    for (const auto& [found, descriptor] : tags(name)) {
      if (found != tag || descriptor.media_type != kMediaTypeIndex) continue;
      return {descriptor, document(name, descriptor, "index of " + std::string(name) + "@" + tag)};
    }
    fail_no_version(name, version, registry(), versions(name));
  }

  std::string manifest(std::string_view name, const Descriptor& descriptor) override {
    // An index that is asked for by its digest may be one that the registry never had.
    if (std::error_code error; descriptor.media_type == kMediaTypeIndex &&
                               !fs::exists(blob_path(name, descriptor), error)) {
      throw Error(ErrorCode::kNotFound, "find index " + descriptor.digest.str() + " of " +
                                            std::string(name) + " in " + registry() +
                                            ": there is no such index");
    }
    return document(name, descriptor, "manifest of " + std::string(name));
  }

  void blob(std::string_view name, const Descriptor& descriptor, BlobSink& sink) override {
    const fs::path path = blob_path(name, descriptor);
    if (sink.size() > 0) sink.restart();
    std::uint64_t rest = descriptor.size;
    read(path, [&](std::string_view piece) {
      // One byte more than promised is enough for the sink to refuse it.
      piece = piece.substr(0, rest + 1);
      rest -= std::min<std::uint64_t>(rest, piece.size());
      sink.write(piece);
    });
    sink.finish();
  }

  std::vector<int> versions(std::string_view name) override {
    std::vector<std::string> names;
    for (const auto& [tag, descriptor] : tags(name)) {
      if (descriptor.media_type == kMediaTypeIndex) names.push_back(tag);
    }
    return versions_among(names);
  }

  std::string origin(std::string_view name, const Descriptor& descriptor) const override {
    return blob_path(name, descriptor).string();
  }

 private:
  using Tags = std::vector<std::pair<std::string, Descriptor>>;

  fs::path blob_path(std::string_view name, const Descriptor& descriptor) const {
    return root_ / name / "blobs" / "sha256" / descriptor.digest.hex();
  }

  /// The tagged entries of a layout's index.json. Others are children that some tools list there.
  Tags tags(std::string_view name) {
    const fs::path path = root_ / name / "index.json";
    std::error_code error;
    if (!fs::exists(path, error)) fail_no_package(name);
    std::string bytes;
    read(path, [&](std::string_view piece) {
      bytes += piece;
      if (bytes.size() > kMaxDocumentBytes) {
        throw Error(ErrorCode::kIntegrity, "read " + path.string() + ": larger than " +
                                               std::to_string(kMaxDocumentBytes) + " bytes. " +
                                               std::string(kNextStep));
      }
    });
    const Json json = parse_json(bytes, path.string());
    Tags found;
    for (const JsonView& entry : JsonView(json, path.string()).at("manifests").items()) {
      if (!entry.has("annotations")) continue;
      std::string tag = entry.at("annotations").string_or(kTagAnnotation, "");
      if (!tag.empty()) found.emplace_back(std::move(tag), parse_descriptor(entry));
    }
    return found;
  }

  [[noreturn]] void fail_no_package(std::string_view name) const {
    std::vector<std::string> packages;
    std::error_code error;
    for (fs::directory_iterator entry(root_, error), end; entry != end; entry.increment(error)) {
      if (error) break;
      if (fs::exists(entry->path() / "index.json", error)) {
        packages.push_back(entry->path().filename().string());
      }
    }
    std::sort(packages.begin(), packages.end());
    std::string list;
    for (const std::string& each : packages) list += (list.empty() ? "" : ", ") + each;
    throw Error(ErrorCode::kNotFound,
                "find " + std::string(name) + " in " + registry() +
                    ": there is no such package; published: " + (list.empty() ? "none" : list) +
                    ". Check the name and the registry");
  }

  std::string document(std::string_view name, const Descriptor& descriptor,
                       const std::string& what) {
    const fs::path path = blob_path(name, descriptor);
    if (descriptor.size > kMaxDocumentBytes) {
      throw Error(ErrorCode::kIntegrity, "read " + what + ": " + std::to_string(descriptor.size) +
                                             " bytes, expected at most " +
                                             std::to_string(kMaxDocumentBytes) +
                                             " for a document (" + path.string() + ")");
    }
    std::string bytes;
    StreamVerifier verifier(descriptor, {what, path.string(), std::string(kNextStep)});
    read(path, [&](std::string_view piece) {
      verifier.update(piece);
      bytes += piece;
    });
    verifier.finish();
    return bytes;
  }

  void read(const fs::path& path, const Sink& sink) {
    // Not blocking: a pipe in a file's place would wait for its other end.
    const FileDescriptor file = try_open(path, O_RDONLY | O_NONBLOCK);
    struct stat status {};
    if (!file.valid() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
      const int error = errno;
      const std::string found =
          file.valid() ? "it is no file" : std::generic_category().message(error);
      throw Error(file.valid() || error == ENOENT ? ErrorCode::kIntegrity : ErrorCode::kNetwork,
                  "read " + path.string() + ": " + found + ". " + std::string(kNextStep));
    }
    count_request();
    read_pieces(file.get(), path, [&](std::string_view piece) {
      count_bytes(piece.size());
      sink(piece);
    });
  }

  fs::path root_;
};

}  // namespace

std::unique_ptr<Source> open_folder_source(const std::string& folder) {
  return std::make_unique<FolderSource>(folder);
}

}  // namespace kiln
