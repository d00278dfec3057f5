// SPDX-License-Identifier: Apache-2.0
//
// Testing: a numeric check of a kernel, for whoever writes a package: arrays on any device with
// guards around them, a comparison with double precision, and the record of it, which
// `kiln registry publish --records` reads and users see as the variant's `tested`. No part of
// kiln.hpp: a program that only calls kernels does not need it. Objects are for one thread.
//
//   kiln::testing::Array x(device, kiln::DType::kFloat32, {count});
//   kiln::testing::Array out(device, kiln::DType::kFloat32, {count});
//   x.set(values);
//   layer.forward(x.tensor(), out.tensor());
//   check.compare("float32", out, expected, 1e-6);
#pragma once

#include "kiln/compiler.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kiln/device.hpp"
#include "kiln/error.hpp"
#include "kiln/kernel.hpp"
#include "kiln/tensor.hpp"

namespace kiln::testing {

/// An array. Until an op or set() writes it, each byte is 0xff: NaN in every floating-point type,
/// so that what an op leaves out shows.
class Array {
 public:
  /// `gap` elements lie between the rows, of which the last dimension has the extent: a tensor of
  /// the layout "rows". Throws kUsage for the 8-bit floating-point types, kDevice if there is no
  /// memory.
  Array(Device device, DType dtype, std::vector<std::int64_t> shape, std::int64_t gap = 0);
  Array(const Array&) = delete;
  Array(Array&&) = default;
  Array& operator=(const Array&) = delete;
  Array& operator=(Array&&) = default;
  ~Array() = default;

  /// As many values as it has elements, each rounded to the dtype. Throws kUsage for another
  /// number of them.
  void set(std::span<const double> values);

  /// Of the elements; on a GPU this waits for the default stream. What set() rounded comes back
  /// rounded, so a reference computed from values() has the inputs that the op had.
  std::vector<double> values() const;

  /// The elements as they are, without the gaps; on a GPU this waits for the default stream.
  std::vector<std::byte> bits() const;

  /// Whether the 256 bytes before the first element and after the last one are untouched, and the
  /// gaps between the rows.
  bool guards_hold() const;

  /// Valid as long as the array.
  Tensor tensor() const;

  DType dtype() const { return dtype_; }
  std::size_t size() const { return size_; }

 private:
  void copy(void* to, const void* from, std::size_t bytes, bool upload) const;
  std::vector<std::byte> download() const;
  std::size_t bytes() const;                      ///< of the whole memory
  std::size_t offset(std::size_t element) const;  ///< in it, in bytes

  Device device_;
  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::vector<std::int64_t> strides_;
  std::size_t size_ = 1;
  std::size_t row_ = 1;       ///< elements of a row
  std::size_t distance_ = 1;  ///< of two rows, in elements
  OwnedWorkspace memory_;
  std::byte* data_ = nullptr;  ///< of the first guard
};

/// One comparison or refusal, as it was counted.
struct Case {
  std::string_view name;
  bool passed = false;
  std::string text = {};  ///< failed: why
  double error = 0;
  double bound = 0;
  const Array* found = nullptr;  ///< null: of a refusal
  std::span<const double> expected = {};
};

/// What was found of one variant.
class Check {
 public:
  explicit Check(const Kernel& kernel) : kernel_(kernel) {}
  /// `told` hears of each case, and nothing is printed.
  Check(const Kernel& kernel, std::function<void(const Case&)> told)
      : kernel_(kernel), told_(std::move(told)) {}

  const Kernel& kernel() const { return kernel_; }

  /// One case: the largest difference between `found` and `expected`, divided by the largest
  /// magnitude in `expected`, is at most `bound`, and the guards hold. NaN equals NaN, and half a
  /// step of the dtype's smallest values counts as none. `name` says of what, as "float32" or
  /// "backward bfloat16". Prints a line if it fails. Returns whether it passed.
  ///
  /// `terms`, where it is not empty, has for each element what its difference is divided by
  /// instead: the magnitude of the terms that it is a sum of, with which its rounding grows where
  /// they cancel.
  bool compare(std::string_view name, const Array& found, std::span<const double> expected,
               double bound, std::span<const double> terms = {});

  /// One case: `call` throws an Error of this code, whose text has these words.
  bool refused(std::string_view words, const std::function<void()>& call,
               ErrorCode code = ErrorCode::kInvalidCall);

  bool passed() const { return cases_ > 0 && failed_ == 0; }
  std::uint64_t cases() const { return cases_; }

  /// Writes FOLDER/<variant>.json, in the format "kiln.record/1": the hardware, the driver, the
  /// day, and of the library that was called its digest, its cases, how many failed and the worst
  /// error of each name. Throws kNotFound or kCache if it cannot be written.
  void write_record(const std::filesystem::path& folder) const;

 private:
  bool count(const Case& one);

  Kernel kernel_;
  std::function<void(const Case&)> told_;
  std::uint64_t cases_ = 0;
  std::uint64_t failed_ = 0;
  std::map<std::string, double, std::less<>> worst_;
};

/// The main() of a check: gets the package's kernel for the CPU and for the first GPU, calls `all`
/// with a Check of it, prints what came out and writes the records. Returns the exit status: 0 if
/// all agrees, 1 if not, 77 if this machine has none of the devices that the package has a variant
/// for, else an error's code.
///
///   PROGRAM [--registry R] [--device cpu|cuda] [--light] [FOLDER]     FOLDER: for the records
///
/// The same source travels with a version where package.json's "check" names it: `kiln build` makes
/// a library of it (kiln/check.h), which `kiln test` runs on a user's machine, light unless --full.
/// There run_check has the one kernel that is tested, and the command line is empty.
int run_check(int argc, char** argv, std::string_view package, int version,
              const std::function<void(Check& check, bool light)>& all);

}  // namespace kiln::testing
