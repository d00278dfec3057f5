// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/frame/command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "loader/cli/frame/usage.hpp"

namespace kiln::cli {
namespace {

constexpr const char* kNotEmpty = "not empty";

/// A script's variable that is not set must not be taken for what is not named: of --lock ""
/// nothing would be held to a lock file.
CLI::Option* refuse_empty(CLI::Option* option) {
  return option->check(CLI::Validator(
      [](const std::string& text) {
        return text.empty() ? std::string("found an empty word, expected a value") : std::string();
      },
      "", kNotEmpty));
}

/// In other programs "-" is a stream; a file of that name would be what nobody looks for.
CLI::Option* refuse_dash(CLI::Option* option, const std::string& kind) {
  if (!kind.starts_with("FILE") && kind != "FOLDER" && kind != "KEY") return option;
  return option->check(CLI::Validator(
      [](const std::string& text) {
        return text == "-" ? std::string(
                                 "found -, which is no stream here, expected a path; a "
                                 "file of this name is ./-")
                           : std::string();
      },
      "", "not a dash"));
}

template <class Value>
Option add_one(CLI::App& app, const std::string& names, Value& value, const std::string& kind,
               const std::string& help) {
  CLI::Option* const option = app.add_option(names, value, help)->type_name(kind);
  return Option(*refuse_dash(refuse_empty(option), kind));
}

template <class Values>
Option add_many(CLI::App& app, const std::string& names, Values& values, const std::string& kind,
                const std::string& help) {
  CLI::Option* const option = app.add_option(names, values, help)->type_name(kind);
  // Else an option takes the arguments behind its value as well.
  if (names.starts_with('-')) option->expected(1)->take_all()->allow_extra_args(false);
  return Option(*refuse_dash(refuse_empty(option), kind));
}

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::once() {
  option_->expected(1);
  return *this;
}

Option& Option::last_counts() {
  option_->take_last();
  return *this;
}

Option& Option::not_with(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& words) {
  option_->check(
      [words](const std::string& text) {
        return std::ranges::find(words, text) != words.end()
                   ? std::string()
                   : "found " + quote(text) + ", expected one of " + join(words);
      },
      "");
  option_->type_name(join(words, "|"));
  return *this;
}

Option& Option::separated_by(char separator) {
  option_->delimiter(separator);
  return *this;
}

Option& Option::many() {
  option_->expected(-1)->allow_extra_args(true);
  return *this;
}

Option& Option::may_be_empty() {
  option_->get_validator(kNotEmpty)->active(false);
  return *this;
}

Option& Option::value_is_optional() {
  option_->expected(0, 1);
  return *this;
}

bool Option::is_given() const {
  return option_->count() > 0;
}

Option Command::option(const std::string& names, std::string& value, const std::string& kind,
                       const std::string& help) {
  return add_one(app_, names, value, kind, help);
}

Option Command::option(const std::string& names, std::filesystem::path& value,
                       const std::string& kind, const std::string& help) {
  return add_one(app_, names, value, kind, help);
}

Option Command::option(const std::string& names, std::vector<std::string>& values,
                       const std::string& kind, const std::string& help) {
  return add_many(app_, names, values, kind, help);
}

Option Command::option(const std::string& names, std::vector<std::filesystem::path>& values,
                       const std::string& kind, const std::string& help) {
  return add_many(app_, names, values, kind, help);
}

Option Command::number(const std::string& names, const std::function<void(std::uint64_t)>& store,
                       std::uint64_t least, std::uint64_t most, const std::string& help) {
  const std::string name = names.substr(names.rfind(',') + 1);
  const auto read = [=](const std::string& text) {
    const auto found = parse_decimal(text, most);
    if (!found || *found < least) {
      throw CLI::ValidationError(name, "found " + quote(text) + ", expected a whole number from " +
                                           std::to_string(least) + " to " + std::to_string(most));
    }
    store(*found);
  };
  return Option(*app_.add_option_function<std::string>(names, read, help)->type_name("N"));
}

Option Command::flag(const std::string& names, bool& value, const std::string& help) {
  return Option(*app_.add_flag(names, value, help));
}

void Command::example(const std::string& words, const std::string& meaning) {
  constexpr std::size_t kColumn = 50;
  std::string line = "  " + words_of(app_) + (words.empty() ? "" : " " + words);
  if (!meaning.empty()) line.resize(std::max(kColumn, line.size() + 2), ' ');
  const std::string before = app_.get_footer();
  app_.footer((before.empty() ? "Examples:" : before) + "\n" + line + meaning);
}

void Command::has_no_document() {
  declared_.plain.insert(&app_);
}

void Command::runs(std::function<int(const Call&)> run) {
  declared_.runs[&app_] = std::move(run);
}

}  // namespace kiln::cli
