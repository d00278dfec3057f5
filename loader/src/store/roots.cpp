// SPDX-License-Identifier: Apache-2.0
//
// The cache's roots: the lock files of projects, whose kernels gc keeps. A root is a small file
// that names a lock file, not a copy of it: the lock file says what counts when gc asks.
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "store/cache.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRootSchema = "kiln.root/1";
constexpr std::size_t kMaxRootBytes = std::size_t{64} * 1024;

std::string read_root(const fs::path& cache, const fs::path& entry) {
  const FileDescriptor file = open_inside(cache, entry.lexically_relative(cache));
  std::string bytes;
  if (file.valid()) {
    read_pieces(file.get(), entry, [&](std::string_view piece) {
      bytes += piece.substr(0, kMaxRootBytes - std::min(kMaxRootBytes, bytes.size()));
    });
  }
  return bytes;
}

}  // namespace

bool Cache::add_root(const fs::path& lock_file) const {
  std::error_code error;
  const fs::path named = fs::weakly_canonical(fs::absolute(lock_file), error);
  if (error) fail_cache("find lock file", lock_file, error.value());
  const fs::path entry = root_ / "roots" / (Digest::of(named.string()).hex() + ".json");
  const std::string bytes = dump_json(Json{{"schema", kRootSchema}, {"path", named.string()}});
  if (read_root(root_, entry) == bytes) return true;  // each install of a locked project comes here
  if (stands(root_) && ::access(root_.c_str(), W_OK) != 0) return false;
  const FileLock used = use_to_write();
  make_folder("roots");
  write_file(entry, bytes);
  return true;
}

std::vector<Cache::Root> Cache::roots() const {
  std::vector<Root> found;
  for (const std::string& name : list_inside(root_, "roots")) {
    const fs::path entry = root_ / "roots" / name;
    if (entry.extension() != ".json" || !Digest::from_hex(entry.stem().string())) continue;
    const std::string subject = "root " + entry.string();
    const Json json = parse_json(read_root(root_, entry), subject);
    const JsonView view(json, subject);
    check_schema(view, kRootSchema, "");
    found.push_back({entry, view.at("path").string()});
  }
  std::sort(found.begin(), found.end(),
            [](const Root& a, const Root& b) { return a.lock_file < b.lock_file; });
  return found;
}

}  // namespace kiln
