// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/library/inspect.hpp"

#include <elf.h>
#include <kiln/abi.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/join.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/library/device_code.hpp"
#include "build-matrix/library/elf.hpp"
#include "build-matrix/library/linkage.hpp"
#include "build-matrix/library/signatures.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

void check_exports(const ElfLibrary& library, std::vector<std::string>& violations) {
  const std::string entry = KILN_PACKAGE_SYMBOL;
  for (const std::string& name : library.exported) {
    if (name != entry && !name.starts_with("__tvm_ffi_")) {
      violations.push_back("exports " + name +
                           ", allowed are " KILN_PACKAGE_SYMBOL " and __tvm_ffi_*");
    }
  }
  if (!std::ranges::binary_search(library.exported, entry)) {
    violations.push_back("does not export " + entry);
  }
}

/// The SDK's constructor on CPUs with AMX (host.cpp), as the pinned zig compiles it: it calls a
/// function with the number of arch_prctl, ARCH_REQ_XCOMP_PERM and the tiles, and does nothing
/// else.
constexpr char kAskForTiles[] =
    "\xf3\x0f\x1e\xfa"   // endbr64
    "\x55\x48\x89\xe5"   // push %rbp; mov %rsp, %rbp
    "\xbf\x9e\0\0\0"     // mov $158, %edi
    "\xbe\x23\x10\0\0"   // mov $0x1023, %esi
    "\xba\x12\0\0\0"     // mov $18, %edx
    "\x31\xc0\x5d\xe9";  // xor %eax, %eax; pop %rbp; jmp

bool asks_for_tiles(const ElfLibrary& library, const ElfSection& constructors) {
  const auto first = library.pointers.find(constructors.address);
  return constructors.bytes.size() == sizeof(std::uint64_t) && first != library.pointers.end() &&
         library.bytes_at(first->second)
             .starts_with(std::string_view(kAskForTiles, sizeof(kAskForTiles) - 1));
}

/// Code that runs at the load, before the loader has asked the library what it is.
void check_constructors(const ElfLibrary& library, const Recipe& recipe,
                        std::vector<std::string>& violations) {
  std::set<std::string> found = library.run_at_load;
  for (const ElfSection& section : library.sections) {
    const bool begins = section.name == ".init_array";
    if ((!begins && section.name != ".fini_array") || section.bytes.empty()) continue;
    const bool of_sdk = begins && recipe.cpu == parse_cpu_level("x86-64-v4-amx");
    if (!of_sdk || !asks_for_tiles(library, section)) found.insert(section.name);
  }
  if (found.empty()) return;
  violations.push_back("runs code of its own when it is loaded (" + join(found) +
                       "); a package has no global constructors or destructors: make the "
                       "variable constexpr, or compute it in the call");
}

void check_images(const Facts& facts, const Recipe& recipe, std::vector<std::string>& violations) {
  for (const Recipe::Image& image : recipe.images) {
    const auto found = std::ranges::find(facts.images, image.stem, &Image::stem);
    if (found == facts.images.end()) {
      violations.push_back("holds no image " + image.stem);
    } else if (found->code != image.code) {
      violations.push_back("image " + image.stem + " is for " + to_string(found->code) +
                           ", expected " + to_string(image.code));
    }
  }
  for (const Image& image : facts.images) {
    if (std::ranges::find(recipe.images, image.stem, &Recipe::Image::stem) == recipe.images.end()) {
      violations.push_back("holds an image " + image.stem + " that the variant does not have");
    }
  }
}

/// Each kernel as its image and its function.
using KernelNames = std::set<std::pair<std::string, std::string>>;

/// A KernelSpec of the SDK lies in the library's data as two pointers to text, the first of them an
/// image's name, and then a number. kernel_list() is not a symbol of the linked library, so this is
/// found by its shape. An sdk::Image, which has it too, points from its name to an image, and the
/// kiln_package from the package's name, which may be an image's, to the build id.
KernelNames listed_kernels(const ElfLibrary& library, const Facts& facts,
                           const std::string& build_id) {
  constexpr std::uint64_t kPointer = 8;
  const auto is_function = [](std::string_view name) {
    return !name.empty() && is_word(name, "_");
  };
  KernelNames listed;
  for (const auto& [place, target] : library.pointers) {
    const auto second = library.pointers.find(place + kPointer);
    if (second == library.pointers.end()) continue;
    if (library.pointers.contains(place + 2 * kPointer)) continue;
    const std::string stem(library.text_at(target));
    const std::string function(library.text_at(second->second));
    const bool known = std::ranges::find(facts.images, stem, &Image::stem) != facts.images.end();
    if (known && is_function(function) && function != build_id) listed.emplace(stem, function);
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

/// Words of an attribute that stand one behind another in the table of them, which has the shape of
/// a KernelSpec at its end.
KernelNames neighbouring_words(const std::vector<OpSchema>& ops) {
  KernelNames words;
  for (const OpSchema& op : ops) {
    for (const AttributeSchema& attribute : op.attributes) {
      for (std::size_t i = 1; i < attribute.values.size(); ++i) {
        words.emplace(attribute.values[i - 1], attribute.values[i]);
      }
    }
  }
  return words;
}

void check_kernels(const ElfLibrary& library, const Facts& facts, const std::string& build_id,
                   const std::vector<OpSchema>& ops, std::vector<std::string>& violations) {
  KernelNames compiled;
  for (const Image& image : facts.images) {
    for (const std::string& kernel : image.kernels) compiled.emplace(image.stem, kernel);
  }
  const KernelNames listed = listed_kernels(library, facts, build_id);
  const KernelNames words = neighbouring_words(ops);
  KernelNames known = words;
  known.insert(compiled.begin(), compiled.end());
  const std::string only_listed = only_in(listed, known);
  const std::string only_compiled = only_in(compiled, listed);
  if (!only_listed.empty()) {
    violations.push_back("kernel_list() names " + only_listed + ", which no image has");
  }
  const auto count = std::ranges::count_if(listed, [&](const KernelNames::value_type& each) {
    return compiled.contains(each) || !words.contains(each);
  });
  if (static_cast<std::size_t>(count) > kMaxKernels) {
    violations.push_back("kernel_list() names " + std::to_string(count) + " kernels; at most " +
                         std::to_string(kMaxKernels) + " can be loaded");
  }
  if (!only_compiled.empty()) {
    violations.push_back("its images have " + only_compiled +
                         ", which kernel_list() does not name");
  }
}

/// What one embedded image is compiled for, and its kernels. Throws Error(kBuild).
Image read_image(const std::string& stem, std::string_view bytes, const fs::path& cuobjdump,
                 const fs::path& scratch) {
  Image image{.stem = stem, .code = {}, .size = bytes.size(), .kernels = {}};
  if (!bytes.starts_with(ELFMAG)) {
    const std::vector<EmbeddedCode> modules = read_ptx(bytes);
    if (modules.empty()) {
      throw Error(ErrorCode::kBuild, "is neither machine code nor PTX with a .target line");
    }
    image.code = modules.front().code;
    for (const EmbeddedCode& module : modules) {
      for (const DeviceKernel& kernel : module.kernels) image.kernels.push_back(kernel.name);
    }
    std::ranges::sort(image.kernels);
    return image;
  }
  image.kernels = cubin_kernels(bytes, "is a cubin");
  const fs::path carved = scratch / (stem + ".carved.cubin");
  write_file(carved, bytes);
  const std::vector<EmbeddedCode> listed = list_cubins(carved, cuobjdump);
  if (listed.empty()) throw Error(ErrorCode::kBuild, "is a cubin, and cuobjdump names no GPU");
  image.code = listed.front().code;
  fs::remove(carved);
  return image;
}

void read_images(const ElfLibrary& library, const fs::path& cuobjdump, const fs::path& scratch,
                 Facts& facts, std::vector<std::string>& violations) {
  constexpr std::string_view kPrefix = ".kiln.image.";
  for (const ElfSection& section : library.sections) {
    if (!section.name.starts_with(kPrefix)) continue;
    const std::string stem = section.name.substr(kPrefix.size());
    try {
      facts.images.push_back(read_image(stem, section.bytes, cuobjdump, scratch));
    } catch (const Error& error) {
      violations.push_back("image " + stem + " " + error.what());
    }
  }
}

}  // namespace

Facts inspect(std::string_view library, const Recipe& recipe, const std::vector<OpSchema>& ops,
              const fs::path& cuobjdump, const fs::path& scratch) {
  const std::string subject = "inspect " + recipe.subject();
  const ElfLibrary elf = read_elf(library, subject);
  Facts facts;
  facts.arch = recipe.cpu.arch;
  facts.exported = elf.exported;
  facts.needed = elf.needed;
  std::vector<std::string> violations;
  read_images(elf, cuobjdump, scratch, facts, violations);
  if (elf.soname != recipe.library()) {
    violations.push_back("has the soname \"" + elf.soname + "\", expected \"" + recipe.library() +
                         "\"");
  }
  check_exports(elf, violations);
  check_constructors(elf, recipe, violations);
  const AskedGlibc asked = check_linkage(
      elf,
      {.cpu = recipe.cpu,
       .glibc = recipe.glibc,
       .remedy = "only glibc's own libraries may be in DT_NEEDED, look up the rest at run time and "
                 "list it in \"needs\""},
      violations);
  facts.glibc = asked.version;
  facts.glibc_symbol = asked.symbol;
  check_images(facts, recipe, violations);
  check_kernels(elf, facts, recipe.build_id, ops, violations);
  check_signatures(elf, recipe.package, violations);
  if (library.find(recipe.build_id) == std::string_view::npos) {
    violations.push_back("does not carry the build id " + recipe.build_id);
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

}  // namespace kiln::build
