// SPDX-License-Identifier: Apache-2.0
//
// Whether one variant is taken on one machine, and why not.
#include "resolve/resolve.hpp"

#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "resolve/rules.hpp"
#include "samples.hpp"

namespace kiln {

using test::check_throws;
using test::cpu_host;
using test::cpu_needs;
using test::fields;
using test::gpu_host;
using test::gpu_needs;
using test::index_of;
using test::variant_of;

namespace {

Decision decide(const Host& host, Needs needs, const Selection& selection = {}) {
  const Resolution resolution =
      resolve(host, index_of({variant_of("only", std::move(needs))}), selection);
  CHECK(resolution.chosen.has_value() == resolution.decisions.front().accepted());
  CHECK(resolution.hint.empty() == resolution.chosen.has_value());
  CHECK(!resolution.decisions.front().detail.empty());
  return resolution.decisions.front();
}

}  // namespace

namespace {

/// One variant, one machine, one request: what becomes of it.
struct Row {
  Host host;
  Variant variant;
  Selection selection;
  Refusal refusal = Refusal::kNone;
  std::string word;  ///< of the detail
};
using Rows = std::vector<Row>;

/// A driver and a GPU against a toolkit, its lowest driver and its code.
void add_gpu_rows(Rows& all) {
  const struct {
    std::string_view driver;
    std::string_view gpu;
    std::string_view toolkit;
    std::string_view min_driver;
    std::vector<std::string> code;
    Refusal refusal;
    std::string_view word;  // of the detail
  } rows[] = {
      // The driver: any of a newer major, or of the same major from the variant's lowest.
      {"11.4", "8.0", "11.8", "11.0", {"sm_80"}, Refusal::kNone, "same major"},
      {"11.8", "8.0", "11.8", "11.0", {"sm_80"}, Refusal::kNone, "sm_80"},
      {"12.0", "8.0", "11.8", "11.0", {"sm_80"}, Refusal::kNone, "sm_80"},
      {"12.9", "8.0", "11.8", "11.0", {"sm_80"}, Refusal::kNone, "sm_80"},
      {"13.0", "8.0", "11.8", "11.0", {"sm_80"}, Refusal::kNone, "sm_80"},
      {"13.2", "9.0", "12.9", "12.0", {"sm_90a"}, Refusal::kNone, "sm_90a"},
      {"12.9", "9.0", "12.9", "12.0", {"sm_90a"}, Refusal::kNone, "sm_90a"},
      {"12.0", "9.0", "12.9", "12.0", {"sm_90a"}, Refusal::kNone, "CUDA 12.9 on a 12.0 driver"},
      {"12.2",
       "9.0",
       "12.9",
       "12.3",
       {"sm_90a"},
       Refusal::kDriver,
       ">= 12.3, this machine has 12.2"},
      {"12.3", "9.0", "12.9", "12.3", {"sm_90a"}, Refusal::kNone, "sm_90a"},
      {"11.8",
       "9.0",
       "12.9",
       "12.0",
       {"sm_90a"},
       Refusal::kDriver,
       ">= 12.0, this machine has 11.8"},
      {"11.4",
       "8.0",
       "12.0",
       "12.0",
       {"sm_80"},
       Refusal::kDriver,
       ">= 12.0, this machine has 11.4"},
      {"12.9",
       "9.0",
       "13.0",
       "13.0",
       {"sm_90a"},
       Refusal::kDriver,
       ">= 13.0, this machine has 12.9"},
      {"13.0", "9.0", "13.0", "13.0", {"sm_90a"}, Refusal::kNone, "sm_90a"},
      {"13.0", "9.0", "13.1", "13.0", {"sm_90a"}, Refusal::kNone, "sm_90a"},
      {"12.8", "12.0", "12.8", "12.8", {"sm_120"}, Refusal::kNone, "sm_120"},
      {"12.7", "12.0", "12.8", "12.8", {"sm_120"}, Refusal::kDriver, ">= 12.8"},
      // A toolkit of a newer major is refused even where min-driver says otherwise.
      {"11.8", "8.0", "12.0", "11.8", {"sm_80"}, Refusal::kDriver, ">= 12.0"},
      // PTX: a GPU from its capability, a driver from its toolkit.
      {"11.8", "8.0", "11.8", "11.8", {"compute_80"}, Refusal::kNone, "compiled by the driver"},
      {"12.0", "9.0", "11.8", "11.8", {"compute_80"}, Refusal::kNone, "compute_80 PTX"},
      {"12.8", "12.0", "11.8", "11.8", {"compute_80"}, Refusal::kNone, "compute_80 PTX"},
      {"13.0", "11.0", "11.8", "11.8", {"compute_80"}, Refusal::kNone, "compute_80 PTX"},
      {"12.2", "8.7", "11.8", "11.8", {"compute_80"}, Refusal::kNone, "compute_80 PTX"},
      {"11.7",
       "8.0",
       "11.8",
       "11.0",
       {"compute_80"},
       Refusal::kDriver,
       "PTX needs driver CUDA >= 11.8"},
      {"11.7", "8.0", "11.8", "11.8", {"compute_80"}, Refusal::kDriver, ">= 11.8"},
      {"12.2",
       "12.0",
       "12.9",
       "12.0",
       {"sm_80", "compute_80"},
       Refusal::kDriver,
       "PTX needs driver CUDA >= 12.9, this machine has 12.2"},
      {"12.9", "12.0", "12.9", "12.0", {"sm_80", "compute_80"}, Refusal::kNone, "compute_80 PTX"},
      {"12.2", "8.6", "12.9", "12.0", {"sm_80", "compute_80"}, Refusal::kNone, "sm_80"},
      {"12.9",
       "7.5",
       "11.8",
       "11.8",
       {"compute_80"},
       Refusal::kNoDeviceCode,
       "compute_80 needs >= 8.0; GPU 0 has compute capability 7.5"},
      {"12.9", "10.0", "12.9", "12.0", {"compute_90a"}, Refusal::kNoDeviceCode, "9.0 only"},
      {"12.9", "9.0", "12.9", "12.0", {"compute_90a"}, Refusal::kNone, "compute_90a PTX"},
      {"12.9", "10.3", "12.9", "12.9", {"compute_100f"}, Refusal::kNone, "compute_100f PTX"},
      {"12.9", "12.0", "12.9", "12.9", {"compute_100f"}, Refusal::kNoDeviceCode, "family of 10.0"},
      // Machine code: the same major, from its minor revision.
      {"12.9", "7.5", "11.8", "11.0", {"sm_75"}, Refusal::kNone, "for this GPU"},
      {"12.9",
       "7.5",
       "12.9",
       "12.0",
       {"sm_80"},
       Refusal::kNoDeviceCode,
       "sm_80 runs on 8.x from 8.0"},
      {"12.9", "8.6", "12.9", "12.0", {"sm_80"}, Refusal::kNone, "later minor revisions"},
      {"12.9", "8.9", "12.9", "12.0", {"sm_80"}, Refusal::kNone, "later minor revisions"},
      {"12.9", "8.9", "12.9", "12.0", {"sm_86"}, Refusal::kNone, "later minor revisions"},
      {"12.9", "8.9", "12.9", "12.0", {"sm_89"}, Refusal::kNone, "for this GPU"},
      {"12.9", "8.0", "12.9", "12.0", {"sm_86"}, Refusal::kNoDeviceCode, "8.x from 8.6"},
      {"12.9", "8.6", "12.9", "12.0", {"sm_89"}, Refusal::kNoDeviceCode, "8.x from 8.9"},
      {"12.9",
       "9.0",
       "12.9",
       "12.0",
       {"sm_80", "sm_89"},
       Refusal::kNoDeviceCode,
       "has sm_80 sm_89"},
      {"12.9", "9.0", "12.9", "12.0", {"sm_90"}, Refusal::kNone, "for this GPU"},
      {"12.9", "10.0", "12.9", "12.8", {"sm_100"}, Refusal::kNone, "for this GPU"},
      {"12.9", "10.3", "12.9", "12.8", {"sm_100"}, Refusal::kNone, "later minor revisions"},
      {"12.9", "12.0", "12.9", "12.8", {"sm_100"}, Refusal::kNoDeviceCode, "10.x from 10.0"},
      {"12.9", "12.1", "12.9", "12.8", {"sm_120"}, Refusal::kNone, "later minor revisions"},
      // 'a': this GPU and no other.
      {"12.9", "9.0", "12.9", "12.0", {"sm_90a"}, Refusal::kNone, "exactly this GPU"},
      {"12.9",
       "8.9",
       "12.9",
       "12.0",
       {"sm_90a"},
       Refusal::kNoDeviceCode,
       "sm_90a runs on 9.0 only"},
      {"12.9",
       "10.0",
       "12.9",
       "12.0",
       {"sm_90a"},
       Refusal::kNoDeviceCode,
       "sm_90a runs on 9.0 only"},
      {"12.9", "10.3", "12.9", "12.8", {"sm_100a"}, Refusal::kNoDeviceCode, "10.0 only"},
      {"12.9", "12.1", "12.9", "12.8", {"sm_120a"}, Refusal::kNoDeviceCode, "12.0 only"},
      // 'f': the family.
      {"12.9", "10.0", "12.9", "12.9", {"sm_100f"}, Refusal::kNone, "this GPU's family"},
      {"12.9", "10.3", "12.9", "12.9", {"sm_100f"}, Refusal::kNone, "this GPU's family"},
      {"13.0", "11.0", "13.0", "13.0", {"sm_100f"}, Refusal::kNoDeviceCode, "family of 10.0"},
      {"12.9", "10.0", "12.9", "12.9", {"sm_103f"}, Refusal::kNoDeviceCode, "family of 10.3"},
      {"12.9", "12.1", "12.9", "12.9", {"sm_120f"}, Refusal::kNone, "this GPU's family"},
      {"12.9", "12.0", "12.9", "12.9", {"sm_121f"}, Refusal::kNoDeviceCode, "family of 12.1"},
      {"13.0", "11.0", "13.0", "13.0", {"sm_110f"}, Refusal::kNone, "this GPU's family"},
      // The GPUs of SoCs: exact in both directions.
      {"12.9", "8.7", "12.9", "12.0", {"sm_80"}, Refusal::kNoDeviceCode, "compute capability 8.7"},
      {"12.9", "8.7", "12.9", "12.0", {"sm_87"}, Refusal::kNone, "for this GPU"},
      {"12.9", "8.9", "12.9", "12.0", {"sm_87"}, Refusal::kNoDeviceCode, "sm_87"},
      {"12.9", "7.5", "11.8", "11.0", {"sm_72"}, Refusal::kNoDeviceCode, "sm_72"},
      {"12.9", "7.2", "11.8", "11.0", {"sm_70"}, Refusal::kNoDeviceCode, "sm_70"},
      {"13.0", "11.0", "13.0", "13.0", {"sm_110"}, Refusal::kNone, "for this GPU"},
      // An old driver is named before code that could not run with any driver.
      {"11.8", "7.5", "12.9", "12.0", {"sm_90a"}, Refusal::kDriver, ">= 12.0"},
      // The oldest driver of a major that NVIDIA promises minor version compatibility for.
      {"13.0", "9.0", "13.5", "13.0", {"sm_90"}, Refusal::kNone, "CUDA 13.5 on a 13.0 driver"},
      {"13.0",
       "9.0",
       "13.5",
       "13.0",
       {"compute_90"},
       Refusal::kDriver,
       "PTX needs driver CUDA >= 13.5, this machine has 13.0"},
      {"14.0", "9.0", "12.9", "12.0", {"compute_90"}, Refusal::kNone, "compute_90 PTX"},
  };
  for (const auto& row : rows) {
    all.push_back({gpu_host(row.driver, row.gpu),
                   variant_of("only", gpu_needs(row.toolkit, row.min_driver, row.code)),
                   {},
                   row.refusal,
                   std::string(row.word)});
  }
}

/// The host side: architecture, glibc and CPU level.
void add_host_rows(Rows& all) {
  const struct {
    std::string_view host_cpu;
    std::optional<Version> host_glibc;
    std::string_view needs_cpu;
    Version needs_glibc;
    Refusal refusal;
    std::string_view word;
  } rows[] = {
      {"x86-64", Version{2, 17}, "x86-64", {2, 17}, Refusal::kNone, "x86-64"},
      {"x86-64-v3", Version{2, 36}, "x86-64-v3", {2, 17}, Refusal::kNone, "x86-64-v3"},
      {"x86-64-v4", Version{2, 36}, "x86-64-v3", {2, 17}, Refusal::kNone, "x86-64-v3"},
      {"x86-64-v2",
       Version{2, 36},
       "x86-64-v3",
       {2, 17},
       Refusal::kCpuLevel,
       "x86-64-v3, this one is x86-64-v2"},
      {"x86-64-v3", Version{2, 36}, "x86-64-v4", {2, 17}, Refusal::kCpuLevel, "x86-64-v4"},
      {"x86-64",
       Version{2, 36},
       "x86-64-v2",
       {2, 17},
       Refusal::kCpuLevel,
       "x86-64-v2, this one is x86-64"},
      {"x86-64-v4",
       Version{2, 36},
       "x86-64-v4-bf16",
       {2, 17},
       Refusal::kCpuLevel,
       "needs a CPU of level x86-64-v4-bf16, this one is x86-64-v4"},
      {"x86-64-v4-bf16",
       Version{2, 36},
       "x86-64-v4",
       {2, 17},
       Refusal::kNone,
       "for CPUs of level x86-64-v4"},
      {"x86-64-v4-bf16",
       Version{2, 36},
       "x86-64-v4-bf16",
       {2, 17},
       Refusal::kNone,
       "for CPUs of level x86-64-v4-bf16"},
      {"x86-64-v4-bf16",
       Version{2, 36},
       "x86-64-v4-amx",
       {2, 17},
       Refusal::kCpuLevel,
       "needs a CPU of level x86-64-v4-amx, this one is x86-64-v4-bf16"},
      {"x86-64-v4-amx",
       Version{2, 36},
       "x86-64-v4-bf16",
       {2, 17},
       Refusal::kNone,
       "for CPUs of level x86-64-v4-bf16"},
      {"armv8-a", Version{2, 36}, "armv8-a", {2, 17}, Refusal::kNone, "armv8-a"},
      {"armv8-a",
       Version{2, 36},
       "x86-64-v3",
       {2, 17},
       Refusal::kArch,
       "needs x86_64, this machine is aarch64"},
      {"x86-64-v4",
       Version{2, 36},
       "armv8-a",
       {2, 17},
       Refusal::kArch,
       "needs aarch64, this machine is x86_64"},
      {"x86-64-v3",
       Version{2, 12},
       "x86-64-v3",
       {2, 17},
       Refusal::kGlibc,
       "glibc >= 2.17, this machine has 2.12"},
      {"x86-64-v3", Version{2, 9}, "x86-64-v3", {2, 17}, Refusal::kGlibc, "2.9"},
      {"x86-64-v3", Version{2, 17}, "x86-64-v3", {2, 28}, Refusal::kGlibc, "2.28"},
      {"x86-64-v3", Version{2, 100}, "x86-64-v3", {2, 28}, Refusal::kNone, ""},
      {"x86-64-v3", std::nullopt, "x86-64-v3", {2, 17}, Refusal::kGlibc, "this machine has none"},
      // The first rule that applies is the one that is told.
      {"x86-64", Version{2, 9}, "armv8-a", {2, 17}, Refusal::kArch, "aarch64"},
      {"x86-64", Version{2, 9}, "x86-64-v4", {2, 17}, Refusal::kGlibc, "2.17"},
  };
  for (const auto& row : rows) {
    Host host = cpu_host(row.host_cpu);
    host.glibc = row.host_glibc;
    Needs needs = cpu_needs(row.needs_cpu);
    needs.glibc = row.needs_glibc;
    all.push_back({host, variant_of("only", needs), {}, row.refusal, std::string(row.word)});
  }
}

/// Everything else that a request and a document can say.
void add_other_rows(Rows& all) {
  const Host hopper = gpu_host("12.9", "9.0");
  Host mixed = hopper;
  mixed.gpus.push_back({1, "NVIDIA Other", {8, 0}});
  const Variant sm_90a = variant_of("only", gpu_needs("12.9", "12.0", {"sm_90a"}));
  const Variant jit = variant_of("only", gpu_needs("11.8", "11.8", {"compute_80"}));
  const Variant both = variant_of("only", gpu_needs("12.9", "12.0", {"sm_80", "sm_90"}));
  const Variant cpu = variant_of("only", cpu_needs("x86-64-v3"));
  const auto changed = [](Variant variant, auto change) {
    change(variant);
    return variant;
  };
  const auto abi = [](Variant& v) { v.requires_.abi = 2; };
  const auto newer = [](Variant& v) { v.requires_ = {.min_loader = "9.1.0", .abi = 2}; };
  const auto library = [](Variant& v) { v.needs.libraries = {"libx.so.1"}; };
  const std::string digest = sm_90a.manifest.digest.str();
  const Selection every = {.all_gpus = true};
  const std::string gpu_name = hopper.gpus.front().name;
  const auto on_a100 = [](Variant& v) {
    v.tested = "NVIDIA A100, 2026-01-01, 9 cases";
    v.tested_on = {"NVIDIA A100"};
  };
  // The text for people is cut; what was tested is not.
  const auto on_both = [&](Variant& v) {
    v.tested = "NVIDIA A100, 2026-01-01, 9 cases; 1 more";
    v.tested_on = {"NVIDIA A100", gpu_name};
  };
  const auto on_longer = [&](Variant& v) {
    v.tested = gpu_name + ", 2026-01-02, 9 cases";
    v.tested_on = {gpu_name + " NVL"};
  };
  const Row rows[] = {
      {hopper, changed(sm_90a, abi), {}, Refusal::kAbi, "has package ABI 2, this kiln loads 1"},
      {hopper, changed(sm_90a, newer), {}, Refusal::kLoaderTooOld, "needs kiln >= 9.1.0"},
      {hopper, changed(cpu, newer), {}, Refusal::kLoaderTooOld, "needs kiln >= 9.1.0"},
      {cpu_host(), sm_90a, {}, Refusal::kDevice, "needs a GPU, this machine shows none"},
      {hopper, sm_90a, {.device = Device::cpu()}, Refusal::kDevice, "the CPU was asked for"},
      {hopper, cpu, {}, Refusal::kDevice, "runs on the CPU: ask for it with --device cpu"},
      {hopper, cpu, {.device = Device::cpu()}, Refusal::kNone, "for CPUs of level x86-64-v3"},
      {cpu_host(), cpu, {}, Refusal::kNone, "for CPUs of level x86-64-v3"},
      {hopper, changed(sm_90a, library), {}, Refusal::kLibrary, "needs libx.so.1, which"},
      {hopper, changed(jit, library), {.allow_jit = false}, Refusal::kLibrary, "libx.so.1"},
      // The caller's wishes.
      {hopper, sm_90a, {.variant = "only"}, Refusal::kNone, "sm_90a"},
      {hopper, sm_90a, {.variant = "other"}, Refusal::kPolicy, "fits, but other was asked for"},
      {hopper, jit, {.allow_jit = false}, Refusal::kPolicy, "JIT is not allowed"},
      {hopper, sm_90a, {.allow_jit = false}, Refusal::kNone, "sm_90a"},
      {hopper, sm_90a, {.deny = {"only"}}, Refusal::kPolicy, "it is on the deny list"},
      {hopper, sm_90a, {.deny = {"other", digest}}, Refusal::kPolicy, "it is on the deny list"},
      {hopper, sm_90a, {.variant = "only", .deny = {digest}}, Refusal::kPolicy, "deny list"},
      {hopper, sm_90a, {.deny = {"other", "onl", "ONLY"}}, Refusal::kNone, "sm_90a"},
      {hopper, changed(sm_90a, abi), {.deny = {"only"}}, Refusal::kAbi, "ABI 2"},
      // Where it was tested.
      {hopper,
       sm_90a,
       {.tested = Tested::kSomewhere},
       Refusal::kPolicy,
       "fits, but it is untested"},
      {hopper, changed(sm_90a, on_a100), {.tested = Tested::kSomewhere}, Refusal::kNone, "sm_90a"},
      {hopper,
       changed(sm_90a, on_a100),
       {.tested = Tested::kHere},
       Refusal::kPolicy,
       "was not tested on " + gpu_name + " (NVIDIA A100, 2026-01-01, 9 cases)"},
      {hopper, changed(sm_90a, on_both), {.tested = Tested::kHere}, Refusal::kNone, "sm_90a"},
      {hopper,
       changed(sm_90a, on_longer),
       {.tested = Tested::kHere},
       Refusal::kPolicy,
       "not tested"},
      {cpu_host(), changed(cpu, on_a100), {.tested = Tested::kHere}, Refusal::kNone, "x86-64-v3"},
      {cpu_host(), cpu, {.tested = Tested::kHere}, Refusal::kPolicy, "untested"},
      // Where its check failed, whatever its publisher tested.
      {hopper,
       changed(sm_90a, on_both),
       {.tested = Tested::kHere, .failed_here = {{sm_90a.manifest.digest, gpu_name, "at noon"}}},
       Refusal::kPolicy,
       "fits, but its check failed here: at noon"},
      {hopper,
       sm_90a,
       {.tested = Tested::kSomewhere,
        .failed_here = {{sm_90a.manifest.digest, gpu_name, "at noon"}}},
       Refusal::kPolicy,
       "fits, but its check failed here: at noon"},
      {hopper,
       changed(sm_90a, on_both),
       {.tested = Tested::kHere,
        .failed_here = {{sm_90a.manifest.digest, "NVIDIA A100", "at noon"},
                        {Digest::of("another"), gpu_name, "at noon"}}},
       Refusal::kNone,
       "sm_90a"},
      {hopper,
       sm_90a,
       {.failed_here = {{sm_90a.manifest.digest, gpu_name, "at noon"}}},
       Refusal::kNone,
       "sm_90a"},
      {cpu_host(),
       changed(cpu, on_a100),
       {.tested = Tested::kHere, .failed_here = {{cpu.manifest.digest, "", "at noon"}}},
       Refusal::kPolicy,
       "its check failed here"},
      // Every GPU: the one that is not covered is named.
      {mixed, both, every, Refusal::kNone, "sm_80, for this GPU"},
      {mixed, jit, every, Refusal::kNone, "compute_80 PTX"},
      {mixed, sm_90a, every, Refusal::kNoDeviceCode, "sm_90a runs on 9.0 only; GPU 1 has"},
      {mixed, sm_90a, {}, Refusal::kNone, "sm_90a"},
      {hopper, sm_90a, every, Refusal::kNone, "sm_90a"},
      {cpu_host(), cpu, every, Refusal::kNone, "for CPUs of level x86-64-v3"},
      {mixed, variant_of("only", gpu_needs("13.0", "13.0", {"sm_90a"})), every, Refusal::kDriver,
       "needs driver CUDA >= 13.0"},
      {[&] {
         Host old = mixed;
         old.driver = Version{12, 2};
         return old;
       }(),
       variant_of("only", gpu_needs("12.9", "12.0", {"sm_90", "compute_80"})), every,
       Refusal::kDriver, "its PTX needs driver CUDA >= 12.9, this machine has 12.2"},
  };
  all.insert(all.end(), std::begin(rows), std::end(rows));
}

}  // namespace

TEST_CASE("resolve: every rule refuses what it should, and nothing else") {
  Rows rows;
  add_gpu_rows(rows);
  add_host_rows(rows);
  add_other_rows(rows);
  CHECK(rows.size() >= 80);
  std::map<Refusal, int> met;
  for (const Row& row : rows) {
    CAPTURE(fields(row.variant));
    const Resolution resolution = resolve(row.host, index_of({row.variant}), row.selection);
    const Decision& decision = resolution.decisions.front();
    CHECK(resolution.chosen.has_value() == decision.accepted());
    CHECK(resolution.hint.empty() == decision.accepted());
    CHECK_MESSAGE(decision.refusal == row.refusal, to_string(decision.refusal), " ",
                  decision.detail);
    CHECK_MESSAGE(decision.detail.find(row.word) != std::string::npos, decision.detail);
    ++met[decision.refusal];
  }
  for (const Rule& rule : kRules) CHECK_MESSAGE(met[rule.refusal] > 0, to_string(rule.refusal));
  CHECK(met[Refusal::kNone] > 0);
  MESSAGE(rows.size(), " rows");
}

TEST_CASE("resolve: a machine without the driver, or without a GPU") {
  Host no_driver = gpu_host("12.9", "9.0");
  no_driver.driver.reset();
  const Decision decision = decide(no_driver, gpu_needs("12.9", "12.0", {"sm_90a"}));
  CHECK(decision.refusal == Refusal::kDriver);
  CHECK(decision.detail == "needs driver CUDA >= 12.0, this machine has no NVIDIA driver");
  const Decision no_gpu = decide(cpu_host(), gpu_needs("12.9", "12.0", {"sm_90a"}));
  CHECK(no_gpu.refusal == Refusal::kDevice);
  CHECK(no_gpu.detail == "needs a GPU, this machine shows none");
}

TEST_CASE("resolve: a GPU variant also needs the host's architecture, glibc and CPU") {
  Host host = gpu_host("12.9", "9.0");
  Needs needs = gpu_needs("12.9", "12.0", {"sm_90a"});
  CHECK(decide(host, needs).accepted());
  needs.glibc = {2, 37};
  CHECK(decide(host, needs).refusal == Refusal::kGlibc);
  CHECK(decide(host, gpu_needs("12.9", "12.0", {"sm_90a"}, "x86-64-v4")).refusal ==
        Refusal::kCpuLevel);
  CHECK(decide(host, gpu_needs("12.9", "12.0", {"sm_90a"}, "armv8-a")).refusal == Refusal::kArch);
}

TEST_CASE("resolve: a newer kiln and another package ABI come before everything else") {
  Variant variant = variant_of("only", gpu_needs("13.0", "13.0", {"sm_90a"}, "armv8-a"));
  const auto decision = [&] { return resolve(cpu_host(), index_of({variant}), {}).decisions[0]; };
  CHECK(decision().refusal == Refusal::kArch);
  variant.requires_ = {.min_loader = KILN_VERSION, .abi = 1};
  CHECK(decision().refusal == Refusal::kArch);
  variant.requires_.abi = 2;
  CHECK(decision().refusal == Refusal::kAbi);
  CHECK(decision().detail == "has package ABI 2, this kiln loads 1");
  variant.requires_.min_loader = "9.1.0";
  CHECK(decision().refusal == Refusal::kLoaderTooOld);
  CHECK(decision().detail == "needs kiln >= 9.1.0, this is " KILN_VERSION);
}

TEST_CASE("resolve: libraries that a variant looks up must be there") {
  Needs needs = gpu_needs("12.9", "12.0", {"sm_90a"});
  needs.libraries = {"libcublasLt.so.12", "libcublas.so.12"};
  Host host = gpu_host("12.9", "9.0");
  CHECK(decide(host, needs).refusal == Refusal::kLibrary);
  CHECK(decide(host, needs).detail.starts_with("needs libcublasLt.so.12, libcublas.so.12, which"));
  host.libraries = {"libcublasLt.so.12"};
  CHECK(decide(host, needs).detail.starts_with("needs libcublas.so.12, which"));
  host.libraries = {"libcublas.so.12", "libcublasLt.so.12"};
  CHECK(decide(host, needs).accepted());
}

TEST_CASE("resolve: without its library a variant makes room for the next, with the reason") {
  Needs sm_100 = gpu_needs("13.0", "13.0", {"sm_100"});
  sm_100.libraries = {"libcublasLt.so.13"};
  Needs older = gpu_needs("12.9", "12.0", {"sm_100"});
  older.libraries = {"libcublasLt.so.12"};
  const Index index = index_of({variant_of("sm_100", sm_100), variant_of("older", older),
                                variant_of("ptx", gpu_needs("11.8", "11.8", {"compute_80"}))});
  Host host = gpu_host("13.0", "10.0");
  const auto chosen = [&] { return index.variants[resolve(host, index, {}).chosen.value()].id; };
  host.libraries = {"libcublasLt.so.12", "libcublasLt.so.13"};
  CHECK(chosen() == "sm_100");
  host.libraries = {"libcublasLt.so.12"};
  CHECK(chosen() == "older");
  host.libraries = {};
  host.absent = {"libcublasLt.so.12", "libcublasLt.so.13"};
  CHECK(chosen() == "ptx");
  const Resolution resolution = resolve(host, index, {});
  CHECK(resolution.decisions[0].refusal == Refusal::kLibrary);
  CHECK(resolution.decisions[0].detail ==
        "needs libcublasLt.so.13, which the dynamic linker does not find");
  CHECK(resolution.decisions[1].refusal == Refusal::kLibrary);
}

TEST_CASE("resolve: only libraries that decide are looked for") {
  Needs sm_100 = gpu_needs("13.0", "13.0", {"sm_100"});
  sm_100.libraries = {"libcublasLt.so.13"};
  Needs sm_90 = gpu_needs("13.0", "13.0", {"sm_90"});
  sm_90.libraries = {"libx.so.1"};
  const Index index = index_of({variant_of("sm_100", sm_100), variant_of("sm_90", sm_90),
                                variant_of("cpu", cpu_needs("x86-64"))});
  using Sonames = std::vector<std::string>;
  CHECK(deciding_libraries(gpu_host("13.0", "10.0"), index, {}) == Sonames{"libcublasLt.so.13"});
  CHECK(deciding_libraries(gpu_host("13.0", "9.0"), index, {}) == Sonames{"libx.so.1"});
  CHECK(deciding_libraries(gpu_host("12.9", "10.0"), index, {}).empty());  // the driver refuses
  CHECK(deciding_libraries(gpu_host("13.0", "10.0"), index, {.device = Device::cpu()}).empty());
  CHECK(deciding_libraries(cpu_host(), index, {}).empty());
  // Known already or not: the question is which are asked.
  Host host = gpu_host("13.0", "9.0");
  host.libraries = {"libx.so.1"};
  CHECK(deciding_libraries(host, index, {}) == Sonames{"libx.so.1"});
}

TEST_CASE("resolve: the caller's wishes come last: a pinned variant, no JIT") {
  const Host host = gpu_host("12.9", "9.0");
  const Index index = index_of({variant_of("a", gpu_needs("12.9", "12.0", {"sm_90a"})),
                                variant_of("b", gpu_needs("12.9", "12.0", {"sm_90"})),
                                variant_of("c", gpu_needs("13.0", "13.0", {"sm_90"}))});
  CHECK(resolve(host, index, {}).chosen == 0);
  const Resolution pinned = resolve(host, index, {.variant = "b"});
  CHECK(pinned.chosen == 1);
  CHECK(pinned.decisions[0].refusal == Refusal::kPolicy);
  CHECK(pinned.decisions[0].detail == "fits, but b was asked for");
  CHECK(pinned.decisions[2].refusal == Refusal::kDriver);
  CHECK(!resolve(host, index, {.variant = "c"}).chosen);

  const Needs jit = gpu_needs("11.8", "11.8", {"compute_80"});
  CHECK(decide(host, jit).accepted());
  CHECK(decide(host, jit, {.allow_jit = false}).refusal == Refusal::kPolicy);
  CHECK(decide(host, gpu_needs("12.9", "12.0", {"sm_90", "compute_80"}), {.allow_jit = false})
            .accepted());
  Needs missing = jit;
  missing.libraries = {"libx.so.1"};
  CHECK(decide(host, missing, {.allow_jit = false}).refusal == Refusal::kLibrary);
}

TEST_CASE("resolve: automatic is GPU 0 where there is one, else the CPU") {
  const Index index = index_of({variant_of("gpu", gpu_needs("12.9", "12.0", {"sm_90a"})),
                                variant_of("cpu", cpu_needs("x86-64-v3"))});
  const Resolution on_gpu = resolve(gpu_host("12.9", "9.0"), index, {});
  CHECK(on_gpu.device == Device::cuda(0));
  CHECK(on_gpu.chosen == 0);
  CHECK(on_gpu.decisions[1].refusal == Refusal::kDevice);
  CHECK(on_gpu.decisions[1].detail ==
        "runs on the CPU: ask for it with --device cpu (.device = kiln::Device::cpu())");
  const Resolution on_cpu = resolve(cpu_host(), index, {});
  CHECK(on_cpu.device == Device::cpu());
  CHECK(on_cpu.chosen == 1);
  const Resolution asked = resolve(gpu_host("12.9", "9.0"), index, {.device = Device::cpu()});
  CHECK(asked.chosen == 1);
  CHECK(asked.decisions[0].detail == "needs a GPU, the CPU was asked for");
  // A GPU that nothing fits does not silently become the CPU.
  CHECK(!resolve(gpu_host("12.9", "7.5"), index, {}).chosen);
}

TEST_CASE("resolve: each GPU of a mixed machine gets its own answer") {
  Host host = gpu_host("12.9", "8.0");
  host.gpus.push_back({1, "NVIDIA Other", {9, 0}});
  const Index index = index_of({variant_of("hopper", gpu_needs("12.9", "12.0", {"sm_90a"})),
                                variant_of("ampere", gpu_needs("12.9", "12.0", {"sm_80"}))});
  CHECK(resolve(host, index, {}).chosen == 1);
  CHECK(resolve(host, index, {.device = Device::cuda(0)}).chosen == 1);
  CHECK(resolve(host, index, {.device = Device::cuda(1)}).chosen == 0);
  check_throws(ErrorCode::kUsage, {"resolve geglu-mlp@1: cuda:-1"},
               [&] { resolve(host, index, {.device = Device::cuda(-1)}); });
}

TEST_CASE(
    "resolve: a GPU that is not there, or whose driver does not say, is a reason of its own") {
  Host two = gpu_host("12.9", "8.0");
  two.gpus.push_back({1, "NVIDIA Other", {9, 0}});
  Host broken = cpu_host();
  broken.driver_problem = "cuInit says E (803): why. Cure";
  Host one_known = two;
  one_known.driver_problem = broken.driver_problem;
  const Index index = index_of({variant_of("gpu", gpu_needs("12.9", "12.0", {"sm_90a", "sm_80"})),
                                variant_of("cpu", cpu_needs("x86-64-v3"))});
  const Selection any;
  const Selection cpu{.device = Device::cpu()};
  const Selection second{.device = Device::cuda(1)};
  const Selection third{.device = Device::cuda(2)};
  const Selection every{.all_gpus = true};
  struct Case {
    const char* name;
    Host host;
    Selection selection;
    std::optional<std::size_t> chosen;
    ErrorCode code;
    std::string hint;  ///< its beginning
  };
  const std::string problem =
      "an NVIDIA driver is there, and which GPUs it has cannot be told: " + broken.driver_problem +
      ". To do without a GPU, take --device cpu";
  const Case cases[] = {
      {"not there",
       two,
       third,
       {},
       ErrorCode::kUsage,
       "cuda:2 was asked for, this machine has GPU 0 NVIDIA Test (8.0), GPU 1 NVIDIA Other (9.0)"},
      {"none there",
       cpu_host(),
       second,
       {},
       ErrorCode::kUsage,
       "cuda:1 was asked for, this machine shows no GPU. Check nvidia-smi"},
      {"broken, automatic", broken, any, {}, ErrorCode::kDevice, problem},
      {"broken, by name", broken, second, {}, ErrorCode::kDevice, problem},
      {"broken, every", broken, every, {}, ErrorCode::kDevice, problem},
      {"broken, the CPU", broken, cpu, 1, ErrorCode::kNoVariant, ""},
      {"one cannot be told, automatic", one_known, any, 0, ErrorCode::kNoVariant, ""},
      {"one cannot be told, every", one_known, every, {}, ErrorCode::kDevice, problem},
      {"none there, automatic", cpu_host(), any, 1, ErrorCode::kNoVariant, ""},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    const Resolution resolution = resolve(each.host, index, each.selection);
    CHECK(resolution.chosen == each.chosen);
    CHECK(resolution.code == each.code);
    CHECK_MESSAGE(resolution.hint.starts_with(each.hint), resolution.hint);
    if (each.chosen) continue;
    CHECK(resolution.device.kind == Device::Kind::kCuda);
    for (const Decision& decision : resolution.decisions) {
      CHECK(decision.refusal == Refusal::kDevice);
    }
  }
  const Resolution refused = resolve(broken, index, {});
  CHECK(refused.decisions[0].detail == "needs cuda:0, the driver does not say which GPUs it has");
  CHECK(refused.explain().find("an NVIDIA driver, GPUs not known; for cuda:0") !=
        std::string::npos);
}

TEST_CASE("resolve: what the driver compiles is marked") {
  const Index index = index_of({variant_of("ptx", gpu_needs("12.9", "12.9", {"compute_80"})),
                                variant_of("sass", gpu_needs("12.9", "12.0", {"sm_90"}))});
  const Resolution resolution = resolve(gpu_host("12.9", "9.0"), index, {});
  CHECK(resolution.decisions[0].jit);
  CHECK_FALSE(resolution.decisions[1].jit);
  CHECK_FALSE(resolve(cpu_host(), index, {}).decisions[0].jit);
}

TEST_CASE("resolve: for every GPU the answer is the same, whichever of them is asked for") {
  Host host = gpu_host("12.9", "9.0");
  host.gpus.push_back({1, "NVIDIA Other", {8, 0}});
  host.gpus.push_back({2, "NVIDIA Test", {9, 0}});
  const Index index =
      index_of({variant_of("hopper", gpu_needs("12.9", "12.0", {"sm_90a"})),
                variant_of("ptx", gpu_needs("11.8", "11.8", {"sm_90", "compute_80"})),
                variant_of("both", gpu_needs("11.8", "11.8", {"sm_80", "sm_90"})),
                variant_of("cpu", cpu_needs("x86-64-v3"))});
  for (const Device device : {Device::automatic(), Device::cuda(0), Device::cuda(1)}) {
    const Resolution resolution = resolve(host, index, {.device = device, .all_gpus = true});
    REQUIRE(resolution.chosen == 2);  // machine code on both before PTX on one
    CHECK(resolution.all_gpus);
    CHECK(resolution.decisions[1].rank == 2);
    CHECK(resolution.explain().find("; for every GPU") != std::string::npos);
  }
  check_throws(ErrorCode::kUsage, {"every GPU", "--device cpu"},
               [&] { resolve(host, index, {.device = Device::cpu(), .all_gpus = true}); });
  CHECK_FALSE(resolve(cpu_host(), index, {.all_gpus = true}).all_gpus);
}

TEST_CASE("resolve: a deny list that cannot be meant is refused, not ignored") {
  const Index index = index_of({variant_of("only", cpu_needs("x86-64"))});
  const std::string hex(64, 'a');
  for (const std::string& entry :
       {std::string(), std::string("../x"), std::string("sha256:abc"), "sha256:" + hex.substr(1),
        "SHA256:" + hex, hex, std::string(64, 'A'), std::string("two words"),
        std::string("line\n")}) {
    check_throws(ErrorCode::kUsage, {"resolve geglu-mlp@1: the deny list", "Correct the entry"},
                 [&] { resolve(cpu_host(), index, {.deny = {entry}}); });
  }
  CHECK(resolve(cpu_host(), index, {.deny = {"sha256:" + hex}}).chosen == 0);
  CHECK(resolve(cpu_host(), index, {.deny = {hex + "a"}}).chosen ==
        0);  // a variant may be called so
}

TEST_CASE("resolve: the answer repeats what was asked and of whom") {
  Host host = gpu_host("12.9", "9.0");
  host.overridden = {"KILN_OVERRIDE_SM"};
  const Index index = test::sample_index();
  const Resolution resolution = resolve(host, index, {});
  CHECK(resolution.name == "geglu-mlp");
  CHECK(resolution.version == 1);
  CHECK(resolution.host.overridden == host.overridden);
  REQUIRE(resolution.decisions.size() == index.variants.size());
  for (std::size_t i = 0; i < index.variants.size(); ++i) {
    CHECK(resolution.decisions[i].variant == index.variants[i].id);
    CHECK(resolution.decisions[i].digest == index.variants[i].manifest.digest.str());
  }
}

TEST_CASE("resolve: words") {
  CHECK(to_string(Device::automatic()) == "auto");
  CHECK(to_string(Device::cpu()) == "cpu");
  CHECK(to_string(Device::cuda(3)) == "cuda:3");
  const std::string_view words[] = {"NONE",           "LOADER_TOO_OLD", "ABI",    "ARCH",
                                    "GLIBC",          "CPU_LEVEL",      "DEVICE", "DRIVER",
                                    "NO_DEVICE_CODE", "LIBRARY",        "POLICY"};
  for (std::size_t i = 0; i < std::size(words); ++i) {
    CHECK(to_string(static_cast<Refusal>(i)) == words[i]);
  }
}

}  // namespace kiln
