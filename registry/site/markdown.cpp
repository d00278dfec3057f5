// SPDX-License-Identifier: Apache-2.0
#include "registry/site/markdown.hpp"

#include <md4c.h>

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ascii.hpp"
#include "kiln/error.hpp"
#include "registry/site/plot.hpp"

namespace kiln::registry {
namespace {

constexpr std::size_t kMostBytes = std::size_t{8} << 20;
constexpr std::size_t kFoldedRows = 12;     // a longer table is folded, and one under its plot
constexpr std::size_t kFoldedBytes = 6000;  // so are the parts of a longer card

/// "Two words" as "two-words".
std::string slug_of(std::string_view text) {
  std::string slug;
  for (const char c : text) {
    if (is_letter(c) || is_digit(c)) {
      slug += lower_case(c);
    } else if (!slug.empty() && slug.back() != '-') {
      slug += '-';
    }
  }
  while (slug.ends_with('-')) slug.pop_back();
  return slug;
}

std::string utf8_of(std::uint64_t code) {
  if (code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) code = 0xfffd;
  const auto byte = [&](unsigned shift, unsigned lead) {
    return static_cast<char>(lead | ((code >> shift) & (lead == 0x80 ? 0x3fU : 0xffU)));
  };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {byte(6, 0xc0), byte(0, 0x80)};
  if (code < 0x10000) return {byte(12, 0xe0), byte(6, 0x80), byte(0, 0x80)};
  return {byte(18, 0xf0), byte(12, 0x80), byte(6, 0x80), byte(0, 0x80)};
}

/// The characters that an entity is for; of those with a name the few that text needs, the others
/// stay as they are written.
std::string decode(std::string_view entity) {
  constexpr std::pair<std::string_view, std::string_view> kNamed[] = {{"&amp;", "&"},
                                                                      {"&lt;", "<"},
                                                                      {"&gt;", ">"},
                                                                      {"&quot;", "\""},
                                                                      {"&nbsp;", "\xc2\xa0"},
                                                                      {"&times;", "\xc3\x97"},
                                                                      {"&mdash;", "\xe2\x80\x94"}};
  for (const auto& [name, text] : kNamed) {
    if (entity == name) return std::string(text);
  }
  if (!entity.starts_with("&#") || entity.size() < 4) return std::string(entity);
  const std::string digits(entity.substr(2, entity.size() - 3));
  const bool is_hex = digits[0] == 'x' || digits[0] == 'X';
  return utf8_of(std::strtoull(digits.c_str() + (is_hex ? 1 : 0), nullptr, is_hex ? 16 : 10));
}

/// Where a link may lead; empty: nowhere. In a card, "#limits" is a heading of the same page.
std::string target_of(const MD_ATTRIBUTE& href) {
  std::string target(href.text == nullptr ? "" : std::string(href.text, href.size));
  for (const std::string_view scheme : {"https://", "http://", "mailto:"}) {
    if (target.starts_with(scheme)) return target;
  }
  return target.starts_with('#') ? "#card-" + slug_of(target) : "";
}

/// What stands around a block or span that has no more to it; `type` is of md4c's enumerations.
struct Tags {
  int type;
  Literal open;
  Literal close;
};
constexpr Tags kBlocks[] = {{MD_BLOCK_QUOTE, "<blockquote>", "</blockquote>\n"},
                            {MD_BLOCK_UL, "<ul>\n", "</ul>\n"},
                            {MD_BLOCK_OL, "", "</ol>\n"},
                            {MD_BLOCK_LI, "<li>", "</li>\n"},
                            {MD_BLOCK_HR, "<hr>\n", ""},
                            {MD_BLOCK_CODE, "<pre tabindex=\"0\"><code>", "</code></pre>\n"},
                            {MD_BLOCK_P, "<p>", "</p>\n"},
                            {MD_BLOCK_TR, "<tr>", "</tr>\n"},
                            {MD_BLOCK_TH, "", "</th>"},
                            {MD_BLOCK_TD, "", "</td>"},
                            {MD_BLOCK_THEAD, "<thead>", "</thead>\n"},
                            {MD_BLOCK_TBODY, "<tbody>", "</tbody>"}};
constexpr Tags kSpans[] = {{MD_SPAN_EM, "<em>", "</em>"},
                           {MD_SPAN_STRONG, "<strong>", "</strong>"},
                           {MD_SPAN_CODE, "<code>", "</code>"},
                           {MD_SPAN_DEL, "<del>", "</del>"},
                           {MD_SPAN_IMG, "<span class=\"image\">", "</span>"}};

template <std::size_t Count>
const Tags* tags_of(const Tags (&all)[Count], int type) {
  const auto* const found = std::ranges::find(all, type, &Tags::type);
  return found == std::end(all) ? nullptr : found;
}

class Rendering {
 public:
  Rendering(std::string_view title, bool folded) : title_(title), folded_(folded) {}

  void enter(MD_BLOCKTYPE type, void* detail) {
    if (const Tags* const tags = tags_of(kBlocks, type)) html_.add(tags->open);
    switch (type) {
      case MD_BLOCK_QUOTE:
      case MD_BLOCK_UL:
        ++depth_;
        break;
      case MD_BLOCK_OL:
        enter_list(*static_cast<MD_BLOCK_OL_DETAIL*>(detail));
        break;
      case MD_BLOCK_P:
        plain_.clear();
        break;
      case MD_BLOCK_H:
        begin_aside();
        break;
      case MD_BLOCK_TABLE:
        begin_aside(), table_ = {};
        break;
      case MD_BLOCK_TR:
        row_.clear();
        break;
      case MD_BLOCK_TH:
      case MD_BLOCK_TD:
        enter_cell(type == MD_BLOCK_TH, *static_cast<MD_BLOCK_TD_DETAIL*>(detail));
        break;
      case MD_BLOCK_HTML:
        raw_.clear();
        break;
      default:
        break;
    }
  }

  void leave(MD_BLOCKTYPE type, void* detail) {
    if (const Tags* const tags = tags_of(kBlocks, type)) html_.add(tags->close);
    switch (type) {
      case MD_BLOCK_QUOTE:
      case MD_BLOCK_UL:
      case MD_BLOCK_OL:
        --depth_;
        break;
      case MD_BLOCK_P:
        above_ = plain_;
        break;
      case MD_BLOCK_H:
        leave_heading(static_cast<MD_BLOCK_H_DETAIL*>(detail)->level);
        break;
      case MD_BLOCK_TABLE:
        leave_table();
        break;
      case MD_BLOCK_TR:
        leave_row();
        break;
      case MD_BLOCK_TH:
      case MD_BLOCK_TD:
        row_.push_back(plain_);
        break;
      case MD_BLOCK_HTML:
        leave_raw();
        break;
      case MD_BLOCK_DOC:
        end_part();
        break;
      default:
        break;
    }
  }

  void enter(MD_SPANTYPE type, void* detail) {
    if (const Tags* const tags = tags_of(kSpans, type)) html_.add(tags->open);
    if (type == MD_SPAN_A) enter_link(target_of(static_cast<MD_SPAN_A_DETAIL*>(detail)->href));
  }

  void leave(MD_SPANTYPE type) {
    if (const Tags* const tags = tags_of(kSpans, type)) html_.add(tags->close);
    if (type != MD_SPAN_A) return;
    if (links_.back()) html_.add("</a>");
    links_.pop_back();
  }

  void text(MD_TEXTTYPE type, std::string_view text) {
    switch (type) {
      case MD_TEXT_BR:
        html_.add("<br>\n");
        return;
      case MD_TEXT_SOFTBR:
        say("\n");
        return;
      case MD_TEXT_NULLCHAR:
        say("\xef\xbf\xbd");
        return;
      case MD_TEXT_ENTITY:
        say(decode(text));
        return;
      case MD_TEXT_HTML:
        raw_ += text;
        return;
      default:
        say(text);
    }
  }

  /// Markdown can ask for more than its own size: a table of many columns has as many cells in its
  /// shortest row, and a list a hundred deep has a hundred tags a line.
  void check_size() const {
    if (html_.str().size() <= kMostBytes) return;
    throw Error(ErrorCode::kIntegrity, "render a card: it becomes more than " +
                                           std::to_string(kMostBytes) +
                                           " bytes of HTML. Make it shorter");
  }

  RenderedCard take() { return {std::move(html_), std::move(speed_), std::move(measured_)}; }

 private:
  void say(std::string_view text) {
    html_.text(text);
    plain_ += text;
  }

  /// What follows is written for itself, and joins the rest by end_aside().
  void begin_aside() {
    outer_.push_back(std::exchange(html_, {}));
    plain_.clear();
  }

  Html end_aside() { return std::exchange(html_, std::exchange(outer_.back(), {})); }

  void enter_list(const MD_BLOCK_OL_DETAIL& list) {
    ++depth_;
    html_.add("<ol start=\"{}\">\n", std::to_string(list.start));
  }

  void enter_link(const std::string& target) {
    links_.push_back(!target.empty());
    if (target.empty()) return;
    html_.add("<a rel=\"nofollow noopener noreferrer\" href=\"{}\">", target);
  }

  void enter_cell(bool is_title, const MD_BLOCK_TD_DETAIL& cell) {
    plain_.clear();
    const bool right = cell.align == MD_ALIGN_RIGHT;
    if (is_title) {
      html_.add(right ? Literal("<th scope=\"col\" class=\"right\">")
                      : Literal("<th scope=\"col\">"));
    } else {
      html_.add(right ? Literal("<td class=\"right\">") : Literal("<td>"));
    }
  }

  /// Raw HTML is shown as the text that it is; a comment is not.
  void leave_raw() {
    while (raw_.ends_with('\n') || raw_.ends_with(' ')) raw_.pop_back();
    const bool is_comment = raw_.starts_with("<!--") && raw_.find("-->") == raw_.size() - 3;
    if (!is_comment) html_.add("<p>{}</p>\n", raw_);
  }

  void leave_row() {
    if (table_.titles.empty()) {
      table_.titles = std::move(row_);
    } else {
      table_.rows.push_back(std::move(row_));
    }
    row_ = {};
  }

  void leave_heading(unsigned level) {
    const Html inside = end_aside();
    outer_.pop_back();
    if (std::exchange(is_first_, false) && plain_ == title_) return;
    const std::string id = new_id("card-" + slug_of(plain_));
    const bool is_high = level <= 2;
    const bool begins_part = folded_ && is_high && depth_ == 0;
    if (begins_part) {
      end_part();
      html_.add("<details class=\"part\"><summary>");
    }
    const Literal heading = is_high ? Literal("h3") : Literal("h4");
    html_.add("<{} id=\"{}\">{}</{}>", heading, id, inside, heading);
    html_.add(begins_part ? Literal("</summary>\n") : Literal("\n"));
    in_part_ = in_part_ || begins_part;
  }

  void end_part() {
    if (std::exchange(in_part_, false)) html_.add("</details>\n");
  }

  /// "card-limits", then "card-limits-2". Each name goes on counting where it stopped.
  std::string new_id(const std::string& name) {
    std::string id = name;
    for (std::size_t& count = counts_[name]; !ids_.insert(id).second;) {
      count = std::max<std::size_t>(count, 1) + 1;
      id = name + "-" + std::to_string(count);
    }
    return id;
  }

  void leave_table() {
    const Html inside = end_aside();
    outer_.pop_back();
    const std::vector<SpeedBar> bars = speed_of(table_);
    if (!bars.empty()) {
      const Html plot = draw(bars);
      html_.add(plot);
      if (speed_.empty()) {
        speed_ = plot;
        measured_ = short_of(above_, kMeasuredBytes);
      }
    }
    const bool folded = !bars.empty() || table_.rows.size() > kFoldedRows;
    if (folded) {
      html_.add("<details><summary>Table of {} rows</summary>", std::to_string(table_.rows.size()));
    }
    html_.add(
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Table\"><table>\n{}"
        "</table></div>\n",
        inside);
    if (folded) html_.add("</details>\n");
  }

  static constexpr std::size_t kMeasuredBytes = 300;
  std::string title_;
  bool folded_;
  Html html_;
  std::vector<Html> outer_;
  std::vector<bool> links_;
  std::set<std::string> ids_;
  std::map<std::string, std::size_t> counts_;
  std::string plain_;  ///< the text since the last cell, heading or paragraph began
  std::string above_;  ///< that of the last paragraph
  std::string raw_;    ///< of an HTML block
  std::vector<std::string> row_;
  CardTable table_;
  Html speed_;
  std::string measured_;
  int depth_ = 0;  ///< of lists and quotations
  bool in_part_ = false;
  bool is_first_ = true;
};

struct State {
  Rendering rendering;
  std::exception_ptr thrown;
};

/// md4c is C: what is thrown below it is carried around it.
template <class Step>
int guarded(void* data, Step step) {
  State& state = *static_cast<State*>(data);
  try {
    step(state.rendering);
    state.rendering.check_size();
    return 0;
  } catch (...) {
    state.thrown = std::current_exception();
    return 1;
  }
}

}  // namespace

RenderedCard render_card(std::string_view markdown, std::string_view title) {
  State state{Rendering(title, markdown.size() > kFoldedBytes), nullptr};
  MD_PARSER parser{};
  parser.flags =
      MD_FLAG_TABLES | MD_FLAG_STRIKETHROUGH | MD_FLAG_PERMISSIVEURLAUTOLINKS | MD_FLAG_NOHTMLSPANS;
  parser.enter_block = [](MD_BLOCKTYPE type, void* detail, void* data) {
    return guarded(data, [&](Rendering& each) { each.enter(type, detail); });
  };
  parser.leave_block = [](MD_BLOCKTYPE type, void* detail, void* data) {
    return guarded(data, [&](Rendering& each) { each.leave(type, detail); });
  };
  parser.enter_span = [](MD_SPANTYPE type, void* detail, void* data) {
    return guarded(data, [&](Rendering& each) { each.enter(type, detail); });
  };
  parser.leave_span = [](MD_SPANTYPE type, void*, void* data) {
    return guarded(data, [&](Rendering& each) { each.leave(type); });
  };
  parser.text = [](MD_TEXTTYPE type, const MD_CHAR* text, MD_SIZE size, void* data) {
    return guarded(data, [&](Rendering& each) { each.text(type, {text, size}); });
  };
  const int result =
      md_parse(markdown.data(), static_cast<MD_SIZE>(markdown.size()), &parser, &state);
  if (state.thrown) std::rethrow_exception(state.thrown);
  if (result != 0) throw Error(ErrorCode::kInternal, "render a card: md4c has no memory");
  return state.rendering.take();
}

}  // namespace kiln::registry
