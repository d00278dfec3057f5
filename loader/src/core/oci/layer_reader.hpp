// SPDX-License-Identifier: Apache-2.0
//
// Layer reader: the files of one layer (tar, zstd), each verified. The loader unpacks with it,
// and the registry checks with it before it publishes: both refuse the same layers.
// libarchive only decodes; nothing is believed but what the config lists: regular files, each once,
// with its size and digest, nothing more and nothing less, and no byte after the archive's end.
// Decodes on a thread of its own where that pays; calls back on the caller's alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace kiln {

struct ArchiveFile;  // documents/variant.hpp
struct Config;

/// For errors: "<operation> <name>: <what was found>; <next step>".
struct LayerSubject {
  std::string operation;  ///< "unpack"
  std::string name;       ///< "sample@1 cpu-base"
  std::string next;       ///< "nothing was loaded. …"
};

using LayerSink = std::function<void(std::string_view)>;

/// Gives the sink all bytes of the file, in order. They are verified when it returns.
using LayerContent = std::function<void(const LayerSink&)>;

/// Called once for each file, in the archive's order, and has to call `content`, once.
using TakeFile = std::function<void(const ArchiveFile& file, const LayerContent& content)>;

/// Throws kIntegrity for a layer that is not exactly what the config says, or that decompresses to
/// more than its files need; and what `take` throws.
void read_layer(const std::filesystem::path& layer, const Config& config,
                std::uint64_t unpacked_size, const LayerSubject& subject, const TakeFile& take);

}  // namespace kiln
