// SPDX-License-Identifier: Apache-2.0
//
// Records: who tested which library on which GPU, as the test runs wrote it ("kiln.record/1").
// Before publish, which turns a green record into the variant's `tested` and stops at a red one.
// Results are found by the library's digest, so a record never vouches for other bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/digest.hpp"

namespace kiln::registry {

struct TestResult {
  std::filesystem::path file;  ///< the record it stands in
  std::string hardware;        ///< "NVIDIA H200", as it names itself
  std::string place;           ///< "NVIDIA H200, driver 580.159.04, 2026-11-21"
  std::string variant;
  Digest library;
  std::uint64_t cases = 0;
  std::uint64_t failed = 0;
};

/// All results of these files. kNotFound, or kIntegrity for a file that is not a record.
std::vector<TestResult> read_records(const std::vector<std::filesystem::path>& files);

/// What a variant says of its tests: Variant::tested and tested_on.
struct TestedPlaces {
  std::string text;  ///< "NVIDIA H200, driver 580.159.04, 2026-11-21, 412 cases; …", sorted, cut
  std::vector<std::string> hardware;  ///< all of it, sorted
};

/// Empty if no result is about this library. Throws kIntegrity if one of them failed or tested
/// nothing, kUsage for more hardware than an index names.
TestedPlaces tested_places(const std::vector<TestResult>& results, const Digest& library,
                           const std::string& subject);

}  // namespace kiln::registry
