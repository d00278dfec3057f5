// SPDX-License-Identifier: Apache-2.0
//
// Expression: what package.json computes of a call, such as a grid, in C++. The language is a part
// of Python's: docs/TRITON.md is its manual. Used by launch, which refuses what is wrong, and by
// launch_code. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::build {

/// What an expression may name, and the C++ that it stands for.
struct ExpressionNames {
  struct Words {
    std::string type;  ///< "ForwardArguments::Mode", an enum
    std::vector<std::string> words;
  };
  std::map<std::string, std::string> integers;  ///< "N": "call.N"
  std::map<std::string, std::string> presents;  ///< "bias": "call.bias.present"
  std::map<std::string, std::size_t> strides;   ///< "x": its dimensions, call.x.stride[d]
  std::map<std::string, Words> words;           ///< "mode", a string attribute: call.mode
  std::vector<std::string> floats = {};         ///< attributes that none may name
};

enum class ExpressionType { kInteger, kCondition };

struct CppExpression {
  std::string text;   ///< an int64_t, or a bool
  std::string wrong;  ///< what is wrong; empty: nothing is
};

CppExpression translate(std::string_view text, ExpressionType type, const ExpressionNames& names);

}  // namespace kiln::build
