// SPDX-License-Identifier: Apache-2.0
//
// generate_sample PACKAGE_JSON FOLDER: writes what the build adds to a package's sources, so that
// the test can compile the sample package with the compiler at hand.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "codegen.hpp"
#include "kiln/error.hpp"
#include "ops_header.hpp"
#include "schema.hpp"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::filesystem::path source = argv[1];
  const std::filesystem::path folder = argv[2];
  std::ifstream file(source);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  try {
    namespace build = kiln::build;
    const build::Package package =
        build::parse_package(text, source.parent_path().filename().string(), source.string());
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "package.gen.hpp") << build::generate_header(package);
    std::ofstream(folder / "package.gen.cpp")
        << build::generate_glue(package, {build::Backend::kCpu, "0123456789abcdef"});
    const std::filesystem::path ops = folder / build::ops_header_path(package);
    std::filesystem::create_directories(ops.parent_path());
    std::ofstream(ops) << build::generate_ops_header(package);
    std::ofstream(folder / "exports.map") << build::generate_exports(package);
  } catch (const kiln::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
