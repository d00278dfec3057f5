// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/plan/expand.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/join.hpp"
#include "build-matrix/base/files.hpp"
#include "build-matrix/plan/here.hpp"
#include "build-matrix/plan/matrix.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "matrix_paths.hpp"

namespace kiln::build {
namespace {

DeviceCode code(std::string_view text) {
  return parse_device_code(text).value();
}

Matrix shipped_matrix() {
  return parse_matrix(read_file(paths::kMatrix), "matrix.json");
}

Package package_for(const std::vector<std::string>& targets,
                    const std::vector<std::string>& levels) {
  Package package{.name = "scale", .version = 1};
  if (!targets.empty()) {
    package.cuda.host = {"csrc/package.cpp"};
    DeviceSource source{.source = "csrc/smxx_scale.cu", .stem = "smxx_scale"};
    for (const std::string& target : targets) source.targets.push_back(code(target));
    package.cuda.device.push_back(source);
  }
  if (!levels.empty()) {
    package.cpu.host = {"csrc/cpu_package.cpp"};
    for (const std::string& level : levels) {
      package.cpu.levels.push_back(parse_cpu_level(level).value());
    }
  }
  return package;
}

std::vector<std::string> ids(const Expansion& expansion) {
  std::vector<std::string> ids;
  for (const VariantPlan& plan : expansion.variants) ids.push_back(plan.id);
  return ids;
}

std::string reason(const Expansion& expansion, std::string_view id) {
  for (const ExcludedVariant& excluded : expansion.excluded) {
    if (excluded.id == id) return excluded.reason;
  }
  return "";
}

const VariantPlan& plan(const Expansion& expansion, std::string_view id) {
  const auto found = std::find_if(expansion.variants.begin(), expansion.variants.end(),
                                  [id](const VariantPlan& each) { return each.id == id; });
  REQUIRE_MESSAGE(found != expansion.variants.end(), id);
  return *found;
}

TEST_CASE("expand: a variant has the libraries of its target, of its toolkit's major version") {
  Package package = package_for({"sm_90", "sm_100", "compute_80"}, {"x86-64-v3"});
  package.cuda.needs = {{.soname = "libany.so.1"},
                        {.soname = "libcublasLt.so.{cuda_major}", .targets = {code("sm_100")}}};
  const Expansion expansion = expand(shipped_matrix(), package);
  const auto libraries = [&](std::string_view id) { return plan(expansion, id).libraries; };
  using Sonames = std::vector<std::string>;
  CHECK(libraries("cu12.9-sm_100-x86_64") == Sonames{"libany.so.1", "libcublasLt.so.12"});
  CHECK(libraries("cu13.5-sm_100-x86_64") == Sonames{"libany.so.1", "libcublasLt.so.13"});
  CHECK(libraries("cu13.5-sm_90-aarch64") == Sonames{"libany.so.1"});
  CHECK(libraries("cu11.8-compute_80-x86_64") == Sonames{"libany.so.1"});
  CHECK(libraries("cpu-x86-64-v3").empty());
}

TEST_CASE("expand: a target is built by every toolkit and for every host that can") {
  struct Row {
    std::vector<std::string> targets;
    std::vector<std::string> levels;
    std::vector<std::string> expected;
  };
  const Row rows[] = {
      {{"sm_80"}, {}, {"cu11.8-sm_80-x86_64", "cu13.5-sm_80-x86_64"}},
      {{"sm_90"},
       {},
       {"cu11.8-sm_90-x86_64", "cu11.8-sm_90-aarch64", "cu13.5-sm_90-x86_64",
        "cu13.5-sm_90-aarch64"}},
      {{"sm_90a"},
       {},
       {"cu12.9-sm_90a-x86_64", "cu12.9-sm_90a-aarch64", "cu13.5-sm_90a-x86_64",
        "cu13.5-sm_90a-aarch64"}},
      {{"sm_100"},
       {},
       {"cu12.9-sm_100-x86_64", "cu12.9-sm_100-aarch64", "cu13.5-sm_100-x86_64",
        "cu13.5-sm_100-aarch64"}},
      {{"sm_120"}, {}, {"cu12.9-sm_120-x86_64", "cu13.5-sm_120-x86_64", "cu13.5-sm_120-aarch64"}},
      {{"sm_75", "sm_87", "sm_110"},
       {},
       {"cu11.8-sm_75-x86_64", "cu11.8-sm_87-aarch64", "cu13.5-sm_110-aarch64"}},
      {{"compute_80"}, {}, {"cu11.8-compute_80-x86_64", "cu11.8-compute_80-aarch64"}},
      {{}, {"x86-64-v4", "armv8-a"}, {"cpu-x86-64-v4", "cpu-armv8-a"}},
      {{"compute_80"},
       {"x86-64-v3"},
       {"cu11.8-compute_80-x86_64", "cu11.8-compute_80-aarch64", "cpu-x86-64-v3"}},
  };
  for (const Row& row : rows) {
    CHECK(ids(expand(shipped_matrix(), package_for(row.targets, row.levels))) == row.expected);
  }
}

TEST_CASE("expand: a package for every target has 31 variants, and each other one has a reason") {
  const Expansion expansion =
      expand(shipped_matrix(),
             package_for({"sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100",
                          "sm_110", "sm_120", "compute_80"},
                         {"x86-64-v3", "x86-64-v4", "x86-64-v4-bf16", "x86-64-v4-amx", "armv8-a"}));
  CHECK(expansion.variants.size() == 31);
  CHECK(expansion.excluded.size() == 40);
  for (const ExcludedVariant& excluded : expansion.excluded) CHECK_FALSE(excluded.reason.empty());
}

TEST_CASE("expand: a package with headers has what they compile with, by the toolkits that can") {
  Package package = package_for({"sm_80", "sm_87", "compute_80"}, {});
  package.cuda.headers = {"cccl"};
  const Expansion expansion = expand(shipped_matrix(), package);
  CHECK(ids(expansion) ==
        std::vector<std::string>{"cu12.9-sm_80-x86_64", "cu12.9-compute_80-x86_64",
                                 "cu12.9-sm_87-aarch64", "cu12.9-compute_80-aarch64",
                                 "cu13.5-sm_80-x86_64", "cu13.5-sm_87-aarch64"});
  CHECK(reason(expansion, "cu11.8-sm_80-x86_64") == "CCCL and CUTLASS need CUDA 12");
  CHECK(plan(expansion, "cu13.5-sm_80-x86_64").headers == package.cuda.headers);
  CHECK_THROWS_WITH(expand(shipped_matrix(),
                           [&] {
                             package.cuda.headers = {"cub"};
                             return package;
                           }()),
                    doctest::Contains("headers \"cub\" is not in the build matrix"));
}

TEST_CASE(
    "expand: Triton has machine code of CUDA 12 and 13 for each target, and PTX of the oldest") {
  Package package{.name = "scale", .version = 1};
  package.ops = {{.name = "scale", .tensors = {{.name = "x", .dtypes = {"float32"}}}}};
  package.cuda.launch.targets = {code("sm_80"), code("sm_110"), code("compute_80")};
  package.cuda.launch.launches = {
      {.op = "scale",
       .source = "csrc/scale.py",
       .kernel = "scale",
       .grid = {"1"},
       .arguments = {{.parameter = "x_ptr", .kind = KernelArgument::Kind::kTensor, .value = "x"}},
       .instances = {{.name = "any"}}}};
  const Expansion expansion = expand(shipped_matrix(), package);
  CHECK(ids(expansion) == std::vector<std::string>{"cu11.8-compute_80-x86_64",
                                                   "cu11.8-compute_80-aarch64",
                                                   "cu12.9-sm_80-x86_64", "cu13.5-sm_80-x86_64",
                                                   "cu13.5-sm_110-aarch64"});
  CHECK(reason(expansion, "cu11.8-sm_80-x86_64").find("no ptxas for drivers of CUDA 11") !=
        std::string::npos);
  const VariantPlan& one = plan(expansion, "cu12.9-sm_80-x86_64");
  CHECK(one.is_triton());
  CHECK(one.host.empty());
  REQUIRE(one.images.size() == 1);
  CHECK(one.images[0].source == "csrc/scale.py");
  CHECK(one.images[0].forms.size() == 1);
  CHECK(one.min_driver == Version{12, 0});
  CHECK(ptx_version({11, 8}) == 78);
  CHECK(ptx_version({12, 0}) == 80);
  CHECK(ptx_version({12, 9}) == 88);
  CHECK(ptx_version({13, 5}) == 90);  // the newest that Triton's LLVM writes
  CHECK(ptxas_for({12, 9}) == "ptxas");
  CHECK(ptxas_for({13, 5}) == "ptxas-blackwell");
}

TEST_CASE("expand: what is not built says why") {
  const Expansion expansion = expand(shipped_matrix(), package_for({"sm_90a"}, {"x86-64-v3"}));
  CHECK(reason(expansion, "cu11.8-sm_90a-x86_64").find("12.0 is the first") != std::string::npos);
  CHECK(reason(expansion, "cu13.5-sm_80-x86_64") == "no device source of scale targets sm_80");
  CHECK(reason(expansion, "cu13.5-sm_80-aarch64").find("PTX of compute_80") != std::string::npos);
  CHECK(reason(expansion, "cu12.9-sm_80-x86_64").find("11.8 compiles") != std::string::npos);
  CHECK(reason(expansion, "cpu-armv8-a") == "scale does not list this CPU level");
  CHECK(plan(expansion, "cu12.9-sm_90a-x86_64").risk.find("12.8 to 13.2") != std::string::npos);
  CHECK(plan(expansion, "cu13.5-sm_90a-x86_64").risk.empty());
}

TEST_CASE("expand: the driver floor is the first of the toolkit's major, for PTX the toolkit") {
  const Expansion expansion =
      expand(shipped_matrix(), package_for({"sm_90", "sm_90a", "compute_80"}, {}));
  struct Row {
    std::string_view id;
    Version min_driver;
  };
  const Row rows[] = {{"cu11.8-sm_90-x86_64", {11, 0}},
                      {"cu12.9-sm_90a-aarch64", {12, 0}},
                      {"cu13.5-sm_90-x86_64", {13, 0}},
                      {"cu11.8-compute_80-x86_64", {11, 8}}};
  for (const Row& row : rows) CHECK(plan(expansion, row.id).min_driver == row.min_driver);
}

TEST_CASE("expand: a variant holds the device sources that target it, and no others") {
  using Images = std::vector<std::string>;
  const auto images = [](const std::vector<std::string>& smxx_targets) {
    Package package = package_for(smxx_targets, {});
    package.cuda.device.push_back(
        {.source = "csrc/sm90_scale.cu", .stem = "sm90_scale", .targets = {code("sm_90a")}});
    std::map<std::string, Images> of_variant;
    for (const VariantPlan& plan : expand(shipped_matrix(), package).variants) {
      for (const ImagePlan& image : plan.images) {
        of_variant[plan.id].push_back(image.stem + ":" + to_string(image.code));
      }
    }
    return of_variant;
  };
  std::map<std::string, Images> both = images({"sm_80", "sm_90a"});
  CHECK(both["cu13.5-sm_80-x86_64"] == Images{"smxx_scale:sm_80"});
  CHECK(both["cu12.9-sm_90a-x86_64"] == Images{"smxx_scale:sm_90a", "sm90_scale:sm_90a"});
  // sm_90a runs sm_90's code; what names both has its own.
  both = images({"sm_90"});
  CHECK(both["cu13.5-sm_90-x86_64"] == Images{"smxx_scale:sm_90"});
  CHECK(both["cu12.9-sm_90a-x86_64"] == Images{"smxx_scale:sm_90", "sm90_scale:sm_90a"});
  both = images({"sm_90", "sm_90a"});
  CHECK(both["cu12.9-sm_90a-x86_64"] == Images{"smxx_scale:sm_90a", "sm90_scale:sm_90a"});
  both = images({"sm_80", "compute_80"});
  CHECK(both["cu12.9-sm_90a-x86_64"] == Images{"sm90_scale:sm_90a"});
}

TEST_CASE("expand: no variant has more images than are loaded") {
  Package package = package_for({"sm_90"}, {});
  const DeviceSource first = package.cuda.device.front();
  const auto add = [&](int count, const char* target) {
    for (int i = 0; i < count; ++i) {
      package.cuda.device.push_back(first);
      package.cuda.device.back().stem += target + std::to_string(i);
      package.cuda.device.back().targets = {code(target)};
    }
  };
  add(31, "sm_90");
  add(32, "sm_80");
  CHECK(plan(expand(shipped_matrix(), package), "cu13.5-sm_90-x86_64").images.size() == 32);
  add(1, "sm_80");
  CHECK_THROWS_WITH_AS(expand(shipped_matrix(), package),
                       "expand scale for sm_80: 33 device sources have code for it; at most 32 can "
                       "be loaded. Put kernels of several into one source",
                       Error);
}

TEST_CASE("expand: the host code of an aarch64 variant is for the baseline") {
  CHECK(plan(expand(shipped_matrix(), package_for({"sm_90a"}, {})), "cu12.9-sm_90a-aarch64").cpu ==
        CpuLevel{Arch::kAarch64, 1});
}

TEST_CASE("expand: a target or level outside of the matrix is refused, not left out") {
  struct Row {
    Package package;
    std::string_view named;
  };
  const Row rows[] = {{package_for({"sm_70"}, {}), "target of csrc/smxx_scale.cu \"sm_70\""},
                      {package_for({}, {"x86-64-v2"}), "CPU level \"x86-64-v2\""}};
  for (const Row& row : rows) {
    try {
      expand(shipped_matrix(), row.package);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBuild);
      CHECK_MESSAGE(std::string(error.what()).find(row.named) != std::string::npos, error.what());
    }
  }
}

TEST_CASE("expand: --only takes shell patterns, several with commas") {
  struct Row {
    std::string_view id, patterns;
    bool expected;
  };
  const Row rows[] = {{"cu12.9-sm_90a-x86_64", "*", true},
                      {"cu12.9-sm_90a-x86_64", "cu12.9-*", true},
                      {"cu12.9-sm_90a-x86_64", "cpu-*", false},
                      {"cu12.9-sm_90a-x86_64", "cpu-*,*-sm_90a-*", true},
                      {"cu12.9-sm_90a-x86_64", "cu12.9-sm_90-*", false},
                      {"cpu-armv8-a", "", false}};
  for (const Row& row : rows) {
    CHECK_MESSAGE(matches(row.id, row.patterns) == row.expected, row.patterns);
  }
}

TEST_CASE("matrix: what is not understood is refused with its place") {
  constexpr std::string_view kGood =
      R"({"schema":"kiln.matrix/1","glibc":"2.17",
          "cuda":{"toolkits":[{"version":"12.9","min_driver":"12.0"}],"targets":["sm_90"],
                  "hosts":["x86_64"]},
          "cpu":{"levels":["x86-64-v3"]},
          "exclude":[{"targets":["sm_90"],"reason":"none here"}]})";
  CHECK(parse_matrix(kGood, "m").exclusions.size() == 1);
  struct Row {
    std::string_view from, to, named;
  };
  const Row rows[] = {
      {"kiln.matrix/1", "kiln.matrix/2", "kiln.matrix/2"},
      {"\"glibc\":\"2.17\"", "\"glibc\":\"new\"", "glibc"},
      {"\"hosts\"", "\"host\"", "unknown key \"host\""},
      {"[\"sm_90\"],\n", "[\"sm_90\",\"sm_90\"],\n", "twice"},
      {"[\"x86_64\"]", "[\"vax\"]", "vax"},
      {"\"targets\":[\"sm_90\"],\"reason\"", "\"targets\":[\"sm_80\"],\"reason\"", "sm_80"},
      {"none here", "", "needs a reason"},
      {"\"reason\":", "\"headers\":1,\"reason\":", "headers"},
      {"[\"x86-64-v3\"]", "[]", "is empty"},
  };
  for (const Row& row : rows) {
    std::string text(kGood);
    const std::size_t at = text.find(row.from);
    REQUIRE_MESSAGE(at != std::string::npos, row.from);
    text.replace(at, row.from.size(), row.to);
    try {
      parse_matrix(text, "m");
      FAIL("accepted: ", row.to);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kBuild);
      CHECK_MESSAGE(std::string(error.what()).find(row.named) != std::string::npos, error.what());
    }
  }
}

TEST_CASE("here: a machine's variants are those that get_kernel would choose on it") {
  Package package = package_for({"sm_80", "sm_90", "sm_90a", "sm_100", "compute_80"},
                                {"x86-64-v3", "x86-64-v4", "x86-64-v4-amx", "armv8-a"});
  package.min_loader = "0.1.0";
  package.cuda.needs = {{.soname = "libcublasLt.so.{cuda_major}", .targets = {code("sm_100")}}};
  const Expansion expansion = expand(shipped_matrix(), package);
  CHECK(libraries_of(expansion.variants) ==
        std::vector<std::string>{"libcublasLt.so.12", "libcublasLt.so.13"});
  struct Row {
    const char* what;
    std::string cpu;
    Version glibc;
    Version driver;
    std::vector<Version> gpus;
    std::vector<std::string> libraries;
    std::set<std::string> expected;
  };
  const Version glibc{2, 36};
  const Row rows[] = {
      {"no GPU", "x86-64-v4", glibc, {}, {}, {}, {"cpu-x86-64-v4"}},
      {"a level that the package lacks", "x86-64-v4-bf16", glibc, {}, {}, {}, {"cpu-x86-64-v4"}},
      {"a CPU below all", "x86-64-v2", glibc, {}, {}, {}, {}},
      {"an old C library", "x86-64-v3", {2, 12}, {}, {}, {}, {}},
      {"two like GPUs and another",
       "x86-64-v3",
       glibc,
       {12, 9},
       {{9, 0}, {9, 0}, {8, 0}},
       {},
       {"cpu-x86-64-v3", "cu12.9-sm_90a-x86_64", "cu11.8-sm_80-x86_64"}},
      {"GH200", "armv8-a", glibc, {13, 0}, {{9, 0}}, {}, {"cpu-armv8-a", "cu13.5-sm_90a-aarch64"}},
      {"an old driver",
       "x86-64-v3",
       glibc,
       {11, 8},
       {{9, 0}},
       {},
       {"cpu-x86-64-v3", "cu11.8-sm_90-x86_64"}},
      {"without the library: PTX",
       "x86-64-v3",
       glibc,
       {13, 0},
       {{10, 0}},
       {},
       {"cpu-x86-64-v3", "cu11.8-compute_80-x86_64"}},
      {"with it",
       "x86-64-v3",
       glibc,
       {13, 0},
       {{10, 0}},
       {"libcublasLt.so.13"},
       {"cpu-x86-64-v3", "cu13.5-sm_100-x86_64"}},
  };
  for (const Row& row : rows) {
    Host host{.cpu = parse_cpu_level(row.cpu).value(), .glibc = row.glibc};
    host.arch = host.cpu.arch;
    host.libraries = row.libraries;
    if (row.driver.major != 0) host.driver = row.driver;
    for (const Version& capability : row.gpus) {
      host.gpus.push_back({static_cast<int>(host.gpus.size()), "GPU", capability});
    }
    std::set<std::string> taken;
    for (const Choice& choice :
         choices_of(host, package, expansion.variants, shipped_matrix().glibc)) {
      CHECK_FALSE(choice.why.empty());
      if (!choice.variant.empty()) taken.insert(choice.variant);
    }
    const std::string list = join(std::vector<std::string>(taken.begin(), taken.end()));
    CHECK_MESSAGE(taken == row.expected, row.what, ": ", list);
  }
}

}  // namespace
}  // namespace kiln::build
