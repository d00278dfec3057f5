// SPDX-License-Identifier: Apache-2.0
#include "device_code.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/join.hpp"
#include "kiln/error.hpp"
#include "process.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

/// What cuobjdump says of a file; empty if it has nothing of the kind.
std::string ask(const fs::path& cuobjdump, const char* option, const fs::path& file) {
  const Finished finished = run_captured({cuobjdump.string(), option, file.string()});
  if (finished.status == 0) return finished.output;
  for (const char* none :
       {"does not contain device code", "No PTX file found", "No ELF file found"}) {
    if (finished.output.find(none) != std::string::npos) return {};
  }
  throw Error(ErrorCode::kBuild, "read the device code of " + file.string() + ": cuobjdump ended " +
                                     "with status " + std::to_string(finished.status) + ": " +
                                     finished.output);
}

/// "ELF file    1: name.1.sm_90a.cubin" -> sm_90a
std::optional<DeviceCode> listed_cubin(std::string_view line) {
  constexpr std::string_view kEnd = ".cubin";
  while (line.ends_with(' ') || line.ends_with('\r')) line.remove_suffix(1);
  if (!line.starts_with("ELF file") || !line.ends_with(kEnd)) return std::nullopt;
  line.remove_suffix(kEnd.size());
  return parse_device_code(line.substr(line.rfind('.') + 1));
}

/// The word behind `key` at the beginning of a line.
std::string_view word_behind(std::string_view line, std::string_view key) {
  if (!line.starts_with(key)) return {};
  line.remove_prefix(key.size());
  return line.substr(0, line.find_first_of(", \t\r"));
}

}  // namespace

std::vector<EmbeddedCode> list_device_code(const fs::path& file, const fs::path& cuobjdump) {
  std::vector<EmbeddedCode> found;
  const auto add = [&found](EmbeddedCode code) {
    if (std::ranges::find(found, code) == found.end()) found.push_back(code);
  };
  const std::string cubins = ask(cuobjdump, "-lelf", file);
  for (const std::string_view line : split(cubins, '\n')) {
    if (const std::optional<DeviceCode> code = listed_cubin(line)) add({*code, std::nullopt});
  }
  const std::string ptx = ask(cuobjdump, "-ptx", file);
  std::optional<Version> version;
  for (const std::string_view line : split(ptx, '\n')) {
    if (const auto word = word_behind(line, ".version "); !word.empty()) {
      version = parse_version(word);
    }
    const std::string_view target = word_behind(line, ".target sm_");
    if (target.empty()) continue;
    if (const auto code = parse_device_code("compute_" + std::string(target)))
      add({*code, version});
  }
  return found;
}

Version driver_of_ptx(Version ptx) {
  constexpr std::array<std::pair<Version, Version>, 3> kIrregular = {
      {{{8, 6}, {12, 7}}, {{8, 7}, {12, 8}}, {{8, 8}, {12, 9}}}};
  for (const auto& [version, cuda] : kIrregular) {
    if (version == ptx) return cuda;
  }
  return {ptx.major + 4, ptx.minor};
}

}  // namespace kiln::build
