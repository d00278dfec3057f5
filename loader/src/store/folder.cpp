// SPDX-License-Identifier: Apache-2.0
//
// A registry that is a folder: an OCI image layout a package, <root>/<package>/{index.json,
// blobs/sha256/…}. As little trusted as a server.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <system_error>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/posix.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/layout.hpp"
#include "oci/tag.hpp"
#include "store/copy.hpp"
#include "store/registry.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderAdvice =
    "The registry folder is damaged: copy it again from where it came from";

/// A file that may not be read is neither missing nor damaged: nothing else is asked instead.
[[noreturn]] void fail_to_read(const fs::path& path, int error) {
  throw Error(ErrorCode::kNetwork, "read " + path.string() + ": " +
                                       std::generic_category().message(error) +
                                       ". Give this user the right to read the registry folder");
}

/// As far as they can be listed, sorted.
std::vector<std::string> packages_in(const fs::path& folder, std::error_code& error) {
  std::vector<std::string> packages;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string package = entry->path().filename().string();
    std::error_code unknown;  // one that may not be read is there
    if (is_package_name(package) &&
        (fs::exists(entry->path() / "index.json", unknown) || unknown)) {
      packages.push_back(package);
    }
  }
  std::sort(packages.begin(), packages.end());
  return packages;
}

class Folder final : public Repository {
 public:
  Folder(const std::string& root, std::string_view name, Traffic& traffic)
      : root_(root), package_(root_ / name), name_(name), traffic_(traffic) {
    struct stat status {};
    if (::stat(root_.c_str(), &status) != 0 && (errno == EACCES || errno == EPERM)) {
      fail_to_read(root_, errno);
    }
    if (!S_ISDIR(status.st_mode)) {
      fail_no_folder("open registry", root_, "Name a registry in the request or in KILN_REGISTRY");
    }
  }

  bool exists(const Descriptor& descriptor) const override {
    const fs::path file = blob_path(descriptor);
    if (::access(file.c_str(), F_OK) == 0) return true;
    if (errno == EACCES) fail_to_read(file, errno);  // whether it is there, nobody may know
    return false;
  }

  void open(const Descriptor& descriptor, BlobSink& sink, const Asking& asking) const override {
    // An index that is asked for by its digest may be one that the registry never had.
    if (descriptor.media_type == kMediaTypeIndex && !exists(descriptor)) {
      throw Error(ErrorCode::kNotFound,
                  "find " + std::string(asking.what) + " (" + descriptor.digest.str() + ") in " +
                      root_.string() +
                      ": there is no such index. Check the digest, or ask for a "
                      "version without one");
    }
    if (sink.size() > 0) sink.restart();
    std::uint64_t rest = descriptor.size;
    read(blob_path(descriptor), [&](std::string_view piece) {
      // One byte more than promised is enough for the sink to refuse it.
      piece = piece.substr(0, rest + 1);
      rest -= std::min<std::uint64_t>(rest, piece.size());
      sink.write(piece);
    });
  }

  std::string origin(const Descriptor& descriptor) const override {
    return blob_path(descriptor).string();
  }
  std::string advice() const override { return std::string(kFolderAdvice); }

  Document index(int version) const override {
    for (const Tag& tag : tags()) {
      if (version_of_tag(tag.name) != version || tag.descriptor.media_type != kMediaTypeIndex) {
        continue;
      }
      return {tag.descriptor,
              read_document(*this, tag.descriptor, "index of " + label(name_, version), {})};
    }
    fail_no_version(name_, version, root_.string(), versions());
  }

  std::optional<Document> manifest(const std::string& name) const override {
    std::error_code unknown;  // what is there and may not be read is told of below
    if (!fs::exists(package_ / "index.json", unknown) && !unknown) return std::nullopt;
    for (const Tag& tag : tags()) {
      if (tag.name != name || tag.descriptor.media_type != kMediaTypeManifest) continue;
      return Document{tag.descriptor, read_document(*this, tag.descriptor, name_ + ":" + name, {})};
    }
    return std::nullopt;
  }

  ReferrerList referrers(const Descriptor& subject) const override {
    const std::string wanted = referrers_tag(subject.digest);
    for (const Tag& tag : tags()) {
      if (tag.name != wanted || tag.descriptor.media_type != kMediaTypeIndex) continue;
      return parse_referrers(
          read_document(*this, tag.descriptor, "referrers " + name_ + ":" + wanted, {}), wanted);
    }
    return {};
  }

  std::vector<int> versions() const override {
    std::vector<std::string> names;
    for (const Tag& tag : tags()) {
      if (tag.descriptor.media_type == kMediaTypeIndex) names.push_back(tag.name);
    }
    return versions_among(names);
  }

 private:
  fs::path blob_path(const Descriptor& descriptor) const {
    return package_ / "blobs" / "sha256" / descriptor.digest.hex();
  }

  std::vector<Tag> tags() const {
    const fs::path path = package_ / "index.json";
    if (::access(path.c_str(), F_OK) != 0) {
      if (errno != ENOENT && errno != ENOTDIR) fail_to_read(path, errno);
      fail_no_package();
    }
    std::string bytes;
    read(path, [&](std::string_view piece) {
      bytes += piece;
      if (bytes.size() > kMaxDocumentBytes) {
        throw Error(ErrorCode::kIntegrity, "read " + path.string() + ": larger than " +
                                               std::to_string(kMaxDocumentBytes) + " bytes. " +
                                               std::string(kFolderAdvice));
      }
    });
    try {
      return parse_layout_index(bytes, path.string());
    } catch (const Error& error) {
      throw Error(error.code(), "find the versions of " + name_ + ": " + error.what() + ". " +
                                    std::string(kFolderAdvice));
    }
  }

  [[noreturn]] void fail_no_package() const {
    constexpr std::size_t kShown = 20;
    std::error_code forbidden;
    const std::vector<std::string> packages = packages_in(root_, forbidden);
    std::string list = join(std::span(packages).first(std::min(packages.size(), kShown)));
    if (packages.size() > kShown) list += " and " + std::to_string(packages.size() - kShown);
    throw Error(ErrorCode::kNotFound, "find " + name_ + " in " + root_.string() +
                                          ": there is no such package; published: " +
                                          (forbidden ? "not known, the folder may not be listed"
                                           : list.empty() ? "none"
                                                          : list) +
                                          ". Check the name and the registry");
  }

  void read(const fs::path& path, const Sink& sink) const {
    // Not blocking: a pipe in a file's place would wait for its other end.
    const FileDescriptor file = try_open(path, O_RDONLY | O_NONBLOCK);
    struct stat status {};
    const bool opened = file.valid() && ::fstat(file.get(), &status) == 0;
    if (!opened && errno != ENOENT && errno != ENOTDIR) fail_to_read(path, errno);
    if (!opened || !S_ISREG(status.st_mode)) {
      throw Error(ErrorCode::kIntegrity, "read " + path.string() + ": " +
                                             (opened ? "it is not a regular file"
                                                     : std::generic_category().message(ENOENT)) +
                                             ". " + std::string(kFolderAdvice));
    }
    ++traffic_.requests;
    read_pieces(file.get(), path, [&](std::string_view piece) {
      traffic_.bytes += piece.size();
      sink(piece);
    });
  }

  fs::path root_;
  fs::path package_;
  std::string name_;
  Traffic& traffic_;
};

}  // namespace

std::vector<std::string> list_folder(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> packages = packages_in(folder, error);
  if (error) fail_to_read(folder, error.value());
  return packages;
}

std::unique_ptr<Repository> open_folder(const std::string& folder, std::string_view name,
                                        Traffic& traffic) {
  return std::make_unique<Folder>(folder, name, traffic);
}

}  // namespace kiln
