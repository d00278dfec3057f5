// SPDX-License-Identifier: Apache-2.0
#include "files.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "kiln/error.hpp"

namespace kiln::build {
namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(const std::string& operation, const fs::path& path) {
  throw Error(ErrorCode::kBuild, operation + " " + path.string() + ": " + std::strerror(errno));
}

}  // namespace

std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail("read", path);
  std::string bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad()) fail("read", path);
  return bytes;
}

void write_file(const fs::path& path, std::string_view bytes) {
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  const fs::path temporary = path.string() + ".tmp" + std::to_string(getpid());
  {
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    stream.flush();
    if (!stream) fail("write", temporary);
  }
  fs::rename(temporary, path, failed);
  if (failed) {
    const std::string reason = failed.message();
    fs::remove(temporary, failed);
    throw Error(ErrorCode::kBuild, "write " + path.string() + ": " + reason);
  }
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
