// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/compilers/zig.hpp"

#include <array>
#include <string_view>

namespace kiln::build {
namespace {

// zig's words for a level, by its number: for aarch64 the baseline is armv8-a.
constexpr std::array<std::string_view, 6> kX86_64Machines = {
    "x86_64",
    "x86_64_v2",
    "x86_64_v3",
    "x86_64_v4",
    "x86_64_v4+avx512bf16",
    "x86_64_v4+avx512bf16+amx_tile+amx_bf16"};

std::vector<std::string> target_flags(CpuLevel cpu, Version glibc) {
  std::string machine = "baseline";
  if (cpu.arch == Arch::kX86_64) {
    machine = kX86_64Machines.at(static_cast<std::size_t>(cpu.level - 1));
  }
  return {"-target", std::string(to_string(cpu.arch)) + "-linux-gnu." + to_string(glibc),
          "-mcpu=" + machine};
}

// What a program's own hardening takes for granted of the libraries that it loads, as in
// loader/hardening.cmake. zig links with RELRO and BIND_NOW unasked. The oldest glibc that a
// package may name has no FORTIFY of level 3.
std::vector<std::string> compile_target_flags(CpuLevel cpu, Version glibc) {
  std::vector<std::string> flags = target_flags(cpu, glibc);
  flags.insert(
      flags.end(),
      {"-fstack-protector-strong", "-fstack-clash-protection", "-D_FORTIFY_SOURCE=2",
       cpu.arch == Arch::kX86_64 ? "-fcf-protection=full" : "-mbranch-protection=standard"});
  return flags;
}

std::vector<std::string> link_target_flags(CpuLevel cpu, Version glibc) {
  std::vector<std::string> flags = target_flags(cpu, glibc);
  flags.insert(flags.end(),
               {"-shared", "-s", "-Wl,-z,defs", "-Wl,-z,noexecstack", "-Wl,--build-id=sha1"});
  return flags;
}

}  // namespace

// Without exceptions, RTTI and a C++ library a package needs nothing but glibc. zig turns on traps
// for undefined behaviour unless told not to. A switch over dtypes names those of the schema alone:
// the checker lets no others through.
std::vector<std::string> compile_flags(CpuLevel cpu, Version glibc) {
  std::vector<std::string> flags = compile_target_flags(cpu, glibc);
  flags.insert(flags.end(),
               {"-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
                "-fno-threadsafe-statics", "-fno-sanitize=undefined", "-g0", "-Wall", "-Wextra",
                "-Wno-switch", "-Wno-missing-field-initializers", "-Wno-c23-extensions"});
  return flags;
}

std::vector<std::string> link_flags(CpuLevel cpu, Version glibc) {
  std::vector<std::string> flags = link_target_flags(cpu, glibc);
  // nodelete: threads that a package keeps, and what it gave to the driver, outlive a dlclose.
  flags.insert(flags.end(), {"-nostdlib++", "-Wl,-z,nodelete", "-Wl,--as-needed"});
  return flags;
}

// A check is a program's source in a library of its own, with exceptions and a C++ library inside:
// it needs nothing of its host but what kiln/check.h has, and the package's oldest glibc.
std::vector<std::string> check_compile_flags(CpuLevel cpu, Version glibc) {
  std::vector<std::string> flags = compile_target_flags(cpu, glibc);
  flags.insert(flags.end(),
               {"-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-sanitize=undefined",
                "-g0", "-Dmain=kiln_check_main", "-DKILN_CHECK_LAYER"});
  return flags;
}

std::vector<std::string> check_link_flags(CpuLevel cpu, Version glibc) {
  std::vector<std::string> flags = link_target_flags(cpu, glibc);
  // Of the modes in which zig builds its libc++, -Os takes the least time: two thirds of none's.
  flags.push_back("-Os");
  return flags;
}

}  // namespace kiln::build
