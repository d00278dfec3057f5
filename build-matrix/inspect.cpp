// SPDX-License-Identifier: Apache-2.0
#include "inspect.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "base/join.hpp"
#include "documents/json.hpp"
#include "files.hpp"
#include "kiln/error.hpp"
#include "process.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSectionPrefix = ".kiln.image.";
constexpr std::string_view kEntry = "kiln_package_v1";
constexpr std::string_view kTvmPrefix = "__tvm_ffi_";

// What every glibc Linux has. libcuda.so.1 and a variant's other needs are looked up at run time,
// so that their absence is a message and not a failed dlopen.
constexpr std::array<std::string_view, 6> kAllowedLibraries = {"libc.so.6",
                                                               "libm.so.6",
                                                               "libdl.so.2",
                                                               "libpthread.so.0",
                                                               "ld-linux-x86-64.so.2",
                                                               "ld-linux-aarch64.so.1"};

std::string machine_name(std::uint16_t machine) {
  if (machine == EM_X86_64) return "x86_64";
  if (machine == EM_AARCH64) return "aarch64";
  return "ELF machine " + std::to_string(machine);
}

void check_exports(const ElfLibrary& library, std::vector<std::string>& violations) {
  bool entry = false;
  for (const std::string& name : library.exported) {
    if (name == kEntry) {
      entry = true;
    } else if (!name.starts_with(kTvmPrefix)) {
      violations.push_back("exports " + name + ", allowed are " + std::string(kEntry) + " and " +
                           std::string(kTvmPrefix) + "*");
    }
  }
  if (!entry) violations.push_back("does not export " + std::string(kEntry));
}

void check_mapping(const ElfLibrary& library, std::vector<std::string>& violations) {
  for (const std::string& needed : library.needed) {
    if (std::find(kAllowedLibraries.begin(), kAllowedLibraries.end(), needed) ==
        kAllowedLibraries.end()) {
      violations.push_back("links " + needed +
                           "; only glibc's own libraries may be in DT_NEEDED, look up the rest at "
                           "run time and list it in \"needs\"");
    }
  }
  if (!library.rpath.empty()) {
    violations.push_back("has the run path " + library.rpath + ", expected none");
  }
  if (library.executable_stack) violations.push_back("asks for an executable stack");
  if (library.text_relocations) violations.push_back("has text relocations");
  if (library.writable_code) violations.push_back("has a segment both writable and executable");
}

// "GLIBC_2.2.5" counts as 2.2: the third number never decides on a glibc that is still in use.
// GLIBC_PRIVATE, GLIBC_ABI_DT_RELR and other libraries' versions are none.
std::optional<Version> glibc_version(std::string_view version) {
  constexpr std::string_view kGlibc = "GLIBC_";
  if (!version.starts_with(kGlibc)) return std::nullopt;
  version.remove_prefix(kGlibc.size());
  const std::size_t dot = version.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return parse_version(version.substr(0, version.find('.', dot + 1)));
}

void check_symbols(const ElfLibrary& library, const Promise& promise, Facts& facts,
                   std::vector<std::string>& violations) {
  for (const ElfSymbol& symbol : library.undefined) {
    if (symbol.version.empty()) {
      if (!symbol.weak) {
        violations.push_back("needs the symbol " + symbol.name +
                             ", which none of its libraries provides");
      }
      continue;
    }
    const std::optional<Version> parsed = glibc_version(symbol.version);
    if (!parsed) {
      violations.push_back("needs " + symbol.version + " (symbol " + symbol.name + " of " +
                           symbol.library + "), which is not a version of glibc");
      continue;
    }
    if (*parsed > facts.glibc || facts.glibc_symbol.empty()) {
      facts.glibc = *parsed;
      facts.glibc_symbol = symbol.name;
    }
  }
  if (facts.glibc > promise.glibc) {
    violations.push_back("needs GLIBC_" + to_string(facts.glibc) + " (symbol " +
                         facts.glibc_symbol + "), allowed is " + to_string(promise.glibc));
  }
}

void check_images(const Facts& facts, const Promise& promise,
                  std::vector<std::string>& violations) {
  for (const std::string& stem : promise.stems) {
    const auto found = std::find_if(facts.images.begin(), facts.images.end(),
                                    [&](const Image& image) { return image.stem == stem; });
    if (found == facts.images.end()) {
      violations.push_back("holds no image " + stem);
    } else if (found->code != promise.target) {
      violations.push_back("image " + stem + " is for " + to_string(found->code) + ", expected " +
                           to_string(promise.target));
    }
  }
  for (const Image& image : facts.images) {
    if (std::find(promise.stems.begin(), promise.stems.end(), image.stem) == promise.stems.end()) {
      violations.push_back("holds an image " + image.stem + " that the variant does not have");
    }
  }
}

/// Each kernel as "image: function".
using KernelNames = std::set<std::pair<std::string, std::string>>;

/// A KernelSpec of the SDK lies in the library's data as two pointers to text, the first of them an
/// image's name, and then a number. kernel_list() is no symbol of the linked library, so this is
/// found by its shape. An sdk::Image, which has it too, points from its name to an image.
KernelNames listed_kernels(const ElfLibrary& library, const Facts& facts) {
  constexpr std::uint64_t kPointer = 8;
  const auto is_function = [](std::string_view name) {
    return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    });
  };
  KernelNames listed;
  for (const auto& [place, target] : library.pointers) {
    const auto second = library.pointers.find(place + kPointer);
    if (second == library.pointers.end()) continue;
    if (library.pointers.contains(place + 2 * kPointer)) continue;
    const std::string stem(library.text_at(target));
    const std::string function(library.text_at(second->second));
    const bool known = std::any_of(facts.images.begin(), facts.images.end(),
                                   [&](const Image& image) { return image.stem == stem; });
    if (known && is_function(function)) listed.emplace(stem, function);
  }
  return listed;
}

std::string only_in(const KernelNames& these, const KernelNames& those) {
  std::vector<std::string> names;
  for (const auto& [image, function] : these) {
    if (!those.contains({image, function}))
      names.push_back(std::string(function).append(" (").append(image).append(")"));
  }
  return join(names);
}

void check_kernels(const ElfLibrary& library, const Facts& facts,
                   std::vector<std::string>& violations) {
  KernelNames compiled;
  for (const Image& image : facts.images) {
    for (const std::string& kernel : image.kernels) compiled.emplace(image.stem, kernel);
  }
  const KernelNames listed = listed_kernels(library, facts);
  const std::string only_listed = only_in(listed, compiled);
  const std::string only_compiled = only_in(compiled, listed);
  if (!only_listed.empty()) {
    violations.push_back("kernel_list() names " + only_listed + ", which no image has");
  }
  if (!only_compiled.empty()) {
    violations.push_back("its images have " + only_compiled +
                         ", which kernel_list() does not name");
  }
}

/// The names behind ".visible .entry".
std::vector<std::string> ptx_kernels(std::string_view ptx) {
  constexpr std::string_view kEntryWord = ".entry ";
  std::vector<std::string> kernels;
  for (std::size_t at = ptx.find(kEntryWord); at != std::string_view::npos;
       at = ptx.find(kEntryWord, at)) {
    at += kEntryWord.size();
    kernels.emplace_back(ptx.substr(at, ptx.find_first_of("( \r\n", at) - at));
  }
  std::sort(kernels.begin(), kernels.end());
  return kernels;
}

DeviceCode read_ptx_target(const EmbeddedImage& image) {
  constexpr std::string_view kTarget = "\n.target sm_";
  const std::size_t at = image.bytes.find(kTarget);
  if (at != std::string_view::npos) {
    const std::size_t begin = at + kTarget.size();
    const std::size_t end = image.bytes.find_first_of(", \r\n", begin);
    const std::string name = "compute_" + std::string(image.bytes.substr(begin, end - begin));
    if (const auto code = parse_device_code(name)) return *code;
  }
  throw Error(ErrorCode::kBuild,
              "image " + image.stem + " is neither machine code nor PTX with a .target line");
}

// cuobjdump lists a cubin as "ELF file    1: <name>.sm_90a.cubin".
DeviceCode parse_listing(const std::string& listing, const std::string& stem) {
  const std::size_t suffix = listing.rfind(".cubin");
  const std::size_t dot = suffix == std::string::npos || suffix == 0
                              ? std::string::npos
                              : listing.rfind('.', suffix - 1);
  if (dot != std::string::npos) {
    const auto code = parse_device_code(listing.substr(dot + 1, suffix - dot - 1));
    if (code) return *code;
  }
  throw Error(ErrorCode::kBuild, "image " + stem + ": cuobjdump names no GPU: " + listing);
}

}  // namespace

std::vector<EmbeddedImage> embedded_images(const ElfLibrary& library) {
  std::vector<EmbeddedImage> images;
  for (const ElfSection& section : library.sections) {
    if (section.name.starts_with(kSectionPrefix)) {
      images.push_back({section.name.substr(kSectionPrefix.size()), section.bytes});
    }
  }
  return images;
}

Image read_image(const EmbeddedImage& image, const fs::path& cuobjdump, const fs::path& scratch) {
  Image read{.stem = image.stem, .code = {}, .size = image.bytes.size(), .kernels = {}};
  if (!image.bytes.starts_with(ELFMAG)) {
    read.code = read_ptx_target(image);
    read.kernels = ptx_kernels(image.bytes);
    return read;
  }
  read.kernels = cubin_kernels(image.bytes, "image " + image.stem);
  const fs::path carved = scratch / (image.stem + ".carved.cubin");
  write_file(carved, image.bytes);
  const Finished finished = run_captured({cuobjdump.string(), "-lelf", carved.string()});
  fs::remove(carved);
  if (finished.status != 0) {
    throw Error(ErrorCode::kBuild, "image " + image.stem + ": cuobjdump ended with status " +
                                       std::to_string(finished.status) + ": " + finished.output);
  }
  read.code = parse_listing(finished.output, image.stem);
  return read;
}

std::vector<std::string> find_violations(const ElfLibrary& library, std::string_view bytes,
                                         const Promise& promise, Facts& facts) {
  std::vector<std::string> violations;
  const std::string machine = machine_name(library.machine);
  if (const auto arch = parse_arch(machine)) facts.arch = *arch;
  if (machine != to_string(promise.arch)) {
    violations.push_back("is for " + machine + ", expected " +
                         std::string(to_string(promise.arch)));
  }
  if (library.soname != promise.soname) {
    violations.push_back("has the soname \"" + library.soname + "\", expected \"" + promise.soname +
                         "\"");
  }
  facts.exported = library.exported;
  facts.needed = library.needed;
  check_exports(library, violations);
  check_mapping(library, violations);
  check_symbols(library, promise, facts, violations);
  check_images(facts, promise, violations);
  check_kernels(library, facts, violations);
  if (bytes.find(promise.build_id) == std::string_view::npos) {
    violations.push_back("does not carry the build id " + promise.build_id);
  }
  return violations;
}

Facts inspect(const fs::path& library, const Promise& promise, const fs::path& cuobjdump,
              const fs::path& scratch) {
  const std::string subject = "inspect " + promise.subject;
  const std::string bytes = read_file(library);
  const ElfLibrary elf = read_elf(bytes, subject);
  Facts facts;
  std::vector<std::string> violations;
  for (const EmbeddedImage& image : embedded_images(elf)) {
    try {
      facts.images.push_back(read_image(image, cuobjdump, scratch));
    } catch (const Error& error) {
      violations.emplace_back(error.what());
    }
  }
  for (std::string& violation : find_violations(elf, bytes, promise, facts)) {
    violations.push_back(std::move(violation));
  }
  if (violations.empty()) return facts;
  throw Error(ErrorCode::kBuild, subject + ": " + join(violations, "; "));
}

Json to_json(const Facts& facts) {
  Json images = Json::array();
  for (const Image& image : facts.images) {
    images.push_back({{"stem", image.stem},
                      {"code", to_string(image.code)},
                      {"size", image.size},
                      {"kernels", image.kernels}});
  }
  return {{"arch", std::string(to_string(facts.arch))},
          {"glibc", to_string(facts.glibc)},
          {"glibc_symbol", facts.glibc_symbol},
          {"exported", facts.exported},
          {"needed", facts.needed},
          {"images", std::move(images)}};
}

Facts parse_facts(const Json& json, const std::string& subject) {
  const JsonView view(json, subject);
  Facts facts;
  const auto arch = parse_arch(view.at("arch").string());
  const auto glibc = parse_version(view.at("glibc").string());
  if (!arch) view.at("arch").fail("is not a CPU architecture");
  if (!glibc) view.at("glibc").fail("is not a glibc version");
  facts.arch = *arch;
  facts.glibc = *glibc;
  facts.glibc_symbol = view.at("glibc_symbol").string();
  for (const JsonView& item : view.at("exported").items()) facts.exported.push_back(item.string());
  for (const JsonView& item : view.at("needed").items()) facts.needed.push_back(item.string());
  for (const JsonView& item : view.at("images").items()) {
    const auto code = parse_device_code(item.at("code").string());
    if (!code) item.at("code").fail("is not a GPU target");
    Image image{.stem = item.at("stem").string(),
                .code = *code,
                .size = item.at("size").unsigned_integer(),
                .kernels = {}};
    for (const JsonView& name : item.at("kernels").items()) image.kernels.push_back(name.string());
    facts.images.push_back(std::move(image));
  }
  return facts;
}

}  // namespace kiln::build
