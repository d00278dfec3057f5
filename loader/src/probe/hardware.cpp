// SPDX-License-Identifier: Apache-2.0
#include "probe/hardware.hpp"

#include <fstream>
#include <string_view>

namespace kiln {
namespace {

std::string first_line_of(const char* file, std::string_view begin) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(begin)) return line;
  }
  return {};
}

}  // namespace

std::string cpu_model() {
  const std::string line = first_line_of("/proc/cpuinfo", "model name");
  const std::size_t colon = line.find(": ");
  return colon == std::string::npos ? std::string() : line.substr(colon + 2);
}

std::string driver_release() {
  return first_line_of("/sys/module/nvidia/version", "");
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
