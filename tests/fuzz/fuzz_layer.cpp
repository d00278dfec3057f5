// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a layer: refused with nothing left behind, or exactly the files of its config. The
// first byte says what the others are: a layer; a tar archive; a tar archive whose header checksums
// are mended, since a reader of broken ones sees nothing of what the headers say.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "fuzz.hpp"
#include "unpack.hpp"

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kBlock = 512;

/// A zstd frame of raw blocks (RFC 8878): the bytes themselves reach the reader of archives.
std::string framed(std::string_view bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 17;
  std::string frame("\x28\xb5\x2f\xfd\x00\x38", 6);
  do {
    const std::string_view piece = bytes.substr(0, kMost);
    bytes.remove_prefix(piece.size());
    const std::size_t header = piece.size() << 3 | (bytes.empty() ? 1 : 0);
    for (int shift = 0; shift < 24; shift += 8) frame += static_cast<char>(header >> shift & 0xff);
    frame += piece;
  } while (!bytes.empty());
  return frame;
}

void mend_checksums(std::string& tar) {
  constexpr std::size_t kField = 148;
  constexpr std::size_t kFieldBytes = 8;
  for (std::size_t at = 0; at + kBlock <= tar.size(); at += kBlock) {
    if (tar.compare(at + 257, 5, "ustar") != 0) continue;
    tar.replace(at + kField, kFieldBytes, kFieldBytes, ' ');
    unsigned sum = 0;
    for (std::size_t i = 0; i < kBlock; ++i) sum += static_cast<unsigned char>(tar[at + i]);
    std::array<char, kFieldBytes> text{};
    std::snprintf(text.data(), text.size(), "%06o", sum);
    tar.replace(at + kField, kFieldBytes - 1, text.data(), kFieldBytes - 1);
  }
}

struct Folder {
  Folder() : path(fs::temp_directory_path() / ("kiln-fuzz-" + std::to_string(::getpid()))) {
    fs::create_directories(path / "work");
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  static const Folder folder;
  static const Config config = [] {
    Config made;
    made.files = {{"LICENSE", Digest::of("free\n"), 5},
                  {"lib/libsample.so", Digest::of("a library\n"), 10}};
    return made;
  }();
  if (size == 0) return 0;
  std::string layer(fuzz::text_of(data + 1, size - 1));
  if (data[0] % 3 == 2) mend_checksums(layer);
  if (data[0] % 3 != 0) layer = framed(layer);
  std::ofstream(folder.path / "layer", std::ios::binary) << layer;

  const fs::path work = folder.path / "work";
  const bool read = fuzz::accepts({ErrorCode::kIntegrity}, [&] {
    unpack_layer(folder.path / "layer", config, 15, work / "out", "x");
  });
  int entries = 0;
  for (const fs::directory_entry& each : fs::recursive_directory_iterator(folder.path)) {
    fuzz::require(!each.is_symlink(), "nothing is written but files and folders");
    ++entries;
  }
  // layer, work; and out, LICENSE, lib, lib/libsample.so
  fuzz::require(entries == (read ? 6 : 2), "a refused layer leaves nothing, another all of it");
  if (read) {
    fuzz::require(check_unpacked(work / "out", config).empty(), "the files are the config's");
    fs::remove_all(work / "out");
  }
  return 0;
}
