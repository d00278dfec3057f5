// SPDX-License-Identifier: Apache-2.0
//
// Probe: overrides, and GPUs as libraries of drivers that are not installed describe them.
#include "probe/probe.hpp"

#include <doctest/doctest.h>
#include <gnu/libc-version.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "documents/target.hpp"
#include "output_of.hpp"
#include "probe/hardware.hpp"
#include "probe/processor.hpp"
#include "probe_paths.hpp"
#include "published.hpp"
#include "scratch.hpp"

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

/// Without the line break at its end.
std::string line_of(const std::string& command) {
  std::string text = output_of(command);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

/// The line that probe_facts prints with these variables set. It is killed if it hangs.
std::string run(const std::string& variables, const std::string& words = "") {
  return line_of("env -u CUDA_VISIBLE_DEVICES -u CUDA_DEVICE_ORDER " + variables +
                 " timeout -s KILL 60 " + paths::kProbeFacts + " " + words);
}

const std::string kNvml = paths::kFakeNvml;
const std::string kBoth = "LD_LIBRARY_PATH=" + kNvml + ":" + paths::kFakeCuda + " ";
// An NVML that does not start, so that this machine's own is not found.
const std::string kCuda = kBoth + "FAKE_BROKEN=1 ";

// Of these, the libraries that are left out are this machine's own, where it has a driver.
const std::string kNvmlAlone = "LD_LIBRARY_PATH=" + kNvml + " ";
const std::string kCudaAlone = std::string("LD_LIBRARY_PATH=") + paths::kFakeCuda + " ";
const std::string kNeither = "LD_LIBRARY_PATH= ";

/// Whether this machine's own driver takes the place of what `variables` leave out.
bool is_mixed(const std::string& variables) {
  static const bool has_driver = [] {
    for (const char* library : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
      if (run(kNeither, std::string("library ") + library) != "absent") return true;
    }
    return false;
  }();
  const auto begins = [&](const std::string& with) { return variables.starts_with(with); };
  return has_driver && (begins(kNvmlAlone) || begins(kCudaAlone) || begins(kNeither));
}

TEST_CASE("probe: GPUs in CUDA's order, from NVML where it knows, else from libcuda") {
  struct Case {
    const char* name;
    std::string variables;
    const char* expected;
  };
  const std::string equal = kBoth + "FAKE_GPUS=9.0,9.0,9.0 FAKE_CUDA_GPUS=1.1 ";
  const std::string mixed = kBoth + "FAKE_GPUS=9.0,8.0 FAKE_CUDA_GPUS=8.0,9.0 ";
  const std::string named = kBoth + "FAKE_GPUS=8.6a,8.6b,8.6b FAKE_CUDA_GPUS=8.6,8.6 ";
  const std::vector<Case> cases{
      {"all", equal, "12.4 nvml:9.0 nvml:9.0 nvml:9.0"},
      {"none", equal + "CUDA_VISIBLE_DEVICES=", "12.4"},
      {"some", equal + "CUDA_VISIBLE_DEVICES=2,0", "12.4 nvml:9.0 nvml:9.0"},
      {"up to one that is not there", equal + "CUDA_VISIBLE_DEVICES=1,7,0", "12.4 nvml:9.0"},
      {"up to -1", equal + "CUDA_VISIBLE_DEVICES=0,-1,1", "12.4 nvml:9.0"},
      {"spaces", equal + "'CUDA_VISIBLE_DEVICES= 1 , 2'", "12.4 nvml:9.0 nvml:9.0"},
      {"one twice", equal + "CUDA_VISIBLE_DEVICES=1,1", "12.4"},
      {"by UUID", named + "CUDA_VISIBLE_DEVICES=GPU-b0000000-0000,GPU-a",
       "12.4 nvmlb:8.6 nvmla:8.6"},
      {"by an ambiguous UUID", equal + "CUDA_VISIBLE_DEVICES=GPU-", "12.4"},
      {"no GPU in the machine", kBoth + "FAKE_GPUS=", "12.4"},
      {"mixed", mixed, "13.0 cuda0:8.0 cuda1:9.0"},
      {"mixed, by number", mixed + "CUDA_VISIBLE_DEVICES=0,1", "13.0 cuda0:8.0 cuda1:9.0"},
      {"mixed, in PCI order", mixed + "CUDA_DEVICE_ORDER=PCI_BUS_ID", "12.4 nvml:9.0 nvml:8.0"},
      {"alike but for their names", named, "13.0 cuda0:8.6 cuda1:8.6"},
      {"alike but for their names, in PCI order", named + "CUDA_DEVICE_ORDER=PCI_BUS_ID",
       "12.4 nvmla:8.6 nvmlb:8.6 nvmlb:8.6"},
      {"mixed, by UUID", mixed + "CUDA_VISIBLE_DEVICES=GPU-b", "12.4 nvml:8.0"},
      // A machine of one GPU in instances b (index 1) and d (index 3), and one that is not split.
      {"one instance is all there is", kBoth + "FAKE_GPUS=9.0 FAKE_MIG=1 FAKE_CUDA_GPUS=1.1",
       "12.4 nvml0-MIG-1g:9.0"},
      {"one instance, by number",
       kBoth + "FAKE_GPUS=9.0 FAKE_MIG=1 FAKE_CUDA_GPUS=1.1 CUDA_VISIBLE_DEVICES=0",
       "12.4 nvml0-MIG-1g:9.0"},
      {"several instances", kBoth + "FAKE_GPUS=9.0 FAKE_MIG=2 FAKE_CUDA_GPUS=1.1",
       "13.0 cuda0:1.1"},
      {"split by MIG beside others", equal + "FAKE_MIG=1", "13.0 cuda0:1.1"},
      {"an instance by UUID", equal + "FAKE_MIG=2 CUDA_VISIBLE_DEVICES=MIG-d0000000-0000",
       "12.4 nvml0-MIG-3g:9.0"},
      {"an instance by the start of its UUID", equal + "FAKE_MIG=2 CUDA_VISIBLE_DEVICES=MIG-b",
       "12.4 nvml0-MIG-1g:9.0"},
      {"two instances by UUID", equal + "FAKE_MIG=2 CUDA_VISIBLE_DEVICES=MIG-b,MIG-d",
       "13.0 cuda0:1.1"},
      {"an instance that is not there", equal + "FAKE_MIG=1 CUDA_VISIBLE_DEVICES=MIG-1234",
       "13.0 cuda0:1.1"},
      {"an instance, where nothing is split", equal + "CUDA_VISIBLE_DEVICES=MIG-1234",
       "13.0 cuda0:1.1"},
      {"the GPU that is not split, by UUID",
       kBoth + "FAKE_GPUS=9.0a,9.0b FAKE_MIG=1 CUDA_VISIBLE_DEVICES=GPU-b0000000-0000",
       "12.4 nvmlb:9.0"},
      {"NVML starts another program", equal + "FAKE_FORK=1 CUDA_VISIBLE_DEVICES=0",
       "12.4 nvml:9.0"},
      {"NVML does not start", equal + "FAKE_BROKEN=1", "13.0 cuda0:1.1"},
      {"no NVML", kCudaAlone + "FAKE_CUDA_GPUS=8.6", "13.0 cuda0:8.6"},
      {"no NVML, CUDA sees no GPU", kCudaAlone + "FAKE_CUDA_GPUS=8.6 FAKE_CUDA_INIT=100", "13.0"},
      {"no driver at all", kNeither, "none"},
      // Where glibc's words are there in German (libc-l10n), it would say them to a translated
      // program.
      {"no driver at all, in another language", kNeither + "LC_ALL=C.UTF-8 LANGUAGE=de", "none"},
      {"overridden", mixed + "KILN_OVERRIDE_CUDA=12.2 KILN_OVERRIDE_SM=12.0", "12.2 :12.0"},
      {"only the driver overridden",
       equal + "KILN_OVERRIDE_CUDA=", "none nvml:9.0 nvml:9.0 nvml:9.0"},
      {"only the GPUs overridden", equal + "KILN_OVERRIDE_SM=", "12.4"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    if (is_mixed(each.variables)) continue;
    CHECK(run(each.variables) == each.expected);
  }
}

TEST_CASE("probe: a process that uses CUDA is asked itself, and nobody for a CPU request") {
  const std::string both = kBoth + "FAKE_GPUS=9.0,9.0 FAKE_CUDA_GPUS=9.0 ";
  CHECK(run(both) == "12.4 nvml:9.0 nvml:9.0");
  CHECK(run(both, "loaded") == "12.4 nvml:9.0 nvml:9.0");
  CHECK(run(both, "running") == "13.0 cuda0:9.0");
  CHECK(run(both + "FAKE_CUDA_INIT=999", "running") == "12.4 nvml:9.0 nvml:9.0");
  CHECK(run(both, "cpu") == "not asked");
}

TEST_CASE("probe: a driver that does not say what GPUs there are is not a machine without one") {
  const std::string one = kCuda + "FAKE_CUDA_GPUS=8.6,9.0 ";
  struct Case {
    std::string variables;
    std::string begins;
    std::string has;
  };
  const Scratch scratch;
  write_file(scratch / "libcuda.so.1", "");
  const Case cases[] = {
      {one + "FAKE_CUDA_INIT=803",
       "13.0 problem: cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): ",
       "Restart the machine"},
      {one + "FAKE_CUDA_INIT=802", "13.0 problem: cuInit says CUDA_ERROR_SYSTEM_NOT_READY (802): ",
       "Start nvidia-fabricmanager"},
      {one + "FAKE_CUDA_INIT=999",
       "13.0 problem: cuInit says CUDA_ERROR_UNKNOWN (999): ", "nvidia-modprobe"},
      {one + "FAKE_CUDA_INIT=12345", "13.0 problem: cuInit says an unknown error (12345). ",
       "dmesg"},
      {one + "FAKE_CUDA_STUB=1",
       "none problem: cuInit says CUDA_ERROR_STUB_LIBRARY (34): ", "LD_LIBRARY_PATH"},
      {one + "FAKE_CUDA_MUTE=1", "13.0 cuda0:8.6 problem: asked for GPU 1, CUDA says ", "(999)"},
      {"FAKE_BROKEN=1 LD_LIBRARY_PATH=" + scratch.path().string() + ":" + kNvml,
       "none problem: libcuda.so.1 cannot be used (" + (scratch / "libcuda.so.1").string(),
       "file too short"},
  };
  for (const Case& each : cases) {
    const std::string text = run(each.variables);
    CHECK_MESSAGE(text.starts_with(each.begins), text);
    CHECK_CONTAINS(text, each.has);
  }
  CHECK(run(one + "FAKE_CUDA_INIT=803 KILN_OVERRIDE_SM=9.0") == "13.0 :9.0");
}

TEST_CASE(
    "get_kernel: a GPU that cannot be used is an error with its cure, or the fallback's reason") {
  const Scratch scratch;
  Published published(scratch / "registry");
  published.publish({gpu_draft(sample_library("gpu")), cpu_draft(sample_library())});
  const auto get = [&](const std::string& variables, const std::string& request) {
    fs::remove_all(scratch / "cache");
    return run("KILN_UNSIGNED=/ " + variables, "get " + (scratch / "registry").string() + " " +
                                                   (scratch / "cache").string() + " " + request);
  };
  const std::string broken = kCuda + "FAKE_CUDA_GPUS=9.0 FAKE_CUDA_INIT=803 ";
  const std::string nvml_only = kNvmlAlone + "FAKE_GPUS=9.0 ";
  const std::string not_ready = kBoth + "FAKE_GPUS=9.0 FAKE_CUDA_GPUS=9.0 FAKE_CUDA_INIT=802 ";
  struct Case {
    std::string variables;
    std::string request;
    std::string begins;
    std::string has;
  };
  const std::string told = "an NVIDIA driver is there, and which GPUs it has cannot be told: ";
  const Case cases[] = {
      {kBoth + "FAKE_GPUS=9.0 FAKE_CUDA_GPUS=9.0", "auto", "cu12.4-sm_90", ""},
      {broken, "auto", "device resolve sample@1: " + told, "Restart the machine"},
      {broken, "cuda:0", "device resolve sample@1: " + told, "Restart the machine"},
      {broken, "cpu", "cpu-base", ""},
      {broken, "auto cpu", "cpu-base after cuda:0: " + told, "(803)"},
      {broken, "cuda:0 cpu", "cpu-base after cuda:0: " + told, "(803)"},
      {not_ready, "auto", "device resolve sample@1: " + told, "Start nvidia-fabricmanager"},
      {not_ready, "cuda:0 cpu", "cpu-base after cuda:0: " + told, "(802)"},
      {nvml_only, "auto", "device resolve sample@1: " + told, "NVIDIA_DRIVER_CAPABILITIES"},
      {kNeither, "auto", "cpu-base", ""},
      {kNeither, "cuda:0",
       "usage resolve sample@1: cuda:0 was asked for, this machine shows no GPU", "--device cpu"},
      {kNeither, "cuda:0 cpu",
       "cpu-base after cuda:0: cuda:0 was asked for, this machine shows no GPU", ""},
  };
  for (const Case& each : cases) {
    if (is_mixed(each.variables)) continue;
    const std::string text = get(each.variables, each.request);
    CHECK_MESSAGE(text.starts_with(each.begins), text);
    CHECK_CONTAINS(text, each.has);
  }
}

TEST_CASE("get_kernel: that the driver compiles PTX is told before it takes its seconds") {
  const Scratch scratch;
  Draft draft = gpu_draft(sample_library("gpu"));
  draft.variant.needs.device_code =
      draft.config.needs.device_code = {*parse_device_code("compute_80")};
  Published published(scratch / "registry");
  published.publish({draft});
  const std::string driver = kBoth + "FAKE_GPUS=9.0 FAKE_CUDA_GPUS=9.0 ";
  CHECK(run("KILN_UNSIGNED=/ " + driver, "get " + (scratch / "registry").string() + " " +
                                             (scratch / "cache").string() + " auto") ==
        "cu12.4-sm_90, the driver compiles PTX for cuda:0, which takes seconds; it keeps the "
        "result for later runs");
  // The command says it, too, and keeps it from what is read by programs.
  const std::string doctor = "env KILN_UNSIGNED=/ " + driver + paths::kCommand +
                             " doctor sample@1 --registry " + (scratch / "registry").string() +
                             " --cache " + (scratch / "other").string();
  CHECK(line_of(doctor + " 2>&1 >/dev/null | grep '^compile: '") ==
        "compile: the driver compiles PTX for cuda:0, which takes seconds; it keeps the result for "
        "later runs");
  CHECK(line_of(doctor + " -q 2>&1 >/dev/null | grep '^compile: '").empty());
}

TEST_CASE("kiln doctor: a driver that does not start is a problem with its cure, exit 14") {
  const Scratch scratch;
  Published published(scratch / "registry");
  published.publish({gpu_draft(sample_library("gpu")), cpu_draft(sample_library())});
  const auto doctor = [&](const std::string& variables) {
    return output_of("HOME=" + (scratch / "home").string() +
                     " KILN_UNSIGNED=/ KILN_REGISTRY=" + (scratch / "registry").string() +
                     " KILN_CACHE=" + (scratch / "cache").string() + " " + variables +
                     "FAKE_CUDA_GPUS=9.0 " + paths::kCommand + " doctor 2>&1; echo exit $?");
  };
  const std::string broken = doctor(kCuda + "FAKE_CUDA_INIT=803 ");
  CHECK_CONTAINS(broken,
                 "problem   the NVIDIA driver is there and does not say which GPUs it has: "
                 "cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803): ");
  CHECK_CONTAINS(broken, "Restart the machine");
  CHECK_CONTAINS(broken, "exit 14\n");
  // NVML shows GPUs on which CUDA does not start: 'nvidia-smi -L' would find nothing wrong.
  CHECK_CONTAINS(doctor(kBoth + "FAKE_GPUS=9.0 FAKE_CUDA_INIT=802 "), "Start nvidia-fabricmanager");
  const std::string whole = doctor(kBoth + "FAKE_GPUS=9.0 ");
  CHECK_CONTAINS(whole, "no problems\nexit 0\n");
}

TEST_CASE("kiln doctor: a GPU that nobody asks for is no problem; one that is asked for is") {
  const Scratch scratch;
  fs::create_directory(scratch / "registry");
  const std::string none = "KILN_OVERRIDE_CUDA= KILN_OVERRIDE_SM= ";
  const std::string one = "KILN_OVERRIDE_CUDA=12.4 KILN_OVERRIDE_SM=9.0 ";
  const std::string hidden = "KILN_OVERRIDE_CUDA=12.4 KILN_OVERRIDE_SM= ";
  const std::string broken = kCuda + "FAKE_CUDA_GPUS=9.0 FAKE_CUDA_INIT=803 ";
  struct Case {
    const char* name;
    std::string variables;
    const char* words;
    const char* says;
    const char* json;  // how the list of problems begins, without spaces
  };
  const std::vector<Case> cases{
      {"no driver, of the CPU", none, "--device cpu", "no problems\nexit 0\n", "[]"},
      {"no driver", none, "", "no problems\nexit 0\n", "[]"},
      {"no driver is a fact", none, "", "note      no NVIDIA driver: only CPU variants fit", "[]"},
      {"no driver, of a GPU", none, "--device cuda:0",
       "problem   no NVIDIA driver: only CPU variants fit. For a GPU, install one, or pass the "
       "GPU into this container.\nexit 2\n",
       "[\"noNVIDIAdriver"},
      {"no driver, of a GPU or the CPU", none, "--device cuda:0 --fallback cpu",
       "no problems\nexit 0\n", "[]"},
      {"no GPU, of the CPU", hidden, "--device cpu", "no problems\nexit 0\n", "[]"},
      {"no GPU", hidden, "", "no problems\nexit 0\n", "[]"},
      {"no GPU is a fact", hidden, "", "note      the driver shows no GPU", "[]"},
      {"no GPU, of a GPU", hidden, "--device cuda:0", "exit 2\n", "[\"thedrivershows"},
      {"a GPU", one, "--device cuda:0", "no problems\nexit 0\n", "[]"},
      {"another GPU", one, "--device cuda:1",
       "problem   there is no cuda:1: name one up to cuda:0 in --device\nexit 2\n", "[\"thereisno"},
      {"a broken driver, of the CPU", broken, "--device cpu", "no problems\nexit 0\n", "[]"},
      {"a broken driver", broken, "", "exit 14\n", "[\"theNVIDIAdriveristhere"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    const std::string doctor = "env -u CUDA_VISIBLE_DEVICES HOME=" + (scratch / "home").string() +
                               " KILN_UNSIGNED=/ KILN_REGISTRY=" + (scratch / "registry").string() +
                               " KILN_CACHE=" + (scratch / "cache").string() + " " +
                               each.variables + paths::kCommand + " doctor " + each.words;
    CHECK_CONTAINS(output_of(doctor + " 2>&1; echo exit $?"), each.says);
    CHECK_CONTAINS(output_of(doctor + " --json 2>&1 | tr -d '\\n '"),
                   std::string("\"problems\":") + each.json);
  }
}

TEST_CASE("workspace: one primary context is held while it lives, and its own one is waited for") {
  CHECK(run(kCuda + "FAKE_CUDA_GPUS=9.0", "contexts") ==
        "primary: contexts:0 primaries:1 memories:1 hasty:0; "
        "after: contexts:1 primaries:0 memories:0 hasty:0; "
        "own: contexts:1 primaries:0 memories:1 hasty:0; "
        "after: contexts:2 primaries:0 memories:0 hasty:0");
}

TEST_CASE("workspace: device memory through the driver, and its error when there is none left") {
  const std::string text = run(kCuda + "FAKE_CUDA_GPUS=9.0", "workspace");
  CHECK(text.starts_with("ok device "));
  CHECK_CONTAINS(text, "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK_CONTAINS(run(kCuda, "workspace"), "CUDA_ERROR_INVALID_DEVICE");
  CHECK_CONTAINS(run("LD_LIBRARY_PATH=", "workspace"), "device ");
}

TEST_CASE("workspace: where there is no room to grow by half, what is needed is enough") {
  CHECK(run(kCuda + "FAKE_CUDA_GPUS=9.0 FAKE_CUDA_MEMORY=1100000", "growth") ==
        "1000192 1050112 device");
}

TEST_CASE("probe: a library is asked for by its name, never by a path") {
  CHECK(run(kBoth, "library libnvidia-ml.so.1") == "present");
  CHECK(run(kBoth, "library libkiln-nobody-has-this.so.1") == "absent");
  CHECK(run("", "library libc.so.6") == "present");
  CHECK(run("", "library " + kNvml + "/libnvidia-ml.so.1") == "absent");
}

TEST_CASE("probe: this machine's processor and glibc") {
  const Host host = probe_host(false);
  const std::string glibc = ::gnu_get_libc_version();
  REQUIRE(host.glibc);
  CHECK(glibc.starts_with(to_string(*host.glibc)));
  CHECK(host.overridden.empty());
  CHECK(parse_cpu_level(to_string(host.cpu)) == host.cpu);
#if defined(__x86_64__)
  CHECK(host.arch == Arch::kX86_64);
  // The compiler's runtime reads it, too: in this process, so that it sees what an emulator masks.
  __builtin_cpu_init();
  const auto has = [](auto... flags) { return (... && (flags != 0)); };
  const bool v2 = has(__builtin_cpu_supports("sse4.2"), __builtin_cpu_supports("popcnt"));
  const bool v3 = v2 && has(__builtin_cpu_supports("avx2"), __builtin_cpu_supports("bmi2"),
                            __builtin_cpu_supports("fma"));
  const bool v4 = v3 && has(__builtin_cpu_supports("avx512f"), __builtin_cpu_supports("avx512bw"),
                            __builtin_cpu_supports("avx512cd"), __builtin_cpu_supports("avx512dq"),
                            __builtin_cpu_supports("avx512vl"));
  CHECK(std::min(host.cpu.level, 4) == (v4 ? 4 : v3 ? 3 : v2 ? 2 : 1));
#endif
}

TEST_CASE(
    "probe: each level of x86-64 by the words of a CPU that has it, and of one that lacks a bit") {
  // A CPU without AVX; with AVX2; with AVX-512 (Skylake-SP); with AVX512-BF16 (Zen 4); with AMX
  // (Sapphire Rapids).
  const X86Words v2{.basic = 0x00982201, .extended = 0x1};
  const X86Words v3{.basic = 0x38d83201, .extended = 0x21, .features = 0x128, .saved = 0x7};
  X86Words v4 = v3;
  v4.features |= 0xd0030000;
  v4.saved = 0xe7;
  X86Words bf16 = v4;
  bf16.more = 1u << 5;
  X86Words amx = bf16;
  amx.tiles = 1u << 22 | 1u << 24;
  amx.saved = 0x600e7;
  amx.tiles_granted = true;
  const auto level = [](X86Words words, const std::function<void(X86Words&)>& change) {
    change(words);
    return x86_64_level(words);
  };
  const auto as_it_is = [](X86Words&) {};
  CHECK(level({}, as_it_is) == 1);
  CHECK(level(v2, as_it_is) == 2);
  CHECK(level(v3, as_it_is) == 3);
  CHECK(level(v4, as_it_is) == 4);
  CHECK(level(bf16, as_it_is) == 5);
  CHECK(level(amx, as_it_is) == 6);
  CHECK(level(v2, [](X86Words& w) { w.extended = 0; }) == 1);
  CHECK(level(amx, [](X86Words& w) { w.basic &= ~(1u << 23); }) == 1);
  CHECK(level(amx, [](X86Words& w) { w.basic &= ~(1u << 27); }) == 2);
  CHECK(level(amx, [](X86Words& w) { w.saved = 0x3; }) == 2);
  CHECK(level(amx, [](X86Words& w) { w.saved = 0x7; }) == 3);
  CHECK(level(amx, [](X86Words& w) { w.features &= ~(1u << 31); }) == 3);
  // With AMX that the system does not grant, the level of the CPU's fp32 is the faster one.
  CHECK(level(amx, [](X86Words& w) { w.tiles_granted = false; }) == 4);
  CHECK(level(amx, [](X86Words& w) { w.saved = 0xe7; }) == 4);
  CHECK(level(amx, [](X86Words& w) { w.tiles = 1u << 24; }) == 4);
  CHECK(level(amx, [](X86Words& w) { w.tiles = 0; }) == 5);
}

TEST_CASE("probe: overrides replace facts and are named") {
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.2");
  const Environment sm("KILN_OVERRIDE_SM", "9.0,12.1");
  const Host host = probe_host();
  CHECK(host.driver == Version{12, 2});
  REQUIRE(host.gpus.size() == 2);
  CHECK(host.gpus[1].ordinal == 1);
  CHECK(host.gpus[1].capability == Version{12, 1});
  CHECK(host.overridden == std::vector<std::string>{"KILN_OVERRIDE_CUDA", "KILN_OVERRIDE_SM"});
}

TEST_CASE("probe: a driver that is overridden has the version that is given, or none") {
  const Environment sm("KILN_OVERRIDE_SM", "9.0");
  {
    const Environment driver("KILN_OVERRIDE_DRIVER", "570.124.06");
    const Host host = probe_host();
    CHECK(host.driver_version == "570.124.06");
    CHECK(host.overridden == std::vector<std::string>{"KILN_OVERRIDE_DRIVER", "KILN_OVERRIDE_SM"});
    CHECK(probe_host(false).driver_version.empty());
  }
  {
    const Environment driver("KILN_OVERRIDE_DRIVER", "");
    CHECK(probe_host().driver_version.empty());
  }
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.2");  // another driver than this machine's
  CHECK(probe_host().driver_version.empty());
}

TEST_CASE("probe: a CPU's model is what Linux calls it") {
  std::ifstream table("/proc/cpuinfo");
  std::string line;
  while (std::getline(table, line) && !line.starts_with("model name")) {
  }
  const std::size_t colon = line.find(": ");
  const std::string name = colon == std::string::npos ? "" : line.substr(colon + 2);
  if (name == "unknown") return;  // Linux's own word, and gVisor's
  CHECK(cpu_model() == name);
}

TEST_CASE("probe: the driver's version is the kernel module's, where it is one") {
  const std::string release = driver_release();
  if (release.empty()) MESSAGE("no NVIDIA module here: that it is taken was not tried");
  CHECK(probe_host().driver_version == (is_driver_version(release) ? release : ""));
  CHECK(probe_host(false).driver_version.empty());
}

TEST_CASE("probe: an override that does not parse is a usage error that quotes it") {
  struct Case {
    const char* name;
    const char* value;
  };
  for (const Case& each :
       {Case{"KILN_OVERRIDE_CUDA", "12"}, Case{"KILN_OVERRIDE_SM", "9.0,,8.0"},
        Case{"KILN_OVERRIDE_SM", "sm_90"}, Case{"KILN_OVERRIDE_DRIVER", "12.4"}}) {
    CAPTURE(each.name);
    const Environment variable(each.name, each.value);
    const Error error = error_of([] { probe_host(); });
    CHECK(error.code() == ErrorCode::kUsage);
    CHECK_CONTAINS(error.what(), each.value);
  }
}

}  // namespace
}  // namespace kiln::test
