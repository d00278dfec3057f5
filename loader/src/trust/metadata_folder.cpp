// SPDX-License-Identifier: Apache-2.0
#include "trust/metadata_folder.hpp"

#include "base/percent_encoded.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "kiln/error.hpp"
#include "store/inside.hpp"

namespace kiln::trust {

namespace fs = std::filesystem;

std::string file_name(std::string_view role) {
  constexpr std::size_t kMost = 200;  // with a version in front and ".json" behind below 255
  std::string name = percent_encoded(role);
  if (name.size() <= kMost) return name;
  throw Error(ErrorCode::kTrust, "name the file of role " + quote(role) + ": it has " +
                                     std::to_string(name.size()) +
                                     " characters, expected at most " + std::to_string(kMost) +
                                     ". Tell the registry's publisher");
}

std::optional<std::string> MetadataFolder::read(const std::string& file) const {
  if (memory_) {
    const auto found = memory_->find(file);
    return found == memory_->end() ? std::nullopt : std::optional(found->second);
  }
  try {
    return read_inside(root_, below_ / file);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;
    return std::nullopt;
  }
}

void MetadataFolder::write(const std::string& file, std::string_view bytes) const {
  if (memory_) {
    memory_->insert_or_assign(file, bytes);
    return;
  }
  const fs::path relative = below_ / file;
  if (const fs::path folder = relative.parent_path(); !folder.empty()) {
    make_folder_inside(root_, folder);
  }
  write_file(root_ / relative, bytes);
}

void MetadataFolder::remove(const std::string& file) const {
  if (memory_) {
    memory_->erase(file);
    return;
  }
  std::error_code error;
  fs::remove(root_ / below_ / file, error);
  if (error) fail_cache("remove", root_ / below_ / file, error.value());
}

}  // namespace kiln::trust
