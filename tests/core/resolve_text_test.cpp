// SPDX-License-Identifier: Apache-2.0
//
// What people read: the table of decisions, and the hint where nothing fits.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "documents/json.hpp"
#include "documents/manifest.hpp"
#include "resolve/explain.hpp"
#include "samples.hpp"

namespace kiln {

using test::cpu_host;
using test::cpu_needs;
using test::gpu_host;
using test::gpu_needs;
using test::index_of;
using test::variant_of;

namespace {

/// The kinds of variants that a package has.
Index package() {
  return index_of(
      {variant_of("cu12.9-sm_90a-x86_64", gpu_needs("12.9", "12.0", {"sm_90a"})),
       variant_of("cu12.9-sm_80-x86_64", gpu_needs("12.9", "12.0", {"sm_80"})),
       variant_of("cu11.8-compute_80-x86_64", gpu_needs("11.8", "11.8", {"compute_80"})),
       variant_of("cu12.9-sm_90a-aarch64", gpu_needs("12.9", "12.0", {"sm_90a"}, "armv8-a")),
       variant_of("cpu-x86-64-v3", cpu_needs("x86-64-v3"))});
}

std::string hint(const Host& host, const Index& index, const Selection& selection = {}) {
  const Resolution resolution = resolve(host, index, selection);
  CHECK(!resolution.chosen);
  return resolution.hint;
}

}  // namespace

TEST_CASE("explain: the driver by its own version, where that is known") {
  Host host = gpu_host("13.0", "9.0");
  host.driver_version = "580.159.04";
  CHECK(
      resolve(host, package(), {})
          .explain()
          .starts_with(
              "host: x86_64, CPU x86-64-v3, glibc 2.36, driver 580.159.04 with CUDA 13.0, GPU 0 "));
}

TEST_CASE("explain: the machine, then the variants, best first, with a reason each") {
  Host host = gpu_host("13.0", "9.0");
  host.gpus[0].name = "NVIDIA H200";
  CHECK(resolve(host, package(), {}).explain() ==
        "host: x86_64, CPU x86-64-v3, glibc 2.36, driver CUDA 13.0, GPU 0 NVIDIA H200 (9.0); for "
        "cuda:0\n"
        "> cu12.9-sm_90a-x86_64      chosen          sm_90a, for exactly this GPU\n"
        "  cu11.8-compute_80-x86_64  fits            compute_80 PTX, compiled by the driver at "
        "first load\n"
        "  cu12.9-sm_80-x86_64       NO_DEVICE_CODE  sm_80 runs on 8.x from 8.0; GPU 0 has compute "
        "capability 9.0\n"
        "  cpu-x86-64-v3             DEVICE          runs on the CPU: ask for it with --device cpu "
        "(.device = kiln::Device::cpu())\n"
        "  cu12.9-sm_90a-aarch64     ARCH            needs aarch64, this machine is x86_64");
}

TEST_CASE("explain: the facts of a machine") {
  Host host = cpu_host("armv8-a");
  host.glibc.reset();
  host.overridden = {"KILN_OVERRIDE_SM", "KILN_OVERRIDE_CUDA"};
  CHECK(resolve(host, index_of({}), {}).explain() ==
        "host: aarch64, CPU armv8-a, no glibc, no NVIDIA driver, no GPU; for cpu; overridden: "
        "KILN_OVERRIDE_SM KILN_OVERRIDE_CUDA");
  Host many = gpu_host("12.9", "9.0");
  many.gpus = {{0, "A", {9, 0}}, {1, "A", {9, 0}}, {2, "A", {9, 0}},
               {3, "B", {8, 0}}, {5, "B", {8, 0}}, {6, "", {8, 0}}};
  const std::string text = resolve(many, index_of({}), {.device = Device::cuda(5)}).explain();
  CHECK(text.find("GPU 0-2 A (9.0), GPU 3 B (8.0), GPU 5 B (8.0), GPU 6 (8.0); for cuda:5") !=
        std::string::npos);
}

TEST_CASE("explain: a long index is cut, and says so") {
  std::vector<Variant> variants;
  for (int i = 0; i < 250; ++i) {
    variants.push_back(variant_of(std::to_string(i), cpu_needs("x86-64")));
  }
  const std::string text = resolve(cpu_host(), index_of(std::move(variants)), {}).explain();
  CHECK(std::count(text.begin(), text.end(), '\n') == 101);
  CHECK(text.ends_with("\n  and 150 more"));
}

TEST_CASE("explain: variants that are refused for one reason share a row") {
  std::vector<Variant> variants;
  for (const char* sm : {"sm_80", "sm_90", "sm_100"}) {
    variants.push_back(variant_of(std::string("cu12.9-") + sm, gpu_needs("12.9", "12.0", {sm})));
  }
  for (const char* arm : {"a", "b"}) variants.push_back(variant_of(arm, cpu_needs("armv8-a")));
  for (const char* cpu : {"x", "y", "z"}) variants.push_back(variant_of(cpu, cpu_needs("x86-64")));
  CHECK(resolve(cpu_host(), index_of(std::move(variants)), {}).explain() ==
        "host: x86_64, CPU x86-64-v3, glibc 2.36, no NVIDIA driver, no GPU; for cpu\n"
        "> x                         chosen  for CPUs of level x86-64\n"
        "  y                         fits    for CPUs of level x86-64\n"
        "  z                         fits    for CPUs of level x86-64\n"
        "  cu12.9-sm_100 and 2 more  DEVICE  needs a GPU, this machine shows none\n"
        "  a                         ARCH    needs aarch64, this machine is x86_64\n"
        "  b                         ARCH    needs aarch64, this machine is x86_64\n"
        "  'kiln resolve geglu-mlp@1 --explain' shows each of them");
}

TEST_CASE("explain: rules that nothing was held against are neither a yes nor a no") {
  const Index index = package();
  const Resolution resolution = resolve(cpu_host(), index, {});
  const std::string text = explain(resolution, index, {}, "cu12.9-sm_90a-x86_64").front().text();
  CHECK(text.find("  DEVICE          NO   needs a GPU, this machine shows none\n"
                  "  DRIVER          -    on a GPU it needs driver CUDA >= 12.0\n"
                  "  NO_DEVICE_CODE  -    on a GPU it has sm_90a\n") != std::string::npos);
}

TEST_CASE("explain: facts that come from a file say so") {
  Host host = cpu_host();
  host.origin = "cluster.json";
  CHECK(resolve(host, index_of({}), {}).explain().starts_with("host of cluster.json: x86_64, "));
}

TEST_CASE("explain: one variant, rule by rule, and why it is not before the one before it") {
  const Host host = gpu_host("13.0", "9.0");
  const Index index = package();
  const Selection selection;
  const Resolution resolution = resolve(host, index, selection);
  const auto text = [&](const char* variant) {
    const std::vector<Explanation> found = explain(resolution, index, selection, variant);
    REQUIRE(found.size() == 1);
    return found.front().text();
  };
  CHECK(text("cu11.8-compute_80-x86_64") ==
        "cu11.8-compute_80-x86_64: fits, rank 2, after cu12.9-sm_90a-x86_64: its code is more "
        "specific to the GPU\n"
        "  LOADER_TOO_OLD  yes  needs kiln >= 0.1.0, this is " KILN_VERSION
        "\n"
        "  ABI             yes  has package ABI 1, this kiln loads 1\n"
        "  ARCH            yes  needs x86_64, this machine is x86_64\n"
        "  GLIBC           yes  needs glibc >= 2.17, this machine has 2.36\n"
        "  CPU_LEVEL       yes  needs a CPU of level x86-64, this one is x86-64-v3\n"
        "  DEVICE          yes  runs on a GPU, as is asked for\n"
        "  DRIVER          yes  needs driver CUDA >= 11.8, this machine has 13.0\n"
        "  NO_DEVICE_CODE  yes  compute_80 PTX, compiled by the driver at first load\n"
        "  LIBRARY         yes  needs no library\n"
        "  POLICY          yes  the caller rules nothing out that it needs");
  CHECK(text("cu12.9-sm_90a-x86_64").starts_with("cu12.9-sm_90a-x86_64: chosen, rank 1\n"));
  const std::string refused = text("cu12.9-sm_80-x86_64");
  CHECK(
      refused.starts_with("cu12.9-sm_80-x86_64: NO_DEVICE_CODE, rank 3, after "
                          "cu11.8-compute_80-x86_64: it passes more of the rules\n"));
  CHECK(refused.find("  NO_DEVICE_CODE  NO   sm_80 runs on 8.x from 8.0; GPU 0 has") !=
        std::string::npos);
  CHECK(text("cpu-x86-64-v3").find("it passes more of the rules") != std::string::npos);

  const std::vector<Explanation> all = explain(resolution, index, selection, "");
  REQUIRE(all.size() == index.variants.size());
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i].rank == i + 1);
  test::check_throws(ErrorCode::kUsage, {"explain \"sm_90a\"", "no such variant", "kiln resolve"},
                     [&] { explain(resolution, index, selection, "sm_90a"); });
}

TEST_CASE("explain: rules agree with the decision, whatever the machine") {
  const Index index = test::sample_index();
  for (const Host& host : {gpu_host("11.4", "9.0"), gpu_host("12.9", "7.5"), cpu_host("armv8-a"),
                           cpu_host(), gpu_host("13.0", "12.1")}) {
    const Selection selection{.allow_jit = false};
    const Resolution resolution = resolve(host, index, selection);
    for (const Explanation& each : explain(resolution, index, selection, "")) {
      const auto decision =
          std::find_if(resolution.decisions.begin(), resolution.decisions.end(),
                       [&](const Decision& found) { return found.variant == each.variant; });
      const auto broken = std::find_if(each.rules.begin(), each.rules.end(),
                                       [](const RuleOutcome& rule) { return !rule.holds; });
      CHECK((broken == each.rules.end()) == decision->accepted());
      if (broken == each.rules.end()) continue;
      CHECK(broken->rule == decision->refusal);
      CHECK(broken->detail == decision->detail);
    }
  }
}

TEST_CASE("hint: the nearest variant and what would make it fit") {
  const auto no_jit = [] {
    Selection selection;
    selection.allow_jit = false;
    return selection;
  };
  const auto pinned = [](const char* variant, Device device = {}) {
    Selection selection;
    selection.device = device;
    selection.variant = variant;
    return selection;
  };
  struct Row {
    Host host;
    Selection selection;
    std::string expected;
  };
  const std::vector<Row> rows = {
      {gpu_host("11.4", "9.0"), Selection(),
       "nearest: cu12.9-sm_90a-x86_64 -> upgrade the driver from CUDA 11.4 to CUDA >= 12.0 "
       "(release 525 "
       "or newer); or take cpu-x86-64-v3 with --device cpu (.device = kiln::Device::cpu())"},
      {gpu_host("11.4", "12.0"), Selection(),
       "nearest: cu11.8-compute_80-x86_64 -> upgrade the driver from CUDA 11.4 to CUDA >= 11.8 "
       "(release "
       "520 or newer); or take cpu-x86-64-v3 with --device cpu (.device = kiln::Device::cpu())"},
      {gpu_host("12.9", "12.0"), no_jit(),
       "nearest: cu11.8-compute_80-x86_64 -> allow JIT (drop --no-jit, .allow_jit = true); or take "
       "cpu-x86-64-v3 with --device cpu (.device = kiln::Device::cpu())"},
      {cpu_host("x86-64"), Selection(),
       "nearest: cpu-x86-64-v3 -> run it on a CPU of level x86-64-v3"},
      {gpu_host("12.9", "9.0"), pinned("cu12.9-sm_90a-aarch64"),
       "nearest: cu12.9-sm_90a-aarch64 -> run it on aarch64"},
      {gpu_host("12.9", "9.0"), pinned("cpu-x86-64-v3"),
       "nearest: cpu-x86-64-v3 -> ask for it with --device cpu (.device = kiln::Device::cpu())"},
      {gpu_host("12.9", "9.0"), pinned("cu12.9-sm_90a-x86_64", Device::cpu()),
       "nearest: cu12.9-sm_90a-x86_64 -> ask for it with --device cuda:0"},
      {gpu_host("12.9", "9.0"), pinned("sm_90a"),
       "geglu-mlp@1 has no variant \"sm_90a\"; it has cpu-x86-64-v3, cu11.8-compute_80-x86_64, "
       "cu12.9-sm_80-x86_64, cu12.9-sm_90a-aarch64, cu12.9-sm_90a-x86_64"},
  };
  for (const auto& row : rows) CHECK(hint(row.host, package(), row.selection) == row.expected);
}

TEST_CASE("hint: a GPU that nothing was built for hears what there is") {
  const std::string text = hint(gpu_host("12.9", "7.5"), package());
  CHECK(text ==
        "nearest: cu11.8-compute_80-x86_64 -> run it on a GPU of compute capability >= 8.0 "
        "(geglu-mlp@1 has compute_80, sm_80, sm_90a for x86_64); or take cpu-x86-64-v3 with "
        "--device cpu (.device = kiln::Device::cpu())");
}

TEST_CASE("hint: of code for other GPUs the nearest capability, and which GPUs run it") {
  const Index far = index_of({variant_of("a", gpu_needs("12.9", "12.0", {"sm_120"})),
                              variant_of("b", gpu_needs("12.9", "12.0", {"sm_90a"})),
                              variant_of("c", gpu_needs("12.9", "12.0", {"sm_86", "sm_80"})),
                              variant_of("d", gpu_needs("12.9", "12.0", {"sm_100f"}))});
  const std::pair<const char*, std::string> rows[] = {
      {"7.5", "c -> run it on a GPU of compute capability 8.x from 8.0 ("},
      {"9.2", "b -> run it on a GPU of compute capability 9.0 only ("},
      {"10.1", "d -> run it on a GPU of the family of 10.0 ("},
      {"11.8", "a -> run it on a GPU of compute capability 12.x from 12.0 ("}};
  for (const auto& [capability, expected] : rows) {
    const std::string text = hint(gpu_host("12.9", capability), far);
    CHECK_MESSAGE(text.starts_with("nearest: " + expected), text);
  }
}

TEST_CASE("hint: no CPU variant is offered that would be refused too") {
  Host host = gpu_host("12.9", "7.5");
  host.cpu.level = 2;
  CHECK(hint(host, package()).find("--device cpu") == std::string::npos);
}

TEST_CASE("hint: of the same code, that which the older driver runs") {
  const Index index = index_of({variant_of("new", gpu_needs("13.5", "13.0", {"sm_90a"})),
                                variant_of("old", gpu_needs("12.9", "12.0", {"sm_90a"}))});
  CHECK(hint(gpu_host("11.4", "9.0"), index) ==
        "nearest: old -> upgrade the driver from CUDA 11.4 to CUDA >= 12.0 (release 525 or newer)");
}

TEST_CASE("hint: no CPU is offered by a package that has code for GPUs alone") {
  const Index index = index_of({variant_of("gpu", gpu_needs("12.9", "12.0", {"sm_90a"}))});
  const std::string text = hint(cpu_host("x86-64"), index, {.device = Device::cuda(0)});
  CHECK_MESSAGE(text ==
                    "cuda:0 was asked for, this machine shows no GPU. Check nvidia-smi and "
                    "CUDA_VISIBLE_DEVICES; geglu-mlp@1 has no variant for this CPU",
                text);
}

TEST_CASE("hint: one obstacle is nearer than two, and all of them are named") {
  const Index index = index_of({variant_of("two", gpu_needs("13.0", "13.0", {"sm_100"})),
                                variant_of("one", gpu_needs("12.9", "12.8", {"sm_90"}))});
  CHECK(hint(gpu_host("12.2", "9.0"), index) ==
        "nearest: one -> upgrade the driver from CUDA 12.2 to CUDA >= 12.8 (release 570 or newer)");
  const std::string both = hint(gpu_host("12.2", "9.0"), index, {.variant = "two"});
  CHECK(both.find("CUDA >= 13.0 (release 580 or newer) and run it on a GPU") != std::string::npos);
}

TEST_CASE("hint: a denied variant is the last that is offered") {
  const Index index = index_of({variant_of("bad", gpu_needs("12.9", "12.0", {"sm_90"})),
                                variant_of("far", gpu_needs("13.1", "13.1", {"sm_100"}))});
  CHECK(hint(gpu_host("12.2", "9.0"), index, {.deny = {"bad"}}).starts_with("nearest: far -> "));
  const Index alone = index_of({variant_of("bad", gpu_needs("12.9", "12.0", {"sm_90"}))});
  CHECK(hint(gpu_host("12.2", "9.0"), alone, {.deny = {"bad"}}) ==
        "nearest: bad -> take it off the deny list, if you trust it after all");
}

TEST_CASE("hint: what a policy rules out hears of that policy") {
  const Host host = gpu_host("12.9", "9.0");
  Variant only = variant_of("only", gpu_needs("12.9", "12.0", {"sm_90a"}));
  const std::string check = "nearest: only -> run its check on that machine ('kiln test'), or ";
  const std::string any = check + "take untested ones too (\"tested\": \"any\" in the settings)";
  CHECK(hint(host, index_of({only}), {.tested = Tested::kSomewhere}) == any);
  only.tested_on = {"NVIDIA A100"};
  CHECK(hint(host, index_of({only}), {.tested = Tested::kHere}) ==
        check + "take what was tested on other GPUs (\"tested\": \"somewhere\" in the settings)");
}

TEST_CASE("hint: where not every GPU is covered, one can ask for each") {
  Host host = gpu_host("12.9", "9.0");
  host.gpus.push_back({1, "NVIDIA Other", {7, 5}});
  const std::string text = hint(host, package(), {.all_gpus = true});
  CHECK(text.find("take a variant for each GPU (drop --all-devices, .all_gpus = false)") !=
        std::string::npos);
}

TEST_CASE("hint: every kind of obstacle has its remedy") {
  using Change = void (*)(Variant&, Host&);
  const std::pair<std::string, Change> rows[] = {
      {"upgrade kiln to 3.0.0 or newer",
       [](Variant& v, Host&) { v.requires_.min_loader = "3.0.0"; }},
      {"upgrade kiln", [](Variant& v, Host&) { v.requires_.abi = 2; }},
      {"take a newer version of the package", [](Variant& v, Host&) { v.requires_.abi = 0; }},
      {"run it on a system with glibc >= 2.38",
       [](Variant& v, Host&) {
         v.needs.glibc = {2, 38};
       }},
      {"install libx.so.1 where the dynamic linker finds it",
       [](Variant& v, Host&) { v.needs.libraries = {"libx.so.1"}; }},
      {"install a driver of CUDA >= 12.0", [](Variant&, Host& h) { h.driver.reset(); }},
      {"run it on a machine with an NVIDIA GPU", [](Variant&, Host& h) { h.gpus.clear(); }},
  };
  for (const auto& [expected, change] : rows) {
    Variant variant = variant_of("only", gpu_needs("12.9", "12.0", {"sm_90"}));
    Host host = gpu_host("12.9", "9.0");
    change(variant, host);
    const std::string text = hint(host, index_of({variant}));
    CHECK_MESSAGE(text.starts_with("nearest: only -> " + expected), text);
  }
}

TEST_CASE("hint: a variant for a newer kiln is not judged by needs that nobody read") {
  Json json = parse_json(serialize_index(index_of({})), "index");
  json["manifests"] = Json::array(
      {{{"annotations", {{"dev.kiln.variant", "future"}, {"dev.kiln.min-loader", "2.0.0"}}}}});
  const Index index = parse_index(dump_json(json), "index");
  Host host = cpu_host("armv8-a");
  host.glibc.reset();
  CHECK(hint(host, index) == "nearest: future -> upgrade kiln to 2.0.0 or newer");
  CHECK(hint(host, index_of({})) == "geglu-mlp@1 lists no variants that this kiln can read");
}

}  // namespace kiln
