// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/library/linkage.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <optional>

namespace kiln::build {
namespace {

// What every glibc Linux has. libcuda.so.1 and a variant's other needs are looked up at run time,
// so that their absence is a message and not a failed dlopen.
constexpr std::array<std::string_view, 7> kGlibcLibraries = {"libc.so.6",
                                                             "libm.so.6",
                                                             "libdl.so.2",
                                                             "libpthread.so.0",
                                                             "librt.so.1",
                                                             "ld-linux-x86-64.so.2",
                                                             "ld-linux-aarch64.so.1"};

constexpr Version kFirstWithPackedRelocations = {2, 36};

std::string machine_name(std::uint16_t machine) {
  if (machine == EM_X86_64) return "x86_64";
  if (machine == EM_AARCH64) return "aarch64";
  return "ELF machine " + std::to_string(machine);
}

void check_mapping(const ElfLibrary& library, const Allowance& allowed,
                   std::vector<std::string>& violations) {
  for (const std::string& needed : library.needed) {
    const bool fits = std::ranges::find(kGlibcLibraries, needed) != kGlibcLibraries.end() ||
                      std::ranges::find(allowed.libraries, needed) != allowed.libraries.end();
    if (!fits) violations.push_back("links " + needed + "; " + std::string(allowed.remedy));
  }
  if (!library.rpath.empty()) {
    violations.push_back("has the run path " + library.rpath + ", expected none");
  }
  if (library.executable_stack) violations.push_back("asks for an executable stack");
  if (library.text_relocations) violations.push_back("has text relocations");
  if (library.writable_code) violations.push_back("has a segment both writable and executable");
}

// "GLIBC_2.2.5" counts as 2.2: the third number never decides on a glibc that is still in use.
// GLIBC_PRIVATE, GLIBC_ABI_DT_RELR and other libraries' versions are not versions of glibc.
std::optional<Version> glibc_version(std::string_view version) {
  constexpr std::string_view kGlibc = "GLIBC_";
  if (!version.starts_with(kGlibc)) return std::nullopt;
  version.remove_prefix(kGlibc.size());
  const std::size_t dot = version.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return parse_version(version.substr(0, version.find('.', dot + 1)));
}

AskedGlibc check_symbols(const ElfLibrary& library, const Allowance& allowed,
                         std::vector<std::string>& violations) {
  AskedGlibc asked;
  if (library.packed_relocations) asked = {kFirstWithPackedRelocations, "none, for DT_RELR"};
  for (const ElfSymbol& symbol : library.undefined) {
    if (symbol.version.empty()) {
      const bool provided = !allowed.provided || allowed.provided->contains(symbol.name);
      if (!symbol.weak && !provided) {
        violations.push_back("needs the symbol " + symbol.name +
                             ", which none of its libraries provides");
      }
      continue;
    }
    if (std::ranges::find(allowed.libraries, symbol.library) != allowed.libraries.end()) continue;
    const std::optional<Version> parsed = glibc_version(symbol.version);
    if (!parsed) {
      violations.push_back("needs " + symbol.version + " (symbol " + symbol.name + " of " +
                           symbol.library + "), which is not a version of glibc");
      continue;
    }
    if (*parsed > asked.version || asked.symbol.empty()) asked = {*parsed, symbol.name};
  }
  if (asked.version > allowed.glibc) {
    violations.push_back("needs GLIBC_" + to_string(asked.version) + " (symbol " + asked.symbol +
                         "), allowed is " + to_string(allowed.glibc));
  }
  return asked;
}

}  // namespace

AskedGlibc check_linkage(const ElfLibrary& library, const Allowance& allowed,
                         std::vector<std::string>& violations) {
  const std::string machine = machine_name(library.machine);
  const std::string arch(to_string(allowed.cpu.arch));
  if (machine != arch) violations.push_back("is for " + machine + ", expected " + arch);
  check_mapping(library, allowed, violations);
  return check_symbols(library, allowed, violations);
}

}  // namespace kiln::build
