// SPDX-License-Identifier: Apache-2.0
#include "nvrtc.hpp"

#include <dlfcn.h>

#include <sstream>

#include "kiln/error.hpp"

namespace kiln::build {

// The part of nvrtc.h that is used, as it has been since CUDA 11.1; the header itself is not
// needed, so that this program builds without any toolkit.
struct Nvrtc::Library {
  using Program = void*;
  void* handle = nullptr;
  std::string path;
  const char* (*error_string)(int) = nullptr;
  int (*create)(Program*, const char*, const char*, int, const char* const*,
                const char* const*) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*compile)(Program, int, const char* const*) = nullptr;
  int (*log_size)(Program, std::size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  int (*cubin_size)(Program, std::size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  int (*ptx_size)(Program, std::size_t*) = nullptr;
  int (*ptx)(Program, char*) = nullptr;

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (handle != nullptr) dlclose(handle);
  }

  template <class Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(handle, name));
    if (function == nullptr) {
      throw Error(ErrorCode::kBuild, "load " + path + ": it has no " + name +
                                         "; NVRTC of CUDA 11.1 or newer is needed");
    }
  }

  void must(int result, const char* call) const {
    if (result != 0) {
      throw Error(ErrorCode::kBuild, std::string(call) + " of " + path + ": " +
                                         (error_string == nullptr ? "?" : error_string(result)));
    }
  }

  std::string text(Program program, int (*size)(Program, std::size_t*), int (*get)(Program, char*),
                   const char* call) const {
    std::size_t bytes = 0;
    must(size(program, &bytes), call);
    std::string text(bytes, '\0');
    if (bytes != 0) must(get(program, text.data()), call);
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
    if (name.rfind("libnvrtc-builtins.so", 0) == 0) dlopen(entry.path().c_str(), RTLD_NOW);
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
  library->find(library->error_string, "nvrtcGetErrorString");
  library->find(library->create, "nvrtcCreateProgram");
  library->find(library->destroy, "nvrtcDestroyProgram");
  library->find(library->compile, "nvrtcCompileProgram");
  library->find(library->log_size, "nvrtcGetProgramLogSize");
  library->find(library->log, "nvrtcGetProgramLog");
  library->find(library->cubin_size, "nvrtcGetCUBINSize");
  library->find(library->cubin, "nvrtcGetCUBIN");
  library->find(library->ptx_size, "nvrtcGetPTXSize");
  library->find(library->ptx, "nvrtcGetPTX");
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
  Library::Program program = nullptr;
  library_->must(library_->create(&program, source.c_str(), name.c_str(), 0, nullptr, nullptr),
                 "nvrtcCreateProgram");
  struct Destroy {
    const Library& library;
    Library::Program& program;
    ~Destroy() { library.destroy(&program); }
  } destroy{*library_, program};

  Compiled compiled;
  const int result =
      library_->compile(program, static_cast<int>(arguments.size()), arguments.data());
  compiled.log = library_->text(program, library_->log_size, library_->log, "nvrtcGetProgramLog");
  while (!compiled.log.empty() && compiled.log.back() == '\0') compiled.log.pop_back();
  compiled.ok = result == 0;
  if (!compiled.ok) {
    if (compiled.log.empty()) compiled.log = library_->error_string(result);
    return compiled;
  }
  if (target.kind == DeviceCode::Kind::kPtx) {
    compiled.image = library_->text(program, library_->ptx_size, library_->ptx, "nvrtcGetPTX");
    while (!compiled.image.empty() && compiled.image.back() == '\0') compiled.image.pop_back();
  } else {
    compiled.image =
        library_->text(program, library_->cubin_size, library_->cubin, "nvrtcGetCUBIN");
  }
  return compiled;
}

std::vector<std::string> device_options(const DeviceCode& target) {
  const int number = target.capability.major * 100 + target.capability.minor * 10;
  return {"-default-device", "-std=c++17", "--ptxas-options=-v",
          "-DKILN_SM=" + std::to_string(number)};
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
