// SPDX-License-Identifier: Apache-2.0
//
// MetadataFolder: what the last update took, byte for byte as it was signed. Under updater. A file
// is whole or absent; a caller that changes several files holds a lock of its own.
//
//   root.json, roots/<version>.json       the newest root, and each one since the trusted one
//   timestamp.json, snapshot.json, targets.json, <delegated role>.json
//   advisories                            of which packages and versions those documents have one
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace kiln::trust {

/// A role's name as a file name, as TUF's tools write it: all but letters, digits and
/// "_.-~" as %XX. Throws kTrust for a name that is too long for a file.
std::string file_name(std::string_view role);

class MetadataFolder {
 public:
  /// No folder: kept in memory, for a single look.
  MetadataFolder() : memory_(std::make_shared<std::map<std::string, std::string>>()) {}
  /// `<root>/<below>`; `root` is opened as a cache is (store/inside.hpp).
  MetadataFolder(std::filesystem::path root, std::filesystem::path below)
      : root_(std::move(root)), below_(std::move(below)) {}

  /// Nothing if the file is missing or unreadable: it is then fetched again.
  std::optional<std::string> read(const std::string& file) const;
  void write(const std::string& file, std::string_view bytes) const;
  void remove(const std::string& file) const;

 private:
  std::shared_ptr<std::map<std::string, std::string>> memory_;  ///< null: on the disk
  std::filesystem::path root_;
  std::filesystem::path below_;
};

}  // namespace kiln::trust
