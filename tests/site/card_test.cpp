// SPDX-License-Identifier: Apache-2.0
//
// An author's Markdown: what it becomes, and what it cannot become.
#include <doctest/doctest.h>

#include <ctime>
#include <string>

#include "html.hpp"
#include "kiln/error.hpp"
#include "registry/site/markdown.hpp"

namespace {

std::string render(const std::string& markdown) {
  return kiln::registry::render_card(markdown, "tiny-op").html.str();
}

using kiln::test::has;

}  // namespace

TEST_CASE("card: Markdown becomes what it means") {
  const struct {
    std::string markdown, html;
  } cases[] = {
      {"a *b* **c** `d`", "<p>a <em>b</em> <strong>c</strong> <code>d</code></p>\n"},
      {"# tiny-op\n\nx", "<p>x</p>\n"},  // the page's own title
      {"# other", "<h3 id=\"card-other\">other</h3>\n"},
      {"## A b!\n\n## A b!", "<h3 id=\"card-a-b\">A b!</h3>\n<h3 id=\"card-a-b-2\">A b!</h3>\n"},
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

TEST_CASE("card: headings of the same name each have a name of their own") {
  CHECK(render("# a\n# a-2\n# a\n# a\n") ==
        "<h3 id=\"card-a\">a</h3>\n<h3 id=\"card-a-2\">a-2</h3>\n<h3 id=\"card-a-3\">a</h3>\n"
        "<h3 id=\"card-a-4\">a</h3>\n");
  std::string same;
  for (int i = 0; i < 20'000; ++i) same += "# a\n";
  CHECK(render(same).size() < 40 * same.size());
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KILN_SANITIZED
#endif
#endif

TEST_CASE("card: what it takes to render one grows as it does") {
#ifdef KILN_SANITIZED
  constexpr std::size_t kPart = 8;  // sanitizers make it as many times slower
#else
  constexpr std::size_t kPart = 1;
#endif
  const auto times = [](std::size_t count, const std::string& text) {
    std::string all;
    for (std::size_t i = 0; i < (count < 10'000 ? count : count / kPart); ++i) all += text;
    return all;
  };
  std::string kinds = "| worst relative L2 |\n|---|\n|";
  for (std::size_t i = 0; i < 100'000 / kPart; ++i) kinds += "k" + std::to_string(i) + " 1,";
  std::string definitions;
  for (int i = 0; i < 20'000; ++i) definitions += "[" + std::to_string(i) + "]: /a\n";
  std::string ticks;
  for (std::size_t i = 0; i < 1400; ++i) ticks += std::string(i, '`') + " ";
  const std::string megabyte[] = {
      ticks,
      times(200'000, "[a]: b 'c\n"),
      times(150'000, "[a]: <b\n\n"),
      times(300'000, "<?"),
      times(100'000, "<![CDATA["),
      times(300'000, "<!A"),
      times(100'000, "https://a("),
      "https://a" + times(1'000'000, "("),
      times(400'000, "[a"),
      times(200'000, "[a](<b"),
      times(200'000, "[a](b 'c"),
      times(300'000, "a](b"),
      times(1'000'000, "\\"),
      times(300, times(3000, "- ") + "a\n"),
      times(3000, times(150, "> - ") + "a\n"),
      times(250'000, "*_**"),
      times(120'000, "**a *b "),
      "|a|\n|-|\n" + times(200'000, "|`|\n"),
      times(300'000, "# a\n"),
      kinds + "|\n",
      "| " + std::string(400'000 / kPart, 'a') + " | kiln | b |\n|---|---|---|\n" +
          times(60'000, "|1|2|3\n"),
      "| a | worst relative L2 |\n|---|---|\n| " + std::string(400'000 / kPart, 'a') + " | " +
          times(100'000, "k 1,") + " |\n",
      definitions + times(100'000, "[1] "),
      times(1'000'000, ">"),
      times(1000, std::string(1000, '>') + "a\n"),
      times(500'000, "* "),
      times(1'000'000, "["),
      times(300'000, "[a]("),
      times(300'000, "![a"),
      times(500'000, "*a"),
      times(300'000, "*a_ "),
      times(500'000, "a**b"),
      times(1'000'000, "`") + " a",
      times(300'000, "a`b``"),
      times(500'000, "<a"),
      times(300'000, "<!--"),
      times(300'000, "&#x1;"),
      times(1'000'000, "&"),
      times(100'000, "http://a"),
      times(100'000, "~~a~"),
      times(1'000'000, "|"),
      "|a\n|---\n" + times(300'000, "|||"),
      times(100'000, "- a\n"),
      times(1000, times(100, "  ") + "- a\n"),
      times(100'000, "a\n---\n"),
      times(300'000, "\\\n"),
  };
  for (const std::string& each : megabyte) {
    CAPTURE(each.substr(0, 40));
    const std::clock_t begin = std::clock();  // of this process: the machine may be busy
    try {
      render(each);
    } catch (const kiln::Error& error) {
      CHECK(error.code() == kiln::ErrorCode::kIntegrity);  // too large a page
    }
    const double taken = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    CHECK(taken < 20);  // a quadratic one takes minutes
  }
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
