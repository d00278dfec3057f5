// SPDX-License-Identifier: Apache-2.0
//
// Library: a C library that is opened at run time. A class derived from it has a member for
// each function, `int (*init)(unsigned) = need("cuInit");`. Part of probe; opened under a NoFork.
#pragma once

#include <dlfcn.h>
#include <locale.h>

#include <string>
#include <string_view>

namespace kiln {

class Library {
 public:
  /// Whether it is there and has every function that is needed.
  bool complete() const { return handle_ != nullptr && problem_.empty(); }

  /// Why a library that is there cannot be used. Empty: it can, or there is none.
  const std::string& problem() const { return problem_; }

 protected:
  /// Becomes a pointer to a function of the type that its member has.
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };

  explicit Library(const char* soname) {
    // glibc tells what it did not find from what it cannot use by words alone, which it translates.
    const locale_t plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
    const locale_t before = ::uselocale(plain);
    handle_ = ::dlopen(soname, RTLD_LAZY | RTLD_LOCAL);
    const char* const said = handle_ == nullptr ? ::dlerror() : nullptr;
    // Of a file that it found it names the path, of one that this one needs another name.
    const std::string absent = std::string(soname) + ": cannot open shared object file";
    if (said != nullptr && !std::string_view(said).starts_with(absent)) problem_ = said;
    ::uselocale(before);
    ::freelocale(plain);
  }

  /// Null where the library has no such function.
  Symbol find(const char* name) const { return {handle_ ? ::dlsym(handle_, name) : nullptr}; }
  Symbol need(const char* name) {
    const Symbol found = find(name);
    if (handle_ != nullptr && found.address == nullptr && problem_.empty()) {
      problem_ = std::string("it has no ") + name;
    }
    return found;
  }

  void close() {
    if (handle_ != nullptr) ::dlclose(handle_);
  }

 private:
  void* handle_ = nullptr;
  std::string problem_;
};

}  // namespace kiln
