// SPDX-License-Identifier: Apache-2.0
#include "probe/probe.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fork.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "documents/target.hpp"
#include "kiln/error.hpp"
#include "probe/driver.hpp"
#include "probe/hardware.hpp"
#include "probe/processor.hpp"
#include "settings/environment.hpp"

namespace kiln {
namespace {

std::optional<Version> probe_glibc() {
  // Looked up, not linked: a program on musl has no such function.
  const auto version =
      reinterpret_cast<const char* (*)()>(::dlsym(RTLD_DEFAULT, "gnu_get_libc_version"));
  if (version == nullptr) return std::nullopt;
  const std::string_view text = version();  // "2.36", on some systems "2.36.1"
  const std::size_t first = text.find('.');
  const std::size_t second = first == std::string_view::npos ? first : text.find('.', first + 1);
  return parse_version(text.substr(0, second));
}

constexpr const char* kOverrideCuda = "KILN_OVERRIDE_CUDA";
constexpr const char* kOverrideDriver = "KILN_OVERRIDE_DRIVER";
constexpr const char* kOverrideSm = "KILN_OVERRIDE_SM";

std::optional<std::string> override_of(const char* name, Host& host) {
  const char* const value = environment().get(name);
  if (value == nullptr) return std::nullopt;
  host.overridden.emplace_back(name);
  return value;
}

Version parse_override(const char* name, std::string_view part, const std::string& value,
                       std::string_view expected) {
  if (const std::optional<Version> version = parse_version(part)) return *version;
  throw Error(ErrorCode::kUsage, std::string("probe: ") + name + " is " + quote(value) +
                                     ", expected " + std::string(expected) +
                                     ", or nothing. Correct or unset it");
}

std::vector<Gpu> parse_gpus(const std::string& value) {
  std::vector<Gpu> gpus;
  std::string_view rest = value;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    gpus.push_back(
        {static_cast<int>(gpus.size()), "",
         parse_override(kOverrideSm, entry, value, "compute capabilities such as 9.0,8.0")});
  }
  return gpus;
}

/// Read with the driver's other facts, whatever asks for it: a file of sysfs takes microseconds,
/// and NVML 20 ms. A driver that is overridden is not this machine's.
std::string probe_driver_version(const std::optional<std::string>& overridden, bool is_other) {
  std::string version = overridden ? *overridden : is_other ? "" : driver_release();
  if (version.empty() || is_driver_version(version)) return version;
  if (!overridden) return {};
  throw Error(ErrorCode::kUsage,
              std::string("probe: ") + kOverrideDriver + " is " + quote(version) +
                  ", expected a driver's version such as 570.124.06, not CUDA's, or nothing. "
                  "Correct or unset it");
}

void probe_driver(Host& host) {
  const std::optional<std::string> driver = override_of(kOverrideCuda, host);
  host.driver_version =
      probe_driver_version(override_of(kOverrideDriver, host), driver.has_value());
  const std::optional<std::string> gpus = override_of(kOverrideSm, host);
  if (!driver || !gpus) {
    std::optional<DriverFacts> facts = ask_running_libcuda();
    if (!facts) facts = ask_nvml();
    if (!facts) facts = ask_libcuda();
    host.driver = facts->driver;
    host.driver_problem = std::move(facts->problem);
    host.gpus = std::move(facts->gpus);
  }
  if (driver) {
    host.driver.reset();
    if (!driver->empty()) {
      host.driver = parse_override(kOverrideCuda, *driver, *driver, "a version such as 12.4");
    }
  }
  if (gpus) {
    host.gpus = parse_gpus(*gpus);
    host.driver_problem.clear();
  }
}

/// NVIDIA's own libraries, which kernels look up and whose constructors are harmless.
bool is_nvidias(std::string_view soname) {
  constexpr std::array<std::string_view, 4> kNames = {"libcu", "libnv", "libnccl.", "libnpp"};
  return std::any_of(kNames.begin(), kNames.end(),
                     [&](std::string_view name) { return soname.starts_with(name); });
}

/// Whether one of the dynamic linker's usual folders, or of LD_LIBRARY_PATH, has such a file.
bool is_on_library_path(const std::string& soname) {
  std::vector<std::string> folders = {"/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"};
#if defined(__x86_64__)
  folders.insert(folders.end(), {"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"});
#else
  folders.insert(folders.end(), {"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"});
#endif
  for (const std::string_view folder : split(environment().text("LD_LIBRARY_PATH"), ':')) {
    folders.emplace_back(folder);
  }
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    return ::access((folder + "/" + soname).c_str(), R_OK) == 0;
  });
}

bool has_library(const std::string& soname) {
  // A name, never a path: the index must not choose which file runs its constructors.
  if (soname.empty() || soname.find('/') != std::string::npos) return false;
  const NoFork whole;
  void* library = ::dlopen(soname.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr && !is_nvidias(soname)) return is_on_library_path(soname);
  if (library == nullptr) library = ::dlopen(soname.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return false;
  ::dlclose(library);
  return true;
}

}  // namespace

Host probe_host(bool ask_gpus) {
  Host host;
  host.arch = probe_arch();
  host.cpu = probe_cpu(host.arch);
  host.glibc = probe_glibc();
  host.gpus_asked = ask_gpus;
  if (ask_gpus) probe_driver(host);
  return host;
}

void probe_libraries(Host& host, std::vector<std::string> sonames) {
  std::sort(sonames.begin(), sonames.end());
  sonames.erase(std::unique(sonames.begin(), sonames.end()), sonames.end());
  host.libraries.clear();
  host.absent.clear();
  std::partition_copy(sonames.begin(), sonames.end(), std::back_inserter(host.libraries),
                      std::back_inserter(host.absent), has_library);
}

std::vector<std::string> usual_libraries() {
  std::vector<std::string> sonames = {"libcudnn.so.8",  "libcudnn.so.9",     "libcusparseLt.so.0",
                                      "libnccl.so.2",   "libcufft.so.10",    "libcufft.so.11",
                                      "libcufft.so.12", "libcusolver.so.11", "libcusolver.so.12",
                                      "libcurand.so.10"};
  for (const char* toolkit : {"11", "12", "13"}) {
    for (const char* name : {"libcublas", "libcublasLt", "libcusparse", "libcudart"}) {
      sonames.push_back(std::string(name) + ".so." + toolkit);
    }
  }
  return sonames;
}

}  // namespace kiln
