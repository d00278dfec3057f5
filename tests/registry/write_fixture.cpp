// SPDX-License-Identifier: Apache-2.0
//
// write_fixture FOLDER: synthetic build output for the tests that drive the real command.
//   one/     tiny-op@1 for a CPU and two GPUs
//   two/     two more variants of tiny-op@1
//   acme/    acme-op@1 for a CPU, with a package.json of numbers, and a dev layer
//   clash/   other bytes under an id of one/
//   next/    tiny-op@2 for a CPU, with a package.json
//   fleet/   fleet-op@1 for a CPU, for two GPUs, as PTX, and for a GPU with a library; fleet.json,
//   the
//            record of one of them; each says its compilers
//   four/    alpha, beta, gamma and delta for every CPU, 200 kB each that do not compress
#include <cstdint>
#include <exception>
#include <iostream>
#include <random>
#include <string>

#include "built_fixture.hpp"

namespace {

/// Bytes in which no compressor finds anything.
std::string noise(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 next(seed);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(next());
  return bytes;
}

constexpr const char* kSchema =
    R"({"name": "tiny-op", "license": "Apache-2.0", "summary": "out = 2 x, for tests",
 "ops": [{"name": "twice", "doc": "out = 2 x", "tensors": [
  {"name": "x", "dtype": ["float32", "float16"], "shape": ["N", 4], "layout": "rows"},
  {"name": "bias", "dtype": "x", "shape": ["N"], "optional": true},
  {"name": "out", "dtype": "x", "shape": ["N"], "output": true}],
  "attributes": [{"name": "mode", "type": "string", "values": ["fast", "slow"],
                  "default": "fast"}]}]})";

constexpr const char* kNumbers =
    R"({"name": "acme-op", "license": "Apache-2.0", "summary": "adds in place, for tests",
 "ops": [{"name": "add", "doc": "y += alpha x, n times", "tensors": [
  {"name": "x", "dtype": ["float32"], "shape": ["N"]},
  {"name": "y", "dtype": "x", "shape": ["N"], "inout": true},
  {"name": "out", "dtype": "x", "shape": ["N"], "output": true, "in_place": ["x"]}],
  "attributes": [{"name": "alpha", "type": "float", "default": 1.5},
                 {"name": "n", "type": "int", "default": -1}]},
  {"name": "copy", "doc": "out = x", "tensors": [
  {"name": "x", "dtype": "float32", "shape": ["N"]},
  {"name": "out", "dtype": "x", "shape": ["N"], "output": true, "in_place": []}]}]})";

}  // namespace

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
    acme.schema = kNumbers;
    acme.header = "#pragma once\n";
    write_built(folder / "acme", acme);
    kiln::test::Built clash = cpu("x86-64-v3");
    clash.library = "other bytes";
    write_built(folder / "clash", clash);
    kiln::test::Built next = cpu("x86-64");
    next.version = 2;
    next.schema = kSchema;
    write_built(folder / "next", next);
    kiln::test::Built blas = cuda("12.9", "sm_75");
    blas.needs.libraries = {"libcublas.so.12"};
    for (kiln::test::Built built : {cpu("x86-64-v3"), cuda("12.9", "sm_90a"),
                                    cuda("13.0", "sm_100"), cuda("11.8", "compute_80"), blas}) {
      built.name = "fleet-op";
      const std::string toolkit = built.needs.is_cpu() ? "" : to_string(*built.needs.toolkit);
      built.build = toolkit.empty() ? R"({"zig": "0.15.2"})"
                                    : R"({"nvrtc": ")" + toolkit + R"(.1", "zig": "0.15.2"})";
      write_built(folder / "fleet", built);
      if (built.id != "cu12.9-sm_90a-x86_64") continue;
      kiln::test::write_record(folder / "fleet.json", "NVIDIA H100 80GB HBM3", built, 9, 0);
    }
    constexpr std::size_t kNoise = 200'000;
    std::uint64_t seed = 0;
    for (const std::string name : {"alpha", "beta", "gamma", "delta"}) {
      kiln::test::Built built = cpu("x86-64");
      built.name = name;
      built.library = noise(kNoise, ++seed);
      write_built(folder / "four" / name, built);
    }
  } catch (const std::exception& error) {
    std::cerr << "write_fixture: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
