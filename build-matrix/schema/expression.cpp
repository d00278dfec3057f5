// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/expression.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/ascii.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "build-matrix/schema/names.hpp"
#include "build-matrix/schema/spelling.hpp"

namespace kiln::build {
namespace {

constexpr std::size_t kMaxBytes = 500;  // which bounds the depth of the descent below, too

struct Function {
  std::string_view name;
  int arguments;
};
constexpr std::array<Function, 4> kFunctions = {
    {{"cdiv", 2}, {"max", 2}, {"min", 2}, {"next_pow2", 1}}};

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// A part of an expression. kWord: a string attribute, kText: what one is compared with.
struct Part {
  enum class Type { kInteger, kCondition, kWord, kText };
  Type type = Type::kInteger;
  std::string code;
  const ExpressionNames::Words* words = nullptr;
};

const char* name_of(Part::Type type) {
  switch (type) {
    case Part::Type::kInteger:
      return "an integer";
    case Part::Type::kCondition:
      return "a condition";
    case Part::Type::kWord:
      return "a string attribute";
    default:
      return "a text";
  }
}

/// Recursive descent; after the first fault each step does nothing.
class Translator {
 public:
  Translator(std::string_view text, const ExpressionNames& names) : text_(text), names_(names) {
    next();
  }

  CppExpression run(ExpressionType type) {
    Part part = either();
    expect(part, type == ExpressionType::kInteger ? Part::Type::kInteger : Part::Type::kCondition);
    if (!token_.empty()) fail("has " + named_token() + " where it should end");
    return {.text = wrong_.empty() ? std::move(part.code) : "", .wrong = wrong_};
  }

 private:
  /// Quoted, with what is written in its place: signs of C++ and of Python that others have.
  std::string named_token() const {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOthers = {
        {{"/", "//"}, {"&", "and"}, {"|", "or"}, {"!", "not"}, {"=", "=="}}};
    for (const auto& [sign, written] : kOthers) {
      if (token_ == sign) return quote(token_) + " (write " + std::string(written) + ")";
    }
    return quote(token_);
  }

  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
    token_ = {};
    rest_ = {};
  }

  void next() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t"), rest_.size()));
    std::size_t size = std::min<std::size_t>(1, rest_.size());
    const auto run_of = [&](auto belongs) {
      while (size < rest_.size() && belongs(rest_[size])) ++size;
    };
    const char first = rest_.empty() ? '\0' : rest_.front();
    if (is_name_start(first)) {
      run_of([](char c) { return is_name_start(c) || is_digit(c); });
    } else if (is_digit(first)) {
      run_of(is_digit);
    } else if (first == '\'') {
      const std::size_t end = rest_.find('\'', 1);
      size = end == std::string_view::npos ? rest_.size() : end + 1;
    } else if (rest_.starts_with("//") || (rest_.size() > 1 && rest_[1] == '=')) {
      size = 2;
    }
    token_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
  }

  bool take(std::string_view token) {
    if (token_ != token) return false;
    next();
    return true;
  }

  void must_take(std::string_view token) {
    if (!take(token)) {
      fail((token_.empty() ? "ends" : "has " + named_token()) + " where " + quote(token) +
           " is expected");
    }
  }

  void expect(const Part& part, Part::Type type) {
    if (part.type != type) {
      fail(std::string("has ") + name_of(part.type) + " where " + name_of(type) + " is expected");
    }
  }

  Part joined(Part (Translator::*operand)(), std::string_view word, const char* cpp) {
    Part left = (this->*operand)();
    while (take(word)) {
      const Part right = (this->*operand)();
      expect(left, Part::Type::kCondition);
      expect(right, Part::Type::kCondition);
      left.code = "(" + left.code + cpp + right.code + ")";
    }
    return left;
  }

  Part either() { return joined(&Translator::both, "or", " || "); }
  Part both() { return joined(&Translator::negation, "and", " && "); }

  Part negation() {
    if (!take("not")) return comparison();
    const Part part = negation();
    expect(part, Part::Type::kCondition);
    return {.type = Part::Type::kCondition, .code = "!" + part.code};
  }

  Part comparison() {
    Part left = sum();
    if (token_ == "=" && (rest_.starts_with('<') || rest_.starts_with('>'))) {
      const std::string sign(1, rest_.front());
      fail("has " + quote("=" + sign) + " (write " + sign + "=)");
    }
    for (const std::string_view sign : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (token_ != sign) continue;
      next();
      const Part right = sum();
      if (left.type == Part::Type::kWord) return word_comparison(left, sign, right);
      expect(left, Part::Type::kInteger);
      expect(right, Part::Type::kInteger);
      return {.type = Part::Type::kCondition,
              .code = "(" + left.code + " " + std::string(sign) + " " + right.code + ")"};
    }
    return left;
  }

  Part word_comparison(const Part& left, std::string_view sign, const Part& right) {
    expect(right, Part::Type::kText);
    if (sign != "==" && sign != "!=") fail("compares a string attribute with " + quote(sign));
    if (wrong_.empty() &&
        std::ranges::find(left.words->words, right.code) == left.words->words.end()) {
      fail("compares with '" + right.code + "'; the words are " + join(left.words->words));
    }
    return {.type = Part::Type::kCondition,
            .code = "(" + left.code + " " + std::string(sign) + " " +
                    (left.words == nullptr ? "" : left.words->type) +
                    "::" + enumerator(right.code) + ")"};
  }

  Part sum() {
    Part left = product();
    while (token_ == "+" || token_ == "-") {
      const std::string sign(token_);
      next();
      left = both_integers(left, product(), "(", " " + sign + " ");
    }
    return left;
  }

  Part product() {
    Part left = unary();
    while (true) {
      if (take("*")) {
        left = both_integers(left, unary(), "(", " * ");
      } else if (take("//")) {
        left = both_integers(left, unary(), "sdk::divided(", ", ");
      } else if (take("%")) {
        left = both_integers(left, unary(), "sdk::remainder(", ", ");
      } else {
        return left;
      }
    }
  }

  Part both_integers(const Part& left, const Part& right, std::string open,
                     const std::string& between) {
    expect(left, Part::Type::kInteger);
    expect(right, Part::Type::kInteger);
    return {.code = std::move(open) + left.code + between + right.code + ")"};
  }

  Part unary() {
    if (!take("-")) return primary();
    const Part part = unary();
    expect(part, Part::Type::kInteger);
    return {.code = "(-" + part.code + ")"};
  }

  Part primary() {
    if (take("(")) {
      Part part = either();
      must_take(")");
      return part;
    }
    const std::string token(token_);
    if (token.empty()) {
      fail("ends where a value is expected");
    } else if (is_digit(token.front())) {
      next();
      if (token.size() > std::numeric_limits<std::int64_t>::digits10)
        fail("has a number too large");
      if (token_ == ".") {
        fail("has a fraction; a float is an attribute of the op, or one of \"constants\"");
      }
      const std::size_t zeros = std::min(token.find_first_not_of('0'), token.size() - 1);
      return {.code = "int64_t{" + token.substr(zeros) + "}"};
    } else if (token.front() == '\'') {
      next();
      if (token.size() < 2 || token.back() != '\'') fail("has a text that does not end");
      return {.type = Part::Type::kText, .code = token.substr(1, token.size() - 2)};
    } else if (is_name_start(token.front())) {
      next();
      return named(token);
    } else {
      fail("has " + named_token() + " where a value is expected");
    }
    return {};
  }

  Part named(const std::string& name) {
    if (take("(")) return called(name);
    if (take(".")) return member(name);
    if (const auto found = names_.integers.find(name); found != names_.integers.end()) {
      return {.code = found->second};
    }
    if (const auto found = names_.words.find(name); found != names_.words.end()) {
      return {.type = Part::Type::kWord, .code = "call." + name, .words = &found->second};
    }
    if (std::ranges::find(names_.floats, name) != names_.floats.end()) {
      fail("counts with " + name + ", a float; expressions are of integers");
    }
    fail("names " + name + ", not one of " + known());
    return {};
  }

  std::string known() const {
    std::vector<std::string> all;
    for (const auto& one : names_.integers) all.push_back(one.first);
    for (const auto& one : names_.words) all.push_back(one.first);
    return all.empty() ? "the op's (it has no extents and no attributes)" : join(all);
  }

  Part called(const std::string& name) {
    const auto function = std::ranges::find(kFunctions, name, &Function::name);
    if (function == kFunctions.end()) {
      fail("calls " + name + "; the functions are " +
           join(kFunctions, ", ", [](const Function& each) { return std::string(each.name); }));
      return {};
    }
    std::string code = "sdk::" + name + "(";
    for (int i = 0; i < function->arguments; ++i) {
      if (i != 0) must_take(",");
      const Part part = sum();
      expect(part, Part::Type::kInteger);
      code += (i == 0 ? "" : ", ") + part.code;
    }
    must_take(")");
    return {.code = code + ")"};
  }

  Part member(const std::string& name) {
    if (take("present")) {
      const auto found = names_.presents.find(name);
      if (found != names_.presents.end()) {
        return {.type = Part::Type::kCondition, .code = found->second};
      }
      fail("asks for " + name + ".present; " + name + " is not an optional tensor of the op");
      return {};
    }
    const auto found = names_.strides.find(name);
    if (take("describable")) {
      if (found != names_.strides.end() && found->second == 2) {
        return {.type = Part::Type::kCondition, .code = "sdk::describable(call." + name + ")"};
      }
      fail("asks for " + name + ".describable; " + name +
           " is not a tensor of two dimensions of the op");
      return {};
    }
    if (found == names_.strides.end()) {
      const auto function = std::ranges::find(kFunctions, token_, &Function::name);
      fail("asks for " + name + "." + std::string(token_) +
           (function != kFunctions.end() ? " (write " + std::string(token_) + ")"
                                         : "; " + name + " is not a tensor of the op"));
    }
    if (!take("stride")) {
      fail("asks for " + name + "." + std::string(token_) + "; of a tensor there is " + name +
           ".stride(0), and an extent is named as in its shape");
    }
    must_take("(");
    const std::string place(token_);
    next();
    const bool there = place.size() == 1 && is_digit(place.front()) &&
                       found != names_.strides.end() &&
                       static_cast<std::size_t>(place.front() - '0') < found->second;
    if (!there) {
      fail("asks for " + name + ".stride(" + place + (place == "-" ? std::string(token_) : "") +
           "), which no tensor of the op has");
    }
    must_take(")");
    return {.code = "call." + name + ".stride[" + place + "]"};
  }

  std::string_view text_;
  std::string_view rest_ = text_;
  const ExpressionNames& names_;
  std::string_view token_;  // the one that is looked at; empty at the end
  std::string wrong_;
};

}  // namespace

CppExpression translate(std::string_view text, ExpressionType type, const ExpressionNames& names) {
  if (text.size() > kMaxBytes) return {.text = "", .wrong = "has more than 500 bytes"};
  return Translator(text, names).run(type);
}

}  // namespace kiln::build
