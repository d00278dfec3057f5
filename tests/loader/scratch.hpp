// SPDX-License-Identifier: Apache-2.0
//
// Scratch: folders, environment variables and error checks for the loader's tests.
#pragma once

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "kiln/error.hpp"

namespace kiln::test {

/// A new, empty folder that goes with the object.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Sets (or, without a value, unsets) a variable and puts the old value back.
class Environment {
 public:
  Environment(const char* name, std::optional<std::string> value);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};

std::string read_file(const std::filesystem::path& path);
void write_file(const std::filesystem::path& path, std::string_view bytes);

/// Flips one bit in the middle of a file, whatever its mode.
void damage(const std::filesystem::path& path);

/// The libraries that Kiln has loaded into this process.
int loaded_libraries();

/// What is made while it lives may be read by every user, whatever the test's own umask.
class ReadableByAll {
 public:
  ReadableByAll() : before_(::umask(022)) {}
  ReadableByAll(const ReadableByAll&) = delete;
  ReadableByAll& operator=(const ReadableByAll&) = delete;
  ~ReadableByAll() { ::umask(before_); }

 private:
  mode_t before_;
};

/// What a child of that user says: 0, or the code of the error that it met. Root alone may make
/// one.
int as_user(uid_t user, gid_t group, mode_t mask, const std::function<void()>& action);

/// What `action` throws; fails the test if it throws nothing, or no kiln::Error.
template <class Action>
Error error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error was thrown");
  return {ErrorCode::kInternal, ""};
}

#define CHECK_CONTAINS(text, part) \
  CHECK_MESSAGE(std::string(text).find(part) != std::string::npos, text, " lacks ", part)

}  // namespace kiln::test
