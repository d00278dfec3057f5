// SPDX-License-Identifier: Apache-2.0
//
// Prints what probe says of the driver, in one line: "12.4 nvmla:9.0 nvmlb:8.0". "loaded" and
// "running" load and initialise CUDA before, "cpu" does not ask for GPUs. With the argument
// "workspace" it takes device memory on cuda:0 instead, and with "contexts" it does so while a
// program changes its contexts; with "library NAME", whether NAME is there; with "get REGISTRY
// CACHE DEVICE [FALLBACK]" it gets a kernel.
#include <dlfcn.h>

#include <clocale>
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
  if (!host.driver_problem.empty()) text += " problem: " + host.driver_problem;
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

/// The sizes of a workspace that grows little by little, and the error of one that is too large.
std::string growth() {
  kiln::OwnedWorkspace owned(kiln::Device::cuda(0));
  std::string text = std::to_string(owned.reserve(1'000'000).bytes);
  text += " " + std::to_string(owned.reserve(1'050'000).bytes);
  try {
    owned.reserve(1'200'000);
  } catch (const kiln::Error& error) {
    text += " " + std::string(to_string(error.code()));
  }
  return text;
}

template <class Function>
Function find(const char* symbol) {
  return reinterpret_cast<Function>(::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), symbol));
}

/// What is held while a workspace lives that grew twice, and what after it; another context is
/// current when it is freed. Then the same for one that grew in a context of the program.
std::string contexts() {
  const auto push = find<int (*)(void*)>("cuCtxPushCurrent_v2");
  const auto pop = find<int (*)(void**)>("cuCtxPopCurrent_v2");
  const auto state = find<const char* (*)()>("fake_cuda_state");
  int own = 0;
  int other = 0;
  void* popped = nullptr;
  std::string text;
  {
    kiln::OwnedWorkspace owned(kiln::Device::cuda(0));
    owned.reserve(100);
    owned.reserve(1 << 20);
    text += std::string("primary: ") + state();
    push(&other);
  }
  text += std::string("; after: ") + state();
  pop(&popped);
  push(&own);
  {
    kiln::OwnedWorkspace owned(kiln::Device::cuda(0));
    owned.reserve(100);
    text += std::string("; own: ") + state();
    push(&other);
  }
  return text + "; after: " + state();
}

/// get_kernel("sample") from words[2] with the cache words[3], and what was told: "cpu-base after
/// cuda:0, …". words[4]: "cpu", "cuda:0" or "auto", words[5]: a fallback.
std::string get(int count, char** words) {
  std::string told;
  kiln::Request request{.version = 1, .registry = words[2], .cache = words[3]};
  const std::string device = words[4];
  if (device == "cpu") request.device = kiln::Device::cpu();
  if (device == "cuda:0") request.device = kiln::Device::cuda(0);
  if (count > 5) request.fallback = {kiln::Fallback::cpu()};
  request.on_event = [&](const kiln::Event& event) {
    if (event.stage == kiln::Event::Stage::kCompile) told += ", " + event.note;
  };
  const kiln::Kernel kernel = kiln::get_kernel("sample", request);
  std::string text(kernel.variant());
  for (const kiln::Resolution& each : kernel.fallback()) {
    text += " after " + to_string(each.device) + ": " + each.hint;
  }
  return text + told;
}

std::string library(const char* name) {
  kiln::Host host;
  probe_libraries(host, {name});
  return host.libraries.empty() ? "absent" : "present";
}

}  // namespace

int main(int count, char** words) {
  std::setlocale(LC_ALL, "");  // as a program in its user's language
  try {
    const std::string what = count > 1 ? words[1] : "";
    if (what == "loaded" || what == "running") load_cuda(what == "running");
    const std::string text = what == "get"         ? get(count, words)
                             : what == "workspace" ? workspace()
                             : what == "growth"    ? growth()
                             : what == "contexts"  ? contexts()
                             : what == "library"   ? library(words[2])
                                                   : facts(what != "cpu");
    std::puts(text.c_str());
  } catch (const kiln::Error& error) {
    std::printf("%s %s\n", std::string(to_string(error.code())).c_str(), error.what());
  }
  return 0;
}
