// SPDX-License-Identifier: Apache-2.0
#include "install/bundle.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/posix.hpp"
#include "documents/json.hpp"
#include "install/find_index.hpp"
#include "install/pull.hpp"
#include "kiln/error.hpp"
#include "verify/verify.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTagAnnotation = "org.opencontainers.image.ref.name";
constexpr std::string_view kLayout = R"({"imageLayoutVersion":"1.0.0"})";

struct FreeArchive {
  void operator()(archive* handle) const { archive_write_free(handle); }
};

/// A tar in which nothing but names and bytes is told.
class TarWriter {
 public:
  TarWriter(int fd, fs::path path) : out_(archive_write_new()), path_(std::move(path)) {
    must(archive_write_set_format_ustar(out_.get()));
    must(archive_write_set_bytes_in_last_block(out_.get(), 1));
    must(archive_write_open_fd(out_.get(), fd));
  }

  /// `fill` calls its argument with all the bytes.
  using Fill = std::function<void(const Sink&)>;
  void add(const std::string& name, std::uint64_t size, const Fill& fill) {
    const std::unique_ptr<archive_entry, decltype(&archive_entry_free)> entry(archive_entry_new(),
                                                                              archive_entry_free);
    archive_entry_set_pathname(entry.get(), name.c_str());
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_perm(entry.get(), 0444);
    archive_entry_set_mtime(entry.get(), 0, 0);
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(size));
    must(archive_write_header(out_.get(), entry.get()));
    fill([&](std::string_view piece) {
      if (archive_write_data(out_.get(), piece.data(), piece.size()) !=
          static_cast<la_ssize_t>(piece.size())) {
        fail_cache("write", path_, archive_errno(out_.get()));
      }
    });
  }

  void finish() { must(archive_write_close(out_.get())); }

 private:
  void must(int result) {
    if (result != ARCHIVE_OK) fail_cache("write", path_, archive_errno(out_.get()));
  }
  std::unique_ptr<archive, FreeArchive> out_;
  fs::path path_;
};

/// What is to be written, gathered kernel by kernel. The blobs are in the cache.
struct Gathered {
  std::map<std::string, Descriptor> tags;
  std::map<std::string, Descriptor> blobs;  // by file name, which is the order in the tar

  void add(const Descriptor& descriptor) {
    blobs.emplace("blobs/sha256/" + descriptor.digest.hex(), descriptor);
  }

  std::string index_json() const {
    Json manifests = Json::array();
    for (const auto& [tag, descriptor] : tags) {
      Json entry = to_json(descriptor);
      entry["annotations"] = {{kTagAnnotation, tag}};
      manifests.push_back(std::move(entry));
    }
    return dump_json({{"schemaVersion", 2},
                      {"mediaType", kMediaTypeIndex},
                      {"manifests", std::move(manifests)}});
  }
};

const Variant& find_variant(const Selecting& self, const std::string& id) {
  const std::vector<Variant>& all = self.selected.index.variants;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Variant& each) { return each.id == id; });
  if (found != all.end()) return *found;
  std::string list;
  for (const Variant& each : all) list += (list.empty() ? "" : ", ") + each.id;
  throw Error(ErrorCode::kNotFound, "bundle " + subject_of(self) + ": there is no variant " + id +
                                        ", there are: " + list);
}

std::vector<const Variant*> chosen_variants(const Selecting& self, const BundlePart& part) {
  std::vector<const Variant*> chosen;
  const std::vector<Variant>& all = self.selected.index.variants;
  if (part.all_variants) {
    for (const Variant& variant : all) {
      if (variant.unread.empty()) chosen.push_back(&variant);
    }
  } else if (!part.variants.empty()) {
    for (const std::string& id : part.variants) chosen.push_back(&find_variant(self, id));
  } else {
    if (!self.selected.resolution.chosen) {
      throw Error(ErrorCode::kNoVariant, self.selected.no_variant);
    }
    chosen.push_back(&all.at(*self.selected.resolution.chosen));
  }
  return chosen;
}

Selecting select_for(const BundlePart& part) {
  if (!part.all_variants && part.variants.empty()) return start_selecting(part.name, part.request);
  Request request = part.request;
  std::optional<Held> held = hold_to_lock(part.name, request);
  Selecting self = begin_selecting(part.name, request, std::move(held));
  find_newest_index(self);
  return self;
}

BundledKernel gather(const BundlePart& part, Gathered& gathered) {
  const FileLock used = Cache(part.request.cache, part.request.stop).use_to_write();
  Selecting self = select_for(part);
  const Descriptor& index = self.selected.descriptor;
  if (self.fetched_index) self.cache.write_document(index, *self.fetched_index);
  const std::string tag = self.name + ":" + std::to_string(self.request.version);
  gathered.tags.emplace(tag, index);
  gathered.add(index);
  BundledKernel kernel{self.name, self.request.version, index, {}};
  for (const Variant* variant : chosen_variants(self, part)) {
    const Pulled pulled = pull_documents(self, *variant);
    pull_layer(self, pulled.manifest.layer, *variant);
    gathered.tags.emplace(tag + "-" + variant->id, variant->manifest);
    gathered.add(variant->manifest);
    gathered.add(pulled.manifest.config);
    gathered.add(pulled.manifest.layer);
    kernel.variants.push_back(variant->id);
  }
  return kernel;
}

/// The bytes that are written are hashed on their way: the cache is not trusted either.
void copy_blob(const Cache& cache, const Descriptor& descriptor, const Sink& sink) {
  const fs::path path = cache.blob_path(descriptor.digest);
  const FileDescriptor file = cache.open_blob(descriptor.digest);
  if (!file.valid()) fail_cache("open", path, errno);
  StreamVerifier verifier(descriptor,
                          {"blob " + descriptor.digest.str(), path.string(), kFetchAgain});
  read_pieces(file.get(), path, [&](std::string_view piece) {
    verifier.update(piece);
    sink(piece);
  });
  verifier.finish();
}

void write_tar(int fd, const fs::path& path, const Cache& cache, const Gathered& gathered) {
  TarWriter tar(fd, path);
  for (const auto& each : gathered.blobs) {
    const Descriptor& descriptor = each.second;
    tar.add(each.first, descriptor.size,
            [&](const Sink& sink) { copy_blob(cache, descriptor, sink); });
  }
  const std::string index = gathered.index_json();
  tar.add("index.json", index.size(), [&](const Sink& sink) { sink(index); });
  tar.add("oci-layout", kLayout.size(), [&](const Sink& sink) { sink(kLayout); });
  tar.finish();
}

}  // namespace

std::vector<BundledKernel> create_bundle(const std::vector<BundlePart>& parts,
                                         const fs::path& file) {
  if (parts.empty()) throw Error(ErrorCode::kUsage, "bundle: no package is named");
  const Cache cache(parts.front().request.cache, parts.front().request.stop);
  const FileLock used = cache.use_to_write();
  Gathered gathered;
  std::vector<BundledKernel> kernels;
  kernels.reserve(parts.size());
  for (const BundlePart& part : parts) kernels.push_back(gather(part, gathered));

  const fs::path target = fs::absolute(file);
  const fs::path draft = target.parent_path() / (".kiln-bundle-" + unique_suffix());
  const FileDescriptor out = try_open(draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
  if (!out.valid()) fail_cache("create", draft, errno);
  try {
    write_tar(out.get(), draft, cache, gathered);
    sync_file(out.get(), draft);
    if (::rename(draft.c_str(), target.c_str()) != 0) fail_cache("rename to", target, errno);
    sync_folder(target.parent_path());
  } catch (...) {
    ::unlink(draft.c_str());
    throw;
  }
  return kernels;
}

}  // namespace kiln
