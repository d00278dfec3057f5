// SPDX-License-Identifier: Apache-2.0
//
// Doctor: what this machine is, whether registry and cache can be used, and for each package named:
// what would be chosen and why, and whether it really loads; of what is installed, what was never
// tested on this GPU or CPU. Every problem comes with what to do.
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/posix.hpp"
#include "documents/check_file.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "install/install.hpp"
#include "install/resolution_json.hpp"
#include "install/tested_here.hpp"
#include "install/vouch.hpp"
#include "kiln/abi.h"
#include "kiln/kernel.hpp"
#include "loader/cli/frame/output.hpp"
#include "loader/cli/verbs/verbs.hpp"
#include "probe/driver.hpp"
#include "probe/hardware.hpp"
#include "probe/probe.hpp"
#include "resolve/resolve.hpp"
#include "settings/environment.hpp"
#include "store/installed.hpp"
#include "store/registry.hpp"
#include "trust/repository_source.hpp"

namespace kiln::cli {
namespace {

struct Findings {
  std::vector<std::string> problems;
  int exit_code = 0;  // of the first one

  void add(ErrorCode code, const std::string& text) { add(Error(code, text)); }
  void add(const Error& error) {
    if (std::ranges::find(problems, error.what()) != problems.end()) return;
    problems.emplace_back(error.what());
    if (exit_code == 0) exit_code = static_cast<int>(error.code());
  }
};

/// What is not as it might be, and works.
void note(const std::string& text) {
  print("note      %s\n", text.c_str());
}

/// The GPUs, unless the user asks about the CPU. A machine without one is a fact, and a problem for
/// who asks for one and takes nothing else.
void examine_gpus(const Host& host, const Request& request, Findings& findings) {
  const Device device = request.device;
  if (device.kind == Device::Kind::kCpu) return;
  const bool is_asked = device.kind == Device::Kind::kCuda && request.fallback.empty();
  const auto add = [&](const std::string& text) {
    if (is_asked) return findings.add(ErrorCode::kUsage, text);
    note(text);
  };
  if (!host.driver_problem.empty()) {
    findings.add(
        ErrorCode::kDevice,
        "the NVIDIA driver is there and does not say which GPUs it has: " + host.driver_problem);
  } else if (!host.driver) {
    add("no NVIDIA driver: only CPU variants fit. For a GPU, install one, or pass the GPU into "
        "this container.");
  } else if (host.gpus.empty()) {
    const char* visible = environment().get("CUDA_VISIBLE_DEVICES");
    add(visible != nullptr ? "the driver shows no GPU and CUDA_VISIBLE_DEVICES is '" +
                                 std::string(visible) + "': unset it"
                           : std::string("the driver shows no GPU: check 'nvidia-smi -L'"));
  } else if (is_asked &&
             std::ranges::find(host.gpus, device.ordinal, &Gpu::ordinal) == host.gpus.end()) {
    add("there is no " + to_string(device) + ": name one up to " +
        to_string(Device::cuda(host.gpus.back().ordinal)) + " in --device");
  }
}

void examine_host(const Host& host, const Request& request, Findings& findings) {
  examine_gpus(host, request, findings);
  if (!host.glibc) {
    findings.add(ErrorCode::kNoVariant,
                 "no glibc (musl?): every published variant needs glibc. Take a Linux that has it");
  }
}

/// Asks the registry for what each client asks it: of a signed one its metadata, of another one the
/// versions of a package. That it has none is an answer.
void ask_registry(const std::string& registry, const Settings& settings,
                  const std::stop_token& stop) {
  Patience patience{settings.limits, {}, stop};
  patience.limits.tries = 1;  // whoever asks again sees whether it passes
  Traffic traffic;
  if (is_signed(registry, settings)) {
    if (open_repository(registry, trust::kTrustRepository, settings, patience, traffic)
            ->manifest(trust::kTrustTag)) {
      return;
    }
    throw Error(ErrorCode::kTrust, "ask " + registry +
                                       ": a root of it is trusted, and it has no signed metadata. "
                                       "Check its name, or tell its publisher");
  }
  const auto packages = open_repository(registry, "none", settings, patience, traffic);
  if (registry.starts_with('/')) return;
  try {
    packages->versions();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
  }
}

Json examine_registry(const Options& options, Findings& findings) {
  Json named;
  try {
    Settings settings = load_settings();
    const std::string registry = canonical_registry(options.request.registry, settings);
    named = registry;
    const bool silent = settings.offline || options.request.offline;
    const bool asked = registry.starts_with('/') || !silent;
    print("registry  %s%s\n", registry.c_str(), asked ? "" : ", offline: not asked");
    print(
        "          the first of these that is set: --registry, KILN_REGISTRY, %s,\n"
        "          /etc/kiln/config.json, the default\n",
        settings_path().c_str());
    if (asked) ask_registry(registry, settings, options.request.stop);
  } catch (const Error& error) {
    findings.add(error);
  }
  return named;
}

Json examine_cache(const Options& options, Findings& findings) {
  try {
    const Cache cache(options.request.cache);
    const bool exists = stands(cache.root(), &fail_cache);
    // A cache that does not exist yet is made by the first install: its nearest parent counts.
    std::filesystem::path present = cache.root();
    while (!stands(present, &fail_cache)) present = present.parent_path();
    std::error_code unknown;  // what may not be looked at cannot be written to either
    const bool writable =
        std::filesystem::is_directory(present, unknown) && access(present.c_str(), W_OK) == 0;
    const char* const state = exists     ? (writable ? "writable" : "read-only")
                              : writable ? "made by the first install"
                                         : "does not exist";
    print("cache     %s, %s\n", cache.root().c_str(), state);
    const std::string name = "the cache " + cache.root().string();
    if (!writable && exists) {
      note(name + " is read-only: what is in it works, nothing can be installed");
    } else if (!writable) {
      findings.add(ErrorCode::kCache, name + " does not exist and cannot be made in " +
                                          present.string() +
                                          ". Set KILN_CACHE to a folder that can be made");
    }
    return {{"path", cache.root().string()}, {"writable", writable}};
  } catch (const Error& error) {
    findings.add(error);
    return nullptr;
  }
}

Json examine_package(const Options& options, const Spec& spec, Findings& findings) {
  Json document = {{"name", spec.name}, {"version", spec.version}, {"loads", false}};
  try {
    const Kernel kernel = get_kernel(spec.name, options.request_for(spec));
    document["loads"] = true;
    document["library"] = kernel.library().string();
    document["resolution"] = to_json(kernel.resolution());
    print("\n%s\nloads     %s, %u ops\n", kernel.resolution().explain().c_str(),
          kernel.library().c_str(), kernel.package().op_count);
  } catch (const Error& error) {
    findings.add(error);
  }
  return document;
}

bool fits(const InstalledVariant& installed, Host host, Device device) {
  Index alone{.name = installed.config.name,
              .version = installed.config.version,
              .requires_ = installed.variant.requires_,
              .variants = {installed.variant}};
  probe_libraries(host, installed.variant.needs.libraries);
  return resolve(host, alone, {.device = device}).chosen.has_value();
}

/// Of one installed variant on one device of this machine: whether its check passed here or, for a
/// publisher, on hardware of this name. Null where it did, and where it does not run.
Json examine_test(const InstalledVariant& installed, const Host& host, Device device,
                  Findings& findings) {
  if (!fits(installed, host, device)) return nullptr;
  const Variant& variant = installed.variant;
  const std::string hardware = hardware_name(host, device);
  const std::string name = label(installed.ref.name, installed.ref.version);
  const auto command_of = [&](bool full) {
    return test_command(installed.ref.name, installed.ref.version, variant, device, full);
  };
  const auto is_it = [&](const TestRecord& record) { return record.hardware == hardware; };
  const std::vector<TestRecord> records = records_here(variant.manifest.digest);
  const auto record = std::ranges::find_if(records, is_it);
  if (record != records.end() && !record->passed()) {
    findings.add(ErrorCode::kIntegrity, name + " " + variant.id + " failed its check here, on " +
                                            record->place() +
                                            ": do not use it (\"deny\" in the settings). '" +
                                            command_of(record->full) + "' runs it again");
  }
  const auto& known = variant.tested_on;
  if (record != records.end() || std::ranges::find(known, hardware) != known.end()) return nullptr;
  const std::string file = check_file(host.arch);
  const auto& files = installed.config.dev_files;
  const bool has_check = std::ranges::find(files, file, &ArchiveFile::path) != files.end();
  const std::string command = command_of(false);
  print("untested  %s %s was never tested on %s%s\n", name.c_str(), variant.id.c_str(),
        hardware.c_str(),
        has_check ? (": run '" + command + "'").c_str() : ", and brings no check");
  return {{"name", installed.ref.name}, {"version", installed.ref.version},
          {"variant", variant.id},      {"device", to_string(device)},
          {"hardware", hardware},       {"command", has_check ? Json(command) : Json()}};
}

/// What is installed, runs here and was never tested on this GPU or CPU.
Json examine_tests(const Options& options, const Host& host, Findings& findings) {
  Json untested = Json::array();
  try {
    const Cache cache(options.request.cache);
    const FileLock used = cache.use();
    for (const InstalledVariant& installed : list_installed(cache)) {
      std::vector<Device> devices;
      if (installed.variant.needs.is_cpu()) devices.push_back(Device::cpu());
      std::set<std::string> names;  // one of each kind
      for (const Gpu& gpu : host.gpus) {
        const bool is_new = !installed.variant.needs.is_cpu() && names.insert(gpu.name).second;
        if (is_new) devices.push_back(Device::cuda(gpu.ordinal));
      }
      for (const Device& device : devices) {
        Json one = examine_test(installed, host, device, findings);
        if (!one.is_null()) untested.push_back(std::move(one));
      }
    }
  } catch (const Error& error) {
    findings.add(error);
  }
  return untested;
}

int run_doctor(const Options& options) {
  Findings findings;
  Host host = probe_host();
  const bool is_told =
      std::ranges::find(host.overridden, "KILN_OVERRIDE_SM") != host.overridden.end();
  // NVML may show GPUs on which CUDA does not start, which a kernel would need.
  if (options.request.device.kind != Device::Kind::kCpu && !host.gpus.empty() && !is_told &&
      host.driver_problem.empty())
    host.driver_problem = start_cuda();
  print("kiln      %s, package ABI %d.%d\n", KILN_VERSION, KILN_ABI_MAJOR, KILN_ABI_MINOR);
  print_host(host);
  examine_host(host, options.request, findings);
  const Json registry = examine_registry(options, findings);
  const Json cache = examine_cache(options, findings);
  Json packages = Json::array();
  for (const Spec& spec : options.specs) {
    packages.push_back(examine_package(options, spec, findings));
  }
  const Json untested = examine_tests(options, host, findings);
  print_json("doctor", {{"kiln", KILN_VERSION},
                        {"host", to_json(host)},
                        {"registry", registry},
                        {"cache", cache},
                        {"packages", packages},
                        {"untested", untested},
                        {"problems", findings.problems}});
  print("\n");
  if (findings.problems.empty()) print("no problems\n");
  for (const std::string& problem : findings.problems) print("problem   %s\n", problem.c_str());
  return findings.exit_code;
}

}  // namespace

void doctor(KernelCommand& command) {
  command.takes_packages();
  command.takes_choice();
  command.takes_cache();
  command.example("", "this machine, its registry and its cache");
  command.example("geglu-mlp@1", "and whether this package loads here");
  command.example("--device cuda:0", "a GPU that is missing is a problem then");
  command.runs(run_doctor);
}

}  // namespace kiln::cli
