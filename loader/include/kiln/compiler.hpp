// SPDX-License-Identifier: Apache-2.0
//
// Compiler: what a program must be compiled with to use Kiln's C++ API, whose functions take and
// give types of the standard library. First of all in each of its headers. The C API, kiln.h, takes
// any compiler, standard and library: a program that is refused here can use that.
#pragma once

// Each refusal ends the compilation by a file that is not there: all that follows would be errors
// of the same cause.
#if __cplusplus <= 201703L
#error The C++ API of Kiln needs C++20: compile with -std=c++20, or use the C API, kiln/kiln.h
#include "Kiln needs -std=c++20"
#endif

#include <version>  // which standard library this is

#if defined(_LIBCPP_VERSION)
#error libkiln is built with libstdc++: drop -stdlib=libc++, or use the C API, kiln/kiln.h
#include "Kiln needs libstdc++"
#elif !_GLIBCXX_USE_CXX11_ABI
#error libkiln has std::string of _GLIBCXX_USE_CXX11_ABI=1: take that, or the C API, kiln/kiln.h
#include "Kiln needs _GLIBCXX_USE_CXX11_ABI=1"
#elif defined(_GLIBCXX_DEBUG)
#error libkiln has no containers of _GLIBCXX_DEBUG: take _GLIBCXX_ASSERTIONS, or kiln/kiln.h
#include "Kiln needs no _GLIBCXX_DEBUG"
#elif defined(_GLIBCXX_INLINE_VERSION) && _GLIBCXX_INLINE_VERSION
#error libkiln has libstdc++ without a versioned namespace: use the C API, kiln/kiln.h
#include "Kiln needs libstdc++ as it is usually built"
#endif
