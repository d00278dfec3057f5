// SPDX-License-Identifier: Apache-2.0
//
// A registry that is one file: an OCI archive, that is, an OCI image layout in an uncompressed tar,
// as `kiln bundle create` and skopeo make it. It is as little trusted as a server: its headers are
// read once, bounded, and every blob is verified by its reader.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "documents/manifest.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "oci/archive.hpp"
#include "oci/layout.hpp"
#include "oci/tag.hpp"
#include "store/bundle.hpp"
#include "store/copy.hpp"
#include "store/registry.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxEntries = 65536;
constexpr std::size_t kMaxName = 1024;

struct BlobPlace {
  std::int64_t header = 0;  // where in the file its tar headers begin
  std::uint64_t size = 0;
};

class Bundle final : public Repository {
 public:
  Bundle(const std::string& path, std::string_view name, Traffic& traffic)
      : path_(path), name_(name), traffic_(traffic) {
    // O_NONBLOCK: to open a pipe that stands here would wait for its other end.
    file_ = try_open(path_, O_RDONLY | O_NONBLOCK);
    if (!file_.valid()) {
      const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUsage;
      throw Error(code, "open bundle " + path + ": " + std::generic_category().message(errno) +
                            ". Check the file's name and its rights");
    }
    read_headers();
    read_tags();
  }

  bool exists(const Descriptor& descriptor) const override {
    return places_.contains(blob_name(descriptor));
  }

  void open(const Descriptor& descriptor, BlobSink& sink, const Asking& asking) const override {
    if (sink.size() > 0) sink.restart();
    ++traffic_.requests;
    const auto place = places_.find(blob_name(descriptor));
    if (place == places_.end()) fail_absent(asking.what);
    read(place->first, place->second, [&](std::string_view piece) {
      traffic_.bytes += piece.size();
      sink.write(piece);
    });
  }

  std::string origin(const Descriptor& descriptor) const override {
    return path_ + ":" + blob_name(descriptor);
  }
  std::string advice() const override { return "The bundle is damaged: copy it again"; }

  Document index(int version) const override {
    for (const Tag& tag : indexes_) {
      if (version_in(tag) != version) continue;
      return {tag.descriptor,
              read_document(*this, tag.descriptor, "index of " + label(name_, version), {})};
    }
    fail_no_version(name_, version, path_, versions());
  }

  std::optional<Document> manifest(const std::string& name) const override {
    for (const Tag& tag : manifests_) {
      if (tag.name != name_ + ":" + name) continue;
      return Document{tag.descriptor, read_document(*this, tag.descriptor, tag.name, {})};
    }
    return std::nullopt;
  }

  ReferrerList referrers(const Descriptor& subject) const override {
    const std::string wanted = referrers_tag(subject.digest);
    for (const Tag& tag : indexes_) {
      if (tag.name != wanted && tag.name != name_ + ":" + wanted) continue;
      return parse_referrers(
          read_document(*this, tag.descriptor, "referrers " + quote(tag.name), {}), wanted);
    }
    return {};
  }

  std::vector<int> versions() const override {
    std::vector<int> versions;
    for (const Tag& tag : indexes_) {
      if (const int version = version_in(tag); version != 0) versions.push_back(version);
    }
    std::sort(versions.begin(), versions.end());
    // "1" and "geglu-mlp:1" may both be there.
    versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
    return versions;
  }

  /// All that is inside, of every package. A tag is a name that anyone may write; the index says
  /// whose it is.
  std::vector<BundledKernel> contents() const {
    std::vector<BundledKernel> kernels;
    const std::string metadata = std::string(kTrustRepository) + ":" + std::string(kTrustTag);
    const bool is_signed = std::ranges::find(manifests_, metadata, &Tag::name) != manifests_.end();
    for (const Tag& tag : indexes_) {
      const std::string_view name = tag.name;
      if (subject_of_tag(name.substr(name.find(':') + 1))) continue;  // a list of referrers
      const std::string what = "index " + quote(tag.name);
      const Index index = parse_index(read_document(*this, tag.descriptor, what, {}), what);
      BundledKernel kernel{index.name, index.version, tag.descriptor, {}, tag.registry, is_signed};
      for (const Variant& variant : index.variants) {
        if (exists(variant.manifest)) kernel.variants.push_back(variant.id);
      }
      kernels.push_back(std::move(kernel));
    }
    return kernels;
  }

 private:
  static std::string blob_name(const Descriptor& descriptor) {
    return "blobs/sha256/" + descriptor.digest.hex();
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kIntegrity, "read bundle " + path_ + ": " + what +
                                           "; nothing was installed. Copy it again from where it "
                                           "was made, or make it anew: kiln bundle create");
  }

  /// A reader whose first entry is the one whose headers begin there.
  Archive open_at(std::int64_t header) const {
    Archive reader = checked(archive_read_new());
    // Only tar, and no filter: what is compressed has no places.
    check_set_up(archive_read_support_format_tar(reader.get()));
    if (::lseek(file_.get(), header, SEEK_SET) != header) fail("its headers point outside it");
    constexpr std::size_t kBlock = std::size_t{64} * 1024;
    errno = 0;
    if (archive_read_open_fd(reader.get(), file_.get(), kBlock) != ARCHIVE_OK) {
      fail("it is not an uncompressed tar (" + text_of(reader.get()) + ")");
    }
    return reader;
  }

  static std::string text_of(archive* reader) {
    check_memory(reader);
    const char* const text = archive_error_string(reader);
    return text != nullptr ? text : "no reason given";
  }

  /// Where everything is. Links, devices and doubles have no place in a layout.
  void read_headers() {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
      fail("it is not a regular file");
    };
    const auto end = static_cast<std::uint64_t>(status.st_size);
    const Archive reader = open_at(0);
    const ArchiveEntry entry = new_entry();
    for (std::size_t count = 0;; ++count) {
      errno = 0;
      const int result = archive_read_next_header2(reader.get(), entry.get());
      if (result == ARCHIVE_EOF) break;
      if (result != ARCHIVE_OK) fail("it is not a whole tar (" + text_of(reader.get()) + ")");
      if (count == kMaxEntries) fail("it has more than " + std::to_string(kMaxEntries) + " files");
      add_entry(entry.get(), archive_read_header_position(reader.get()), end);
    }
    if (places_.count("oci-layout") == 0 || places_.count("index.json") == 0) {
      fail("it is not an OCI archive: oci-layout and index.json are expected in it");
    }
  }

  void add_entry(archive_entry* entry, std::int64_t header, std::uint64_t end) {
    const char* const text = archive_entry_pathname(entry);
    std::string name = text != nullptr ? text : "";
    if (name.size() > kMaxName) fail("a name in it is longer than " + std::to_string(kMaxName));
    if (name.starts_with("./")) name.erase(0, 2);
    // A hard link has the file type 0 in libarchive.
    const bool link = archive_entry_hardlink(entry) != nullptr;
    if (!link && archive_entry_filetype(entry) == AE_IFDIR) return;
    if (link || archive_entry_filetype(entry) != AE_IFREG) {
      fail(quote(name) + " in it is a link or a device, expected files alone");
    }
    if (archive_entry_sparse_count(entry) > 0) fail(quote(name) + " in it is sparse");
    const std::int64_t size = archive_entry_size(entry);
    if (archive_entry_size_is_set(entry) == 0 || size < 0) fail(quote(name) + " has no size");
    if (static_cast<std::uint64_t>(size) > end ||
        static_cast<std::uint64_t>(header) > end - static_cast<std::uint64_t>(size)) {
      fail("it ends within " + quote(name));
    }
    const BlobPlace place{header, static_cast<std::uint64_t>(size)};
    if (!places_.emplace(name, place).second) fail(quote(name) + " is in it twice");
  }

  void read_tags() {
    const BlobPlace& place = places_.at("index.json");
    if (place.size > kMaxDocumentBytes) {
      fail("its index.json has " + std::to_string(place.size) + " bytes, expected at most " +
           std::to_string(kMaxDocumentBytes));
    }
    std::string bytes;
    read("index.json", place, [&](std::string_view piece) { bytes += piece; });
    for (Tag& tag : parse_layout_index(bytes, "index.json of bundle " + path_)) {
      if (tag.descriptor.media_type == kMediaTypeIndex) {
        indexes_.push_back(std::move(tag));
      } else if (tag.descriptor.media_type == kMediaTypeManifest) {
        manifests_.push_back(std::move(tag));
      }
    }
  }

  [[noreturn]] void fail_absent(std::string_view what) const {
    constexpr std::size_t kShown = 20;
    const std::string inside = join(std::span(indexes_).first(std::min(indexes_.size(), kShown)),
                                    ", ", [](const Tag& tag) { return quote(tag.name); });
    throw Error(ErrorCode::kNotFound,
                "find " + std::string(what) + " in bundle " + path_ +
                    ": it is not inside, which has " + (inside.empty() ? "nothing" : inside) +
                    ". Make the bundle for this machine: kiln bundle create with --variant, "
                    "--host or --all-variants");
  }

  /// The bytes of one entry; never more than its header said.
  void read(const std::string& name, const BlobPlace& place, const Sink& sink) const {
    const Archive reader = open_at(place.header);
    const ArchiveEntry entry = new_entry();
    errno = 0;
    if (archive_read_next_header2(reader.get(), entry.get()) != ARCHIVE_OK) {
      fail(quote(name) + " cannot be read (" + text_of(reader.get()) + ")");
    }
    std::uint64_t at = 0;
    for (;;) {
      const void* bytes = nullptr;
      std::size_t size = 0;
      la_int64_t offset = 0;
      const int result = archive_read_data_block(reader.get(), &bytes, &size, &offset);
      if (result == ARCHIVE_EOF) return;
      if (result != ARCHIVE_OK) {
        check_memory(reader.get());
        fail("it ends within " + quote(name));
      }
      if (static_cast<std::uint64_t>(offset) != at) fail(quote(name) + " in it has holes");
      at += size;
      sink({static_cast<const char*>(bytes), size});
    }
  }

  /// The version of this package that the tag names; 0 if it is another's.
  int version_in(const Tag& tag) const {
    const std::size_t colon = tag.name.find(':');
    if (colon == std::string::npos) return version_of_tag(tag.name);
    const std::string_view text = tag.name;
    return text.substr(0, colon) == name_ ? version_of_tag(text.substr(colon + 1)) : 0;
  }

  std::string path_;
  std::string name_;
  Traffic& traffic_;
  FileDescriptor file_;
  std::map<std::string, BlobPlace> places_;  ///< of each file
  std::vector<Tag> indexes_;  ///< "geglu-mlp:1" of several packages; a bare "1" by skopeo
  std::vector<Tag> manifests_;
};

}  // namespace

std::unique_ptr<Repository> open_bundle(const std::string& file, std::string_view name,
                                        Traffic& traffic) {
  return std::make_unique<Bundle>(file, name, traffic);
}

std::vector<BundledKernel> bundle_contents(const fs::path& file) {
  Traffic traffic;
  return Bundle(absolute_path(file).lexically_normal().string(), {}, traffic).contents();
}

}  // namespace kiln
