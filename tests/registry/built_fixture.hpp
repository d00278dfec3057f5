// SPDX-License-Identifier: Apache-2.0
//
// Built fixture: a synthetic package as kiln-build would leave it, for the tests of the registry.
// Every part can be changed before it is written, so that a test corrupts exactly one fact.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "documents/variant.hpp"

namespace kiln::test {

/// A folder of its own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

struct TarEntry {
  std::string path;
  std::string bytes;
  std::string link = {};    ///< target, for the link types
  unsigned type = 0100000;  ///< AE_IFREG
  bool hard_link = false;
};

/// A tar in zstd, as libarchive writes it; compressed `filters` times.
std::string make_layer(const std::vector<TarEntry>& entries, int filters = 1);

/// What a variant folder is made of.
struct Built {
  std::string name = "tiny-op";
  int version = 1;
  std::string id;
  Needs needs;
  std::string library = "synthetic library bytes";
  std::string min_loader = "0.1.0";
  std::string schema = "{}\n";  ///< package.json
  std::string header = {};      ///< of the dev layer; empty: there is none
  std::string build = "{}";     ///< its compilers, as JSON

  std::string library_path() const { return "lib/libtiny_op.so"; }
  std::vector<TarEntry> entries() const;
  Config config() const;
};

Built cuda(const std::string& toolkit, const std::string& code);  ///< "12.9", "sm_90a"; x86_64
Built cpu(const std::string& level);                              ///< "x86-64-v3"

/// Hooks that see each part before what names it is made; all optional.
struct Tamper {
  std::function<void(Config&)> config;
  std::function<void(std::string& layer)> layer;
  std::function<void(VariantManifest&)> manifest;
  std::function<void(Variant&)> variant;
  std::function<void(std::string& dev)> dev = {};
};

/// Writes the folder <parent>/<id> with its files, and returns it.
std::filesystem::path write_built(const std::filesystem::path& parent, const Built& built,
                                  const Tamper& tamper = {});

std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

/// One digest over all names and bytes under a folder; of a missing folder: empty.
std::string tree_hash(const std::filesystem::path& folder);

/// A record file with one result.
std::filesystem::path write_record(const std::filesystem::path& path, const std::string& gpu,
                                   const Built& built, int cases, int failed);

}  // namespace kiln::test
