// SPDX-License-Identifier: Apache-2.0
//
// Prints what probe says of the driver, in one line: "12.4 nvml0:9.0 nvml1:8.0". "loaded" and
// "running" load and initialise CUDA before, "cpu" does not ask for GPUs. With the argument
// "workspace" it takes device memory on cuda:0 instead; with "library NAME", whether NAME is there.
#include <dlfcn.h>

#include <cstdio>
#include <string>

#include "kiln/kiln.hpp"
#include "probe/probe.hpp"

namespace {

std::string facts(bool ask_gpus) {
  const kiln::Host host = kiln::probe_host(ask_gpus);
  if (!host.gpus_asked) return "not asked";
  std::string text = host.driver ? to_string(*host.driver) : "none";
  for (const kiln::Gpu& gpu : host.gpus) {
    text += " " + gpu.name + ":" + to_string(gpu.capability);
  }
  return text;
}

void load_cuda(bool initialise) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr || !initialise) return;
  reinterpret_cast<int (*)(unsigned)>(::dlsym(library, "cuInit"))(0);
}

std::string workspace() {
  kiln::OwnedWorkspace owned(kiln::Device::cuda(0));
  const kiln::Workspace first = owned.reserve(100);
  const kiln::Workspace second = owned.reserve(100);
  const kiln::Workspace large = owned.reserve(1 << 20);
  std::string text = first.data == second.data && large.bytes == 1 << 20 ? "ok" : "wrong";
  try {
    owned.reserve(std::size_t{1} << 40);
  } catch (const kiln::Error& error) {
    text += " " + std::string(to_string(error.code())) + " " + error.what();
  }
  return text;
}

std::string library(const char* name) {
  kiln::Host host;
  probe_libraries(host, {name});
  return host.libraries.empty() ? "absent" : "present";
}

}  // namespace

int main(int count, char** words) {
  try {
    const std::string what = count > 1 ? words[1] : "";
    if (what == "loaded" || what == "running") load_cuda(what == "running");
    const std::string text = what == "workspace" ? workspace()
                             : what == "library" ? library(words[2])
                                                 : facts(what != "cpu");
    std::puts(text.c_str());
  } catch (const kiln::Error& error) {
    std::printf("%s %s\n", std::string(to_string(error.code())).c_str(), error.what());
  }
  return 0;
}
