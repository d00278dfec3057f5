// SPDX-License-Identifier: Apache-2.0
//
// Tuned: the kernels that `kiln tune` found faster on this machine than those that a package takes
// by itself, as data. A choice is a value of one of an op's attributes that a caller could give;
// get_kernel gives it where the caller gave none (call/tuned_ops.hpp).
//
//   <folder of trust.json>/tuned/<package>@<version>.<variant>.<16 hex of the hardware>.json
//
// A table decides what is computed with (install/kept.hpp). It counts for the bytes that it names
// alone, and on a GPU or CPU of the same name: that of another build is passed over, which the
// explanation of the kernel says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/digest.hpp"
#include "base/file_lock.hpp"
#include "documents/json_fwd.hpp"
#include "documents/variant.hpp"
#include "kiln/resolution.hpp"

namespace kiln {

/// Calls that were timed, and what came out.
struct TunedRow {
  struct Range {
    std::int64_t from = 0;
    std::int64_t to = 0;
    bool operator==(const Range&) const = default;
  };
  std::string dtype;                     ///< of each tensor that may have it: "bfloat16"
  std::vector<std::string> with = {};    ///< the optional tensors that they have; no others
  std::map<std::string, Range> extents;  ///< by symbol
  std::string choice;  ///< of the op's attribute; empty: none was faster than the package's own
  double own_us = 0;   ///< of the package's own choice, geometric mean over the range
  double best_us = 0;  ///< of `choice`; the same where it is empty

  bool is_of_same_calls(const TunedRow& other) const {
    return dtype == other.dtype && with == other.with && extents == other.extents;
  }
};

struct TunedOp {
  std::string name;
  std::string attribute = {};  ///< whose values are the choices
  /// Attributes whose value does not matter. A call that gives any other one something else than
  /// its default gets the package's own choice.
  std::vector<std::string> any = {};
  std::vector<TunedRow> rows = {};  ///< the narrowest that a call falls in counts, then the first
};

struct TunedTable {
  std::string package;
  int version = 0;
  std::string variant;
  Digest manifest;  ///< of the variant
  std::string hardware;
  std::string driver;  ///< for people
  std::string date;
  std::vector<TunedOp> ops;

  std::size_t rows() const;
  std::size_t choices() const;  ///< rows with one
};

/// What there is for the variant that was chosen.
struct Tuned {
  std::filesystem::path file;  ///< where it is, or would be; empty: there is no folder of tables
  std::optional<TunedTable> table;  ///< of these bytes
  std::string text;                 ///< for Resolution::tuned; empty: there is none
};

/// Throws what read_kept throws.
Tuned read_tuned(const Resolution& resolution, const Variant& variant);

/// Of a variant on one device, changed alone: another process may have added rows since it was
/// read.
struct TunedUpdate {
  std::function<void(TunedTable&)> change;  ///< of what is there; of a new table where nothing is
  Waiting waiting = {};                     ///< another process may change it
};

/// What it is now. Throws what read_tuned and keep() throw.
Tuned update_tuned(const Resolution& resolution, const Variant& variant, const TunedUpdate& update);

/// Makes its folder. Throws what keep() throws where a table cannot be kept.
void check_tuned_place(const Resolution& resolution, const Variant& variant);

/// "read tuned table <found>. Remove it, and run 'kiln tune' again", kIntegrity.
[[noreturn]] void fail_tuned(const std::string& found);

/// The place of its table, whatever is there: for who removes it.
std::filesystem::path tuned_path(const Resolution& resolution, const Variant& variant);

Json to_json(const TunedRow& row);

}  // namespace kiln
