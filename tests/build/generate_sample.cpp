// SPDX-License-Identifier: Apache-2.0
//
// generate_sample PACKAGE_JSON FOLDER: writes what the build adds to a package's sources, so that
// the test can compile the sample package with the compiler at hand.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "build-matrix/codegen/codegen.hpp"
#include "build-matrix/codegen/launch_code.hpp"
#include "build-matrix/codegen/ops_header.hpp"
#include "build-matrix/schema/schema.hpp"
#include "build-matrix/schema/triton.hpp"
#include "kiln/error.hpp"

namespace {

/// What a compiler could say: parameters from Z to A, 32 threads more and a byte of shared memory
/// more for each form.
std::map<std::string, kiln::build::TritonFacts> made_up_facts(const kiln::build::Package& package,
                                                              const kiln::DeviceCode& target) {
  std::map<std::string, kiln::build::TritonFacts> facts;
  std::uint32_t count = 0;
  for (const auto& image : kiln::build::plan_triton(package, target).images) {
    for (const auto& form : image.forms) {
      facts[image.kernel].forms[form.function] = {
          .threads = 32 * (count + 1), .shared = count, .scratch = 2};
      ++count;
    }
  }
  for (const auto& launch : package.cuda.launch.launches) {
    for (const auto& argument : launch.arguments) {
      facts[launch.kernel].parameters.push_back(argument.parameter);
    }
    std::ranges::sort(facts[launch.kernel].parameters, std::greater());
  }
  return facts;
}

}  // namespace

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
    if (package.cuda.launches()) {
      const kiln::DeviceCode target = package.cuda.launch.targets.front();
      std::ofstream(folder / "launches.gen.cpp")
          << build::generate_launches(package, target, made_up_facts(package, target));
    }
  } catch (const kiln::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
