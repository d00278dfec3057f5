// SPDX-License-Identifier: Apache-2.0
#include "probe/hardware.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string_view>

#include "base/posix.hpp"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstring>
#endif

namespace kiln {
namespace {

/// Of a small file that the kernel writes. A stream's locale would take as long as all of the
/// probe.
std::string first_line_of(const char* file) {
  std::array<char, 256> start;
  const FileDescriptor opened = try_open(file, O_RDONLY);
  const ssize_t count = opened.valid() ? ::read(opened.get(), start.data(), start.size()) : 0;
  const std::string_view text(start.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace

/// Linux has the same words in /proc/cpuinfo, but an older one first measures each core's clock
/// there, in 10 ms.
std::string cpu_model() {
#if defined(__x86_64__)
  std::array<unsigned, 12> words{};
  unsigned leaf = 0x80000002;
  for (unsigned* four = words.data(); four != words.data() + words.size(); four += 4) {
    if (__get_cpuid(leaf++, four, four + 1, four + 2, four + 3) == 0) return {};
  }
  std::array<char, sizeof(words) + 1> text{};
  std::memcpy(text.data(), words.data(), sizeof(words));
  const std::string_view name(text.data());
  const std::size_t first = name.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return std::string(name.substr(first, name.find_last_not_of(' ') + 1 - first));
#else
  return {};
#endif
}

std::string driver_release() {
  return first_line_of("/sys/module/nvidia/version");
}

std::string hardware_name(const Host& host, Device device) {
  if (device.kind == Device::Kind::kCuda) {
    for (const Gpu& gpu : host.gpus) {
      if (gpu.ordinal == device.ordinal) return gpu.name;
    }
    return "unknown GPU";
  }
  std::string model = cpu_model();
  return model.empty() ? to_string(host.cpu) : model;
}

}  // namespace kiln
