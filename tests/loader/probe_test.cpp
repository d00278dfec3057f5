// SPDX-License-Identifier: Apache-2.0
//
// Probe: overrides, and GPUs as libraries of drivers that are not installed describe them.
#include "probe/probe.hpp"

#include <doctest/doctest.h>
#include <gnu/libc-version.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "scratch.hpp"

namespace kiln::test {
namespace {

/// The line that probe_facts prints with these variables set.
std::string run(const std::string& variables, const std::string& words = "") {
  const std::string command = "env -u CUDA_VISIBLE_DEVICES -u CUDA_DEVICE_ORDER " + variables +
                              " " KILN_PROBE_FACTS " " + words;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) text += buffer.data();
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

const std::string kNvml = "LD_LIBRARY_PATH=" KILN_FAKE_NVML " ";
const std::string kCuda = "LD_LIBRARY_PATH=" KILN_FAKE_CUDA " ";
const std::string kBoth = "LD_LIBRARY_PATH=" KILN_FAKE_NVML ":" KILN_FAKE_CUDA " ";

TEST_CASE("probe: GPUs in CUDA's order, from NVML where it knows, else from libcuda") {
  struct Case {
    const char* name;
    std::string variables;
    const char* expected;
  };
  const std::string equal = kBoth + "FAKE_GPUS=9.0,9.0,9.0 FAKE_CUDA_GPUS=1.1 ";
  const std::string mixed = kBoth + "FAKE_GPUS=9.0,8.0 FAKE_CUDA_GPUS=8.0,9.0 ";
  const std::vector<Case> cases{
      {"all", equal, "12.4 nvml0:9.0 nvml1:9.0 nvml2:9.0"},
      {"none", equal + "CUDA_VISIBLE_DEVICES=", "12.4"},
      {"some", equal + "CUDA_VISIBLE_DEVICES=2,0", "12.4 nvml2:9.0 nvml0:9.0"},
      {"up to one that is not there", equal + "CUDA_VISIBLE_DEVICES=1,7,0", "12.4 nvml1:9.0"},
      {"up to -1", equal + "CUDA_VISIBLE_DEVICES=0,-1,1", "12.4 nvml0:9.0"},
      {"spaces", equal + "'CUDA_VISIBLE_DEVICES= 1 , 2'", "12.4 nvml1:9.0 nvml2:9.0"},
      {"one twice", equal + "CUDA_VISIBLE_DEVICES=1,1", "12.4"},
      {"by UUID", equal + "CUDA_VISIBLE_DEVICES=GPU-b0000000-0000,GPU-a",
       "12.4 nvml1:9.0 nvml0:9.0"},
      {"by an ambiguous UUID", equal + "CUDA_VISIBLE_DEVICES=GPU-", "12.4"},
      {"no GPU in the machine", kBoth + "FAKE_GPUS=", "12.4"},
      {"mixed", mixed, "13.0 cuda0:8.0 cuda1:9.0"},
      {"mixed, by number", mixed + "CUDA_VISIBLE_DEVICES=0,1", "13.0 cuda0:8.0 cuda1:9.0"},
      {"mixed, in PCI order", mixed + "CUDA_DEVICE_ORDER=PCI_BUS_ID", "12.4 nvml0:9.0 nvml1:8.0"},
      {"mixed, by UUID", mixed + "CUDA_VISIBLE_DEVICES=GPU-b", "12.4 nvml1:8.0"},
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
       equal + "FAKE_MIG=1 CUDA_VISIBLE_DEVICES=GPU-b0000000-0000", "12.4 nvml1:9.0"},
      {"NVML does not start", equal + "FAKE_BROKEN=1", "13.0 cuda0:1.1"},
      {"no NVML", kCuda + "FAKE_CUDA_GPUS=8.6", "13.0 cuda0:8.6"},
      {"no NVML, CUDA does not start", kCuda + "FAKE_CUDA_GPUS=8.6 FAKE_CUDA_BROKEN=1", "13.0"},
      {"overridden", mixed + "KILN_OVERRIDE_CUDA=12.2 KILN_OVERRIDE_SM=12.0", "12.2 :12.0"},
      {"only the driver overridden",
       equal + "KILN_OVERRIDE_CUDA=", "none nvml0:9.0 nvml1:9.0 nvml2:9.0"},
      {"only the GPUs overridden", equal + "KILN_OVERRIDE_SM=", "12.4"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    CHECK(run(each.variables) == each.expected);
  }
}

TEST_CASE("probe: a process that uses CUDA is asked itself, and nobody for a CPU request") {
  const std::string both = kBoth + "FAKE_GPUS=9.0,9.0 FAKE_CUDA_GPUS=9.0 ";
  CHECK(run(both) == "12.4 nvml0:9.0 nvml1:9.0");
  CHECK(run(both, "loaded") == "12.4 nvml0:9.0 nvml1:9.0");
  CHECK(run(both, "running") == "13.0 cuda0:9.0");
  CHECK(run(both + "FAKE_CUDA_BROKEN=1", "running") == "12.4 nvml0:9.0 nvml1:9.0");
  CHECK(run(both, "cpu") == "not asked");
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

TEST_CASE("probe: a library is asked for by its name, never by a path") {
  CHECK(run(kNvml, "library libnvidia-ml.so.1") == "present");
  CHECK(run(kNvml, "library libkiln-nobody-has-this.so.1") == "absent");
  CHECK(run("", "library libc.so.6") == "present");
  CHECK(run("", "library " KILN_FAKE_NVML "/libnvidia-ml.so.1") == "absent");
}

TEST_CASE("probe: this machine's processor and glibc") {
  for (const char* name : {"ARCH", "CPU", "GLIBC"}) {
    REQUIRE(std::getenv((std::string("KILN_OVERRIDE_") + name).c_str()) == nullptr);
  }
  const Host host = probe_host();
  const std::string glibc = ::gnu_get_libc_version();
  REQUIRE(host.glibc);
  CHECK(glibc.starts_with(to_string(*host.glibc)));
  CHECK(host.overridden.empty());
#if defined(__x86_64__)
  CHECK(host.arch == Arch::kX86_64);
  // The kernel's own reading of the same bits.
  std::ifstream file("/proc/cpuinfo");
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  const std::size_t at = all.find("flags\t");
  REQUIRE(at != std::string::npos);
  const std::string flags = all.substr(at, all.find('\n', at) - at) + " ";
  const auto has = [&](const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      if (flags.find(" " + word + " ") == std::string::npos) return false;
    }
    return true;
  };
  int level = 1;
  if (has({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})) level = 2;
  if (level == 2 && has({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})) {
    level = 3;
  }
  if (level == 3 && has({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})) level = 4;
  if (level == 4 && has({"avx512_bf16"}) && !has({"amx_tile"})) level = 5;
  CHECK(host.cpu == CpuLevel{Arch::kX86_64, level});
#endif
}

TEST_CASE("probe: overrides replace facts and are named") {
  const Environment arch("KILN_OVERRIDE_ARCH", "aarch64");
  const Environment glibc("KILN_OVERRIDE_GLIBC", "");
  const Environment cuda("KILN_OVERRIDE_CUDA", "12.2");
  const Environment sm("KILN_OVERRIDE_SM", "9.0,12.1");
  const Host host = probe_host();
  CHECK(host.arch == Arch::kAarch64);
  CHECK(host.cpu == CpuLevel{Arch::kAarch64, 1});
  CHECK_FALSE(host.glibc);
  CHECK(host.driver == Version{12, 2});
  REQUIRE(host.gpus.size() == 2);
  CHECK(host.gpus[1].ordinal == 1);
  CHECK(host.gpus[1].capability == Version{12, 1});
  CHECK(host.overridden == std::vector<std::string>{"KILN_OVERRIDE_ARCH", "KILN_OVERRIDE_GLIBC",
                                                    "KILN_OVERRIDE_CUDA", "KILN_OVERRIDE_SM"});
}

TEST_CASE("probe: an override that does not parse is a usage error that quotes it") {
  struct Case {
    const char* name;
    const char* value;
  };
  for (const Case& each :
       {Case{"KILN_OVERRIDE_ARCH", "sparc"}, Case{"KILN_OVERRIDE_CPU", "x86"},
        Case{"KILN_OVERRIDE_GLIBC", "new"}, Case{"KILN_OVERRIDE_CUDA", "12"},
        Case{"KILN_OVERRIDE_SM", "9.0,,8.0"}, Case{"KILN_OVERRIDE_SM", "sm_90"}}) {
    CAPTURE(each.name);
    const Environment variable(each.name, each.value);
    const Error error = error_of([] { probe_host(); });
    CHECK(error.code() == ErrorCode::kUsage);
    CHECK_CONTAINS(error.what(), each.value);
  }
  const Environment arch("KILN_OVERRIDE_ARCH", "aarch64");
  const Environment cpu("KILN_OVERRIDE_CPU", "x86-64-v3");
  CHECK(error_of([] { probe_host(); }).code() == ErrorCode::kUsage);
}

}  // namespace
}  // namespace kiln::test
