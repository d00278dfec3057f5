// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/steps/sources.hpp"

#include <algorithm>

#include "base/ascii.hpp"
#include "base/quote.hpp"
#include "build-matrix/base/files.hpp"
#include "kiln/error.hpp"

namespace kiln::build {
namespace fs = std::filesystem;

namespace {

bool in_word(char c) {
  return is_letter(c) || is_digit(c) || c == '_';
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\f\v\r");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

/// The word at the beginning; may be empty.
std::string_view first_word(std::string_view text) {
  const auto end = std::find_if_not(text.begin(), text.end(), in_word);
  return text.substr(0, static_cast<std::size_t>(end - text.begin()));
}

/// "#include NAME" into "include" and "NAME"; an empty word for any other line.
struct Directive {
  std::string_view word;
  std::string_view rest;
};

Directive inclusion(std::string_view line) {
  line = without_blanks(line);
  const std::string_view mark = line.starts_with("%:") ? "%:" : "#";
  if (!line.starts_with(mark)) return {};
  line = without_blanks(line.substr(mark.size()));
  const std::string_view word = first_word(line);
  if (word != "include" && word != "include_next" && word != "import" && word != "embed") return {};
  return {word, without_blanks(line.substr(word.size()))};
}

/// Reads "name" or <name>.
bool read_name(std::string_view text, Include& include) {
  if (!text.starts_with('"') && !text.starts_with('<')) return false;
  include.quoted = text.front() == '"';
  const std::size_t end = text.find(include.quoted ? '"' : '>', 1);
  if (end == std::string_view::npos) return false;
  include.name = text.substr(1, end - 1);
  return true;
}

/// The text as the preprocessor's directives see it: lines that a backslash joins are one, and a
/// comment is a blank. What looks like a comment within a literal or a header's name stays.
class Stripped {
 public:
  explicit Stripped(std::string_view text) : text_(text) {
    while (at_ < text_.size()) step();
  }
  std::string take() { return std::move(out_); }

 private:
  /// The character here; a backslash before the end of a line is passed over, with the end.
  char next() {
    skip_splices();
    return at_ < text_.size() ? text_[at_++] : '\0';
  }
  char peek() {
    skip_splices();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void skip_splices() {
    while (text_.substr(at_).starts_with("\\\n") || text_.substr(at_).starts_with("\\\r\n")) {
      at_ += text_[at_ + 1] == '\n' ? 2 : 3;
    }
  }

  void step() {
    const char c = next();
    if (c == '\n') begin_line_ = out_.size() + 1;
    if (c == '/' && peek() == '/') {
      while (at_ < text_.size() && peek() != '\n') next();
    } else if (c == '/' && peek() == '*') {
      next();
      skip_comment();
    } else if ((c == '<' || c == '"') && begins_name()) {
      copy_until(c, c == '<' ? '>' : '"', false);
    } else if (c == '"' && is_raw()) {
      copy_raw();
    } else if (c == '"' || (c == '\'' && !separates_digits())) {
      copy_until(c, c, true);
    } else {
      out_ += c;
    }
  }

  bool begins_name() const {
    const Directive directive = inclusion(std::string_view(out_).substr(begin_line_));
    return !directive.word.empty() && directive.rest.empty();
  }

  void skip_comment() {
    char before = '\0';
    while (at_ < text_.size()) {
      const char c = next();
      if (before == '*' && c == '/') break;
      before = c;
    }
    out_ += ' ';
  }

  /// No literal goes beyond its line: what is not closed does no harm to what follows.
  void copy_until(char open, char close, bool escapes) {
    out_ += open;
    while (at_ < text_.size() && peek() != '\n') {
      const char c = next();
      out_ += c;
      if (c == close) return;
      if (c == '\\' && escapes && at_ < text_.size() && peek() != '\n') out_ += next();
    }
  }

  /// The prefix of the literal that begins here: R, u8R, …
  bool is_raw() const {
    std::size_t begin = out_.size();
    while (begin > 0 && in_word(out_[begin - 1])) --begin;
    const std::string_view prefix = std::string_view(out_).substr(begin);
    return prefix == "R" || prefix == "u8R" || prefix == "uR" || prefix == "UR" || prefix == "LR";
  }

  /// As one line: nothing within it is a directive, and a backslash joins nothing.
  void copy_raw() {
    const std::size_t open = text_.find('(', at_);
    if (open == std::string_view::npos) return;
    const std::string end = ")" + std::string(text_.substr(at_, open - at_)) + "\"";
    const std::size_t close = text_.find(end, open);
    const std::size_t stop = close == std::string_view::npos ? text_.size() : close + end.size();
    out_ += '"';
    for (; at_ < stop; ++at_) out_ += text_[at_] == '\n' ? ' ' : text_[at_];
  }

  /// 1'000, unlike u'x'.
  bool separates_digits() const {
    std::size_t begin = out_.size();
    while (begin > 0 && (in_word(out_[begin - 1]) || out_[begin - 1] == '\'')) --begin;
    return begin < out_.size() && is_digit(out_[begin]);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t begin_line_ = 0;
};

/// Names within __has_include(…) and its like.
void scan_questions(std::string_view line, std::vector<Include>& names) {
  for (std::size_t at = line.find("__has_"); at != std::string_view::npos;
       at = line.find("__has_", at + 1)) {
    const std::string_view word = first_word(line.substr(at));
    const bool embedded = word == "__has_embed";
    const bool any = word == "__has_include_next";
    if (word != "__has_include" && !any && !embedded) continue;
    const std::string_view rest = without_blanks(line.substr(at + word.size()));
    if (!rest.starts_with('(')) continue;
    Include include{.any = any, .embedded = embedded};
    if (read_name(without_blanks(rest.substr(1)), include)) names.push_back(std::move(include));
  }
}

/// Whether the assembler is told to read a file. A member of a class may have these names, too.
bool reads_by_assembler(std::string_view line) {
  for (const std::string_view word : {".incbin", ".include"}) {
    for (std::size_t at = line.find(word); at != std::string_view::npos;
         at = line.find(word, at + 1)) {
      const bool escaped = at >= 2 && line[at - 2] == '\\';
      const bool member = at >= 1 && (in_word(line[at - 1]) || line[at - 1] == ')') && !escaped;
      if (!member && first_word(line.substr(at + 1)) == word.substr(1)) return true;
    }
  }
  return false;
}

}  // namespace

Includes scan_includes(std::string_view text) {
  Includes includes;
  const std::string stripped = Stripped(text).take();
  std::string_view lines = stripped;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    const Directive directive = inclusion(line);
    Include include{.any = directive.word == "include_next", .embedded = directive.word == "embed"};
    if (read_name(directive.rest, include)) {
      includes.names.push_back(std::move(include));
    } else if (includes.computed.empty() && (!directive.word.empty() || reads_by_assembler(line))) {
      includes.computed = without_blanks(line);
    }
    scan_questions(line, includes.names);
  }
  return includes;
}

const Includes& Sources::includes(const fs::path& path) {
  const auto known = includes_.find(path);
  if (known != includes_.end()) return known->second;
  const std::string text = read_file(path);
  digests_.emplace(path, Digest::of(text));
  Includes read = scan_includes(text);
  const auto is_tool = [&path](const fs::path& tool) { return !below(tool, path).empty(); };
  if (!read.computed.empty() && std::ranges::none_of(tools_, is_tool)) {
    throw Error(ErrorCode::kBuild,
                "read " + path.string() + ": " + quote(read.computed) +
                    " does not name a file that the build id could cover. Write #include "
                    "\"name\", #include <name> or #embed \"name\" for each file");
  }
  return includes_.emplace(path, std::move(read)).first->second;
}

Digest Sources::digest(const fs::path& path) {
  const std::lock_guard guard(lock_);
  const auto known = digests_.find(path);
  if (known != digests_.end()) return known->second;
  return digests_.emplace(path, Digest::of(read_file(path))).first->second;
}

std::set<fs::path> Sources::closure(const std::vector<fs::path>& sources,
                                    const std::vector<fs::path>& folders) {
  const std::lock_guard guard(lock_);
  std::set<fs::path> seen;
  std::set<fs::path> followed;
  std::vector<fs::path> open;
  const auto add = [&](const fs::path& path, bool embedded) {
    fs::path normal = fs::absolute(path).lexically_normal();
    seen.insert(normal);
    if (!embedded && followed.insert(normal).second) open.push_back(std::move(normal));
  };
  for (const fs::path& source : sources) add(source, false);
  while (!open.empty()) {
    const fs::path path = std::move(open.back());
    open.pop_back();
    for (const Include& include : includes(path).names) {
      std::vector<fs::path> places = folders;
      if (include.quoted) places.insert(places.begin(), path.parent_path());
      for (const fs::path& folder : places) {
        std::error_code failed;
        if (!fs::is_regular_file(folder / include.name, failed)) continue;
        add(folder / include.name, include.embedded);
        if (!include.any) break;
      }
    }
  }
  return seen;
}

fs::path below(const fs::path& folder, const fs::path& path) {
  fs::path rest = path.lexically_relative(fs::absolute(folder).lexically_normal());
  return !rest.empty() && *rest.begin() == ".." ? fs::path() : rest;
}

}  // namespace kiln::build
