// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/compilers/nvrtc.hpp"

#include <dlfcn.h>

#include <sstream>

#include "kiln/error.hpp"

namespace kiln::build {

// Called by name, as nvrtc.h declares it since CUDA 11.1; the header itself is not needed, so that
// this program builds without any toolkit.
struct Nvrtc::Library {
  void* handle = nullptr;
  std::string path;

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (handle != nullptr) dlclose(handle);
  }

  template <class Function>
  Function* find(const char* name) const {
    void* const function = dlsym(handle, name);
    if (function == nullptr) {
      throw Error(ErrorCode::kBuild, "load " + path + ": it has no " + name +
                                         "; NVRTC of CUDA 11.1 or newer is needed");
    }
    return reinterpret_cast<Function*>(function);
  }

  std::string error_text(int result) const {
    return find<const char*(int)>("nvrtcGetErrorString")(result);
  }

  /// The arguments have the very types that nvrtc.h gives them.
  template <class... Arguments>
  void must(const char* name, Arguments... arguments) const {
    if (const int result = find<int(Arguments...)>(name)(arguments...); result != 0) {
      throw Error(ErrorCode::kBuild, std::string(name) + " of " + path + ": " + error_text(result));
    }
  }

  /// What the program has of "PTX", "CUBIN" or "ProgramLog".
  std::string get(void* program, const std::string& what) const {
    std::size_t bytes = 0;
    must(("nvrtcGet" + what + "Size").c_str(), program, &bytes);
    std::string text(bytes, '\0');
    if (bytes != 0) must(("nvrtcGet" + what).c_str(), program, text.data());
    return text;
  }
};

namespace {

// NVRTC 13 looks its second half up by name alone, and would take one of a toolkit that happens to
// be installed, or find none. What is loaded already under that name is what it gets.
void load_builtins_beside(const std::filesystem::path& nvrtc) {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(nvrtc.parent_path(), failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("libnvrtc-builtins.so")) dlopen(entry.path().c_str(), RTLD_NOW);
  }
}

}  // namespace

Nvrtc::Nvrtc(const std::filesystem::path& path) {
  auto library = std::make_unique<Library>();
  library->path = path.string();
  load_builtins_beside(path);
  library->handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library->handle == nullptr) {
    throw Error(ErrorCode::kBuild, "load " + path.string() + ": " + dlerror() +
                                       "; run ci/toolchains or name another toolkit");
  }
  library->find<int(void*, char*)>("nvrtcGetCUBIN");  // the newest of those in use
  library_ = std::move(library);
}

Nvrtc::~Nvrtc() = default;

std::string Nvrtc::compiler_version() const {
  const auto target = parse_device_code("compute_80");
  const Compiled empty = compile("", "version.cu", *target, {});
  // "// Cuda compilation tools, release 12.9, V12.9.86"
  const std::size_t line = empty.image.find("Cuda compilation tools");
  const std::size_t begin = empty.image.find(", V", line);
  if (!empty.ok || line == std::string::npos || begin == std::string::npos) {
    throw Error(ErrorCode::kBuild, "ask " + library_->path +
                                       " for its version: its PTX does not name it. " + empty.log);
  }
  return empty.image.substr(begin + 3, empty.image.find_first_of(" \r\n", begin + 3) - begin - 3);
}

Compiled Nvrtc::compile(const std::string& source, const std::string& name,
                        const DeviceCode& target, const std::vector<std::string>& options) const {
  const std::string architecture = "--gpu-architecture=" + to_string(target);
  std::vector<const char*> arguments = {architecture.c_str()};
  for (const std::string& option : options) arguments.push_back(option.c_str());
  void* program = nullptr;
  const char* const* const no_headers = nullptr;
  library_->must("nvrtcCreateProgram", &program, source.c_str(), name.c_str(), 0, no_headers,
                 no_headers);
  struct Destroy {
    const Library& library;
    void*& program;
    ~Destroy() { library.find<int(void**)>("nvrtcDestroyProgram")(&program); }
  } destroy{*library_, program};

  const auto without_nul = [](std::string text) {
    text.erase(text.find_last_not_of('\0') + 1);
    return text;
  };
  const int result = library_->find<int(void*, int, const char* const*)>("nvrtcCompileProgram")(
      program, static_cast<int>(arguments.size()), arguments.data());
  Compiled compiled{.ok = result == 0, .log = without_nul(library_->get(program, "ProgramLog"))};
  if (!compiled.ok) {
    if (compiled.log.empty()) compiled.log = library_->error_text(result);
  } else if (target.kind == DeviceCode::Kind::kPtx) {
    compiled.image = without_nul(library_->get(program, "PTX"));
  } else {
    compiled.image = library_->get(program, "CUBIN");
  }
  return compiled;
}

std::vector<std::string> device_options(const DeviceCode& target) {
  const int number = target.capability.major * 100 + target.capability.minor * 10;
  return {"-default-device", "-std=c++17", "--ptxas-options=-v",
          "-DKILN_SM=" + std::to_string(number)};
}

std::string nvrtc_step_digest() {
  return KILN_NVRTC_STEP_DIGEST;
}

std::string stable_log(const std::string& log) {
  std::istringstream lines(log);
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.find("Compile time =") != std::string::npos) continue;
    kept += line + "\n";
  }
  return kept;
}

}  // namespace kiln::build
