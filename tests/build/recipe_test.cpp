// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/plan/recipe.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "build-matrix/compilers/nvrtc.hpp"
#include "build-matrix/steps/report.hpp"
#include "build-matrix/steps/step.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace {

Package example_package() {
  Package package{.name = "geglu-mlp", .version = 4, .min_loader = "0.1.0"};
  package.cuda.host = {"csrc/package.cpp"};
  return package;
}

VariantPlan example_plan() {
  return {.id = "cu12.9-sm_90a-aarch64",
          .cpu = {Arch::kAarch64, 1},
          .toolkit = Version{12, 9},
          .min_driver = Version{12, 0},
          .target = parse_device_code("sm_90a"),
          .host = {"csrc/package.cpp"},
          .images = {{"csrc/smxx_gemm.cu", "smxx_gemm", parse_device_code("sm_90").value()}},
          .libraries = {"libcublasLt.so.12"}};
}

Ingredients example_ingredients() {
  return {.sources = {{"package/csrc/package.cpp", "aa"}, {"sdk/src/check.cpp", "bb"}},
          .host_flags = {"-O2"},
          .device_options = {"-std=c++17"},
          .device_compiler = {"nvrtc", "12.9.86"},
          .zig = "0.15.2"};
}

TEST_CASE("recipe: it comes back from its JSON as it was") {
  const Recipe gpu = make_recipe(example_package(), example_plan(), {2, 17}, example_ingredients());
  CHECK(parse_recipe(dump_json(to_json(gpu)), "recipe") == gpu);
  CHECK(gpu.images ==
        std::vector<Recipe::Image>{{"smxx_gemm", parse_device_code("sm_90").value()}});
  CHECK(gpu.library() == "libgeglu_mlp.so");
  CHECK(gpu.libraries == std::vector<std::string>{"libcublasLt.so.12"});
  CHECK(Json::parse(gpu.build).at("nvrtc") == "12.9.86");

  VariantPlan plan{.id = "cpu-x86-64-v3", .cpu = {Arch::kX86_64, 3}, .host = {"csrc/cpu.cpp"}};
  Ingredients ingredients = example_ingredients();
  ingredients.device_compiler = {};
  const Recipe cpu = make_recipe(example_package(), plan, {2, 17}, ingredients);
  CHECK(parse_recipe(dump_json(to_json(cpu)), "recipe") == cpu);
  CHECK(cpu.libraries.empty());
  CHECK_FALSE(Json::parse(cpu.build).contains("nvrtc"));
}

TEST_CASE("recipe: the build id changes with everything that the library is made of") {
  const auto id = [](const VariantPlan& plan, Version glibc, const Ingredients& ingredients) {
    return make_recipe(example_package(), plan, glibc, ingredients).build_id;
  };
  const std::string base = id(example_plan(), {2, 17}, example_ingredients());
  CHECK(base.size() == 32);
  CHECK(base == id(example_plan(), {2, 17}, example_ingredients()));
  CHECK(base != id(example_plan(), {2, 28}, example_ingredients()));
  VariantPlan other = example_plan();
  other.id = "cu12.9-sm_90a-x86_64";
  CHECK(base != id(other, {2, 17}, example_ingredients()));
  other = example_plan();
  other.images[0].code = parse_device_code("sm_90a").value();
  CHECK(base != id(other, {2, 17}, example_ingredients()));
  void (*const changes[])(Ingredients&) = {
      [](Ingredients& i) { i.sources["package/csrc/package.cpp"] = "ab"; },
      [](Ingredients& i) { i.sources["package/csrc/new.h"] = "cc"; },
      [](Ingredients& i) { i.host_flags.push_back("-g"); },
      [](Ingredients& i) { i.device_options.push_back("-DX"); },
      [](Ingredients& i) { i.device_compiler.second = "12.9.87"; },
      [](Ingredients& i) { i.zig = "0.16.0"; },
  };
  for (const auto change : changes) {
    Ingredients ingredients = example_ingredients();
    change(ingredients);
    CHECK(base != id(example_plan(), {2, 17}, ingredients));
  }
}

TEST_CASE("step: what a compiler read is taken out of make's words") {
  using Paths = std::vector<std::filesystem::path>;
  CHECK(parse_read_list("a.o: /x/a.c \\\n  /x/with\\ blank.h /x/$$c.h\n") ==
        Paths{"/x/a.c", "/x/with blank.h", "/x/$c.h"});
  CHECK(parse_read_list("a.o:").empty());
  CHECK(parse_read_list("").empty());
}

TEST_CASE("step: an undefined symbol is explained to who writes a package") {
  CHECK(explain_undefined("ld.lld: error: duplicate symbol: f\n").empty());
  const std::string runtime =
      explain_undefined("ld.lld: error: undefined symbol: operator new(unsigned long)\n>>> x\n");
  CHECK(runtime.starts_with("operator new(unsigned long) is of the C++ runtime, which a package"));
  CHECK(runtime.find("call.workspace") != std::string::npos);
  CHECK(explain_undefined("error: undefined symbol: helper(int)\n")
            .starts_with("helper(int) is defined by no source of the package"));
}

TEST_CASE("nvrtc: what changes from run to run is not kept of the log") {
  CHECK(
      stable_log("ptxas info    : Used 10 registers\n\nptxas info    : Compile time = 2.0 ms\n") ==
      "ptxas info    : Used 10 registers\n");
  CHECK(device_options(parse_device_code("sm_120").value()).back() == "-DKILN_SM=1200");
  CHECK(device_options(parse_device_code("sm_90a").value()).back() == "-DKILN_SM=900");
}

TEST_CASE("ptxas: each kernel's registers and spills, in the words of three toolkits") {
  const std::string head = "== csrc/a.cu for sm_80, 5 bytes\nptxas info    : 284 bytes gmem\n";
  const auto entry = [](const std::string& kernel, const std::string& spills,
                        const std::string& registers) {
    return "ptxas info    : Compiling entry function '" + kernel + "' for 'sm_80'\n" +
           "ptxas info    : Function properties for " + kernel + "\n" + spills + registers;
  };
  const std::string none =
      "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
  const std::string some =
      "    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n";
  const std::string old_words = "ptxas info    : Used 165 registers, 448 bytes cmem[0]\n";
  const std::string new_words = "ptxas info    : Used 71 registers, used 1 barriers\n";
  CHECK(read_ptxas("", "log").empty());
  CHECK(read_ptxas("== csrc/a.cu for compute_80\nPTX: the driver chooses\n", "log").empty());
  const auto kernels =
      read_ptxas(head + entry("first", none, old_words) + entry("second", some, new_words), "log");
  CHECK(kernels ==
        std::vector<KernelUse>{{"first", "sm_80", 165, 0, 0}, {"second", "sm_80", 71, 16, 32}});
  for (const std::string& silent : {entry("first", "", old_words), entry("first", none, ""),
                                    entry("first", none, "") + entry("second", none, new_words)}) {
    try {
      read_ptxas(silent, "the log");
      FAIL("nothing was thrown");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBuild);
      CHECK(std::string(error.what()).find("the log: ptxas does not say") == 0);
      CHECK(std::string(error.what()).find("first for sm_80") != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kiln::build
