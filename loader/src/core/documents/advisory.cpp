// SPDX-License-Identifier: Apache-2.0
#include "documents/advisory.hpp"

#include <algorithm>
#include <functional>

#include "base/join.hpp"
#include "base/utc.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"

namespace kiln {
namespace {

constexpr std::string_view kAdvisorySchema = "kiln.advisory/1";
constexpr std::size_t kMaxId = 64;

std::int64_t parse_moment(const JsonView& view) {
  return parse_fact(view, parse_time, "a time like 2027-01-31T00:00:00Z");
}

bool is_link(std::string_view text) {
  constexpr std::string_view kScheme = "https://";
  return is_text(text) && text.starts_with(kScheme) && text.size() > kScheme.size() &&
         text.find_first_of(" \"<>") == std::string_view::npos;
}

bool is_variant(std::string_view text) {
  constexpr std::string_view kSha256 = "sha256:";
  return text.starts_with(kSha256) ? Digest::from_hex(text.substr(kSha256.size())).has_value()
                                   : is_variant_id(text);
}

std::vector<JsonView> bounded(const JsonView& list, std::size_t most) {
  std::vector<JsonView> items = list.items();
  if (items.empty() || items.size() > most) {
    list.fail("has " + std::to_string(items.size()) + " entries, expected 1 to " +
              std::to_string(most));
  }
  return items;
}

template <class Value, class Parse, class Before>
void parse_range(const JsonView& advisory, std::string_view key, Value& from, Value& to,
                 Parse parse, Before before) {
  if (!advisory.has(key)) return;
  const JsonView range = advisory.at(key);
  range.expect_members({"from", "to"});
  if (range.has("from")) from = parse(range.at("from"));
  if (range.has("to")) to = parse(range.at("to"));
  if (!range.has("from") && !range.has("to")) range.fail("has neither \"from\" nor \"to\"");
  if (range.has("from") && range.has("to") && before(to, from)) range.fail("ends before it begins");
}

template <class Value, class Text>
std::string range_text(bool has_from, const Value& from, bool has_to, const Value& to, Text text) {
  if (has_from && has_to) return from == to ? text(from) : text(from) + " to " + text(to);
  return has_from ? "from " + text(from) : "up to " + text(to);
}

bool asks_driver(const Advisory& advisory) {
  return !advisory.from_driver.empty() || !advisory.to_driver.empty();
}

bool asks_machine(const Advisory& advisory) {
  return !advisory.gpus.empty() || asks_driver(advisory);
}

std::string drivers_text(const Advisory& advisory) {
  return "drivers " + range_text(!advisory.from_driver.empty(), advisory.from_driver,
                                 !advisory.to_driver.empty(), advisory.to_driver, std::identity());
}

}  // namespace

bool is_advisory_id(std::string_view text) {
  return text.size() <= kMaxId && is_variant_id(text);
}

Advisory parse_advisory(const JsonView& view, std::string_view id) {
  Advisory advisory;
  advisory.id = parse_word(view.at("id"), is_advisory_id,
                           "letters, digits, '.', '_' and '-', at most 64 characters");
  if (advisory.id != id) {
    view.at("id").fail("is " + quote(advisory.id) + ", expected the name's " + quote(id));
  }
  try {
    check_schema(view, kAdvisorySchema, "");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUpgrade) throw;
    advisory.is_unread = true;
    return advisory;
  }
  view.expect_members({"schema", "id", "text", "link", "action", "published", "package", "versions",
                       "variants", "gpus", "drivers", "lifted"});
  advisory.text = parse_text(view.at("text"));
  if (view.has("link")) {
    advisory.link = parse_word(view.at("link"), is_link, "an https:// address");
  }
  const std::string action = view.at("action").string();
  if (action != "warn" && action != "refuse") {
    view.at("action").fail("is " + quote(action) + ", expected \"warn\" or \"refuse\"");
  }
  advisory.refuses = action == "refuse";
  advisory.published = parse_moment(view.at("published"));
  if (view.has("package")) {
    advisory.package = parse_word(view.at("package"), is_package_pattern,
                                  "a package's name, or the beginning of one with a '*'");
  }
  parse_range(
      view, "versions", advisory.from_version, advisory.to_version,
      [](const JsonView& each) { return each.version_number(); }, std::less());
  if (view.has("variants")) {
    for (const JsonView& each : bounded(view.at("variants"), kMaxAdvisedVariants)) {
      advisory.variants.push_back(
          parse_word(each, is_variant, "a variant's id, or the digest of its manifest"));
    }
  }
  if (view.has("gpus")) {
    for (const JsonView& each : bounded(view.at("gpus"), kMaxAdvisedGpus)) {
      advisory.gpus.push_back(parse_version_fact(each));
    }
  }
  parse_range(view, "drivers", advisory.from_driver, advisory.to_driver, parse_driver_fact,
              [](const std::string& left, const std::string& right) {
                return compare_drivers(left, right) < 0;
              });
  if (view.has("lifted")) advisory.lifted = parse_moment(view.at("lifted"));
  return advisory;
}

Json to_json(const Advisory& advisory) {
  const auto number = [](int version) { return static_cast<unsigned>(version); };  // as it is read
  Json document = {{"schema", kAdvisorySchema},
                   {"id", advisory.id},
                   {"text", advisory.text},
                   {"action", advisory.refuses ? "refuse" : "warn"},
                   {"published", to_text(advisory.published)}};
  if (!advisory.link.empty()) document["link"] = advisory.link;
  if (!advisory.package.empty()) document["package"] = advisory.package;
  if (advisory.from_version != 0) document["versions"]["from"] = number(advisory.from_version);
  if (advisory.to_version != 0) document["versions"]["to"] = number(advisory.to_version);
  if (!advisory.variants.empty()) document["variants"] = advisory.variants;
  for (const Version& each : advisory.gpus) document["gpus"].push_back(to_string(each));
  if (!advisory.from_driver.empty()) document["drivers"]["from"] = advisory.from_driver;
  if (!advisory.to_driver.empty()) document["drivers"]["to"] = advisory.to_driver;
  if (advisory.lifted) document["lifted"] = to_text(*advisory.lifted);
  return document;
}

bool speaks_of(const Advisory& advisory, std::string_view package, int version) {
  if (advisory.lifted || advisory.is_unread) return false;
  const std::string_view pattern = advisory.package;
  const bool is_it =
      pattern.empty() || package == pattern ||
      (pattern.ends_with('*') && package.starts_with(pattern.substr(0, pattern.size() - 1)));
  return is_it && version >= advisory.from_version &&
         (advisory.to_version == 0 || version <= advisory.to_version);
}

bool names_variant(const Advisory& advisory, const std::string& id, const Digest& manifest) {
  if (advisory.lifted || advisory.is_unread) return false;
  const std::vector<std::string>& named = advisory.variants;
  if (named.empty()) return true;
  return std::ranges::find(named, id) != named.end() ||
         std::ranges::find(named, manifest.str()) != named.end();
}

bool speaks_of_machine(const Advisory& advisory, const std::vector<const Gpu*>& gpus,
                       const Host& host) {
  if (!asks_machine(advisory)) return true;
  if (gpus.empty()) return false;
  // What has no numbers, as an open end or a driver that is not known, comes before nothing.
  if (compare_drivers(host.driver_version, advisory.from_driver) < 0) return false;
  if (compare_drivers(host.driver_version, advisory.to_driver) > 0) return false;
  return advisory.gpus.empty() || std::ranges::any_of(gpus, [&](const Gpu* gpu) {
           return std::ranges::find(advisory.gpus, gpu->capability) != advisory.gpus.end();
         });
}

std::string text_of(const Advisory& advisory) {
  return "advisory " + advisory.id + ": " + advisory.text +
         (advisory.link.empty() ? "" : " (" + advisory.link + ")");
}

std::string doubt_of(const Advisory& advisory, const Host& host) {
  if (asks_machine(advisory) && host.gpus.empty() && !host.driver_problem.empty()) {
    return "whether it is about this machine is not known: " + host.driver_problem;
  }
  if (!asks_driver(advisory) || !host.driver_version.empty()) return {};
  return "it is about " + drivers_text(advisory) +
         ", and this machine's driver version is not known: " +
         (host.origin.empty() ? "set KILN_OVERRIDE_DRIVER to it"
                              : "give it as \"driver_version\" in " + printable(host.origin));
}

std::string text_for(const Advisory& advisory, const Host& host) {
  const std::string doubt = doubt_of(advisory, host);
  return text_of(advisory) + (doubt.empty() ? "" : "; " + doubt);
}

std::string scope_of(const Advisory& advisory) {
  if (advisory.is_unread) return "what it speaks of, a newer Kiln knows";
  std::vector<std::string> parts = {advisory.package.empty() ? "every package" : advisory.package};
  const auto number = [](int version) { return std::to_string(version); };
  if (advisory.from_version != 0 || advisory.to_version != 0) {
    parts.push_back("versions " + range_text(advisory.from_version != 0, advisory.from_version,
                                             advisory.to_version != 0, advisory.to_version,
                                             number));
  }
  if (advisory.variants.size() == 1) parts.push_back(advisory.variants.front());
  if (advisory.variants.size() > 1) {
    parts.push_back(std::to_string(advisory.variants.size()) + " variants");
  }
  const auto version = [](const auto& each) { return to_string(each); };
  if (!advisory.gpus.empty()) parts.push_back("on GPUs " + join(advisory.gpus, " ", version));
  if (asks_driver(advisory)) parts.push_back("on " + drivers_text(advisory));
  return join(parts);
}

}  // namespace kiln
