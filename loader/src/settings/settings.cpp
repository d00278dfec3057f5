// SPDX-License-Identifier: Apache-2.0
#include "settings/settings.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "settings/environment.hpp"
#include "settings/owners.hpp"

#ifndef KILN_DEFAULT_REGISTRY
#error "KILN_DEFAULT_REGISTRY is the registry that is asked where nothing else is named"
#endif

namespace kiln {
namespace {

constexpr std::string_view kSettingsSchema = "kiln.settings/1";
/// An administrator's, for all users of the machine.
constexpr const char* kSystemSettings = "/etc/kiln/config.json";

/// `found`: "<a path>: <what is wrong with it>", of this file. No user's file stands in an
/// administrator's place.
[[noreturn]] void fail_settings(const std::filesystem::path& file, const std::string& found) {
  throw Error(ErrorCode::kUsage,
              "read settings " + found +
                  (file == kSystemSettings
                       ? ". It counts for all users of this machine: have its administrator "
                         "correct it, or remove it"
                       : ". Correct the file, or name another in KILN_CONFIG"));
}

std::vector<std::string> strings_of(const JsonView& array) {
  std::vector<std::string> strings;
  for (const JsonView& each : array.items()) {
    strings.push_back(each.string());
    if (strings.back().empty()) each.fail("is empty");
  }
  return strings;
}

/// What an administrator denies stays denied.
void add(const JsonView& object, std::string_view key, std::vector<std::string>& list) {
  if (!object.has(key)) return;
  for (std::string& each : strings_of(object.at(key))) list.push_back(std::move(each));
}

template <class Number>
void read_number(const JsonView& object, std::string_view key, std::uint64_t most, Number& number) {
  if (!object.has(key)) return;
  const JsonView member = object.at(key);
  const std::uint64_t value = member.unsigned_integer();
  if (value < 1 || value > most) {
    member.fail("is " + std::to_string(value) + ", expected 1 to " + std::to_string(most));
  }
  number = Number(static_cast<int>(value));
}

Limits parse_limits(const JsonView& object, Limits limits) {
  constexpr std::uint64_t kDay = std::uint64_t{24} * 60 * 60;
  constexpr std::uint64_t kMaxTries = 100;
  constexpr std::uint64_t kMaxBackoffMs = 60'000;
  object.expect_members(
      {"tries", "connect_seconds", "stall_seconds", "deadline_seconds", "backoff_ms"});
  read_number(object, "tries", kMaxTries, limits.tries);
  read_number(object, "connect_seconds", kDay, limits.connect);
  read_number(object, "stall_seconds", kDay, limits.stall);
  read_number(object, "deadline_seconds", kDay, limits.deadline);
  read_number(object, "backoff_ms", kMaxBackoffMs, limits.backoff);
  return limits;
}

Tested parse_tested(const JsonView& word) {
  const std::string text = word.string();
  if (text == "any") return Tested::kAny;
  if (text == "somewhere") return Tested::kSomewhere;
  if (text == "here") return Tested::kHere;
  word.fail("is " + quote(text) + ", expected 'any', 'somewhere' or 'here'");
}

Advice parse_advice(const JsonView& word) {
  const std::string text = word.string();
  if (text == "obey") return Advice::kObeyed;
  if (text == "warn") return Advice::kWarns;
  if (text == "refuse") return Advice::kRefuses;
  word.fail("is " + quote(text) + ", expected 'obey', 'warn' or 'refuse'");
}

/// What is `below` the folder that a variable names, or below its usual place at home; empty if the
/// environment names neither.
std::filesystem::path users_folder(std::string_view name, std::string_view at_home,
                                   std::string_view below) {
  std::filesystem::path folder = environment().text(name);
  const std::string_view home = environment().text("HOME");
  if (folder.empty() && !home.empty()) folder = std::filesystem::path(home) / at_home;
  return folder.empty() ? folder : folder / below;
}

Settings environment_settings() {
  const Environment& variables = environment();
  const std::string_view offline = variables.text("KILN_OFFLINE");
  Settings settings;
  settings.cache = default_cache();
  settings.lock = variables.text("KILN_LOCK");
  settings.offline = !offline.empty() && offline != "0";
  return settings;
}

/// Whether it names a registry wherever one is.
bool is_place(std::string_view word) {
  return word.starts_with('/') || word.find("://") != std::string_view::npos;
}

/// Of those that may be asked without TLS.
bool is_host(std::string_view word) {
  return word.find('/') == std::string_view::npos;
}
constexpr const char* kHostExpected = "a host, like mirror.lan:5000";

/// The words of a variable. One that could never count for anything is refused.
std::vector<std::string_view> listed(const char* variable, const char* expected,
                                     bool (*counts)(std::string_view)) {
  std::vector<std::string_view> words = split(environment().text(variable), ',');
  for (const std::string_view word : words) {
    if (counts(word)) continue;
    throw Error(ErrorCode::kUsage, std::string("read ") + variable + ": it has " + quote(word) +
                                       ", expected " + expected + ". Correct or unset it");
  }
  return words;
}

/// What the file says, over `settings`; nothing where it is not there, unless it `is_named`.
Settings read_settings(const std::filesystem::path& path, bool is_named, Settings settings) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
  const NamedFile file = read_named_file(path, kMaxBytes);
  if (is_named && file.absent) {
    throw Error(ErrorCode::kUsage, "read settings " + path.string() + ": " + file.problem +
                                       R"(. Write {"schema": "kiln.settings/1"} into it, or name )"
                                       "another in KILN_CONFIG");
  }
  if (!file.problem.empty() && !file.absent) {
    fail_settings(path, path.string() + ": " + file.problem);
  }
  if (!file.problem.empty()) return settings;
  if (const auto doubt = doubt_about_file(path, "KILN_CONFIG")) {
    const std::string found = doubt->at.string() + ": " + doubt->why;
    if (path == kSystemSettings) fail_settings(path, found);
    throw Error(ErrorCode::kUsage, "read settings " + found + ". " + doubt->next_step);
  }
  return parse_settings(file.text, path.string(), std::move(settings));
}

/// The file that holds this code, a program or a library; empty: cannot tell.
std::filesystem::path own_file() {
  Dl_info where{};
  link_map* map = nullptr;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): as dladdr1 wants it
  void** const out = reinterpret_cast<void**>(&map);
  const auto* const here = reinterpret_cast<const void*>(&load_settings);
  if (::dladdr1(here, &where, out, RTLD_DL_LINKMAP) == 0 || map == nullptr) return {};
  if (*map->l_name != '\0') return map->l_name;
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

/// PREFIX of PREFIX/bin, PREFIX/lib and PREFIX/lib/python3.N/site-packages/kiln; empty: it is none.
std::filesystem::path prefix_of(const std::filesystem::path& folder) {
  if (!folder.is_absolute()) return {};
  const std::string name = folder.filename().string();
  if (name == "bin" || name == "lib" || name == "lib64") return folder.parent_path();
  const std::filesystem::path packages = folder.parent_path();
  const std::string kind = packages.filename().string();
  if (name != "kiln" || (kind != "site-packages" && kind != "dist-packages")) return {};
  return packages.parent_path().parent_path().parent_path();
}

/// The root that came with the kernels of the registry which is asked by default: who may install
/// Kiln for all users says so too what that registry must be signed by. The user's word counts
/// first.
void add_installed_root(Trust& trust) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
  const std::string registry = default_registry();
  if (trust.is_unsigned(registry) || trust.root_of(registry) != nullptr) return;
  if (auto root = read_owned(registry + ".root.json", kMaxBytes)) {
    trust.roots.emplace(registry, *std::move(root));
  }
}

}  // namespace

std::filesystem::path default_cache() {
  if (const auto value = environment().text("KILN_CACHE"); !value.empty()) return value;
  return users_folder("XDG_CACHE_HOME", ".cache", "kiln");
}

std::string default_registry() {
  if (const auto prefix = prefix_of(own_file().parent_path()); !prefix.empty()) {
    std::error_code error;
    const std::filesystem::path beside = prefix / "share/kiln/registry";
    if (std::filesystem::is_directory(beside, error)) return beside.string();
  }
  return KILN_DEFAULT_REGISTRY;
}

Settings parse_settings(std::string_view text, const std::string& path, Settings settings) {
  try {
    const Json json = parse_json(text, path);
    const JsonView root(json, path);
    check_schema(root, kSettingsSchema, "");
    root.expect_members({"schema", "registry", "mirrors", "insecure_http", "deny", "tested",
                         "newest_after", "advisories", "accept_advisories", "network"});
    if (root.has("registry")) {
      settings.registry = root.at("registry").string();
      if (!is_place(settings.registry)) {
        root.at("registry")
            .fail("is " + quote(settings.registry) + ", expected a URL or an absolute folder");
      }
    }
    if (root.has("mirrors")) {
      const JsonView mirrors = root.at("mirrors");
      if (!mirrors.json().is_object()) mirrors.fail("is not an object");
      for (const auto& [origin, list] : mirrors.json().items()) {
        if (!origin.starts_with("https://") && !origin.starts_with("http://")) {
          mirrors.fail("names " + quote(origin) + ", expected the URL of a registry");
        }
        settings.mirrors[origin] = strings_of(mirrors.at(origin));
        for (const std::string& mirror : settings.mirrors[origin]) {
          if (is_place(mirror)) continue;
          mirrors.at(origin).fail("has " + quote(mirror) +
                                  ", expected a URL or an absolute folder");
        }
      }
    }
    add(root, "insecure_http", settings.insecure_http);
    for (const std::string& host : settings.insecure_http) {
      if (is_host(host)) continue;
      root.at("insecure_http").fail("has " + quote(host) + ", expected " + kHostExpected);
    }
    add(root, "deny", settings.deny);
    if (root.has("tested")) settings.tested = parse_tested(root.at("tested"));
    if (root.has("advisories")) settings.advisories = parse_advice(root.at("advisories"));
    add(root, "accept_advisories", settings.accepted_advisories);
    if (root.has("newest_after")) {
      const std::string age_word = root.at("newest_after").string();
      const std::optional<std::chrono::seconds> age = parse_age(age_word);
      if (!age) {
        root.at("newest_after").fail("is " + quote(age_word) + ", expected a time like \"7 days\"");
      }
      settings.newest_after = *age;
    }
    if (root.has("network")) settings.limits = parse_limits(root.at("network"), settings.limits);
    return settings;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUpgrade) throw;
    fail_settings(path, error.what());
  }
}

std::optional<std::chrono::seconds> parse_age(std::string_view text) {
  constexpr std::uint64_t kMost = 100'000;  // of days, or of hours
  if (text == "0") return std::chrono::seconds(0);
  const std::size_t space = std::min(text.find(' '), text.size());
  const std::optional<std::uint64_t> number = parse_decimal(text.substr(0, space), kMost);
  std::string_view unit = text.substr(space);
  if (unit.ends_with('s')) unit.remove_suffix(1);
  const bool is_known = unit == " day" || unit == " hour";
  if (!number || !is_known) return std::nullopt;
  return std::chrono::hours(*number * (unit == " day" ? 24 : 1));
}

std::string age_text(std::chrono::seconds age) {
  const std::int64_t hours = std::chrono::duration_cast<std::chrono::hours>(age).count();
  const bool in_days = hours % 24 == 0;
  const std::int64_t number = in_days ? hours / 24 : hours;
  return std::to_string(number) + (in_days ? " day" : " hour") + (number == 1 ? "" : "s");
}

std::filesystem::path settings_path() {
  if (const auto value = environment().text("KILN_CONFIG"); !value.empty()) return value;
  return users_folder("XDG_CONFIG_HOME", ".config", "kiln/config.json");
}

Settings load_settings() {
  Settings settings = read_settings(kSystemSettings, false, environment_settings());
  if (const std::filesystem::path path = settings_path(); !path.empty()) {
    const bool is_named = !environment().text("KILN_CONFIG").empty();
    settings = read_settings(path, is_named, std::move(settings));
  }
  if (const auto registry = environment().text("KILN_REGISTRY"); !registry.empty()) {
    settings.registry = registry;
  }
  for (const std::string_view host : listed("KILN_INSECURE_HTTP", kHostExpected, is_host)) {
    settings.insecure_http.emplace_back(host);
  }
  settings.trust = read_trust();
  for (const std::string_view registry :
       listed("KILN_UNSIGNED", kRegistryExpected.data(), may_be_registry)) {
    settings.trust.unsigned_registries.emplace_back(registry);
  }
  add_installed_root(settings.trust);
  return settings;
}

}  // namespace kiln
