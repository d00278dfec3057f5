// SPDX-License-Identifier: Apache-2.0
#include "probe/processor.hpp"

#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <optional>

#include "documents/target.hpp"

namespace kiln {
namespace {

constexpr std::uint32_t kSavesState = 1u << 27;  // OSXSAVE, of `basic`: XGETBV may be executed

constexpr bool has_all(std::uint32_t value, std::uint32_t bits) {
  return (value & bits) == bits;
}

#if defined(__x86_64__)
std::uint32_t saved_registers() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

/// Linux 5.16. A package's prepare() asks for the registers.
bool grants_tiles() {
  constexpr int kSupportedRegisters = 0x1021;  // ARCH_GET_XCOMP_SUPP
  constexpr std::uint64_t kTileData = 1u << 18;
  std::uint64_t supported = 0;
  return ::syscall(SYS_arch_prctl, kSupportedRegisters, &supported) == 0 &&
         (supported & kTileData) != 0;
}

X86Words read_words() {
  X86Words words;
  std::uint32_t eax = 0;
  std::uint32_t ebx = 0;
  std::uint32_t ecx = 0;
  std::uint32_t edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) words.basic = ecx;
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0) words.extended = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    words.features = ebx;
    words.tiles = edx;
  }
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) words.more = eax;
  if (has_all(words.basic, kSavesState)) words.saved = saved_registers();
  words.tiles_granted = grants_tiles();
  return words;
}
#endif

}  // namespace

int x86_64_level(const X86Words& words) {
  // SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF.
  constexpr std::uint32_t kV2 = 1u << 0 | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23;
  if (!has_all(words.basic, kV2) || !has_all(words.extended, 1u << 0)) return 1;
  // FMA, MOVBE, AVX, F16C; LZCNT; BMI1, AVX2, BMI2; xmm and ymm saved.
  constexpr std::uint32_t kV3 = kSavesState | 1u << 12 | 1u << 22 | 1u << 28 | 1u << 29;
  if (!has_all(words.basic, kV3) || !has_all(words.extended, 1u << 5) ||
      !has_all(words.features, 1u << 3 | 1u << 5 | 1u << 8) || !has_all(words.saved, 0x06)) {
    return 2;
  }
  // AVX512F, DQ, CD, BW, VL; opmask and zmm saved.
  constexpr std::uint32_t kV4 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
  if (!has_all(words.features, kV4) || !has_all(words.saved, 0xe6)) return 3;
  if (!has_all(words.more, 1u << 5)) return 4;  // AVX512-BF16
  // AMX-TILE. Where the registers cannot be used the level is below AVX512-BF16's: vdpbf16ps of
  // such CPUs does 0.6 of what fp32 does.
  if (!has_all(words.tiles, 1u << 24)) return 5;
  // AMX-BF16; tile configuration and data saved.
  const bool usable =
      has_all(words.tiles, 1u << 22) && has_all(words.saved, 0x600e6) && words.tiles_granted;
  return usable ? 6 : 4;
}

Arch probe_arch() {
  utsname names{};
  ::uname(&names);
  if (const std::optional<Arch> arch = parse_arch(names.machine)) return *arch;
    // A 32-bit personality changes uname's word, not what this program is.
#if defined(__aarch64__)
  return Arch::kAarch64;
#else
  return Arch::kX86_64;
#endif
}

CpuLevel probe_cpu(Arch arch) {
#if defined(__x86_64__)
  if (arch == Arch::kX86_64) return {arch, x86_64_level(read_words())};
#endif
  return {arch, 1};
}

}  // namespace kiln
