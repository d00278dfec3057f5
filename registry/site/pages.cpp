// SPDX-License-Identifier: Apache-2.0
#include "registry/site/pages.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/join.hpp"
#include "base/size.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "registry/site/markdown.hpp"
#include "registry/site/markup.hpp"
#include "site_assets.hpp"

namespace kiln::registry {
namespace {

/// "../../" of a page two folders down.
struct Place {
  Literal root;
  const SiteFacts& site;
};

Html page(const Place& place, const std::string& title, const Html& body) {
  Html html;
  html.markup(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      // Nothing from elsewhere, no inline script or style, no form, no frame.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'self'; "
      "script-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n<title>");
  html.text(title).markup("</title>\n<link rel=\"icon\" type=\"image/svg+xml\" href=\"");
  html.markup(place.root)
      .markup("icon.svg\">\n<link rel=\"stylesheet\" href=\"")
      .markup(place.root);
  html.markup(
      "style.css\">\n</head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to content</a>\n");
  html.markup("<header><div class=\"bar\"><a class=\"brand\" href=\"").markup(place.root);
  html.markup("index.html\">").text(place.site.title).markup("</a>");
  if (!place.site.url.empty()) html.element("<code>", place.site.url, "</code>");
  html.markup("</div></header>\n<main id=\"main\">\n").part(body);
  html.markup(
      "</main>\n<footer><p>Made by <code>kiln registry site</code> from the registry's own "
      "documents. Kernels are verified when they are installed, whatever a page "
      "says.</p></footer>\n</body>\n</html>\n");
  return html;
}

std::vector<std::string> places_of(const VersionFacts& version) {
  std::set<std::string> all;
  for (const VariantFacts& each : version.variants) {
    all.insert(each.variant.tested_on.begin(), each.variant.tested_on.end());
  }
  return {all.begin(), all.end()};
}

/// The newest day on which a variant was tested, "2026-11-24"; empty: on none that is said.
std::string tested_day(const VersionFacts& version) {
  std::string newest;
  for (const VariantFacts& each : version.variants) {
    for (std::string_view word : split(each.variant.tested, ' ')) {
      word = word.substr(0, word.find_first_of(",;"));
      const bool is_day = word.size() == 10 && word[4] == '-' && word[7] == '-' &&
                          word.find_first_not_of("0123456789-") == std::string_view::npos;
      if (is_day) newest = std::max(newest, std::string(word));
    }
  }
  return newest;
}

/// "1 of 2 keys: 3fa4b1c29d70…, 77ab…".
std::string keys_text(const VersionFacts& version, std::size_t characters) {
  const std::string which =
      join(version.keys, ", ", [&](const std::string& id) { return short_of(id, characters); });
  if (version.keys.size() == 1) return "key " + which;
  return std::to_string(version.threshold) + " of " + std::to_string(version.keys.size()) +
         " keys: " + which;
}

std::string code_of(const Variant& variant) {
  return join(variant.needs.device_code, " ",
              [](const DeviceCode& code) { return to_string(code); });
}

std::string count_text(std::size_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

void add_problems(Html& html, const std::vector<std::string>& problems) {
  for (const std::string& problem : problems) {
    html.element("<p class=\"notice warning\">Not shown: ", problem, "</p>\n");
  }
}

// ---- the index ----

Html index_entry(const PackageFacts& package) {
  const VersionFacts& version = package.current();
  Html html;
  html.markup("<li><a href=\"packages/").text(package.name).markup("/index.html\"><h2>");
  html.text(package.name).markup("</h2></a><p>");
  html.text(version.summary.empty() ? "Its author gave no summary." : version.summary);
  html.markup("</p><p class=\"facts\"><span>").text("version " + std::to_string(version.version));
  html.markup("</span><span>").text(version.license.empty() ? "no licence given" : version.license);
  html.markup("</span><span>").text(count_text(version.variants.size(), "variant"));
  const std::vector<std::string> places = places_of(version);
  html.markup("</span>");
  if (places.empty()) {
    html.markup("<span class=\"untested\">untested</span>");
  } else {
    html.element("<span class=\"tested\">", "tested on " + join(places), "</span>");
  }
  if (!version.yanked.empty()) html.markup("<span class=\"warning\">taken back</span>");
  return std::move(html.markup("</p></li>\n"));
}

Html index_page(const SiteFacts& site) {
  const Place place{"", site};
  Html body;
  body.element("<h1>", site.title, "</h1>\n<p class=\"lead\">");
  body.text(count_text(site.packages.size(), "package") + " of prebuilt kernels");
  body.text(site.signed_until.empty()
                ? "."
                : ", signed; the metadata is valid until " + site.signed_until + ".");
  // Shown by search.js: without scripts there is nothing to type into.
  body.markup(
      "</p>\n<div class=\"search\" role=\"search\" hidden>"
      "<label for=\"query\">Search</label><input id=\"query\" type=\"search\" autocomplete=\"off\" "
      "spellcheck=\"false\" placeholder=\"name, GPU, licence: all the words\">"
      "<p id=\"count\" role=\"status\"></p></div>\n");
  add_problems(body, site.problems);
  if (site.packages.empty() && site.problems.empty()) {
    body.markup("<p>Nothing is published yet.</p>\n");
  }
  body.markup("<ul class=\"packages\" id=\"packages\">\n");
  for (const PackageFacts& package : site.packages) body.part(index_entry(package));
  body.markup("</ul>\n<script src=\"search.js\"></script>\n");
  return page(place, site.title, body);
}

// ---- a version ----

/// A block of commands or code under its name.
void add_code(Html& html, Literal name, const std::string& code) {
  html.markup("<section class=\"code\"><h3>")
      .markup(name)
      .markup("</h3><pre tabindex=\"0\"><code>");
  html.text(code).markup("</code></pre></section>\n");
}

std::string command_lines(const SiteFacts& site, const std::string& spec) {
  std::string lines;
  if (!site.url.empty()) {
    lines = site.signed_until.empty()
                ? "kiln trust add " + site.url + " --unsigned\n"
                : "kiln trust add " + site.url + " --root root.json  # from its publisher\n";
    lines += "export KILN_REGISTRY=" + site.url + "\n";
  }
  return lines + "kiln install " + spec + "\n";
}

/// "kernel.forward(x, gate, up, down)": what must be given.
std::string python_call(const VersionFacts& version) {
  if (version.ops.empty()) return "";
  const OpText& op = version.ops.front();
  std::vector<std::string> inputs;
  for (const TensorText& each : op.tensors) {
    if (!each.output && !each.optional) inputs.push_back(each.name);
  }
  return "kernel." + op.name + "(" + join(inputs) + ")\n";
}

Html install_section(const SiteFacts& site, const PackageFacts& package,
                     const VersionFacts& version) {
  const std::string number = std::to_string(version.version);
  const std::string quoted = "\"" + package.name + "\"";
  const std::string op = version.ops.empty() ? "" : version.ops.front().name;
  Html html;
  html.markup("<section id=\"install\"><h2>Install</h2>\n<div class=\"codes\">\n");
  add_code(html, "Command line", command_lines(site, label(package.name, version.version)));
  add_code(html, "CMake",
           "find_package(kiln REQUIRED)\nkiln_require(" + package.name + " VERSION " + number +
               ")\ntarget_link_libraries(my_program\n  PRIVATE kiln::kiln kiln::required)\n");
  add_code(html, "C++",
           "#include <kiln/kiln.hpp>\n\nkiln::Kernel kernel =\n    kiln::get_kernel(" + quoted +
               ", {.version = " + number + "});\n" +
               (op.empty() ? "" : "kiln::Op op = kernel.op(\"" + op + "\");\n"));
  add_code(html, "C",
           "#include <kiln/kiln.h>\n\nkiln_request request = {.struct_size = sizeof request,\n"
           "                        .version = " +
               number + "};\nkiln_get_kernel(" + quoted + ", &request, &kernel, &error);\n" +
               (op.empty() ? "" : "kiln_find_op(kernel, \"" + op + "\", &op, &error);\n"));
  add_code(html, "Python",
           "import kiln\n\nkernel = kiln.get_kernel(" + quoted + ", version=" + number + ")\n" +
               python_call(version));
  return std::move(html.markup("</div></section>\n"));
}

Html begin_table() {
  return std::move(Html().markup(
      "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Table\"><table>\n"));
}

Html op_section(const OpText& op, bool open) {
  Html html;
  html.markup(open ? Literal("<details class=\"part\" open><summary>")
                   : Literal("<details class=\"part\"><summary>"));
  html.element("<h3><code>", op.signature(), "</code></h3></summary>\n");
  if (!op.doc.empty()) html.element("<p>", op.doc, "</p>\n");
  html.part(begin_table())
      .markup(
          "<thead><tr><th scope=\"col\">tensor</th><th scope=\"col\">dtype</th>"
          "<th scope=\"col\">shape</th><th scope=\"col\">note</th></tr></thead>\n<tbody>\n");
  for (const TensorText& each : op.tensors) {
    std::vector<std::string> words;
    if (each.output) words.emplace_back("output");
    if (each.inout) words.emplace_back("inout");
    if (each.optional) words.emplace_back("optional");
    if (!each.layout.empty()) words.push_back("layout: " + each.layout);
    html.element("<tr><th scope=\"row\"><code>", each.name, "</code></th>");
    html.element("<td>", each.dtype, "</td>").element("<td><code>", each.shape, "</code></td>");
    html.element("<td>", join(words), "</td></tr>\n");
  }
  html.markup("</tbody></table></div>\n");
  if (!op.attributes.empty()) html.markup("<p>Attributes:</p><ul>");
  for (const AttributeText& each : op.attributes) {
    html.element("<li><code>", each.name, "</code>").element(" ", each.meaning, "</li>");
  }
  if (!op.attributes.empty()) html.markup("</ul>\n");
  return std::move(html.markup("</details>\n"));
}

Html ops_section(const VersionFacts& version) {
  Html html;
  html.markup("<section id=\"ops\"><h2>Operations</h2>\n");
  if (version.ops.empty()) html.markup("<p>Its schema names none.</p>\n");
  for (const OpText& op : version.ops) html.part(op_section(op, &op == &version.ops.front()));
  return std::move(html.markup("</section>\n"));
}

/// Where a target's machine code runs, as its buyers call it (NVIDIA's table of compute
/// capabilities).
std::string gpus_of(std::string_view code) {
  constexpr std::pair<std::string_view, std::string_view> kGpus[] = {
      {"sm_80", "A100, A30"},        {"sm_86", "A10, A40, RTX 30"},
      {"sm_89", "L4, L40S, RTX 40"}, {"sm_90", "H100, H200"},
      {"sm_90a", "H100, H200"},      {"sm_100", "B200"},
      {"sm_120", "RTX 50"},          {"compute_80", "PTX: 8.0 and later"}};
  for (const auto& [word, names] : kGpus) {
    if (word == code) return std::string(names);
  }
  return "";
}

/// Whether its numeric tests passed, where, and what it weighs.
Html cell_of(const VariantFacts& facts) {
  const std::vector<std::string>& places = facts.variant.tested_on;
  Html html;
  if (places.empty()) {
    html.markup("<span class=\"untested\">untested</span>");
  } else {
    html.element("<span class=\"tested\" title=\"tested\">\xe2\x9c\x93 ", join(places), "</span>");
  }
  if (facts.download > 0) html.element(" <small>", size_text(facts.download), "</small>");
  return html;
}

struct Matrix {
  using Column = std::pair<std::string, std::string>;  ///< "x86_64", "CUDA 13.0"
  std::vector<std::string> rows;                       ///< device code, or a CPU level
  std::vector<Column> columns;
  std::map<std::pair<std::string, Column>, const VariantFacts*> cells;

  /// The list below has all of them. A table that is nearly empty has many cells for few variants.
  bool is_drawn() const { return !rows.empty() && rows.size() * columns.size() <= 2000; }
};

/// In the publisher's order.
Matrix matrix_of(const VersionFacts& version, bool of_cpus) {
  Matrix matrix;
  const auto keep = [](auto& list, const auto& word) {
    if (std::ranges::find(list, word) == list.end()) list.push_back(word);
  };
  for (const VariantFacts& each : version.variants) {
    const Needs& needs = each.variant.needs;
    if (!each.variant.unread.empty() || needs.is_cpu() != of_cpus) continue;
    const std::string arch = std::string(to_string(needs.cpu.arch));
    const std::string row = of_cpus ? to_string(needs.cpu) : code_of(each.variant);
    const Matrix::Column column{arch, of_cpus ? "CPU" : "CUDA " + to_string(*needs.toolkit)};
    keep(matrix.rows, row);
    keep(matrix.columns, column);
    matrix.cells.try_emplace({row, column}, &each);
  }
  // x86_64 first, the newest toolkit first.
  std::ranges::stable_sort(
      matrix.columns, [](const auto& left, const auto& right) { return left.first > right.first; });
  return matrix;
}

Html matrix_table(const Matrix& matrix, Literal what) {
  Html html = begin_table();
  html.markup("<thead><tr><th scope=\"col\">").markup(what).markup("</th>");
  for (const Matrix::Column& each : matrix.columns) {
    html.element("<th scope=\"col\">", each.second, "")
        .element("<small>", each.first, "</small></th>");
  }
  html.markup("</tr></thead>\n<tbody>\n");
  for (const std::string& row : matrix.rows) {
    html.element("<tr><th scope=\"row\"><code>", row, "</code>");
    if (const std::string gpus = gpus_of(row); !gpus.empty()) {
      html.element("<small>", gpus, "</small>");
    }
    html.markup("</th>");
    for (const Matrix::Column& column : matrix.columns) {
      const auto found = matrix.cells.find({row, column});
      html.markup("<td>");
      if (found != matrix.cells.end()) html.part(cell_of(*found->second));
      html.markup("</td>");
    }
    html.markup("</tr>\n");
  }
  return std::move(html.markup("</tbody></table></div>\n"));
}

Html variant_row(const VariantFacts& facts) {
  const Needs& needs = facts.variant.needs;
  Html html;
  html.element("<tr><th scope=\"row\"><code>", facts.variant.id, "</code></th>");
  if (!facts.variant.unread.empty()) {
    html.element("<td colspan=\"5\">",
                 "needs Kiln " + facts.variant.requires_.min_loader + " or later", "</td></tr>\n");
    return html;
  }
  std::string asks = to_string(needs.cpu) + ", glibc " + to_string(needs.glibc);
  if (!needs.is_cpu()) asks += ", driver CUDA " + to_string(*needs.min_driver);
  if (!needs.libraries.empty()) asks += ", " + join(needs.libraries);
  html.element("<td>", asks, "</td>");
  html.element("<td class=\"right\">", size_text(facts.download), "</td>");
  html.element("<td class=\"right\">", size_text(facts.unpacked), "</td>");
  html.element("<td>", facts.variant.tested, "</td>");
  html.element("<td>", facts.compilers, "</td></tr>\n");
  return html;
}

Html variants_section(const VersionFacts& version) {
  Html html;
  html.markup(
      "<section id=\"variants\"><h2>Variants</h2>\n<p>Kiln picks the one that fits the "
      "machine. \xe2\x9c\x93 says where its numeric tests passed. <em>Untested</em> says that it "
      "compiles and passes inspection, and that no "
      "record shows it running.</p>\n");
  const Matrix gpus = matrix_of(version, false);
  const Matrix cpus = matrix_of(version, true);
  if (gpus.is_drawn()) html.part(matrix_table(gpus, "GPU code"));
  if (cpus.is_drawn()) html.part(matrix_table(cpus, "CPU level"));
  html.element(
      "<details><summary>",
      "All " + count_text(version.variants.size(), "variant") + ", with needs, sizes and tests",
      "</summary>\n");
  html.part(begin_table())
      .markup(
          "<thead><tr><th scope=\"col\">variant</th><th scope=\"col\">needs</th>"
          "<th scope=\"col\" class=\"right\">download</th>"
          "<th scope=\"col\" class=\"right\">unpacked</th><th scope=\"col\">tested</th>"
          "<th scope=\"col\">built by</th></tr></thead>\n<tbody>\n");
  for (const VariantFacts& each : version.variants) html.part(variant_row(each));
  return std::move(html.markup("</tbody></table></div></details></section>\n"));
}

Html trust_section(const SiteFacts& site, const VersionFacts& version) {
  Html html;
  html.markup("<section id=\"trust\"><h2>Signatures and provenance</h2>\n<dl>");
  html.element("<dt>Index</dt><dd><code>", version.index.digest.str(), "</code></dd>");
  html.markup("<dt>Signed metadata</dt><dd>");
  switch (version.vouched) {
    case SignedState::kNobody:
      html.markup("none: this registry is not signed");
      break;
    case SignedState::kSigned:
      html.text("names this index; valid until " + site.signed_until);
      if (!version.keys.empty()) {
        html.element("</dd><dt>Signed by</dt><dd><code>", keys_text(version, 64), "</code>");
      }
      break;
    case SignedState::kOther:
      html.markup("<strong class=\"warning\">does not name this index</strong>: Kiln refuses it");
      break;
  }
  html.markup("</dd></dl>\n");
  if (version.statements.empty()) {
    return std::move(
        html.markup("<p>Nobody signed a statement about this version.</p></section>\n"));
  }
  html.markup(
      "<p>Statements that hang on this version. This page does not verify whose they are; "
      "<code>kiln trust require</code> and <code>cosign verify</code> do.</p>\n");
  html.part(begin_table())
      .markup(
          "<thead><tr><th scope=\"col\">statement</th><th scope=\"col\">says</th>"
          "<th scope=\"col\">artifact</th></tr></thead>\n<tbody>\n");
  for (const StatementFacts& each : version.statements) {
    html.element("<tr><th scope=\"row\">", each.word, "</th>");
    html.element("<td>", each.says.empty() ? "that it was signed" : each.says, "</td>");
    html.element("<td><code>", each.artifact.substr(0, 19), "\xe2\x80\xa6</code></td></tr>\n");
  }
  return std::move(html.markup("</tbody></table></div></section>\n"));
}

/// The current version's page has all of them, another one its own: a page of n versions on each of
/// n pages would grow as their square.
Html versions_section(const PackageFacts& package, const VersionFacts& shown) {
  const bool has_all = &shown == &package.current();
  Html html;
  html.markup("<section id=\"versions\"><h2>Versions</h2>\n<ol class=\"versions\" reversed>\n");
  for (auto each = package.versions.rbegin(); each != package.versions.rend(); ++each) {
    if (!has_all && &*each != &shown) continue;
    const std::string number = std::to_string(each->version);
    html.markup("<li><h3><a href=\"").text(number).markup(".html\"");
    if (each->version == shown.version) html.markup(" aria-current=\"page\"");
    html.markup(">").text("Version " + number).markup("</a></h3>");
    if (!each->yanked.empty()) {
      html.element("<p class=\"warning\">Taken back: ", each->yanked, "</p>");
    }
    if (each->changes.empty()) {
      html.element("<p>",
                   each->version == package.versions.front().version
                       ? "The first one."
                       : "The same ops, targets and licence; other bytes.",
                   "</p>");
    } else {
      html.markup("<ul>");
      for (const std::string& line : each->changes) html.element("<li>", line, "</li>");
      html.markup("</ul>");
    }
    html.markup("</li>\n");
  }
  html.markup("</ol>");
  if (!has_all) {
    html.element("<p><a href=\"index.html#versions\">",
                 "All " + count_text(package.versions.size(), "version"), "</a></p>");
  }
  return std::move(html.markup("</section>\n"));
}

/// The card, and what of it stands at the top.
struct CardSection {
  Html html;
  Html speed;
};

CardSection card_section(const PackageFacts& package, const VersionFacts& version,
                         std::vector<std::string>& problems) {
  CardSection section;
  if (version.card.empty()) return section;
  section.html.markup("<section id=\"card\"><h2>What it computes</h2>\n");
  try {
    const RenderedCard card = render_card(version.card, package.name);
    section.html.part(card.html);
    if (!card.speed.empty()) {
      section.speed.part(card.speed).element("<p class=\"measured\">", card.measured, "</p>\n");
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;
    problems.emplace_back(error.what());
  }
  section.html.markup("</section>\n");
  return section;
}

Html errors_section(const VersionFacts& version) {
  Html html;
  html.markup("<section id=\"errors\"><h2>Errors, from the test records</h2>\n");
  for (const ErrorFacts& record : version.errors) {
    html.element("<p>Worst relative L2 error against fp64 on ", record.measured, ":</p>\n");
    html.part(begin_table())
        .markup(
            "<thead><tr><th scope=\"col\">what</th><th scope=\"col\" class=\"right\">error</th>"
            "<th scope=\"col\">of</th></tr></thead>\n<tbody>\n");
    for (const auto& [kind, worst] : record.worst) {
      html.element("<tr><th scope=\"row\">", kind, "</th><td class=\"right\">");
      html.number(worst.error).element("</td><td><code>", worst.variant, "</code></td></tr>\n");
    }
    html.markup("</tbody></table></div>\n");
  }
  return std::move(html.markup("</section>\n"));
}

void add_facts(Html& html, const SiteFacts& site, const VersionFacts& version) {
  std::uint64_t least = 0;
  std::uint64_t most = 0;
  for (const VariantFacts& each : version.variants) {
    if (each.download == 0) continue;
    least = least == 0 ? each.download : std::min(least, each.download);
    most = std::max(most, each.download);
  }
  const auto add = [&html](Literal name, const std::string& value) {
    html.markup("<div><dt>").markup(name).markup("</dt>").element("<dd>", value, "</dd></div>");
  };
  const std::vector<std::string> places = places_of(version);
  const std::string day = tested_day(version);
  html.markup("<dl class=\"summary\">");
  add("Licence", version.license.empty() ? "none given" : version.license);
  add("Tested on",
      places.empty() ? "nothing" : join(places) + (day.empty() ? "" : "; last on " + day));
  add("Signed by", version.keys.empty() ? "nobody" : keys_text(version, 12));
  if (!version.keys.empty()) add("Signed until", site.signed_until.substr(0, 10));
  if (!version.attested.empty()) add("Attested", version.attested.substr(0, 10));
  add("Variants", std::to_string(version.variants.size()));
  add("Download", least == most ? size_text(most) : size_text(least) + " to " + size_text(most));
  add("Needs Kiln", version.min_loader + " or later");
  html.markup("</dl>\n");
}

/// What one chooses by, and what speaks against it.
void add_notices(Html& html, const PackageFacts& package, const VersionFacts& version) {
  const VersionFacts& current = package.current();
  if (!version.yanked.empty()) {
    html.element("<p class=\"notice warning\">Its publisher took this version back: ",
                 version.yanked, "</p>\n");
  }
  if (version.vouched == SignedState::kOther) {
    html.markup(
        "<p class=\"notice warning\">The signed metadata does not name this index: Kiln refuses "
        "it.</p>\n");
  }
  if (version.version != current.version) {
    html.element("<p class=\"notice\">The current version is <a href=\"index.html\">",
                 label(package.name, current.version), "</a>.</p>\n");
  }
}

Html version_page(const SiteFacts& site, const PackageFacts& package, const VersionFacts& version) {
  const Place place{"../../", site};
  std::vector<std::string> problems = version.problems;
  const CardSection card = card_section(package, version, problems);
  const bool installs = version.installs();
  Html sections;
  if (installs) sections.part(install_section(site, package, version));
  sections.part(ops_section(version)).part(variants_section(version)).part(card.html);
  if (!version.errors.empty()) sections.part(errors_section(version));
  sections.part(trust_section(site, version)).part(versions_section(package, version));

  Html body;
  body.markup(
      "<nav class=\"crumbs\" aria-label=\"You are here\"><a href=\"../../index.html\">Packages"
      "</a> <span aria-hidden=\"true\">/</span> ");
  body.text(package.name).markup("</nav>\n<h1>").text(package.name);
  body.element(" <span class=\"version\">", "version " + std::to_string(version.version),
               "</span></h1>\n");
  if (!version.summary.empty()) body.element("<p class=\"lead\">", version.summary, "</p>\n");
  add_notices(body, package, version);
  add_problems(body, problems);
  if (installs) {
    body.element("<pre class=\"first\" tabindex=\"0\"><code>",
                 "kiln install " + label(package.name, version.version), "</code></pre>\n");
  }
  add_facts(body, site, version);
  body.part(card.speed).markup("<nav class=\"sections\" aria-label=\"On this page\">");
  if (installs) body.markup("<a href=\"#install\">Install</a>");
  body.markup("<a href=\"#ops\">Operations</a><a href=\"#variants\">Variants</a>");
  if (!card.html.empty()) body.markup("<a href=\"#card\">What it computes</a>");
  if (!version.errors.empty()) body.markup("<a href=\"#errors\">Errors</a>");
  body.markup("<a href=\"#trust\">Signatures</a><a href=\"#versions\">Versions</a></nav>\n");
  body.part(sections);
  return page(place, label(package.name, version.version) + " - " + site.title, body);
}

}  // namespace

Pages make_pages(const SiteFacts& site) {
  Pages pages = {{"index.html", index_page(site).str()},
                 {"style.css", kSiteStyle},
                 {"search.js", kSiteSearch},
                 {"icon.svg", kSiteIcon}};
  for (const PackageFacts& package : site.packages) {
    const std::string folder = "packages/" + package.name + "/";
    for (const VersionFacts& version : package.versions) {
      const std::string html = version_page(site, package, version).str();
      pages[folder + std::to_string(version.version) + ".html"] = html;
      if (&version == &package.current()) pages[folder + "index.html"] = html;
    }
  }
  return pages;
}

}  // namespace kiln::registry
