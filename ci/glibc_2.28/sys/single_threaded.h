// SPDX-License-Identifier: Apache-2.0
//
// A header of glibc 2.32, which GCC's C++ library includes where it is there. In glibc 2.28 no
// variable tells whether a process has one thread: it is taken to have several, and counts
// references atomically.
#pragma once

namespace {
constexpr char __libc_single_threaded = 0;  // NOLINT(bugprone-reserved-identifier)
}
