// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/base/files.hpp"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "base/draft.hpp"
#include "base/posix.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  NamedFile file = read_named_file(path, kMost);
  if (!file.problem.empty()) {
    throw Error(ErrorCode::kBuild, "read " + path.string() + ": " + file.problem);
  }
  return std::move(file.text);
}

void write_file(const fs::path& path, std::string_view bytes) {
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  const fs::path temporary = path.string() + ".tmp" + std::to_string(getpid());
  const auto fail = [&](int error) {
    fs::remove(temporary, failed);
    throw Error(ErrorCode::kBuild, "write " + path.string() + ": " + told_of_file(error));
  };
  {
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    stream.close();
    if (!stream) fail(errno);
  }
  fs::rename(temporary, path, failed);
  if (failed) fail(failed.value());
}

bool write_if_changed(const fs::path& path, std::string_view bytes) {
  std::error_code failed;
  if (fs::file_size(path, failed) == bytes.size() && !failed && read_file(path) == bytes) {
    return false;
  }
  write_file(path, bytes);
  return true;
}

}  // namespace kiln::build
