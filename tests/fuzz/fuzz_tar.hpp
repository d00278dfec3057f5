// SPDX-License-Identifier: Apache-2.0
//
// What the targets that read tar archives share: a folder, and headers that a reader gets past.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

namespace kiln::fuzz {

/// Makes a right checksum of each header's: a reader of broken ones sees nothing of what they say.
inline void mend_checksums(std::string& tar) {
  constexpr std::size_t kBlock = 512;
  constexpr std::size_t kMagic = 257;
  constexpr std::size_t kField = 148;
  constexpr std::size_t kFieldBytes = 8;
  for (std::size_t at = 0; at + kBlock <= tar.size(); at += kBlock) {
    if (tar.compare(at + kMagic, 5, "ustar") != 0) continue;
    tar.replace(at + kField, kFieldBytes, kFieldBytes, ' ');
    unsigned sum = 0;
    for (std::size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(tar[at + i]);
    std::array<char, kFieldBytes> text{};
    std::snprintf(text.data(), text.size(), "%06o", sum);
    tar.replace(at + kField, kFieldBytes - 1, text.data(), kFieldBytes - 1);
  }
}

/// A folder of this process alone, removed when it ends.
struct Folder {
  explicit Folder(const std::string& inside = {})
      : path(std::filesystem::temp_directory_path() / ("kiln-fuzz-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path / inside);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path path;
};

}  // namespace kiln::fuzz
