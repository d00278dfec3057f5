// SPDX-License-Identifier: Apache-2.0
//
// Processor: the architecture and the level of the CPU that this process runs on. The one place
// that asks the CPU; which level its words mean is pure, so that each level is tested on every
// machine. A part of probe. Safe from several threads.
#pragma once

#include <cstdint>

#include "kiln/host.hpp"

namespace kiln {

/// What CPUID, XGETBV and Linux say, as far as a level of x86-64 depends on it.
struct X86Words {
  std::uint32_t basic = 0;     ///< leaf 1, ecx
  std::uint32_t extended = 0;  ///< leaf 0x80000001, ecx
  std::uint32_t features = 0;  ///< leaf 7, ebx
  std::uint32_t tiles = 0;     ///< leaf 7, edx
  std::uint32_t more = 0;      ///< leaf 7 subleaf 1, eax
  /// XCR0: which registers the operating system saves. An instruction set that it does not save
  /// is unusable whatever CPUID says.
  std::uint32_t saved = 0;
  bool tiles_granted = false;  ///< whether a process may ask Linux for AMX's tile registers
};

/// The levels of the x86-64 psABI and those above them, as CpuLevel numbers them.
int x86_64_level(const X86Words& words);

Arch probe_arch();
CpuLevel probe_cpu(Arch arch);

}  // namespace kiln
