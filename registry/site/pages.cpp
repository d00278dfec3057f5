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
  Html html(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      // Nothing from elsewhere, no inline script or style, no form, no frame.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'self'; script-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta name=\"referrer\" content=\"no-referrer\">\n<title>{}</title>\n"
      "<link rel=\"icon\" type=\"image/svg+xml\" href=\"{}icon.svg\">\n"
      "<link rel=\"stylesheet\" href=\"{}style.css\">\n</head>\n<body>\n"
      "<a class=\"skip\" href=\"#main\">Skip to content</a>\n"
      "<header><div class=\"bar\"><a class=\"brand\" href=\"{}index.html\">{}</a>",
      title, place.root, place.root, place.root, place.site.title);
  if (!place.site.url.empty()) html.add("<code>{}</code>", place.site.url);
  html.add(
      "</div></header>\n<main id=\"main\">\n{}</main>\n"
      "<footer><p>Made by <code>kiln registry site</code> from the registry's own documents. "
      "Kernels "
      "are verified when they are installed, whatever a page "
      "says.</p></footer>\n</body>\n</html>\n",
      body);
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
    html.add("<p class=\"notice warning\">Not shown: {}</p>\n", problem);
  }
}

// ---- the index ----

Html index_entry(const PackageFacts& package) {
  const VersionFacts& version = package.current();
  Html html("<li><a href=\"packages/{}/index.html\"><h2>{}</h2></a><p>{}", package.name,
            package.name,
            version.summary.empty() ? "Its author gave no summary." : version.summary);
  html.add("</p><p class=\"facts\"><span>{}</span><span>{}</span><span>{}</span>",
           "version " + std::to_string(version.version),
           version.license.empty() ? "no licence given" : version.license,
           count_text(version.variants.size(), "variant"));
  const std::vector<std::string> places = places_of(version);
  if (places.empty()) {
    html.add("<span class=\"untested\">untested</span>");
  } else {
    html.add("<span class=\"tested\">tested on {}</span>", join(places));
  }
  if (!version.yanked.empty()) html.add("<span class=\"warning\">taken back</span>");
  if (version.vouched == SignedState::kNone) html.add("<span class=\"warning\">not signed</span>");
  if (!version.advisories.empty()) html.add("<span class=\"warning\">has an advisory</span>");
  return std::move(html.add("</p></li>\n"));
}

Html index_page(const SiteFacts& site) {
  const Place place{"", site};
  Html body("<h1>{}</h1>\n<p class=\"lead\">{} of prebuilt kernels{}", site.title,
            count_text(site.packages.size(), "package"),
            site.signed_until.empty()
                ? "."
                : ", signed; the metadata is valid until " + site.signed_until + ".");
  // Shown by search.js: without scripts there is nothing to type into.
  body.add(
      "</p>\n<div class=\"search\" role=\"search\" hidden>"
      "<label for=\"query\">Search</label><input id=\"query\" type=\"search\" autocomplete=\"off\" "
      "spellcheck=\"false\" placeholder=\"name, GPU, licence: all the words\">"
      "<p id=\"count\" role=\"status\"></p></div>\n");
  add_problems(body, site.problems);
  if (site.packages.empty() && site.problems.empty()) {
    body.add("<p>Nothing is published yet.</p>\n");
  }
  body.add("<ul class=\"packages\" id=\"packages\">\n");
  for (const PackageFacts& package : site.packages) body.add(index_entry(package));
  body.add("</ul>\n<script src=\"search.js\"></script>\n");
  return page(place, site.title, body);
}

// ---- a version ----

/// A block of commands or code under its name.
void add_code(Html& html, Literal name, const std::string& code) {
  html.add(
      "<section class=\"code\"><h3>{}</h3><pre tabindex=\"0\"><code>{}</code></pre></section>\n",
      name, code);
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
  Html html("<section id=\"install\"><h2>Install</h2>\n<div class=\"codes\">\n");
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
  return std::move(html.add("</div></section>\n"));
}

/// A table of these titles, <th> each, and rows.
Html table(const Html& titles, const Html& rows) {
  return Html(
      "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Table\"><table>\n"
      "<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody></table></div>",
      titles, rows);
}
Html table(const std::vector<Literal>& titles, const Html& rows) {
  Html cells;
  for (const Literal& title : titles) cells.add("<th scope=\"col\">{}</th>", title);
  return table(cells, rows);
}

Html op_section(const OpText& op, bool open) {
  Html rows;
  for (const TensorText& each : op.tensors) {
    std::vector<std::string> words;
    if (each.output) words.emplace_back("output");
    if (each.inout) words.emplace_back("inout");
    if (each.optional) words.emplace_back("optional");
    if (!each.layout.empty()) words.push_back("layout: " + each.layout);
    rows.add(
        "<tr><th scope=\"row\"><code>{}</code></th><td>{}</td><td><code>{}</code></td>"
        "<td>{}</td></tr>\n",
        each.name, each.dtype, each.shape, join(words));
  }
  Html html("<details class=\"part\"{}><summary><h3><code>{}</code></h3></summary>\n",
            open ? Literal(" open") : Literal(""), op.signature());
  if (!op.doc.empty()) html.add("<p>{}</p>\n", op.doc);
  html.add("{}\n", table({"tensor", "dtype", "shape", "note"}, rows));
  if (!op.attributes.empty()) html.add("<p>Attributes:</p><ul>");
  for (const AttributeText& each : op.attributes) {
    html.add("<li><code>{}</code> {}</li>", each.name, each.meaning);
  }
  if (!op.attributes.empty()) html.add("</ul>\n");
  return std::move(html.add("</details>\n"));
}

Html ops_section(const VersionFacts& version) {
  Html html("<section id=\"ops\"><h2>Operations</h2>\n");
  if (version.ops.empty()) html.add("<p>Its schema names none.</p>\n");
  for (const OpText& op : version.ops) html.add(op_section(op, &op == &version.ops.front()));
  return std::move(html.add("</section>\n"));
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
    html.add("<span class=\"untested\">untested</span>");
  } else {
    html.add("<span class=\"tested\" title=\"tested\">\xe2\x9c\x93 {}</span>", join(places));
  }
  if (facts.download > 0) html.add(" <small>{}</small>", size_text(facts.download));
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
  Html titles("<th scope=\"col\">{}</th>", what);
  for (const Matrix::Column& each : matrix.columns) {
    titles.add("<th scope=\"col\">{}<small>{}</small></th>", each.second, each.first);
  }
  Html rows;
  for (const std::string& row : matrix.rows) {
    rows.add("<tr><th scope=\"row\"><code>{}</code>", row);
    if (const std::string gpus = gpus_of(row); !gpus.empty()) {
      rows.add("<small>{}</small>", gpus);
    }
    rows.add("</th>");
    for (const Matrix::Column& column : matrix.columns) {
      const auto found = matrix.cells.find({row, column});
      rows.add("<td>{}</td>", found == matrix.cells.end() ? Html() : cell_of(*found->second));
    }
    rows.add("</tr>\n");
  }
  return Html("{}\n", table(titles, rows));
}

Html variant_row(const VariantFacts& facts) {
  const Needs& needs = facts.variant.needs;
  Html html("<tr><th scope=\"row\"><code>{}</code></th>", facts.variant.id);
  if (!facts.variant.unread.empty()) {
    html.add("<td colspan=\"5\">needs Kiln {} or later</td></tr>\n",
             facts.variant.requires_.min_loader);
    return html;
  }
  std::string asks = to_string(needs.cpu) + ", glibc " + to_string(needs.glibc);
  if (!needs.is_cpu()) asks += ", driver CUDA " + to_string(*needs.min_driver);
  if (!needs.libraries.empty()) asks += ", " + join(needs.libraries);
  html.add(
      "<td>{}</td><td class=\"right\">{}</td><td class=\"right\">{}</td><td>{}</td><td>{}</td>"
      "</tr>\n",
      asks, size_text(facts.download), size_text(facts.unpacked), facts.variant.tested,
      facts.compilers);
  return html;
}

Html variants_section(const VersionFacts& version) {
  Html html(
      "<section id=\"variants\"><h2>Variants</h2>\n<p>Kiln picks the one that fits the "
      "machine. \xe2\x9c\x93 says where its numeric tests passed. <em>Untested</em> says that it "
      "compiles and passes inspection, and that no record shows it running.</p>\n");
  const Matrix gpus = matrix_of(version, false);
  const Matrix cpus = matrix_of(version, true);
  if (gpus.is_drawn()) html.add(matrix_table(gpus, "GPU code"));
  if (cpus.is_drawn()) html.add(matrix_table(cpus, "CPU level"));
  Html rows;
  for (const VariantFacts& each : version.variants) rows.add(variant_row(each));
  const Html titles(
      "<th scope=\"col\">variant</th><th scope=\"col\">needs</th>"
      "<th scope=\"col\" class=\"right\">download</th>"
      "<th scope=\"col\" class=\"right\">unpacked</th><th scope=\"col\">tested</th>"
      "<th scope=\"col\">built by</th>");
  html.add(
      "<details><summary>All {}, with needs, sizes and tests</summary>\n{}</details></section>\n",
      count_text(version.variants.size(), "variant"), table(titles, rows));
  return html;
}

Html trust_section(const SiteFacts& site, const VersionFacts& version) {
  Html html(
      "<section id=\"trust\"><h2>Signatures and provenance</h2>\n<dl><dt>Index</dt><dd><code>{}"
      "</code></dd><dt>Signed metadata</dt><dd>",
      version.index.digest.str());
  switch (version.vouched) {
    case SignedState::kNobody:
      html.add("none: this registry is not signed");
      break;
    case SignedState::kSigned:
      html.add("names this index; valid until {}", site.signed_until);
      if (!version.keys.empty()) {
        html.add("</dd><dt>Signed by</dt><dd><code>{}</code>", keys_text(version, 64));
      }
      break;
    case SignedState::kAnother:
      html.add("names another index, which clients get: <code>{}</code>; valid until {}",
               version.gets, site.signed_until);
      break;
    case SignedState::kNone:
      html.add("<strong class=\"warning\">does not name this version</strong>: Kiln refuses it");
      break;
  }
  html.add("</dd></dl>\n");
  if (version.statements.empty()) {
    return std::move(html.add("<p>Nobody signed a statement about this version.</p></section>\n"));
  }
  Html rows;
  for (const StatementFacts& each : version.statements) {
    rows.add("<tr><th scope=\"row\">{}</th><td>{}</td><td><code>{}\xe2\x80\xa6</code></td></tr>\n",
             each.word, each.says.empty() ? "that it was signed" : each.says,
             each.artifact.substr(0, 19));
  }
  html.add(
      "<p>Statements that hang on this version. This page does not verify whose they are; "
      "<code>kiln trust require</code> and <code>cosign verify</code> do.</p>\n{}</section>\n",
      table({"statement", "says", "artifact"}, rows));
  return html;
}

/// The current version's page has all of them, another one its own: a page of n versions on each of
/// n pages would grow as their square.
Html versions_section(const PackageFacts& package, const VersionFacts& shown) {
  const bool has_all = &shown == &package.current();
  Html html("<section id=\"versions\"><h2>Versions</h2>\n<ol class=\"versions\" reversed>\n");
  for (auto each = package.versions.rbegin(); each != package.versions.rend(); ++each) {
    if (!has_all && &*each != &shown) continue;
    const std::string number = std::to_string(each->version);
    html.add("<li><h3><a href=\"{}.html\"{}>Version {}</a></h3>", number,
             each->version == shown.version ? Literal(" aria-current=\"page\"") : Literal(""),
             number);
    if (!each->yanked.empty()) html.add("<p class=\"warning\">Taken back: {}</p>", each->yanked);
    if (each->changes.empty()) {
      html.add("<p>{}</p>", each->version == package.versions.front().version
                                ? "The first one."
                                : "The same ops, targets and licence; other bytes.");
    } else {
      html.add("<ul>");
      for (const std::string& line : each->changes) html.add("<li>{}</li>", line);
      html.add("</ul>");
    }
    html.add("</li>\n");
  }
  html.add("</ol>");
  if (!has_all) {
    html.add("<p><a href=\"index.html#versions\">All {}</a></p>",
             count_text(package.versions.size(), "version"));
  }
  return std::move(html.add("</section>\n"));
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
  try {
    const RenderedCard card = render_card(version.card, package.name);
    section.html.add("<section id=\"card\"><h2>What it computes</h2>\n{}</section>\n", card.html);
    if (!card.speed.empty()) {
      section.speed.add("{}<p class=\"measured\">{}</p>\n", card.speed, card.measured);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;
    section.html.add("<section id=\"card\"><h2>What it computes</h2>\n</section>\n");
    problems.emplace_back(error.what());
  }
  return section;
}

Html errors_section(const VersionFacts& version) {
  const Html titles(
      "<th scope=\"col\">what</th><th scope=\"col\" class=\"right\">error</th>"
      "<th scope=\"col\">of</th>");
  Html html("<section id=\"errors\"><h2>Errors, from the test records</h2>\n");
  for (const ErrorFacts& record : version.errors) {
    Html rows;
    for (const auto& [kind, worst] : record.worst) {
      rows.add(
          "<tr><th scope=\"row\">{}</th><td class=\"right\">{}</td><td><code>{}</code></td></tr>\n",
          kind, worst.error, worst.variant);
    }
    html.add("<p>Worst relative L2 error against fp64 on {}:</p>\n{}\n", record.measured,
             table(titles, rows));
  }
  return std::move(html.add("</section>\n"));
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
    html.add("<div><dt>{}</dt><dd>{}</dd></div>", name, value);
  };
  const std::vector<std::string> places = places_of(version);
  const std::string day = tested_day(version);
  html.add("<dl class=\"summary\">");
  add("Licence", version.license.empty() ? "none given" : version.license);
  add("Tested on",
      places.empty() ? "nothing" : join(places) + (day.empty() ? "" : "; last on " + day));
  add("Signed by", version.keys.empty() ? "nobody" : keys_text(version, 12));
  if (!version.keys.empty()) add("Signed until", site.signed_until.substr(0, 10));
  if (!version.attested.empty()) add("Attested", version.attested.substr(0, 10));
  add("Variants", std::to_string(version.variants.size()));
  add("Download", least == most ? size_text(most) : size_text(least) + " to " + size_text(most));
  add("Needs Kiln", version.min_loader + " or later");
  html.add("</dl>\n");
}

/// What one chooses by, and what speaks against it.
void add_notices(Html& html, const PackageFacts& package, const VersionFacts& version) {
  const VersionFacts& current = package.current();
  if (!version.yanked.empty()) {
    html.add("<p class=\"notice warning\">Its publisher took this version back: {}</p>\n",
             version.yanked);
  }
  for (const Advisory& each : version.advisories) {
    html.add("<p class=\"notice warning\">Advisory {} {} {}: {}", each.id,
             each.refuses ? "refuses" : "warns of", scope_of(each), each.text);
    if (!each.link.empty()) html.add(" <a href=\"{}\">Read more</a>", each.link);
    html.add("</p>\n");
  }
  if (version.vouched == SignedState::kAnother) {
    html.add(
        "<p class=\"notice\">Another index of this version is signed: clients still get {}. What "
        "this page shows is not signed yet.</p>\n",
        version.gets);
  }
  if (version.vouched == SignedState::kNone) {
    html.add(
        "<p class=\"notice warning\">The signed metadata does not name this version: Kiln refuses "
        "it.</p>\n");
  }
  if (version.version != current.version) {
    html.add("<p class=\"notice\">The current version is <a href=\"index.html\">{}</a>.</p>\n",
             label(package.name, current.version));
  }
}

Html version_page(const SiteFacts& site, const PackageFacts& package, const VersionFacts& version) {
  const Place place{"../../", site};
  std::vector<std::string> problems = version.problems;
  const CardSection card = card_section(package, version, problems);
  const bool installs = version.installs();
  Html sections;
  if (installs) sections.add(install_section(site, package, version));
  sections.add(ops_section(version)).add(variants_section(version)).add(card.html);
  if (!version.errors.empty()) sections.add(errors_section(version));
  sections.add(trust_section(site, version)).add(versions_section(package, version));

  Html body(
      "<nav class=\"crumbs\" aria-label=\"You are here\"><a href=\"../../index.html\">Packages"
      "</a> <span aria-hidden=\"true\">/</span> {}</nav>\n<h1>{} <span class=\"version\">version {}"
      "</span></h1>\n",
      package.name, package.name, std::to_string(version.version));
  if (!version.summary.empty()) body.add("<p class=\"lead\">{}</p>\n", version.summary);
  add_notices(body, package, version);
  add_problems(body, problems);
  if (installs) {
    body.add("<pre class=\"first\" tabindex=\"0\"><code>kiln install {}</code></pre>\n",
             label(package.name, version.version));
  }
  add_facts(body, site, version);
  body.add("{}<nav class=\"sections\" aria-label=\"On this page\">", card.speed);
  if (installs) body.add("<a href=\"#install\">Install</a>");
  body.add("<a href=\"#ops\">Operations</a><a href=\"#variants\">Variants</a>");
  if (!card.html.empty()) body.add("<a href=\"#card\">What it computes</a>");
  if (!version.errors.empty()) body.add("<a href=\"#errors\">Errors</a>");
  body.add("<a href=\"#trust\">Signatures</a><a href=\"#versions\">Versions</a></nav>\n{}",
           sections);
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
