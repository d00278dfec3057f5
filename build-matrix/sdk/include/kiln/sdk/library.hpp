// SPDX-License-Identifier: Apache-2.0
//
// Library: the functions of a library that is found at run time: the driver's, or one of those that
// package.json "needs".
#pragma once

#include <dlfcn.h>

namespace kiln::sdk {

// Looks one function up; `missing`, unless null, keeps the name of the first that is not there.
template <class Function>
void find(void* library, const char* name, Function* function, const char** missing) {
  // POSIX lets an object pointer from dlsym be used as a function pointer.
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function == nullptr && missing != nullptr && *missing == nullptr) *missing = name;
}

}  // namespace kiln::sdk
