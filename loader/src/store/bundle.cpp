// SPDX-License-Identifier: Apache-2.0
//
// The source that is one file: an OCI archive, that is, an OCI image layout in an uncompressed tar,
// as `kiln bundle create` and skopeo make it. It is as little trusted as a server: its headers are
// read once, bounded, and every blob is verified by who asked for it.
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "base/posix.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "install/bundle.hpp"
#include "kiln/error.hpp"
#include "store/source.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTagAnnotation = "org.opencontainers.image.ref.name";
constexpr std::size_t kMaxEntries = 65536;
constexpr std::size_t kMaxName = 1024;

struct FreeArchive {
  void operator()(archive* handle) const { archive_read_free(handle); }
};
using Reader = std::unique_ptr<archive, FreeArchive>;

struct Place {
  std::int64_t header = 0;  // where in the file its tar headers begin
  std::uint64_t size = 0;
};

class BundleSource final : public Source {
 public:
  explicit BundleSource(const std::string& path) : Source(path), path_(path) {
    file_ = try_open(path_, O_RDONLY);
    if (!file_.valid()) {
      throw Error(ErrorCode::kNotFound,
                  "open bundle " + path + ": " + std::generic_category().message(errno));
    }
    read_headers();
    read_tags();
  }

  Document index(std::string_view name, int version) override {
    for (const Tag& tag : tags_) {
      if (tag.descriptor.media_type != kMediaTypeIndex || !tag.is(name, version)) continue;
      return {tag.descriptor, document(tag.descriptor, tag.name)};
    }
    fail_no_version(name, version, registry(), versions(name));
  }

  std::string manifest(std::string_view name, const Descriptor& descriptor) override {
    return document(descriptor, "manifest " + descriptor.digest.str() + " of " + std::string(name));
  }

  void blob(std::string_view name, const Descriptor& descriptor, BlobSink& sink) override {
    const Place& place =
        find(descriptor, "blob " + descriptor.digest.str() + " of " + std::string(name));
    if (sink.size() > 0) sink.restart();
    read(blob_name(descriptor), place, [&](std::string_view piece) { sink.write(piece); });
    sink.finish();
  }

  std::vector<int> versions(std::string_view name) override {
    std::vector<std::string> found;
    for (const Tag& tag : tags_) {
      if (tag.descriptor.media_type == kMediaTypeIndex && tag.is_of(name)) {
        found.push_back(tag.version());
      }
    }
    return versions_among(found);
  }

  std::string origin(std::string_view, const Descriptor& descriptor) const override {
    return registry() + ":" + blob_name(descriptor);
  }

  std::vector<BundledKernel> contents() {
    std::vector<BundledKernel> kernels;
    for (const Tag& tag : tags_) {
      if (tag.descriptor.media_type != kMediaTypeIndex) continue;
      // A tag is a name that anyone may write; the index says whose it is.
      const Index index = parse_index(document(tag.descriptor, tag.name), "index " + tag.name);
      BundledKernel kernel{index.name, index.version, tag.descriptor, {}};
      for (const Variant& variant : index.variants) {
        if (places_.count(blob_name(variant.manifest)) != 0) kernel.variants.push_back(variant.id);
      }
      kernels.push_back(std::move(kernel));
    }
    return kernels;
  }

 private:
  /// "geglu-mlp:1" where a bundle has several packages; skopeo and others write a bare "1".
  struct Tag {
    std::string name;
    Descriptor descriptor;
    std::string version() const { return name.substr(name.find(':') + 1); }
    bool is_of(std::string_view package) const {
      return name.find(':') == std::string::npos ||
             std::string_view(name).substr(0, name.find(':')) == package;
    }
    bool is(std::string_view package, int wanted) const {
      return is_of(package) && version() == std::to_string(wanted);
    }
  };

  static std::string blob_name(const Descriptor& descriptor) {
    return "blobs/sha256/" + descriptor.digest.hex();
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kIntegrity, "read bundle " + registry() + ": " + what +
                                           "; nothing was installed. Copy it again from where it "
                                           "was made, or make it anew: kiln bundle create");
  }

  /// A reader whose first entry is the one whose headers begin there.
  Reader open_at(std::int64_t header) const {
    Reader reader(archive_read_new());
    // Only tar, and no filter: what is compressed has no places.
    archive_read_support_format_tar(reader.get());
    if (::lseek(file_.get(), header, SEEK_SET) != header) fail("its headers point outside it");
    constexpr std::size_t kBlock = std::size_t{64} * 1024;
    if (archive_read_open_fd(reader.get(), file_.get(), kBlock) != ARCHIVE_OK) {
      fail("it is no uncompressed tar (" + text_of(reader.get()) + ")");
    }
    return reader;
  }

  static std::string text_of(archive* reader) {
    const char* const text = archive_error_string(reader);
    return text != nullptr ? text : "no reason given";
  }

  /// Where everything is. Links, devices and doubles have no place in a layout.
  void read_headers() {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode)) fail("it is no file");
    const auto end = static_cast<std::uint64_t>(status.st_size);
    const Reader reader = open_at(0);
    for (std::size_t count = 0;; ++count) {
      archive_entry* entry = nullptr;
      const int result = archive_read_next_header(reader.get(), &entry);
      if (result == ARCHIVE_EOF) break;
      if (result != ARCHIVE_OK) fail("it is no whole tar (" + text_of(reader.get()) + ")");
      if (count == kMaxEntries) fail("it has more than " + std::to_string(kMaxEntries) + " files");
      add_entry(entry, archive_read_header_position(reader.get()), end);
    }
    if (places_.count("oci-layout") == 0 || places_.count("index.json") == 0) {
      fail("it is no OCI archive: oci-layout and index.json are expected in it");
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
    const Place place{header, static_cast<std::uint64_t>(size)};
    if (!places_.emplace(name, place).second) fail(quote(name) + " is in it twice");
  }

  void read_tags() {
    const Place& place = places_.at("index.json");
    if (place.size > kMaxDocumentBytes)
      fail("its index.json has " + std::to_string(place.size) + " bytes, expected at most " +
           std::to_string(kMaxDocumentBytes));
    std::string bytes;
    read("index.json", place, [&](std::string_view piece) { bytes += piece; });
    const std::string subject = "index.json of bundle " + registry();
    const Json json = parse_json(bytes, subject);
    std::set<std::string> names;
    for (const JsonView& entry : JsonView(json, subject).at("manifests").items()) {
      if (!entry.has("annotations")) continue;
      Tag tag{entry.at("annotations").string_or(kTagAnnotation, ""), parse_descriptor(entry)};
      if (tag.name.empty()) continue;
      if (!names.insert(tag.name).second) entry.fail("is the second one named " + quote(tag.name));
      tags_.push_back(std::move(tag));
    }
  }

  const Place& find(const Descriptor& descriptor, const std::string& what) const {
    const auto place = places_.find(blob_name(descriptor));
    if (place != places_.end()) return place->second;
    std::string inside;
    for (const Tag& tag : tags_) inside += (inside.empty() ? "" : ", ") + quote(tag.name);
    throw Error(ErrorCode::kNotFound,
                "find " + what + " in bundle " + registry() + ": it is not inside, which has " +
                    (inside.empty() ? "nothing" : inside) +
                    ". Make the bundle for this machine: kiln bundle create with --variant, "
                    "--host or --all-variants");
  }

  std::string document(const Descriptor& descriptor, const std::string& what) {
    if (descriptor.size > kMaxDocumentBytes) {
      fail(what + " has " + std::to_string(descriptor.size) + " bytes, expected at most " +
           std::to_string(kMaxDocumentBytes) + " for a document");
    }
    const Place& place = find(descriptor, what);
    std::string bytes;
    StreamVerifier verifier(descriptor,
                            {what, origin({}, descriptor), "The bundle is damaged: copy it again"});
    read(blob_name(descriptor), place, [&](std::string_view piece) {
      verifier.update(piece);
      bytes += piece;
    });
    verifier.finish();
    return bytes;
  }

  /// The bytes of one entry; never more than its header said.
  void read(const std::string& name, const Place& place, const Sink& sink) {
    count_request();
    const Reader reader = open_at(place.header);
    archive_entry* entry = nullptr;
    if (archive_read_next_header(reader.get(), &entry) != ARCHIVE_OK) {
      fail(quote(name) + " cannot be read (" + text_of(reader.get()) + ")");
    }
    std::uint64_t at = 0;
    for (;;) {
      const void* bytes = nullptr;
      std::size_t size = 0;
      la_int64_t offset = 0;
      const int result = archive_read_data_block(reader.get(), &bytes, &size, &offset);
      if (result == ARCHIVE_EOF) return;
      if (result != ARCHIVE_OK) fail("it ends within " + quote(name));
      if (static_cast<std::uint64_t>(offset) != at) fail(quote(name) + " in it has holes");
      at += size;
      count_bytes(size);
      sink({static_cast<const char*>(bytes), size});
    }
  }

  fs::path path_;
  FileDescriptor file_;
  std::map<std::string, Place> places_;
  std::vector<Tag> tags_;
};

}  // namespace

std::unique_ptr<Source> open_bundle_source(const std::string& file) {
  return std::make_unique<BundleSource>(file);
}

std::vector<BundledKernel> bundle_contents(const std::filesystem::path& file) {
  return BundleSource(fs::absolute(file).lexically_normal().string()).contents();
}

}  // namespace kiln
