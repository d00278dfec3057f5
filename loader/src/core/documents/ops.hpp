// SPDX-License-Identifier: Apache-2.0
//
// Ops: what package.json says can be called, as people read it. `kiln info` and the registry's site
// show it. The package's own table (kiln/abi.h) is what calls are checked
// against. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "documents/json_fwd.hpp"

namespace kiln {

struct TensorText {
  std::string name;
  std::string dtype;   ///< "bfloat16, float16"; of one that follows another tensor "as x"
  std::string shape;   ///< "[M, 4]"
  std::string layout;  ///< "rows"; empty: compact
  bool output = false;
  bool inout = false;  ///< read and written
  bool optional = false;
};

struct AttributeText {
  std::string name;
  std::string meaning;  ///< "string: tanh, none, default \"tanh\""
};

struct OpText {
  std::string name;
  std::string doc;  ///< may be empty
  std::vector<TensorText> tensors;
  std::vector<AttributeText> attributes;

  std::string signature() const;  ///< "forward(x, gate, [gate_bias]) -> y"
};

/// An op's arguments as values: for calls by a program that was not compiled for the op.
struct OpLayout {
  struct Tensor {
    std::string name;
    std::vector<std::string> dtypes;  ///< those that it may have; the other's where it follows one
    std::vector<std::string> shape;   ///< of each extent its symbol, or its number
    bool output = false;
    bool inout = false;
    bool optional = false;
  };
  struct Attribute {
    std::string name;
    std::vector<std::string> values;  ///< the words that are allowed; empty: any
    std::variant<std::string, std::int64_t, double> fallback;  ///< its default, of its type
  };
  std::string name;
  std::vector<Tensor> tensors;
  std::vector<Attribute> attributes;
};

/// `op` is its entry of package.json. Throws kIntegrity for other types.
OpLayout read_layout(const JsonView& op);

/// What tunes names a call's dtypes by one word: each tensor has that dtype where it may, else the
/// first of its own.
const std::string& dtype_of(const OpLayout::Tensor& tensor, const std::string& word);

/// An op of a package in one spelling, without its doc: what a caller is compiled for, and what
/// kiln_op.signature is the hash of.
///
///   geglu-mlp.forward(x: bfloat16|float16 [M,D], bias?: x [H], y!: x [M,D]; limit: float = 7.0)
///
/// '?' marks what may be left out, '!' an output, '~' what is read and written. ", " is between two
/// tensors and two attributes and nowhere else. `op` is its entry of package.json. Throws
/// kIntegrity for other types.
std::string signature_text(std::string_view package, const JsonView& op);

/// The ops of a package.json; none where it names none. Throws kIntegrity for other types.
std::vector<OpText> read_ops(const JsonView& schema);

}  // namespace kiln
