// SPDX-License-Identifier: Apache-2.0
#include "scratch.hpp"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>

#include "loader_paths.hpp"
#include "settings/environment.hpp"

namespace kiln::test {
namespace {

// Repeats without waits; and no test depends on the settings of who runs it. As the program starts,
// before there are threads.
[[maybe_unused]] const int kSettingsAreSet = ::setenv("KILN_CONFIG", paths::kSettings, 1);

}  // namespace

namespace fs = std::filesystem;

Scratch::Scratch() {
  std::string pattern = (fs::temp_directory_path() / "kiln-test-XXXXXX").string();
  REQUIRE(::mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

Scratch::~Scratch() {
  std::error_code ignored;
  for (fs::recursive_directory_iterator entry(path_, ignored), end; entry != end;
       entry.increment(ignored)) {
    if (entry->is_directory(ignored)) fs::permissions(*entry, fs::perms::owner_all, ignored);
  }
  fs::remove_all(path_, ignored);
}

Environment::Environment(const char* name, std::optional<std::string> value) : name_(name) {
  if (const char* before = std::getenv(name)) before_ = before;
  if (value) {
    ::setenv(name, value->c_str(), 1);
  } else {
    ::unsetenv(name);
  }
  read_environment_again();
}

Environment::~Environment() {
  if (before_) {
    ::setenv(name_.c_str(), before_->c_str(), 1);
  } else {
    ::unsetenv(name_.c_str());
  }
  read_environment_again();
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  // Not REQUIRE: doctest's reporter may be what calls this, for CAPTURE, and would wait for itself.
  if (!file.good()) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, std::string_view bytes) {
  fs::create_directories(path.parent_path());
  if (::access(path.c_str(), W_OK) != 0) ::chmod(path.c_str(), 0644);  // as Kiln publishes files
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.good()) throw std::runtime_error("cannot write " + path.string());
}

void damage(const fs::path& path) {
  std::string bytes = read_file(path);
  REQUIRE_FALSE(bytes.empty());
  char& middle = bytes[bytes.size() / 2];
  middle = static_cast<char>(middle ^ 1);
  ::chmod(path.c_str(), 0644);
  write_file(path, bytes);
}

int loaded_libraries() {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> inodes;
  for (std::string line; std::getline(maps, line);) {
    const std::size_t name = line.find("/memfd:kiln:");
    if (name == std::string::npos) continue;
    // address perms offset device inode path
    const std::size_t end = line.find_last_not_of(' ', name - 1);
    inodes.insert(line.substr(line.rfind(' ', end), end));
  }
  return static_cast<int>(inodes.size());
}

int as_user(uid_t user, gid_t group, mode_t mask, const std::function<void()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::umask(mask);
    int code = 0;
    if (::setgroups(0, nullptr) != 0 || ::setgid(group) != 0 || ::setuid(user) != 0) ::_exit(99);
    try {
      action();
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      code = static_cast<int>(error.code());
    }
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

}  // namespace kiln::test
