// SPDX-License-Identifier: Apache-2.0
//
// Markdown: an author's card (CommonMark with tables) as HTML of the site, with a plot over
// each table of times. md4c parses; what it finds is written through markup.hpp, so that raw HTML
// is shown as the text that it is. Links lead to http, https and mail; images are their
// description: a page of the site requests nothing from elsewhere. Pure.
#pragma once

#include <string>
#include <string_view>

#include "registry/site/markup.hpp"

namespace kiln::registry {

struct RenderedCard {
  Html html;
  Html speed;            ///< the first plot, to stand above; may be empty
  std::string measured;  ///< the words above its table: where and when
};

/// `title`: a first heading that says only this is left out, the page has it. Headings are third
/// level and below, their ids begin with "card-". A long card is folded, part by part. Throws
/// kIntegrity for a card that becomes 8 MiB.
RenderedCard render_card(std::string_view markdown, std::string_view title);

}  // namespace kiln::registry
