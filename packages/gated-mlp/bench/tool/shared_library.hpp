// SPDX-License-Identifier: Apache-2.0
//
// SharedLibrary: one of CUDA's libraries, found at run time by the first soname that loads, so that
// the bench builds without CUDA and says what is missing where it is. Functions are looked up by
// name and called with the caller's argument types: they must be those of the C declaration.
#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <stdexcept>
#include <string>

namespace gated_mlp_bench {

class SharedLibrary {
 public:
  /// Not loaded where none of the names is found.
  explicit SharedLibrary(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) {
        name_ = name;
        return;
      }
    }
  }

  bool loaded() const { return handle_ != nullptr; }
  const std::string& name() const { return name_; }

  /// The C function of this name. Throws std::runtime_error if there is none.
  template <class Function>
  Function* function(const char* name) const {
    void* const found = handle_ != nullptr ? ::dlsym(handle_, name) : nullptr;
    if (found == nullptr) throw std::runtime_error(name_ + " has no " + name);
    return reinterpret_cast<Function*>(found);
  }

  /// Calls a function that returns 0 for success. Throws std::runtime_error with its name and code.
  template <class... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const int status = function<int(Arguments...)>(name)(arguments...);
    if (status != 0) {
      throw std::runtime_error(std::string(name) + " of " + name_ + " gave " +
                               std::to_string(status));
    }
  }

 private:
  void* handle_ = nullptr;  // stays open: what it made may be freed at the very end
  std::string name_;
};

}  // namespace gated_mlp_bench
