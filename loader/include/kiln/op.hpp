// SPDX-License-Identifier: Apache-2.0
//
// Op: one operation of a loaded package: by name, with tensors and attributes in the schema's
// order, or typed, with named arguments that the compiler checks. kernel.hpp makes them.
//
// Threads: all members are const and may be called from several threads at once. On a CPU a call
// takes worker threads as the package says, at most Request::threads with the caller.
#pragma once

#include "kiln/compiler.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "kiln/abi.h"
#include "kiln/stream.hpp"
#include "kiln/tensor.hpp"

namespace kiln {

/// One attribute of a call, by position in the op's schema; a default-constructed one takes the
/// schema's default. A string must outlive the call.
class Attribute {
 public:
  Attribute() = default;
  Attribute(std::int64_t value) : value_{KILN_ATTRIBUTE_INT, 0, {.as_int = value}} {}
  Attribute(int value) : Attribute(std::int64_t{value}) {}
  Attribute(bool) = delete;  // no schema has one: say "tanh", 1, 7.0
  Attribute(double value) : value_{KILN_ATTRIBUTE_FLOAT, 0, {.as_float = value}} {}
  Attribute(const char* value) : value_{KILN_ATTRIBUTE_STRING, 0, {.as_string = value}} {}
  const kiln_attribute& c() const { return value_; }

 private:
  kiln_attribute value_{};
};

/// One operation of a loaded package. A small value; valid as long as the process.
class Op {
 public:
  std::string_view name() const { return op_->name; }
  std::string_view schema() const { return op_->schema; }  ///< its tensors and attributes, as JSON

  /// Scratch memory that run() needs for these arguments. A tensor without memory stands for one at
  /// every address; aligned ones may need less. Throws kInvalidCall.
  std::size_t workspace_bytes(std::span<const Tensor> tensors,
                              std::span<const Attribute> attributes = {}) const;

  /// Checks the arguments, then enqueues on `stream` and returns; a CPU op has finished when this
  /// returns. Allocates nothing, does not synchronise, can be captured in a CUDA graph. Throws
  /// kInvalidCall for arguments that do not fit, kDevice if the driver refuses.
  void run(std::span<const Tensor> tensors, std::span<const Attribute> attributes,
           Workspace workspace, Stream stream = {}) const;

  /// The same two for tensors that lie anywhere.
  std::size_t workspace_bytes(std::span<const Tensor* const> tensors,
                              std::span<const Attribute> attributes) const;
  void run(std::span<const Tensor* const> tensors, std::span<const Attribute> attributes,
           Workspace workspace, Stream stream) const;

  const kiln_op& c() const { return *op_; }  ///< its entry of the C table, for other languages

 private:
  friend class Kernel;
  Op(const kiln_op* op, int threads) : op_(op), threads_(threads) {}
  const kiln_op* op_;
  int threads_;  ///< Request::threads
};

/// FNV-1a with 64 bits of an op's signature: kiln_op.signature.
constexpr std::uint64_t signature_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

/// What a program was compiled for: an op as its package.json has it, all but the words of its doc.
/// In headers that `kiln build` makes.
struct OpSignature {
  std::string_view package;  ///< "geglu-mlp"
  std::string_view op;       ///< "forward"
  /// "geglu-mlp.forward(x: bfloat16|float16 [M,D], gate: x [H,D], …; limit: float = 7.0)"
  std::string_view text;
  std::uint64_t hash;

  consteval OpSignature(std::string_view a_package, std::string_view an_op, std::string_view a_text)
      : package(a_package), op(an_op), text(a_text), hash(signature_hash(a_text)) {}
};

/// An enumerator's word among those of an attribute; of any other value "", which the op refuses.
template <class Choice, std::size_t kCount>
constexpr const char* word_at(Choice choice, const char* const (&words)[kCount]) {
  const auto at = static_cast<std::size_t>(choice);
  return at < kCount ? words[at] : "";
}

/// An op whose arguments are a struct: kiln::ops::geglu_mlp::Forward, say. A small value, as Op.
template <class Arguments>
class TypedOp {
 public:
  /// As Op::workspace_bytes.
  std::size_t workspace_bytes(const Arguments& arguments) const {
    return op_.workspace_bytes(tensors_of(arguments), attributes(arguments));
  }

  /// As Op::run. `arguments` need not outlive the call; what its tensors point to does.
  void run(const Arguments& arguments, Workspace workspace = {}, Stream stream = {}) const {
    op_.run(tensors_of(arguments), attributes(arguments), workspace, stream);
  }

 private:
  static auto attributes(const Arguments& arguments) {
    if constexpr (requires { arguments.attributes; }) {
      return attributes_of(arguments.attributes);
    } else {
      return std::array<Attribute, 0>{};
    }
  }

  friend class Kernel;
  explicit TypedOp(Op op) : op_(op) {}
  Op op_;
};

}  // namespace kiln
