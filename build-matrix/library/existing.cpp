// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/library/existing.hpp"

#include <elf.h>

#include <algorithm>
#include <utility>

#include "base/join.hpp"
#include "base/quote.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/codegen/calls.hpp"
#include "build-matrix/library/device_code.hpp"
#include "build-matrix/library/elf.hpp"
#include "build-matrix/library/linkage.hpp"
#include "build-matrix/library/table.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRemedy =
    "name it in \"needs\", so that the resolver looks for it, or link the library without it";
constexpr std::string_view kRemedyOfTvmFfi =
    "name it in \"needs\", so that the resolver looks for it, or bring its file along in "
    "\"carries\"";

std::string stated(const std::vector<std::string>& names) {
  return names.empty() ? "none" : join(names);
}

void check_functions(const ElfLibrary& library, const Binary& binary,
                     std::vector<std::string>& violations) {
  constexpr std::string_view kPrefix = "__tvm_ffi_";
  std::vector<std::string> offered;
  for (const std::string& name : library.exported) {
    if (name.starts_with(kPrefix) && !name.starts_with("__tvm_ffi__")) {
      offered.push_back(name.substr(kPrefix.size()));
    }
  }
  for (const FunctionCall& call : binary.functions) {
    if (std::ranges::find(offered, call.name) != offered.end()) continue;
    violations.push_back("does not export " + std::string(kPrefix) + call.name + ", which the op " +
                         call.op + " calls; the functions that it exports: " + stated(offered));
  }
}

/// It goes into documents, and says which build this is.
void check_build_id(const std::string& build_id, std::vector<std::string>& violations) {
  constexpr std::size_t kLongest = 128;  // SHA-512 in hexadecimal
  const bool fits = !build_id.empty() && build_id.size() <= kLongest && is_word(build_id, "-_.");
  if (fits) return;
  violations.push_back("has the build id " + quote(build_id) +
                       " in its table, expected 1 to 128 letters, digits, '-', '_' and '.'");
}

/// The lowest level of the psABI that a linker noted, as `-z x86-64-v3` makes it.
void check_level(const ElfLibrary& library, const Binary& binary,
                 std::vector<std::string>& violations) {
  if (binary.cpu.arch != Arch::kX86_64 || library.x86_level <= binary.cpu.level) return;
  violations.push_back("is for " + to_string(CpuLevel{Arch::kX86_64, library.x86_level}) +
                       ", by its GNU property note; stated is " + to_string(binary.cpu));
}

bool has_fatbins(const ElfLibrary& library) {
  return std::ranges::any_of(library.sections, [](const ElfSection& section) {
    return section.name == ".nv_fatbin" || section.name == "__nv_relfatbin";
  });
}

std::string targets_text(const std::vector<EmbeddedCode>& found) {
  std::set<std::string> words;
  for (const EmbeddedCode& each : found) words.insert(to_string(each.code));
  return join(words);
}

/// What is stated has an image, and PTX is compiled by a driver of the toolkit's version. Code that
/// is nowhere in a fatbin cannot be seen: there the word of the author stands.
void check_device_code(const Binary& binary, const std::vector<EmbeddedCode>& found,
                       std::vector<std::string>& violations) {
  if (found.empty()) return;
  for (const DeviceCode& target : binary.targets) {
    const auto image = std::ranges::find(found, target, &EmbeddedCode::code);
    if (image == found.end()) {
      violations.push_back("has no device code for " + to_string(target) +
                           ", which is stated, but " + targets_text(found));
    }
  }
  for (const EmbeddedCode& each : found) {
    if (std::ranges::find(binary.targets, each.code) == binary.targets.end()) continue;
    const Version toolkit = *binary.toolkit;
    if (each.ptx && driver_of_ptx(*each.ptx) > toolkit) {
      violations.push_back("has PTX " + to_string(*each.ptx) + " for " + to_string(each.code) +
                           ", which needs a driver of CUDA " + to_string(driver_of_ptx(*each.ptx)) +
                           "; stated is the toolkit " + to_string(toolkit));
    }
    if (each.toolkit && each.toolkit->major > toolkit.major) {
      violations.push_back("has machine code for " + to_string(each.code) + " of CUDA " +
                           to_string(*each.toolkit) + "; stated is the toolkit " +
                           to_string(toolkit));
    }
  }
}

std::string to_text(std::uint64_t number) {
  return std::to_string(number);
}

std::string bytes_text(const std::vector<std::uint64_t>& bytes) {
  return join(bytes, ", ", to_text);
}

/// Whether a block of so many threads, in one dimension, is one that the kernel is compiled for.
bool takes_block(const DeviceKernel& kernel, std::uint64_t threads) {
  if (kernel.block.empty()) return true;
  std::uint64_t most = 1;
  for (const std::uint64_t extent : kernel.block) most *= extent;
  return kernel.exactly ? threads == most && threads == kernel.block[0] : threads <= most;
}

/// Each kernel that is launched is in the code of each target, with as many parameters of as many
/// bytes as are passed, and compiled for such blocks.
void check_launches(const Binary& binary, const std::vector<EmbeddedCode>& found,
                    std::vector<std::string>& violations) {
  for (const EmbeddedCode& each : found) {
    if (std::ranges::find(binary.targets, each.code) == binary.targets.end()) continue;
    for (const ImageLaunch& launch : binary.launches) {
      const std::string where = " for " + to_string(each.code);
      const auto kernel = std::ranges::find(each.kernels, launch.kernel, &DeviceKernel::name);
      if (kernel == each.kernels.end()) {
        violations.push_back("has no kernel " + launch.kernel + where +
                             "; its kernels: " + join(each.kernels, ", ", &DeviceKernel::name));
      } else if (kernel->parameters != argument_bytes(launch)) {
        violations.push_back("its kernel " + launch.kernel + where + " has " +
                             std::to_string(kernel->parameters.size()) + " parameters, of " +
                             bytes_text(kernel->parameters) + " bytes; stated are " +
                             std::to_string(launch.arguments.size()) + ", of " +
                             bytes_text(argument_bytes(launch)));
      } else if (!takes_block(*kernel, launch.threads)) {
        violations.push_back("its kernel " + launch.kernel + where + " is compiled for blocks of " +
                             (kernel->exactly ? "" : "at most ") +
                             join(kernel->block, " x ", to_text) + " threads; stated are " +
                             std::to_string(launch.threads));
      }
    }
  }
}

Existing check_image(const Package& package, const Binary& binary, const fs::path& file,
                     const fs::path& cuobjdump) {
  const std::string subject = "pack " + package.name + " " + binary.file;
  const std::string bytes = read_file(file);
  if (bytes.starts_with(ELFMAG)) cubin_kernels(bytes, subject);  // it is whole
  std::vector<std::string> violations;
  const std::vector<EmbeddedCode> found = read_device_code(file, cuobjdump);
  if (found.empty()) {
    violations.emplace_back("is neither a cubin nor PTX nor a fatbin, or has no code");
  }
  check_device_code(binary, found, violations);
  check_launches(binary, found, violations);
  if (!violations.empty()) {
    throw Error(ErrorCode::kBuild, subject + ": " + join(violations, "; "));
  }
  Existing existing;
  for (const EmbeddedCode& each : found) {
    Image image{.stem = fs::path(binary.file).stem().string(),
                .code = each.code,
                .size = bytes.size(),
                .kernels = {}};
    for (const DeviceKernel& kernel : each.kernels) image.kernels.push_back(kernel.name);
    std::ranges::sort(image.kernels);
    existing.facts.images.push_back(std::move(image));
  }
  existing.sonames = {binary.file};
  return existing;
}

/// What a file may ask for: all that is looked for on the user's machine, and what is carried
/// before it, whose symbols are known.
Allowance allowance_of(const Binary& binary, const ElfLibrary& library,
                       const std::vector<std::string>& sonames,
                       const std::set<std::string>& provided) {
  Allowance allowed{.cpu = binary.cpu,
                    .glibc = binary.glibc,
                    .libraries = binary.needs,
                    .provided = provided,
                    .remedy = binary.abi == Binary::Abi::kKiln ? kRemedy : kRemedyOfTvmFfi};
  const auto is_elsewhere = [&](const std::string& soname) {
    return std::ranges::find(binary.needs, soname) != binary.needs.end();
  };
  if (std::ranges::any_of(library.needed, is_elsewhere)) allowed.provided.reset();
  allowed.libraries.insert(allowed.libraries.end(), sonames.begin(), sonames.end());
  return allowed;
}

}  // namespace

Existing check_existing(const Package& package, const Binary& binary,
                        const std::vector<fs::path>& files, const fs::path& cuobjdump) {
  if (binary.abi == Binary::Abi::kCuda) {
    return check_image(package, binary, files.back(), cuobjdump);
  }
  Existing existing;
  Facts& facts = existing.facts;
  facts.arch = binary.cpu.arch;
  std::set<std::string> provided;
  std::vector<std::string> violations;
  std::string subject;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const bool is_itself = i + 1 == files.size();
    const std::string& name = is_itself ? binary.file : binary.carries[i];
    subject = "pack " + package.name + " " + name;
    const std::string bytes = read_file(files[i]);
    const ElfLibrary library = read_elf(bytes, subject);
    const AskedGlibc asked = check_linkage(
        library, allowance_of(binary, library, existing.sonames, provided), violations);
    if (asked.version > facts.glibc || facts.glibc_symbol.empty()) {
      facts.glibc = asked.version;
      facts.glibc_symbol = asked.symbol;
    }
    check_level(library, binary, violations);
    if (!is_itself && library.soname.empty()) {
      violations.emplace_back("has no soname, by which those that link it would find it");
    }
    if (is_itself) {
      facts.exported = library.exported;
      facts.needed = library.needed;
      if (!binary.toolkit && has_fatbins(library)) {
        violations.emplace_back(
            "has fatbins; state in \"cuda\" which toolkit made them, for which targets");
      } else if (has_fatbins(library)) {
        check_device_code(binary, read_device_code(files[i], cuobjdump), violations);
      }
      if (binary.abi == Binary::Abi::kKiln) {
        existing.build_id = check_table(library, package, binary, violations);
        check_build_id(existing.build_id, violations);
      } else {
        check_functions(library, binary, violations);
      }
    }
    if (!violations.empty()) {
      throw Error(ErrorCode::kBuild, subject + ": " + join(violations, "; "));
    }
    existing.sonames.push_back(library.soname);
    provided.insert(library.exported.begin(), library.exported.end());
  }
  return existing;
}

Facts inspect_existing(const Package& package, const Binary& binary, const fs::path& library,
                       const Recipe& recipe, const fs::path& cuobjdump, const fs::path& scratch) {
  if (binary.abi == Binary::Abi::kKiln) {
    return check_existing(package, binary, {library}, cuobjdump).facts;
  }
  const std::string bytes = read_file(library);
  Facts facts = inspect(bytes, recipe, package.ops, cuobjdump, scratch);
  const ElfLibrary elf = read_elf(bytes, "inspect " + recipe.subject());
  std::vector<fs::path> files;
  for (std::size_t i = 0; i <= binary.carries.size(); ++i) {
    const auto section = std::ranges::find(elf.sections, carried_section(i), &ElfSection::name);
    if (section == elf.sections.end()) {
      throw Error(ErrorCode::kBuild, "inspect " + recipe.subject() + ": has no section " +
                                         carried_section(i) + " with a file of package.json");
    }
    files.push_back(scratch / (std::to_string(i) + ".carved"));
    std::string_view content = section->bytes;
    if (binary.abi == Binary::Abi::kCuda && is_ptx(content)) content.remove_suffix(1);  // its NUL
    write_file(files.back(), content);
  }
  Facts inside = check_existing(package, binary, files, cuobjdump).facts;
  facts.images = std::move(inside.images);
  for (const fs::path& file : files) fs::remove(file);
  if (inside.glibc > facts.glibc) {
    facts.glibc = inside.glibc;
    facts.glibc_symbol = inside.glibc_symbol;
  }
  return facts;
}

}  // namespace kiln::build
