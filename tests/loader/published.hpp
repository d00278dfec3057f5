// SPDX-License-Identifier: Apache-2.0
//
// Published: a registry folder for tests, written document by document with the serializers that
// the real publisher uses, so that each step can be made wrong.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "documents/variant.hpp"

namespace kiln::test {

/// One entry of a tar archive. The type is libarchive's AE_IF…; 0 makes a hard link to `target`.
struct Entry {
  std::string path;
  std::string content;
  unsigned type = 0100000;  // AE_IFREG
  std::string target;
  long long size = -1;  // as the header says it; -1: the content's
  bool sparse = false;  // with a hole after the content's first half
};

std::string make_tar(const std::vector<Entry>& entries);
std::string make_zstd(const std::string& bytes);

/// A sample library of this build: "plain", "version2", "no_symbol", …; see CMakeLists.txt. The
/// bytes are new with every call (an ELF file may have a tail), so that no two tests share a
/// loaded library.
std::string sample_library(const std::string& kind = "plain");

/// Everything that makes one variant. Each string that is left empty is made from what is before
/// it.
struct Draft {
  Variant variant;  ///< id, needs and requires_; the manifest descriptor is filled in
  Config config;
  std::vector<Entry> entries;
  std::vector<Entry> dev;  ///< of the dev layer; none: there is no such layer
  std::string layer;
  std::string config_bytes;
  std::string manifest_bytes;
  std::uint64_t unpacked_size = 0;
};

/// A CPU variant that runs on every machine of this architecture: one library and a LICENSE.
Draft cpu_draft(const std::string& library, const std::string& name = "sample", int version = 1,
                const std::string& id = "cpu-base");

/// A variant for GPUs of capability 9.0, compiled by CUDA 12.4.
Draft gpu_draft(const std::string& library, const std::string& name = "sample", int version = 1);

class Published {
 public:
  explicit Published(std::filesystem::path root) : root_(std::move(root)) {}

  /// Writes the variant's blobs and fills in what the draft leaves empty.
  void add(Draft& draft);

  /// Adds the variants and (re)writes the tag of the version. The index's descriptor is returned.
  Descriptor publish(std::vector<Draft> drafts);

  /// The same from an index that is given; `change` may edit the bytes before they are hashed.
  Descriptor publish_index(const Index& index,
                           const std::function<void(std::string&)>& change = {});

  Descriptor put(const std::string& name, const std::string& bytes, std::string_view media_type);
  std::filesystem::path blob(const std::string& name, const Digest& digest) const;
  const std::filesystem::path& root() const { return root_; }
  const std::vector<Draft>& drafts() const { return drafts_; }  ///< as published last
  VariantManifest manifest() const;                             ///< of the first of them

 private:
  void write_tag(const std::string& name, const std::string& tag, const Descriptor& descriptor);
  std::filesystem::path root_;
  std::vector<Draft> drafts_;
};

}  // namespace kiln::test
