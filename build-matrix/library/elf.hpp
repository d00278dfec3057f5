// SPDX-License-Identifier: Apache-2.0
//
// Elf: what a 64-bit little-endian ELF file says about itself. A shared library: what it exports,
// what it needs, how it wants to be mapped, its named sections and the pointers in its data. A
// cubin: its kernels. Reads bytes that a linker wrote, and refuses (Error(kBuild)) what points
// outside of them. Pure; the result points into the bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::build {

struct ElfSymbol {
  std::string name;
  std::string version;  ///< "GLIBC_2.17"; empty where none is asked for
  std::string library;  ///< of the version: "libc.so.6"
  bool weak = false;
};

struct ElfSection {
  std::string name;
  std::uint64_t address = 0;  ///< once mapped; 0 for what is not
  std::string_view bytes;
};

struct ElfLibrary {
  std::uint16_t machine = 0;  ///< EM_X86_64, EM_AARCH64
  std::string soname;
  std::vector<std::string> needed;
  std::string rpath;                  ///< DT_RPATH or DT_RUNPATH
  int x86_level = 0;                  ///< of the psABI, as the linker noted it; 0: it did not
  bool packed_relocations = false;    ///< DT_RELR, which glibc 2.36 was the first to read
  bool text_relocations = false;      ///< code is written to while it is loaded
  bool executable_stack = false;      ///< PT_GNU_STACK is missing or executable
  bool writable_code = false;         ///< a segment that is writable and executable
  std::set<std::string> run_at_load;  ///< DT_INIT, DT_FINI, IRELATIVE: beside .init_array
  std::vector<std::string> exported;  ///< sorted
  std::vector<ElfSymbol> undefined;   ///< in the file's order
  std::vector<ElfSection> sections;
  std::map<std::uint64_t, std::uint64_t> pointers;  ///< to the library itself: from where, to where

  /// What is mapped from an address on, to the end of its section; empty if nothing is.
  std::string_view bytes_at(std::uint64_t address) const;
  /// The number of this type at an address; 0 if there is none.
  template <class Number>
  Number number_at(std::uint64_t address) const {
    Number number = 0;
    const std::string_view bytes = bytes_at(address);
    if (bytes.size() >= sizeof(number)) std::memcpy(&number, bytes.data(), sizeof(number));
    return number;
  }
  /// The C string at an address; empty if there is none.
  std::string_view text_at(std::uint64_t address) const;
};

/// `subject` begins the error text.
ElfLibrary read_elf(std::string_view bytes, std::string_view subject);

/// The names of the kernels in a cubin, sorted.
std::vector<std::string> cubin_kernels(std::string_view bytes, std::string_view subject);

}  // namespace kiln::build
