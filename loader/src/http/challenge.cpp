// SPDX-License-Identifier: Apache-2.0
#include "http/challenge.hpp"

#include <algorithm>

#include "base/ascii.hpp"
#include "base/quote.hpp"
#include "http/url.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

constexpr std::size_t kMaxChallengeBytes = 8u << 10;

bool is_alphanumeric(char c) {
  return is_letter(c) || is_digit(c);
}
bool is_token_char(char c) {
  return is_alphanumeric(c) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string::npos;
}
bool is_token68(char c) {
  return is_alphanumeric(c) || std::string_view("-._~+/").find(c) != std::string::npos;
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& subject) : text_(text), subject_(subject) {}

  std::vector<Challenge> read() {
    if (text_.size() > kMaxChallengeBytes) {
      fail("is " + std::to_string(text_.size()) + " bytes, at most " +
           std::to_string(kMaxChallengeBytes) + " are read");
    }
    // A list may have empty elements, so commas are skipped wherever an element may begin.
    for (skip_commas(); at_ < text_.size(); skip_commas()) {
      const std::string word = lower_case(take(is_token_char));
      if (word.empty()) fail("has no scheme");
      const std::size_t spaces = skip_spaces();
      if (peek() == '=') {
        read_parameter(word);
      } else {
        challenges_.push_back({word, {}, {}});
        if (spaces > 0 && !read_token68()) read_first_parameter();
      }
    }
    return std::move(challenges_);
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  template <class Class>
  std::string take(Class in_class) {
    const std::size_t from = at_;
    while (at_ < text_.size() && in_class(text_[at_])) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }

  std::size_t skip_spaces() {
    return take([](char c) { return c == ' ' || c == '\t'; }).size();
  }
  void skip_commas() {
    take([](char c) { return c == ' ' || c == '\t' || c == ','; });
  }

  void end_element() {
    skip_spaces();
    if (at_ < text_.size() && peek() != ',') fail("has no comma where one is due");
  }

  /// The one form that is not name=value: "Negotiate YII=". Read ahead, since a first parameter
  /// ("Bearer realm=x") begins alike: only padding and the end of the element tell them apart.
  bool read_token68() {
    const std::size_t from = at_;
    std::string token = take(is_token68);
    token += take([](char c) { return c == '='; });
    skip_spaces();
    if (at_ == text_.size() || peek() == ',') {
      challenges_.back().token = std::move(token);
      return true;
    }
    at_ = from;
    return false;
  }

  void read_first_parameter() {
    const std::string name = lower_case(take(is_token_char));
    skip_spaces();
    if (name.empty() || peek() != '=') fail("has a scheme with neither parameters nor a comma");
    read_parameter(name);
  }

  void read_parameter(const std::string& name) {
    if (challenges_.empty() || !challenges_.back().token.empty()) {
      fail("has the parameter " + quote(name) + " outside of a challenge");
    }
    ++at_;  // "="
    skip_spaces();
    std::string value = peek() == '"' ? read_quoted() : take(is_token_char);
    end_element();
    if (!challenges_.back().parameters.emplace(name, std::move(value)).second) {
      fail("has the parameter " + quote(name) + " twice");
    }
  }

  std::string read_quoted() {
    std::string value;
    for (++at_; at_ < text_.size(); ++at_) {
      char c = text_[at_];
      if (c == '"') {
        ++at_;
        return value;
      }
      if (c == '\\' && ++at_ < text_.size()) c = text_[at_];
      const auto byte = static_cast<unsigned char>(c);
      if ((byte < 0x20 && c != '\t') || byte == 0x7f) fail("has a control byte");
      value += c;
    }
    fail("has a quote that does not end");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kNetwork, "read the WWW-Authenticate header of " + subject_ + ": it " +
                                         what + ", at byte " + std::to_string(at_) +
                                         ". Check the registry, or the proxy before it");
  }

  std::string_view text_;
  const std::string& subject_;
  std::size_t at_ = 0;
  std::vector<Challenge> challenges_;
};

}  // namespace

std::string Challenge::parameter(const std::string& name) const {
  const auto found = parameters.find(name);
  return found == parameters.end() ? std::string() : found->second;
}

std::vector<Challenge> parse_challenges(std::string_view header, const std::string& subject) {
  return Reader(header, subject).read();
}

}  // namespace kiln
