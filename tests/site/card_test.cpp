// SPDX-License-Identifier: Apache-2.0
//
// An author's Markdown: what it becomes, and what it cannot become.
#include <doctest/doctest.h>

#include "kiln/error.hpp"
#include "site_card.hpp"

namespace {

std::string render(const std::string& markdown) {
  return kiln::registry::render_card(markdown, "tiny-op").str();
}

bool has(const std::string& html, const std::string& part) {
  return html.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("card: Markdown becomes what it means") {
  const struct {
    std::string markdown, html;
  } cases[] = {
      {"a *b* **c** `d`", "<p>a <em>b</em> <strong>c</strong> <code>d</code></p>\n"},
      {"# tiny-op\n\nx", "<p>x</p>\n"},  // the page's own title
      {"# other", "<h3 id=\"card-other\">other</h3>\n"},
      {"## A b!\n\n## A b!",
       "<h3 id=\"card-a-b\">A b!</h3>\n<h3 id=\"card-a-b-again\">A b!</h3>\n"},
      {"### Deep", "<h4 id=\"card-deep\">Deep</h4>\n"},
      {"- a\n- b", "<ul>\n<li>a</li>\n<li>b</li>\n</ul>\n"},
      {"3. a", "<ol start=\"3\">\n<li>a</li>\n</ol>\n"},
      {"    y = 2 x", "<pre tabindex=\"0\"><code>y = 2 x\n</code></pre>\n"},
      {"> a", "<blockquote><p>a</p>\n</blockquote>\n"},
      {"a &lt; b &#65; &#x42; &unknown;", "<p>a &lt; b A B &amp;unknown;</p>\n"},
      {"<!-- made by a program -->", ""},
      {"[a](#what-it-is)",
       "<p><a rel=\"nofollow noopener noreferrer\" href=\"#card-what-it-is\">a</a></p>\n"},
      {"[a](https://x.org/?a=1&b=2)",
       "<p><a rel=\"nofollow noopener noreferrer\" "
       "href=\"https://x.org/?a=1&amp;b=2\">a</a></p>\n"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.markdown);
    CHECK(render(each.markdown) == each.html);
  }
}

TEST_CASE("card: a table is one, and a long one is folded") {
  const std::string head = "| a | b |\n|---|--:|\n";
  const std::string html = render(head + "| 1 | 2 |\n");
  CHECK(has(html, "<th scope=\"col\">a</th><th scope=\"col\" class=\"right\">b</th>"));
  CHECK(has(html, "<td>1</td><td class=\"right\">2</td>"));
  CHECK_FALSE(has(html, "<details>"));
  std::string rows;
  for (int i = 0; i < 20; ++i) rows += "| 1 | 2 |\n";
  CHECK(has(render(head + rows), "<summary>Table of 20 rows</summary>"));
}

TEST_CASE("card: nothing of it becomes markup, a script or a request") {
  const std::string hostile[] = {
      "<script>alert(1)</script>",
      "text <img src=x onerror=alert(1)> text",
      "<!-- x --><script>alert(1)</script>",
      "<!-->\n<script>alert(1)</script>\n-->",
      "<svg onload=alert(1)>",
      "[a](javascript:alert(1))",
      "[a](JaVaScRiPt:alert(1))",
      "[a](javascript&#58;alert(1))",
      "[a](data:text/html,<script>alert(1)</script>)",
      "[a](//evil.example/x)",
      "[a](../../../etc/passwd)",
      "![a](https://evil.example/pixel.png)",
      "[a](https://x.org/\"onmouseover=\"alert(1) \"t\")",
      "<https://x.org/\"onmouseover=alert(1)>",
      "# <script>alert(1)</script>",
      "# \"><script>alert(1)</script>",
      "| <script>a</script> |\n|---|\n| <img src=x> |",
      "```\"><script>\n</code></pre><script>alert(1)</script>\n```",
      "`</code><script>alert(1)</script>`",
      "&#60;script&#62;alert(1)&#60;/script&#62;",
      "\xe2\x80\xae reversed <b>",
  };
  for (const std::string& each : hostile) {
    CAPTURE(each);
    const std::string html = render(each);
    CAPTURE(html);
    for (const char* bad : {"<script", "<img", "<svg onload", "<b>", "src=", "\xe2\x80\xae"}) {
      if (std::string_view(bad) == "src=" && has(html, "&lt;img src=")) continue;  // text
      CHECK_FALSE(has(html, bad));
    }
    for (const char* bad : {"href=\"j", "href=\"J", "href=\"d", "href=\"/", "href=\".", "\"on"}) {
      CHECK_FALSE(has(html, bad));
    }
  }
  CHECK(render("![a *chart*](https://evil.example/p.png)") ==
        "<p><span class=\"image\">a <em>chart</em></span></p>\n");
}

TEST_CASE("card: a table that would become endless is refused, and so is nothing else") {
  std::string wide = "|";
  std::string line = "|";
  for (int i = 0; i < 128; ++i) wide += "a|", line += "---|";
  std::string markdown = wide + "\n" + line + "\n";
  for (int i = 0; i < 20'000; ++i) markdown += "|b\n";
  CHECK_THROWS_WITH_AS(render(markdown), doctest::Contains("bytes of HTML"), kiln::Error);
  CHECK_NOTHROW(render(std::string(200'000, '>')));
  CHECK_NOTHROW(render(std::string(100'000, '[')));
  CHECK_NOTHROW(render(std::string(100'000, '*')));
  CHECK_NOTHROW(render(std::string("a\0b", 3)));
}
