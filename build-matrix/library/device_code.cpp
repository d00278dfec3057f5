// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/library/device_code.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/ascii.hpp"
#include "base/join.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/base/process.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

/// What cuobjdump says of a file; empty if it has nothing of the kind.
std::string ask(const fs::path& cuobjdump, const char* option, const fs::path& file) {
  // It calls nvdisasm, which lies beside it, by PATH.
  const std::string path = "PATH=" + cuobjdump.parent_path().string() + ":/usr/bin:/bin";
  const Finished finished =
      run_captured({cuobjdump.string(), option, file.string()}, std::vector{path});
  if (finished.status == 0) return finished.output;
  for (const char* none :
       {"does not contain device code", "No PTX file found", "No ELF file found"}) {
    if (finished.output.find(none) != std::string::npos) return {};
  }
  throw Error(ErrorCode::kBuild, "read the device code of " + file.string() +
                                     ": cuobjdump ended with status " +
                                     std::to_string(finished.status) + ": " + finished.output);
}

/// What stands behind `key`, up to a character of `ends`; empty if the key is not there.
std::string_view behind(std::string_view line, std::string_view key, std::string_view ends) {
  const std::size_t at = line.find(key);
  if (at == std::string_view::npos) return {};
  line.remove_prefix(at + key.size());
  return line.substr(0, line.find_first_of(ends));
}

constexpr std::string_view kBlanks = " \t\r\n";

/// "ELF file    1: name.1.sm_90a.cubin" -> sm_90a
std::optional<DeviceCode> listed_cubin(std::string_view line) {
  constexpr std::string_view kEnd = ".cubin";
  line = trimmed(line);
  if (!line.starts_with("ELF file") || !line.ends_with(kEnd)) return std::nullopt;
  line.remove_suffix(kEnd.size());
  return parse_device_code(line.substr(line.rfind('.') + 1));
}

std::uint64_t hexadecimal(std::string_view text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return number;
}

/// A line that says of a parameter where it stands and how many bytes it has.
void add_parameter(std::string_view line, DeviceKernel& kernel) {
  constexpr std::uint64_t kMost = 4096;
  const std::string_view place = behind(line, "Ordinal : 0x", " \t");
  const std::string_view size = behind(line, "Size    : 0x", " \t\r");
  if (place.empty() || size.empty() || hexadecimal(place) >= kMost) return;
  kernel.parameters.resize(std::max<std::size_t>(kernel.parameters.size(), hexadecimal(place) + 1));
  kernel.parameters[hexadecimal(place)] = hexadecimal(size);
}

/// Numbers of a list, as "0x80 0x1 0x1 " or "128, 1, 1"; none if one is no number.
std::vector<std::uint64_t> numbers_of(std::string_view list) {
  constexpr std::string_view kBetween = ", \t";
  std::vector<std::uint64_t> numbers;
  for (std::size_t at = list.find_first_not_of(kBetween); at < list.size();) {
    std::string_view word = list.substr(at, list.find_first_of(kBetween, at) - at);
    at = list.find_first_not_of(kBetween, at + word.size());
    const int base = word.starts_with("0x") ? 16 : 10;
    if (base == 16) word.remove_prefix(2);
    const auto [end, failed] =
        std::from_chars(word.begin(), word.end(), numbers.emplace_back(0), base);
    if (failed != std::errc() || end != word.end()) return {};
  }
  return numbers;
}

/// A line "Value: 0x80 0x1 0x1 " of an attribute that says of which blocks the kernel is.
void add_block(std::string_view attribute, std::string_view line, DeviceKernel& kernel) {
  if (attribute != "EIATTR_MAX_THREADS" && attribute != "EIATTR_REQNTID") return;
  kernel.block = numbers_of(behind(line, "Value:", "\r"));
  kernel.exactly = attribute == "EIATTR_REQNTID";
}

/// "13.0" of a new cubin; "129" of an old one is 12.9.
std::optional<Version> dumped_toolkit(std::string_view text) {
  if (text.size() < 2 || text.find('.') != std::string_view::npos) return parse_version(text);
  return parse_version(std::string(text.substr(0, text.size() - 1)) + "." + text.back());
}

/// Fills in what the dump of a file says of its cubins, which are listed in the same order.
void read_dump(std::string_view dump, std::vector<EmbeddedCode>& cubins) {
  std::size_t next = 0;
  EmbeddedCode* cubin = nullptr;
  std::string_view attribute;
  for (const std::string_view line : split(dump, '\n')) {
    if (line.starts_with("64-bit ELF:") || line.starts_with("64bit elf:")) {
      cubin = next < cubins.size() ? &cubins[next++] : nullptr;
      if (cubin != nullptr) cubin->toolkit = dumped_toolkit(behind(line, "toolkit=", ", \r"));
    } else if (cubin != nullptr && line.starts_with(".nv.info.")) {
      cubin->kernels.push_back({.name = std::string(trimmed(line.substr(9)))});
    } else if (cubin != nullptr && !cubin->kernels.empty()) {
      add_parameter(line, cubin->kernels.back());
      if (line.find("Attribute:") != line.npos)
        attribute = trimmed(behind(line, "Attribute:", "\r"));
      if (line.find("Value:") != line.npos) add_block(attribute, line, cubin->kernels.back());
    }
  }
}

/// ".param .align 8 .b8 name[16]" -> 16
std::uint64_t parameter_bytes(std::string_view text) {
  const std::size_t bracket = text.find('[');
  std::uint64_t count = 1;
  if (bracket != std::string_view::npos) {
    const std::string_view number = text.substr(bracket + 1);
    std::from_chars(number.data(), number.data() + number.size(), count);
  }
  constexpr std::string_view kKinds = "busf";
  for (std::size_t at = text.find('.'); at != text.npos; at = text.find('.', at + 1)) {
    const std::string_view word = text.substr(at, text.find_first_of(kBlanks, at) - at);
    if (word.size() < 3 || kKinds.find(word[1]) == std::string_view::npos) continue;
    std::uint64_t bits = 0;
    const auto end = std::from_chars(word.data() + 2, word.data() + word.size(), bits);
    if (bits != 0 && end.ptr == word.data() + word.size()) return count * bits / 8;
  }
  return 0;
}

/// What stands behind ".entry ", on however many lines.
DeviceKernel read_entry(std::string_view text) {
  text = text.substr(0, text.find_first_of("{;"));  // where its code begins, or it is declared
  DeviceKernel kernel{.name = std::string(text.substr(0, text.find_first_of("( \t\r\n")))};
  const std::size_t open = std::min(text.find('('), text.size());
  const std::size_t close = std::min(text.find(')', open), text.size());
  for (const std::string_view each : split(text.substr(open, close - open), ',')) {
    if (each.find(".param") != each.npos) kernel.parameters.push_back(parameter_bytes(each));
  }
  text.remove_prefix(close);
  for (const std::string_view key : {".maxntid ", ".reqntid "}) {
    const std::string_view block = trimmed(behind(text, key, ".\r\n"));
    if (block.empty()) continue;
    kernel.block = numbers_of(block);
    kernel.exactly = key == ".reqntid ";
  }
  return kernel;
}

}  // namespace

bool is_ptx(std::string_view bytes) {
  constexpr std::string_view kFatbin = "\x50\xed\x55\xba";
  return !bytes.starts_with(ELFMAG) && !bytes.starts_with(kFatbin);
}

std::vector<EmbeddedCode> read_ptx(std::string_view text) {
  std::vector<EmbeddedCode> modules;
  std::optional<Version> version;
  for (std::string_view line : split(text, '\n')) {
    line = trimmed(line);
    if (line.starts_with(".version ")) version = parse_version(behind(line, ".version ", " \r"));
    if (line.starts_with(".target ")) {
      const std::string name = "compute_" + std::string(behind(line, ".target sm_", ", \r"));
      if (const auto code = parse_device_code(name)) {
        modules.push_back({.code = *code, .ptx = version, .toolkit = {}, .kernels = {}});
      }
    }
    if (modules.empty()) continue;
    constexpr std::string_view kEntry = ".entry ";
    const std::size_t at = line.find(kEntry);
    if (at == line.npos || line.starts_with("//")) continue;
    const auto offset = static_cast<std::size_t>(line.data() - text.data());
    modules.back().kernels.push_back(read_entry(text.substr(offset + at + kEntry.size())));
  }
  return modules;
}

std::vector<EmbeddedCode> list_cubins(const fs::path& file, const fs::path& cuobjdump) {
  std::vector<EmbeddedCode> found;
  const std::string list = ask(cuobjdump, "-lelf", file);
  for (const std::string_view line : split(list, '\n')) {
    if (const std::optional<DeviceCode> code = listed_cubin(line)) {
      found.push_back({.code = *code, .ptx = {}, .toolkit = {}, .kernels = {}});
    }
  }
  return found;
}

std::vector<EmbeddedCode> read_device_code(const fs::path& file, const fs::path& cuobjdump) {
  const std::string bytes = read_file(file);
  if (is_ptx(bytes)) return read_ptx(bytes);
  std::vector<EmbeddedCode> found = list_cubins(file, cuobjdump);
  if (!found.empty()) read_dump(ask(cuobjdump, "-elf", file), found);
  for (EmbeddedCode& module : read_ptx(ask(cuobjdump, "-ptx", file))) {
    found.push_back(std::move(module));
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
