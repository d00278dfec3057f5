// SPDX-License-Identifier: Apache-2.0
#include "store/gc.hpp"

#include <sys/stat.h>

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "kiln/error.hpp"
#include "store/installed.hpp"
#include "store/places.hpp"
#include "store/unpack.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

using Digests = std::set<Digest>;

constexpr std::size_t kHexDigits = 64;
constexpr std::uint64_t kMaxLockFileBytes = std::uint64_t{64} << 20;
constexpr auto kYoung = std::chrono::hours(24);

/// What cannot be read may hold anything, so that nothing may go.
[[noreturn]] void fail_unknown(ErrorCode code, const std::string& found, const std::string& next) {
  throw Error(code, "collect garbage: " + found +
                        ", so what it holds cannot be known; nothing was removed. " + next);
}

constexpr const char* kRepairFirst = "Run 'kiln cache repair' first";

/// Every "sha256:<hex>" in a text.
Digests digests_in(std::string_view text) {
  constexpr std::string_view kPrefix = "sha256:";
  Digests found;
  for (std::size_t at = text.find(kPrefix); at != std::string_view::npos;
       at = text.find(kPrefix, at + 1)) {
    if (const auto digest = Digest::from_hex(text.substr(at + kPrefix.size(), kHexDigits))) {
      found.insert(*digest);
    }
  }
  return found;
}

/// What a blob names; nothing for a layer, or for one that is not here.
Digests named_by(const Cache& cache, const Digest& digest) {
  const FileDescriptor file = cache.open_blob(digest);
  struct stat status {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0 ||
      std::cmp_greater(status.st_size, kMaxDocumentBytes)) {
    return {};
  }
  const fs::path path = cache.blob_path(digest);
  std::string bytes;
  read_pieces(file.get(), path, [&](std::string_view piece) { bytes += piece; });
  if (Digest::of(bytes) != digest) {
    fail_unknown(ErrorCode::kIntegrity, path.string() + " is damaged", kRepairFirst);
  }
  return bytes.starts_with('{') ? digests_in(bytes) : Digests{};
}

/// Adds a digest and all that can be reached from it.
void mark(const Cache& cache, const Digest& from, Digests& marked) {
  std::vector<Digest> next{from};
  while (!next.empty()) {
    const Digest digest = next.back();
    next.pop_back();
    if (!marked.insert(digest).second) continue;
    for (const Digest& each : named_by(cache, digest)) next.push_back(each);
  }
}

/// The text of a lock file; nothing if it is gone.
std::optional<std::string> read_lock_file(const Cache::KeptLockFile& root) {
  NamedFile file = read_named_file(root.lock_file, kMaxLockFileBytes);
  if (file.absent) return std::nullopt;
  if (!file.problem.empty()) {
    fail_unknown(
        ErrorCode::kCache, "read " + root.lock_file.string() + ": " + file.problem,
        "Make it readable, or remove " + root.entry.string() + " to let go of its kernels");
  }
  return std::move(file.text);
}

/// What stands in a folder of the cache, by its name.
struct Entry {
  fs::path path;
  std::string name;
};

std::vector<Entry> entries(const Cache& cache, const fs::path& folder) {
  std::vector<Entry> found;
  for (std::string& name : list_inside(cache.root(), folder)) {
    found.push_back({cache.root() / folder / name, std::move(name)});
  }
  return found;
}

/// Of "<hex><suffix>"; nothing for a name of another shape, which is not Kiln's.
std::optional<Digest> digest_of_name(std::string_view name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return std::nullopt;
  return Digest::from_hex(name.substr(0, name.size() - suffix.size()));
}

constexpr std::string_view kPart = ".part";

/// "<hex>.<unique suffix>.part": of a file system without locks, found by nobody again.
bool is_lone_part(std::string_view name) {
  if (!name.ends_with(kPart) || name.size() <= kHexDigits + kPart.size()) return false;
  name.remove_suffix(kPart.size());
  return Digest::from_hex(name.substr(0, kHexDigits)) && name[kHexDigits] == '.' &&
         is_unique_suffix(name.substr(kHexDigits + 1));
}

std::uint64_t bytes_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) {
    const std::uint64_t bytes =
        fs::is_regular_file(fs::symlink_status(path, error)) ? fs::file_size(path, error) : 0;
    return error ? 0 : bytes;
  }
  std::uint64_t sum = 0;
  for (fs::recursive_directory_iterator each(path, error), end; !error && each != end;
       each.increment(error)) {
    std::error_code gone;
    if (!each->is_regular_file(gone) || each->is_symlink(gone)) continue;
    const std::uint64_t bytes = each->file_size(gone);
    if (!gone) sum += bytes;
  }
  return sum;
}

class Sweep {
 public:
  using GivesUp = std::function<bool(const Ref&)>;

  /// `gives_up`: of which versions the ref alone holds nothing.
  Sweep(const Cache& cache, const GcOptions& options, GivesUp gives_up)
      : cache_(cache), options_(options), gives_up_(std::move(gives_up)) {}

  /// Everything that may throw for what it reads; removes nothing.
  void mark_held() {
    for (const Entry& each : entries(cache_, "locks")) {
      const std::optional<Digest> config = digest_of_name(each.name, ".use");
      if (config && cache_.is_leased(*config)) claimed_.emplace(*config, "a running process");
    }
    const auto damaged = [](const fs::path& path, const Error& error) {
      fail_unknown(ErrorCode::kIntegrity, path.string() + " is damaged",
                   std::string(kRepairFirst) + " (" + error.what() + ")");
    };
    for (const Cache::KeptLockFile& root : cache_.kept_lock_files(damaged)) {
      if (const std::optional<std::string> text = read_lock_file(root)) {
        for (const Digest& each : digests_in(*text)) {
          claimed_.emplace(each, root.lock_file.string());
        }
      } else {
        gone_.emplace_back("root", root.entry);
      }
    }
    for (const auto& [digest, holder] : claimed_) mark(cache_, digest, held_);
    for (const Ref& ref : cache_.refs(damaged)) {
      Digests reached;
      mark(cache_, ref.index.digest, reached);
      const bool given_up = gives_up_(ref);
      const std::string holder = given_up ? holder_of(reached) : "";
      if (given_up && !holder.empty()) kept_.push_back({ref, holder});
      if (given_up && holder.empty()) {
        versions_.push_back(ref);
        gone_.emplace_back("version", cache_.ref_path(ref.registry, ref.name, ref.version));
      } else {
        held_.merge(reached);
        held_.insert(cache_.ref_lock(ref.registry, ref.name, ref.version));
      }
    }
    if (!options_.layers) return;
    for (const InstalledVariant& each : list_installed(cache_)) {
      held_.erase(each.manifest.layer.digest);
    }
  }

  Uninstalled sweep() {
    for (const auto& [what, path] : gone_) remove(what, path);
    // What an install that was killed left behind: none is under way now.
    for (const Entry& each : entries(cache_, "ingest")) {
      if (is_spent_download(each)) remove("partial download", each.path);
    }
    for (const fs::path& each : survey(cache_.root()).drafts) remove("draft", each);
    sweep_unheld("unpacked", "", "files");
    sweep_unheld("blobs/sha256", "", "blob");
    sweep_unheld("attested", ".json", "signatures");
    // Nobody can be waiting for a lock: that takes store.lock, which is held here.
    for (const char* suffix : {".lock", ".use"}) sweep_unheld("locks", suffix, "lock");
    return {std::move(versions_), std::move(kept_), std::move(removed_)};
  }

 private:
  /// The lock file or process that claims one of these; empty: none does.
  std::string holder_of(const Digests& digests) const {
    for (const Digest& each : digests) {
      if (const auto found = claimed_.find(each); found != claimed_.end()) return found->second;
    }
    return {};
  }

  void sweep_unheld(const fs::path& folder, std::string_view suffix, const std::string& what) {
    for (const Entry& each : entries(cache_, folder)) {
      const std::optional<Digest> digest = digest_of_name(each.name, suffix);
      if (digest && !held_.contains(*digest)) remove(what, each.path);
    }
  }

  /// "<hex>.part" may be resumed for a day.
  bool is_spent_download(const Entry& entry) const {
    const std::optional<Digest> digest = digest_of_name(entry.name, kPart);
    if (!digest) return is_lone_part(entry.name);
    std::error_code error;
    const bool young =
        fs::file_time_type::clock::now() - fs::last_write_time(entry.path, error) < kYoung;
    return options_.partial || error || !young || cache_.has_blob(*digest);
  }

  void remove(const std::string& what, const fs::path& path) {
    removed_.push_back({what, path, bytes_of(path)});
    if (options_.dry_run) return;
    if (what == "files") {
      drop_unpacked(path);
    } else {
      remove_whole(path);
    }
    if (what != "version") return;
    // Durable before what it refers to goes: a ref promises that its version is here.
    fs::path folder = path.parent_path();
    sync_folder(folder);
    std::error_code not_empty;
    while (folder.filename() != "refs" && fs::remove(folder, not_empty)) {
      folder = folder.parent_path();
    }
  }

  const Cache& cache_;
  const GcOptions& options_;
  GivesUp gives_up_;
  std::map<Digest, std::string> claimed_;  // by whom: lock files and running processes
  Digests held_;
  std::vector<std::pair<std::string, fs::path>> gone_;
  std::vector<Ref> versions_;
  std::vector<KeptVersion> kept_;
  std::vector<Removed> removed_;
};

}  // namespace

Uninstalled uninstall(const Cache& cache, const std::function<bool(const Ref&)>& wanted,
                      const GcOptions& options) {
  const FileLock alone = cache.use_alone(options.on_wait);
  if (!alone.held()) return {};  // there is no cache yet
  Sweep sweep(cache, options, wanted);
  sweep.mark_held();
  return sweep.sweep();
}

std::vector<Removed> collect_garbage(const Cache& cache, const GcOptions& options) {
  const auto gives_up = [&options](const Ref&) { return options.unlocked; };
  return uninstall(cache, gives_up, options).removed;
}

}  // namespace kiln
