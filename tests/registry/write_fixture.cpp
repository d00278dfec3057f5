// SPDX-License-Identifier: Apache-2.0
//
// write_fixture FOLDER: synthetic build output for the tests that drive the real command.
//   one/     tiny-op@1 for a CPU and two GPUs
//   two/     two more variants of tiny-op@1
//   acme/    acme-op@1 for a CPU
//   clash/   other bytes under an id of one/
#include <exception>
#include <iostream>

#include "built_fixture.hpp"

int main(int argc, char** argv) {
  using kiln::test::cpu;
  using kiln::test::cuda;
  using kiln::test::write_built;
  if (argc != 2) {
    std::cerr << "usage: write_fixture FOLDER\n";
    return 2;
  }
  try {
    const std::filesystem::path folder = argv[1];
    write_built(folder / "one", cpu("x86-64-v3"));
    write_built(folder / "one", cuda("12.9", "sm_90a"));
    write_built(folder / "one", cuda("11.8", "compute_80"));
    write_built(folder / "two", cpu("x86-64-v4"));
    write_built(folder / "two", cuda("12.9", "sm_80"));
    kiln::test::Built acme = cpu("x86-64-v3");
    acme.name = "acme-op";
    write_built(folder / "acme", acme);
    kiln::test::Built clash = cpu("x86-64-v3");
    clash.library = "other bytes";
    write_built(folder / "clash", clash);
  } catch (const std::exception& error) {
    std::cerr << "write_fixture: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
