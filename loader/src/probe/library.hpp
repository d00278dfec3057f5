// SPDX-License-Identifier: Apache-2.0
//
// Library: a C library that is opened at run time. Who derives from it has a member for each
// function, `int (*init)(unsigned) = need("cuInit");`. Part of probe; opened under a NoFork.
#pragma once

#include <dlfcn.h>

namespace kiln {

class Library {
 public:
  /// Whether it is there and has every function that is needed.
  bool complete() const { return handle_ != nullptr && !lacks_one_; }

 protected:
  /// Becomes a pointer to a function of the type that its member has.
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };

  explicit Library(const char* soname) : handle_(::dlopen(soname, RTLD_LAZY | RTLD_LOCAL)) {}

  /// Null where the library has no such function.
  Symbol find(const char* name) const { return {handle_ ? ::dlsym(handle_, name) : nullptr}; }
  Symbol need(const char* name) {
    const Symbol found = find(name);
    lacks_one_ |= found.address == nullptr;
    return found;
  }

  void close() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }

 private:
  void* handle_;
  bool lacks_one_ = false;
};

}  // namespace kiln
