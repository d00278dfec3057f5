// SPDX-License-Identifier: Apache-2.0
#include "settings/trust_file.hpp"

#include <fcntl.h>
#include <fnmatch.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/draft.hpp"
#include "base/posix.hpp"
#include "base/quote.hpp"
#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "settings/owners.hpp"
#include "settings/settings.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTrustSchema = "kiln.trust/1";
constexpr std::size_t kMaxTrustFileBytes = std::size_t{4} << 20;

/// `found`: "<the file>: <what is wrong with it>".
[[noreturn]] void fail_owned(const OwnedFile& file, const std::string& found) {
  throw Error(ErrorCode::kUsage, "read " + std::string(file.what) + " " + found + ". " + file.next);
}

/// Whether the entry is the registry, or its start up to this character.
bool starts(std::string_view entry, std::string_view registry, char next) {
  while (entry.ends_with('/')) entry.remove_suffix(1);
  if (entry.ends_with(':')) return false;  // "https://": of no host is not of every host
  return registry.starts_with(entry) &&
         (registry.size() == entry.size() || registry[entry.size()] == next);
}

/// A registry, or the start of one, as it is called everywhere. One that could never count is
/// refused: what it was meant to require, or to allow, would not be.
void check_entry(const JsonView& view, const std::string& entry) {
  if (may_be_registry(entry)) return;
  view.fail("is " + quote(entry) + ", expected " + std::string(kRegistryExpected));
}

Requirement parse_requirement(const JsonView& view) {
  view.expect_members({"registry", "package", "statement", "threshold", "keys"});
  Requirement required{view.at("registry").string(), view.at("package").string(),
                       view.at("statement").string(), view.at("keys").strings(),
                       view.at("threshold").unsigned_integer()};
  check_entry(view.at("registry"), required.registry);
  if (required.threshold < 1 || required.threshold > required.keys.size()) {
    view.at("threshold")
        .fail("is " + std::to_string(required.threshold) + " of " +
              std::to_string(required.keys.size()) + " keys");
  }
  return required;
}

Json document_of(const Requirement& required) {
  return {{"registry", required.registry},
          {"package", required.package},
          {"statement", required.statement},
          {"keys", required.keys},
          {"threshold", required.threshold}};
}

/// What others may write to says what others want.
void check_doubt(const std::optional<Doubt>& doubt, const OwnedFile& file = {}) {
  if (!doubt) return;
  throw Error(ErrorCode::kUsage, "read " + std::string(file.what) + " " + doubt->at.string() +
                                     ": " + doubt->why + ". " + doubt->next_step);
}

}  // namespace

bool may_be_registry(std::string_view entry) {
  while (entry.size() > 1 && entry.ends_with('/')) entry.remove_suffix(1);
  const bool is_url = entry.find("://") != std::string_view::npos && !entry.starts_with("file:");
  return entry.starts_with('/') || is_url;
}

const std::string* Trust::root_of(const std::string& registry) const {
  const auto found = roots.find(registry);
  return found == roots.end() ? nullptr : &found->second;
}

bool Requirement::covers(std::string_view asked_registry, const std::string& asked_package) const {
  return starts(registry, asked_registry, '/') &&
         ::fnmatch(package.c_str(), asked_package.c_str(), 0) == 0;
}

bool Trust::is_unsigned(const std::string& registry) const {
  return std::any_of(
      unsigned_registries.begin(), unsigned_registries.end(), [&](std::string_view entry) {
        const bool is_url = entry.find("://") != std::string_view::npos;
        return starts(entry, registry, '/') || (is_url && starts(entry, registry, ':'));
      });
}

Trust parse_trust(std::string_view text, const std::string& path) {
  try {
    const Json json = parse_json(text, path);
    const JsonView view(json, path);
    check_schema(view, kTrustSchema, "");
    view.expect_members({"schema", "roots", "unsigned", "required"});
    Trust trust;
    for (const auto& [registry, root] : view.at("roots").members()) {
      check_entry(view.at("roots"), registry);
      trust.roots.emplace(registry, root.string());
    }
    for (const JsonView& registry : view.at("unsigned").items()) {
      trust.unsigned_registries.push_back(registry.string());
      check_entry(registry, trust.unsigned_registries.back());
    }
    if (view.has("required")) {
      for (const JsonView& each : view.at("required").items()) {
        trust.required.push_back(parse_requirement(each));
      }
    }
    return trust;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kUpgrade) throw;
    fail_owned({}, error.what());
  }
}

std::string serialize_trust(const Trust& trust) {
  Json document = {
      {"schema", kTrustSchema}, {"roots", trust.roots}, {"unsigned", trust.unsigned_registries}};
  for (const Requirement& each : trust.required) document["required"].push_back(document_of(each));
  return dump_json(document) + "\n";
}

fs::path trust_path() {
  const fs::path settings = settings_path();
  return settings.empty() ? settings : settings.parent_path() / "trust.json";
}

std::optional<std::string> read_owned(const fs::path& path, std::size_t most,
                                      const OwnedFile& file) {
  const FileDescriptor opened = try_open_file(path, O_RDONLY);
  if (!opened.valid() && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  const auto fail = [&](const std::string& found) {
    fail_owned(file, path.string() + ": " + found);
  };
  if (!opened.valid()) fail(std::generic_category().message(errno));
  check_doubt(doubt_about_file(path, "KILN_CONFIG"), file);
  std::string text;
  const int error = try_read_pieces(opened.get(), [&](std::string_view piece) {
    text += piece;
    if (text.size() > most) fail("it has more than " + std::to_string(most) + " bytes");
  });
  if (error != 0) fail(std::generic_category().message(error));
  return text;
}

Trust read_trust() {
  const fs::path path = trust_path();
  if (path.empty()) return {};
  const std::optional<std::string> text = read_owned(path, kMaxTrustFileBytes);
  return text ? parse_trust(*text, path.string()) : Trust{};
}

void update_trust(const std::function<void(Trust&)>& change, const Waiting& waiting) {
  const fs::path path = trust_path();
  if (path.empty()) {
    throw Error(ErrorCode::kUsage,
                "write trust: the environment names no folder for settings. Set KILN_CONFIG, "
                "XDG_CONFIG_HOME or HOME");
  }
  check_doubt(doubt_about_place(path, "KILN_CONFIG"));
  // Under any umask such that others may not write to them.
  make_folders(path.has_parent_path() ? path.parent_path() : fs::path("."));
  // Where there are no locks, the last one to write wins.
  const std::vector<FileLock> held = lock_folders_of({path}, waiting);
  Trust trust = read_trust();
  change(trust);
  replace_file(path, serialize_trust(trust), 0644);
}

}  // namespace kiln
