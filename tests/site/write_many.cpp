// SPDX-License-Identifier: Apache-2.0
//
// write_many FOLDER COUNT: a registry of COUNT small packages with a version of a CPU and a GPU
// variant each, as many publishes would leave it.
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "built_fixture.hpp"
#include "registry/folder/publish.hpp"

int main(int argc, char** argv) {
  using namespace kiln;  // NOLINT(google-build-using-namespace)
  if (argc != 3) {
    std::cerr << "usage: write_many FOLDER COUNT\n";
    return 2;
  }
  try {
    const std::filesystem::path folder = argv[1];
    const int count = std::atoi(argv[2]);
    registry::PublishRequest request{folder, {}, {}};
    const test::TemporaryFolder built;
    for (int i = 0; i < count; ++i) {
      for (test::Built one : {test::cpu("x86-64-v3"), test::cuda("12.9", "sm_90a")}) {
        one.name = "package-" + std::to_string(i);
        one.schema = R"({"name": ")" + one.name +
                     R"(", "license": "Apache-2.0", "summary": "Number )" + std::to_string(i) +
                     R"(", "ops": [{"name": "run", "tensors": [
 {"name": "x", "dtype": ["float32"], "shape": ["N"]},
 {"name": "y", "dtype": "x", "shape": ["N"], "output": true}]}]})";
        test::write_built(built / one.name, one);
      }
      request.built.push_back(built / ("package-" + std::to_string(i)));
    }
    registry::publish(request, [](const std::string&) {});
  } catch (const std::exception& error) {
    std::cerr << "write_many: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
