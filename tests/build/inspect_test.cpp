// SPDX-License-Identifier: Apache-2.0
//
// Each bad library is a real one: linked here by the host's compiler with the fault in it.
#include "build-matrix/library/inspect.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "build-matrix/base/files.hpp"
#include "build-matrix/base/process.hpp"
#include "build-matrix/library/elf.hpp"
#include "kiln/error.hpp"
#include "kiln/op.hpp"

namespace kiln::build {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBuildId = "0123456789abcdef0123456789abcdef";

// A library as a package is, but for what `extra` adds.
std::string source_with(const std::string& extra) {
  return R"(
    #ifndef KERNEL
    #define KERNEL "scale"
    #endif
    extern "C" __attribute__((visibility("default"))) const char* kiln_package_v1() {
      return "0123456789abcdef0123456789abcdef";
    }
    extern "C" __attribute__((visibility("default"))) int __tvm_ffi_run() { return 0; }
    __attribute__((section(".kiln.image.smxx_scale"), used)) static const char image[] =
        "//\n.version 7.8\n.target sm_80\n.address_size 64\n.visible .entry scale(\n";
    struct KernelSpec { const char* image; const char* function; unsigned shared_bytes; };
    __attribute__((used)) static const KernelSpec kernels[] = {{"smxx_scale", KERNEL, 0}};
    struct Image { const char* stem; const char* bytes; unsigned long size; };
    __attribute__((used)) static const Image images[] = {{"smxx_scale", image, sizeof(image)}};
  )" + extra;
}

constexpr const char* kConstructor =
    "static volatile int made = 0;\n"
    "__attribute__((constructor)) static void make() { made = made + 1; }\n";

constexpr const char* kSignature = "scale.run(x: float32 [N], y!: x [N])";

// A package's op, which states this signature.
std::string op_that_states(std::uint64_t signature) {
  return R"(
    struct Op { unsigned size, reserved; const char *name, *schema; int (*bytes)(); int (*run)();
                unsigned long signature; };
    static int nothing() { return 0; }
    __attribute__((used)) static const Op ops[] = {{sizeof(Op), 0, "run", "{\"name\":\"run\",)"
         R"(\"tensors\":[{\"name\":\"x\",\"dtype\":[\"float32\"],\"shape\":[\"N\"]},)"
         R"({\"name\":\"y\",\"dtype\":\"x\",\"shape\":[\"N\"],\"output\":true}]}", nothing, nothing, )" +
         std::to_string(signature) + "}};\n";
}

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "kiln-inspect-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

  fs::path link(const std::string& name, const std::string& source,
                const std::vector<std::string>& flags = {}) const {
    write_file(path_ / (name + ".cpp"), source);
    const fs::path library = path_ / ("lib" + name + ".so");
    std::vector<std::string> command = {KILN_TEST_CXX,
                                        "-shared",
                                        "-fPIC",
                                        "-O1",
                                        "-fvisibility=hidden",
                                        "-nostartfiles",
                                        "-fno-builtin",
                                        "-nostdlib",
                                        "-Wl,-soname,libscale.so",
                                        "-Wl,-z,noexecstack",
                                        (path_ / (name + ".cpp")).string(),
                                        "-o",
                                        library.string()};
    command.insert(command.end(), flags.begin(), flags.end());
    const Finished finished = run_captured(command);
    REQUIRE_MESSAGE(finished.status == 0, finished.output);
    return library;
  }

 private:
  fs::path path_;
};

Recipe good_recipe() {
  return {.package = "scale",
          .variant = "cu11.8-compute_80-x86_64",
          .cpu = {Arch::kX86_64, 1},
          .glibc = {2, 17},
          .targets = {parse_device_code("compute_80").value()},
          .images = {{"smxx_scale", parse_device_code("compute_80").value()}},
          .build_id = kBuildId};
}

/// An op whose attribute has the image's name among its words.
std::vector<OpSchema> ops_with_words() {
  OpSchema op;
  op.attributes.push_back({.name = "reduction", .values = {"none", "smxx_scale", "sum"}});
  return {op};
}

std::string refusal(const fs::path& library, const Recipe& recipe) {
  try {
    inspect(read_file(library), recipe, ops_with_words(), "", library.parent_path());
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kBuild);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("inspect: a good library gives its facts") {
  const Folder folder;
  const fs::path library = folder.link(
      "good",
      source_with(std::string("extern \"C\" void* memcpy(void*, const void*, unsigned long);") +
                  "void* keep(void* a) { return memcpy(a, image, 4); }"
                  "void* (*volatile held)(void*) = keep;" +
                  op_that_states(signature_hash(kSignature))),
      {"-lc"});
  const Facts facts = inspect(read_file(library), good_recipe(), {}, "", folder.path());
  CHECK(facts.arch == Arch::kX86_64);
  CHECK(facts.glibc == Version{2, 14});
  CHECK(facts.glibc_symbol == "memcpy");
  CHECK(facts.exported == std::vector<std::string>{"__tvm_ffi_run", "kiln_package_v1"});
  CHECK(facts.needed == std::vector<std::string>{"libc.so.6"});
  REQUIRE(facts.images.size() == 1);
  CHECK(facts.images[0].stem == "smxx_scale");
  CHECK(to_string(facts.images[0].code) == "compute_80");
  CHECK(facts.images[0].kernels == std::vector<std::string>{"scale"});
}

TEST_CASE("inspect: each fault is refused by name") {
  const Folder folder;
  folder.link("extra", "__attribute__((visibility(\"default\"))) int extra() { return 1; }",
              {"-Wl,-soname,libextra.so.7"});
  const std::string near = "-L" + folder.path().string();
  std::string many = "__attribute__((used)) static const KernelSpec many[] = {";
  for (int i = 0; i < 256; ++i) many += "{\"smxx_scale\", \"k" + std::to_string(i) + "\", 0}, ";
  many += "};";
  struct Row {
    const char* name;
    std::string source;
    std::vector<std::string> flags;
    const char* refused;
  };
  const Row rows[] = {
      {"export",
       "__attribute__((visibility(\"default\"))) int stray() { return 1; }",
       {},
       "exports _Z5strayv, allowed are kiln_package_v1 and __tvm_ffi_*"},
      {"rpath", "", {"-Wl,-rpath,/opt/lib"}, "has the run path /opt/lib"},
      {"stack", "", {"-Wl,-z,execstack"}, "asks for an executable stack"},
      {"needed", "", {near, "-Wl,--no-as-needed", "-lextra"}, "links libextra.so.7"},
      {"glibc",
       "extern \"C\" int pthread_create(void*, void*, void*, void*);"
       "int (*volatile held)(void*, void*, void*, void*) = pthread_create;",
       {"-lc"},
       "needs GLIBC_2.34 (symbol pthread_create), allowed is 2.17"},
      {"undefined",
       "extern int elsewhere(); int (*volatile held)() = elsewhere;",
       {},
       "needs the symbol _Z9elsewherev, which none of its libraries provides"},
      {"textrel",
       "__asm__(\".text\\n.quad environ\");",
       {"-Wl,-z,notext", "-lc"},
       "has text relocations"},
      {"writable", "", {"-Wl,--omagic"}, "has a segment both writable and executable"},
      {"image",
       "__attribute__((section(\".kiln.image.other\"), used)) static const char more[] ="
       "\"//\\n.target sm_80\\n\";",
       {},
       "holds an image other that the variant does not have"},
      {"kernel",
       "",
       {"-DKERNEL=\"scale_b16\""},
       "kernel_list() names scale_b16 (smxx_scale), which no image has; its images have scale "
       "(smxx_scale), which kernel_list() does not name"},
      {"unlisted",
       "__attribute__((section(\".kiln.image.smxx_scale\"), used)) static const char more[] ="
       "\"//\\n.target sm_80\\n.visible .entry scale_more(\\n\";",
       {},
       "its images have scale_more (smxx_scale), which kernel_list() does not name"},
      {"many", many, {}, "kernel_list() names 257 kernels; at most 256 can be loaded"},
      {"constructor", kConstructor, {}, "runs code of its own when it is loaded (.init_array)"},
      {"init", "extern \"C\" void _init() {}\n", {}, "when it is loaded (DT_INIT)"},
      {"fini", "extern \"C\" void _fini() {}\n", {}, "when it is loaded (DT_FINI)"},
      {"resolver",
       "static int one() { return 1; }\nextern \"C\" int (*choose())() { return one; }\n"
       "__attribute__((ifunc(\"choose\"))) int chosen();\n"
       "__attribute__((used)) static int call() { return chosen(); }\n",
       {},
       "when it is loaded (IRELATIVE)"},
      {"signature",
       op_that_states(7),
       {},
       "op run states the signature 0x0000000000000007, its schema has 0x"},
      {"junk",
       "__attribute__((section(\".kiln.image.junk\"), used)) static const char more[] = \"junk\";",
       {},
       "image junk is neither machine code nor PTX"},
  };
  for (const Row& row : rows) {
    const fs::path library = folder.link(row.name, source_with(row.source), row.flags);
    const std::string text = refusal(library, good_recipe());
    CHECK_MESSAGE(text.starts_with("inspect scale cu11.8-compute_80-x86_64: "), text);
    CHECK_MESSAGE(text.find(row.refused) != std::string::npos, row.name, ": ", text);
  }
}

TEST_CASE("inspect: words of an attribute are no kernels") {
  const Folder folder;
  const std::string words =
      "__attribute__((used)) static const char* const words[] = {\"none\", \"smxx_scale\", WORD};";
  const auto said = [&](const char* word) {
    const std::string flag = std::string("-DWORD=\"") + word + "\"";
    return refusal(folder.link("words", source_with(words), {flag}), good_recipe());
  };
  CHECK(said("sum") == "accepted");
  CHECK(said("add").find("kernel_list() names add (smxx_scale), which no image has") !=
        std::string::npos);
}

TEST_CASE("inspect: a library that is not what its variant promised is refused") {
  const Folder folder;
  const fs::path library = folder.link("good", source_with(""));
  struct Row {
    void (*change)(Recipe&);
    const char* refused;
  };
  const Row rows[] = {
      {[](Recipe& r) { r.cpu.arch = Arch::kAarch64; }, "is for x86_64, expected aarch64"},
      {[](Recipe& r) { r.package = "other"; }, "expected \"libother.so\""},
      {[](Recipe& r) { r.build_id[0] = 'f'; }, "does not carry the build id f123"},
      {[](Recipe& r) { r.images[0].code = parse_device_code("compute_90").value(); },
       "image smxx_scale is for compute_80, expected compute_90"},
      {[](Recipe& r) {
         r.images.push_back({"sm90_scale", r.targets.front()});
       },
       "holds no image sm90_scale"},
  };
  CHECK(refusal(library, good_recipe()) == "accepted");
  for (const Row& row : rows) {
    Recipe recipe = good_recipe();
    row.change(recipe);
    const std::string text = refusal(library, recipe);
    CHECK_MESSAGE(text.find(row.refused) != std::string::npos, text);
  }
}

TEST_CASE("inspect: on CPUs with AMX the SDK has a constructor, and the package none") {
  // As zig compiles it, but for what is asked for and what is called; build_end_to_end_test has
  // the real one.
  const auto constructor = [](const std::string& first, const std::string& feature) {
    return "asm(\".text; ask_" + feature + ": endbr64; " + first +
           "; mov %rsp, %rbp; mov $158, %edi; mov $0x1023, %esi; mov $" + feature +
           ", %edx; xor %eax, %eax; pop %rbp; .byte 0xe9; .long 0; ret;"
           ".section .init_array, \\\"aw\\\"; .quad ask_" +
           feature + "\");\n";
  };
  const std::string of_sdk = constructor("push %rbp", "18");
  struct Row {
    const char* name;
    std::string extra;
    bool accepted;
  };
  const Row rows[] = {
      {"sdk", of_sdk, true},
      {"package", kConstructor, false},
      {"both", of_sdk + kConstructor, false},
      {"before", kConstructor + of_sdk, false},
      {"another", constructor("push %rbp", "19"), false},
      {"more", constructor("incl (%rsp); push %rbp", "18"), false},
      {"nowhere", "asm(\".section .init_array, \\\"aw\\\"; .quad 0\");\n", false},
  };
  Recipe recipe = good_recipe();
  for (const Row& row : rows) {
    const Folder folder;
    const fs::path library = folder.link(row.name, source_with(row.extra));
    recipe.cpu = parse_cpu_level("x86-64-v4-amx").value();
    const std::string text = refusal(library, recipe);
    CHECK_MESSAGE((text == "accepted") == row.accepted, row.name, ": ", text);
    if (!row.accepted) CHECK(text.find("(.init_array)") != std::string::npos);
    recipe.cpu = good_recipe().cpu;
    CHECK(refusal(library, recipe).find("(.init_array)") != std::string::npos);
  }
}

TEST_CASE("inspect: a library without the entry point is refused") {
  const Folder folder;
  const fs::path library =
      folder.link("empty", "__attribute__((visibility(\"default\"))) int x = 1;");
  CHECK(refusal(library, good_recipe()).find("does not export kiln_package_v1") !=
        std::string::npos);
}

TEST_CASE("elf: cut short or damaged at any place, a file is read or refused and never overrun") {
  const Folder folder;
  const std::string good = read_file(folder.link("good", source_with("")));
  CHECK_THROWS_AS(read_elf("", "elf"), Error);
  CHECK_THROWS_AS(read_elf(good.substr(0, 63), "elf"), Error);
  CHECK_THROWS_AS(read_elf(good.substr(0, good.size() / 2), "elf"), Error);
  std::size_t refused = 0;
  std::size_t tried = 0;
  for (std::size_t at = 0; at < good.size(); at += at < 1024 ? 1 : 61) {
    for (const char bits : {'\x01', '\x80', '\xff'}) {
      // A copy of exactly this size on the heap, so that a sanitizer sees an overrun.
      std::vector<char> damaged(good.begin(), good.end());
      damaged[at] = static_cast<char>(damaged[at] ^ bits);
      ++tried;
      try {
        read_elf({damaged.data(), damaged.size()}, "elf");
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kBuild);
        ++refused;
      }
    }
  }
  CHECK(refused > 50);
  CHECK(refused < tried);
}

}  // namespace
}  // namespace kiln::build
