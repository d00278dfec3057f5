// SPDX-License-Identifier: Apache-2.0
//
// KeptLockFiles: the lock files of projects, whose kernels gc keeps. roots/ has a small file for
// each that names it, not a copy: the lock file says what counts when gc asks.
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "base/base64.hpp"
#include "base/draft.hpp"
#include "base/quote.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "store/cache.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRootSchema = "kiln.root/1";

/// A path may have any bytes, JSON has not.
Json root_of(const std::string& path) {
  if (is_utf8(path)) return {{"schema", kRootSchema}, {"path", path}};
  return {{"schema", kRootSchema}, {"path_base64", encode_base64(path)}};
}

std::string read_path(const JsonView& root) {
  if (root.has("path")) return root.at("path").string();
  const JsonView coded = root.at("path_base64");
  std::optional<std::string> path = decode_base64(coded.string());
  if (!path) coded.fail("is not base64");
  return *std::move(path);
}

/// Whether the entry says this already. One that is damaged does not.
bool says(const fs::path& cache, const fs::path& entry, const std::string& bytes) {
  try {
    return read_inside(cache, entry.lexically_relative(cache)) == bytes;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;
    return false;
  }
}

}  // namespace

bool Cache::keep_lock_file(const fs::path& lock_file) const {
  std::error_code error;
  const fs::path named = fs::weakly_canonical(absolute_path(lock_file), error);
  if (error) fail_cache("find lock file", lock_file, error.value());
  const fs::path entry = root_ / "roots" / (Digest::of(named.string()).hex() + ".json");
  const std::string bytes = dump_json(root_of(named.string()));
  if (says(root_, entry, bytes)) return true;  // each install of a locked project comes here
  if (stands(root_, &fail_cache) && ::access(root_.c_str(), W_OK) != 0) return false;
  const FileLock used = use_to_write();
  make_folder("roots");
  write_file(entry, bytes);
  return true;
}

std::vector<Cache::KeptLockFile> Cache::kept_lock_files(const Damaged& damaged) const {
  std::vector<KeptLockFile> found;
  for (const std::string& name : list_inside(root_, "roots")) {
    const fs::path entry = root_ / "roots" / name;
    if (entry.extension() != ".json" || !Digest::from_hex(entry.stem().string())) continue;
    const std::string subject = "root " + entry.string();
    try {
      const std::optional<std::string> bytes = read_inside(root_, fs::path("roots") / name);
      if (!bytes) continue;  // somebody removed it meanwhile
      const Json json = parse_json(*bytes, subject);
      const JsonView view(json, subject);
      check_schema(view, kRootSchema, "");
      found.push_back({entry, read_path(view)});
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCache || error.code() == ErrorCode::kUpgrade) throw;
      if (damaged) damaged(entry, error);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const KeptLockFile& a, const KeptLockFile& b) { return a.lock_file < b.lock_file; });
  return found;
}

}  // namespace kiln
