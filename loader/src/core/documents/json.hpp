// SPDX-License-Identifier: Apache-2.0
//
// Json: strict reading of JSON that came from somewhere else. nlohmann/json accepts duplicate keys
// and any depth, and turns -1 and 3.9 into integers; a manifest must not. Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "documents/json_fwd.hpp"

namespace kiln {

/// Parses at most 4 MiB of UTF-8, at most 32 levels deep, without duplicate keys, comments or
/// trailing bytes. `subject` names the document in the error (kIntegrity).
Json parse_json(std::string_view text, std::string_view subject);

/// The same of what a person writes: an integer that 64 bits do not hold is refused. It would
/// become a float, which a newer Kiln's document may mean.
Json parse_exact_json(std::string_view text, std::string_view subject);

/// The same of what others' servers and tools write, for whom null, missing and empty mean the same
/// (Go writes null for an empty list): a member that is null is not there.
Json parse_others_json(std::string_view text, std::string_view subject);

/// The same document with "" in place of each string that is the value of a member with one of
/// these names; of a text that is not JSON, one that is not either. Reading a long string costs 8
/// ns a byte, passing over it less than 1. Sees only members that are written without spaces.
std::string without_strings(std::string_view text, std::span<const std::string_view> names);

/// The same document without the members that are objects and whose names begin so. For text that
/// is known to be JSON. Sees only members that are written without spaces.
std::string without_members(std::string_view text, std::string_view beginning);

/// Compact with sorted keys: the one spelling in which Kiln writes JSON that is hashed. Infinity
/// and NaN are written as null.
std::string dump_json(const Json& value);

/// A view of one value that knows its own path ("index geglu-mlp@1: manifests[3].size"), so that
/// each typed getter can say where the wrong type stands. All throw Error(kIntegrity).
class JsonView {
 public:
  JsonView(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  JsonView at(std::string_view key) const;                     ///< the member; missing is an error
  bool has(std::string_view key) const;                        ///< an object that has this member
  std::vector<JsonView> items() const;                         ///< the elements of an array
  std::vector<JsonView> items_of(std::string_view key) const;  ///< of a member; none: missing
  /// For files that decide: a member of another name was meant to decide something, and would not.
  void expect_members(std::span<const std::string_view> known) const;
  void expect_members(std::initializer_list<std::string_view> known) const {
    expect_members(std::span(known.begin(), known.size()));
  }
  /// Of an object: names and values.
  std::vector<std::pair<std::string, JsonView>> members() const;

  std::string string() const;
  std::vector<std::string> strings() const;  ///< of an array that has nothing else
  std::uint64_t unsigned_integer() const;    ///< refuses signs, fractions and exponents
  int version_number() const;                ///< the same, from 1
  bool boolean() const;
  std::string string_or(std::string_view key, std::string_view fallback) const;

  [[noreturn]] void fail(const std::string& what) const;  ///< "<path>: <what>"
  const Json& json() const { return *value_; }
  const std::string& path() const { return path_; }

 private:
  JsonView(const Json& value, std::string path, bool root)
      : value_(&value), path_(std::move(path)), root_(root) {}
  [[noreturn]] void fail_type(const std::string& expected) const;

  const Json* value_;
  std::string path_;
  bool root_ = true;  ///< path_ is the subject alone: a member's name follows after ": "
};

}  // namespace kiln
