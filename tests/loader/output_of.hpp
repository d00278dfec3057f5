// SPDX-License-Identifier: Apache-2.0
//
// What a command prints, for tests whose subject is another process.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

namespace kiln::test {

/// Runs it by the shell; its standard output, whatever its exit status.
inline std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) text += buffer.data();
  return text;
}

}  // namespace kiln::test
