// SPDX-License-Identifier: Apache-2.0
//
// TestedHere: numeric checks that `kiln test` ran on this machine, and what they count for. One of
// choose's facts: where the settings ask for tested variants, one that passed here is tested here,
// whatever its publisher has. A record is in the format that a publisher takes ("kiln.record/1").
//
//   <folder of trust.json>/tested/<hex of the manifest>.<16 hex of hardware and driver>.json
//
// A record decides what is loaded (install/kept.hpp). It counts for the bytes that it names alone,
// and on this machine for the same GPU or CPU with the same driver.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "documents/json_fwd.hpp"
#include "documents/variant.hpp"
#include "kiln/device.hpp"
#include "kiln/host.hpp"
#include "resolve/resolve.hpp"

namespace kiln {

/// What one run of a check found of one library.
struct TestRecord {
  std::string hardware;  ///< "NVIDIA H100 80GB HBM3"
  std::string driver;    ///< "580.159.04"; empty: of a CPU
  std::string cuda;      ///< "13.0"; empty: of a CPU
  std::string date;      ///< "2026-11-26"
  std::string variant;
  Digest library;
  Digest manifest;  ///< of the variant; empty: not kept on this machine
  std::uint64_t cases = 0;
  std::uint64_t failed = 0;
  bool full = false;  ///< of all cases; false: of those that take less than a minute
  std::map<std::string, double> worst = {};  ///< by the name of the cases

  bool passed() const { return cases > 0 && failed == 0; }
  /// "NVIDIA H100, driver 580.159.04, 2026-11-26, 772 cases" or "…, 3 of 772 cases failed"
  std::string place() const;
};

/// A record of today, on this device; no results yet.
TestRecord record_of_today(const Host& host, Device device);

/// The document that `kiln registry publish --records` reads.
Json to_json(const TestRecord& record);

/// Keeps a record, in the place of an earlier one of this hardware and driver. Throws kUsage where
/// there is no such folder or another user could change it, kCache for what the disk refuses.
std::filesystem::path keep_record(const TestRecord& record);

/// All records of these bytes that count on this machine, passed or not. Throws kUsage for one that
/// another user may write to, kIntegrity for one that is not as it was written.
std::vector<TestRecord> records_here(const Digest& manifest);

/// The record of a run of all cases that failed on this hardware and driver, where `record` is of
/// one that passed fewer: that does not take its place.
std::optional<TestRecord> failed_before(const TestRecord& record);

/// "kiln test NAME@1 --device cuda:0 --variant ID". `device`: for a GPU's variant. `full`: all
/// cases.
std::string test_command(const std::string& name, int version, const Variant& variant,
                         Device device, bool full);

/// Adds to each variant's tested_on, and to its `tested`, where it passed on this machine. Returns
/// which failed. Throws what records_here throws.
std::vector<FailedHere> add_tested_here(Index& index, Device device);

}  // namespace kiln
