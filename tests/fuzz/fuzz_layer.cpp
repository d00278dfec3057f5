// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a layer: refused with nothing left behind, or exactly the files of its config. The
// first byte says what the others are: a layer; a tar archive; a tar archive whose header checksums
// are corrected, since a reader of broken ones sees nothing of what the headers say.
#include <fstream>

#include "documents/variant.hpp"
#include "fuzz.hpp"
#include "fuzz_tar.hpp"
#include "store/unpack.hpp"

namespace fs = std::filesystem;

namespace {

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

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  static const fuzz::Folder folder("work");
  static const Config config = [] {
    Config made;
    made.files = {{"LICENSE", Digest::of("free\n"), 5},
                  {"lib/libsample.so", Digest::of("a library\n"), 10}};
    return made;
  }();
  if (size == 0) return 0;
  std::string layer(fuzz::text_of(data + 1, size - 1));
  if (data[0] % 3 == 2) fuzz::mend_checksums(layer);
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
