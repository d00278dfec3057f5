// SPDX-License-Identifier: Apache-2.0
//
// TuneTiming: calls of one op at one shape, with data of its own: does it take a choice, does it
// compute the same values with it, how long does it take. Under `kiln tune`. For one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "documents/ops.hpp"
#include "kiln/abi.h"
#include "kiln/device.hpp"
#include "kiln/kernel.hpp"

namespace kiln::cli {

/// What is called.
struct TimedOp {
  const kiln_op* op = nullptr;  ///< of the package itself
  OpLayout layout;
  std::size_t attribute = 0;  ///< the one whose values are the choices
  Device device;
  std::string dtype;              ///< see dtype_of
  std::vector<std::string> with;  ///< optional tensors that the calls have
};

class TimedCalls {
 public:
  /// Sets of tensors, together larger than a cache, with values between -1 and 1; `extents`: of
  /// each symbol. Throws kUsage for calls that cannot be timed (why_not_timed), kDevice without
  /// memory.
  TimedCalls(const TimedOp& timed, const std::map<std::string, std::int64_t>& extents);

  /// Computes once. False where the package refuses the choice for this shape; the empty one is the
  /// package's own, and must not be refused: kInvalidCall. Throws kDevice.
  bool takes(const std::string& choice);

  /// Of one call that takes() took, from as many in a row as fill `at_least`.
  double seconds(const std::string& choice, double at_least);

  /// How far the outputs are from those of the package's own choice: relative L2, the largest of
  /// all outputs; infinity where one is finite and the other is not.
  double distance(const std::string& choice);

 private:
  struct Set {
    std::vector<OwnedWorkspace> memory;
    std::vector<DLTensor> tensors;
    std::vector<const DLTensor*> pointers;
  };
  using Outputs = std::vector<std::vector<char>>;

  void add_tensor(const OpLayout::Tensor& tensor,
                  const std::map<std::string, std::int64_t>& extents);
  void make_sets();
  void fill(void* to, std::size_t tensor, std::size_t set);
  std::int32_t run(const std::string& choice, const Set& set, kiln_error& error);
  std::int32_t reserve(const std::string& choice, kiln_error& error);
  kiln_call call_of(const std::string& choice, const Set& set);
  void wait();
  Outputs compute(const std::string& choice);

  TimedOp timed_;
  std::vector<bool> there_;           ///< of each tensor of the op
  std::vector<std::size_t> outputs_;  ///< of these, those that a call writes
  std::vector<DLDataType> dtypes_;
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<std::vector<std::int64_t>> strides_;
  std::vector<std::size_t> bytes_;
  std::vector<Set> sets_;
  OwnedWorkspace workspace_;
  OwnedWorkspace anchor_;
  std::size_t reserved_ = 0;
  std::size_t next_ = 0;  ///< set
  std::vector<kiln_attribute> attributes_;
  std::map<std::string, double> expected_;  ///< seconds of a call
  Outputs own_;
};

}  // namespace kiln::cli
