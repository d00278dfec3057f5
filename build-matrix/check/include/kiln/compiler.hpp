// SPDX-License-Identifier: Apache-2.0
//
// Compiler, for the checks that travel with a version: found in the place of loader/include's. Such
// a check links no libkiln, whose C++ library would have to be its own.
#pragma once
