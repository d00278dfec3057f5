// SPDX-License-Identifier: Apache-2.0
//
// Variant: what the documents of a published version say of it and of its variants, as values.
// manifest.hpp reads and writes them; resolve, install and the registry work on them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "documents/descriptor.hpp"
#include "documents/needed_loader.hpp"
#include "documents/target.hpp"

namespace kiln {

inline constexpr std::uint64_t kMaxUnpackedBytes = std::uint64_t{1} << 40;  ///< of a variant

/// Which variants may be chosen, by what their `tested` says: all; those that passed their numeric
/// tests somewhere; those that did so on a GPU of the same name (for the CPU: somewhere).
enum class Tested { kAny, kSomewhere, kHere };

/// What a variant's `tested` says before any test record speaks of it.
inline constexpr std::string_view kUntested = "untested";
inline constexpr std::size_t kMaxTestedOn = 64;  ///< names in Variant::tested_on

/// Documents of a variant whose bytes stand in the index too, so that once one is chosen, its
/// layer alone is asked for. Empty: to be fetched. Not verified: each must be what its descriptor
/// promises.
struct Carried {
  std::string manifest;
  std::string config;
};

/// One line of an index: enough to choose, nothing fetched yet.
struct Variant {
  Descriptor manifest;
  std::string id;  ///< "cu12.9-sm_90a-x86_64", "cu11.8-compute_80-x86_64", "cpu-x86-64-v3"
  NeededLoader requires_;
  Needs needs;
  std::string tested;  ///< "untested", or where and when its numeric tests passed; for people
  /// GPUs and CPUs on which they passed, as these name themselves, sorted; none: untested. What a
  /// policy decides by.
  std::vector<std::string> tested_on = {};
  /// A variant that needs a newer Kiln: its descriptor as JSON text, written back unchanged. Its
  /// needs are not known; resolve refuses it before it looks at them. Empty for every other one.
  std::string unread = {};
  Carried carried = {};
};

struct Index {
  std::string name;
  int version = 0;
  NeededLoader requires_;
  std::vector<Variant> variants;  ///< in the publisher's order
  std::string summary = {};       ///< one line for people; empty: none is given
  std::string license = {};       ///< SPDX; empty: none is given
};

/// The variant with this id, or null.
const Variant* find_variant(const Index& index, std::string_view id);

/// A published version only grows: a later index of it may add variants, and never loses one or
/// names other bytes for it. The first variant of `before` that `after` lacks or has with another
/// manifest; null if the version only grew.
const Variant* find_lost(const Index& before, const Index& after);

inline bool grows_from(const Index& before, const Index& after) {
  return find_lost(before, after) == nullptr;
}

struct VariantManifest {
  Descriptor config;
  Descriptor layer;
  std::uint64_t unpacked_size = 0;  ///< bytes of all files in the layer
  /// The second layer, to compile against the package: its headers, in include/, and its
  /// card. The same for every variant of a build. Without size: the package has none.
  Descriptor dev = {};
  std::uint64_t dev_unpacked_size = 0;
  bool has_dev() const { return dev.size != 0; }
};

struct ArchiveFile {
  std::string path;  ///< relative, '/'-separated, no "." or ".."
  Digest digest;
  std::uint64_t size = 0;
};

struct Config {
  std::string name;
  int version = 0;
  std::string variant;
  NeededLoader requires_;
  Needs needs;
  std::vector<ArchiveFile> files;
  std::string library;   ///< which of the files is loaded
  std::string symbol;    ///< its entry point: "kiln_package_v1"
  std::string build_id;  ///< what the library's table must say
  std::string build;     ///< compilers and source digest, as JSON text; for people, or empty
  std::vector<ArchiveFile> dev_files = {};  ///< of the dev layer; empty: there is none

  /// The same with the dev layer's files for its own: what reads and writes layers takes a config.
  Config dev_part() const {
    Config part = *this;
    part.files = dev_files;
    return part;
  }
};

/// The file that is loaded. parse_config has seen to it that it is listed.
const ArchiveFile& library_file(const Config& config);

}  // namespace kiln
