// SPDX-License-Identifier: Apache-2.0
#include "store/places.hpp"

#include <limits>
#include <system_error>
#include <utility>

#include "base/digest.hpp"
#include "base/number.hpp"
#include "base/posix.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "store/inside.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

/// What stands at the end of a path.
enum class Kind {
  kBytes,     // a file, which somebody else hashes or locks
  kDocument,  // a file of JSON
  kFolder
};

/// A path below the root. A part of it is a name, or a word in <> that kWords explains, and an end.
struct Place {
  std::string_view path;
  Kind kind;
};

constexpr Place kPlaces[] = {
    {"CACHEDIR.TAG", Kind::kBytes},
    {"store.lock", Kind::kBytes},
    {"blobs/sha256/<hex>", Kind::kBytes},
    {"refs/<registry>/<package>/<ref>", Kind::kDocument},
    {"attested/<hex>.json", Kind::kDocument},
    {"roots/<hex>.json", Kind::kDocument},
    {"tuf/<hex>/<role>.json", Kind::kDocument},
    {"tuf/<hex>/advisories", Kind::kBytes},
    {"tuf/<hex>/roots/<number>.json", Kind::kDocument},
    {"ingest/<hex>.part", Kind::kBytes},
    {"unpacked/<hex>", Kind::kFolder},
    {"locks/<hex>.lock", Kind::kBytes},
    {"locks/<hex>.use", Kind::kBytes},
};

bool is_number(std::string_view text) {
  return parse_decimal(text, std::numeric_limits<std::uint64_t>::max()).has_value();
}

struct Word {
  std::string_view word;
  bool (*is)(std::string_view);
};

constexpr Word kWords[] = {
    {"<hex>", [](std::string_view text) { return Digest::from_hex(text).has_value(); }},
    {"<registry>", is_registry_key},
    {"<package>", is_package_name},
    {"<ref>", is_ref_name},
    {"<role>", [](std::string_view text) { return !text.empty(); }},
    {"<number>", is_number},
};

bool matches(std::string_view pattern, std::string_view name) {
  for (const auto& [word, is] : kWords) {
    if (!pattern.starts_with(word)) continue;
    const std::string_view end = pattern.substr(word.size());
    return name.ends_with(end) && is(name.substr(0, name.size() - end.size()));
  }
  return pattern == name;
}

/// What is wrong with a document, but for what its reader alone knows.
std::string problem_of_document(const fs::path& root, const fs::path& relative) {
  try {
    if (const auto text = read_inside(root, relative)) parse_json(*text, relative.string());
    return {};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCache) throw;
    return error.what();
  }
}

class SurveyWalk {
 public:
  explicit SurveyWalk(const fs::path& root) : root_(root) {}

  /// `places`: what is left of those that lie below the folder.
  void visit(const fs::path& folder, const std::vector<Place>& places) {
    for (const std::string& name : list_inside(root_, folder)) {
      if (is_draft(name)) {
        found.drafts.push_back(root_ / folder / name);
        continue;
      }
      std::vector<Place> below;
      for (const auto& [path, kind] : places) {
        const std::size_t slash = path.find('/');
        if (!matches(path.substr(0, slash), name)) continue;
        if (slash == std::string_view::npos) {
          check(folder / name, kind);
        } else {
          below.push_back({path.substr(slash + 1), kind});
        }
      }
      if (!below.empty() && is_folder(folder / name)) visit(folder / name, below);
    }
  }

  Survey found;

 private:
  fs::file_type type_of(const fs::path& relative) const {
    std::error_code error;
    return fs::symlink_status(root_ / relative, error).type();
  }

  bool is_folder(const fs::path& relative) {
    const fs::file_type type = type_of(relative);
    if (type == fs::file_type::directory) return true;
    if (type != fs::file_type::not_found) {  // somebody removed it meanwhile
      found.folders.push_back({root_ / relative, "is not a folder"});
    }
    return false;
  }

  void check(const fs::path& relative, Kind kind) {
    const fs::file_type type = type_of(relative);
    std::string problem;
    if (type == fs::file_type::not_found) return;
    if (kind == Kind::kFolder) {
      if (type != fs::file_type::directory) problem = "is not a folder";
    } else if (type != fs::file_type::regular) {
      problem = "is not a regular file";
    } else if (kind == Kind::kDocument) {
      problem = problem_of_document(root_, relative);
    }
    if (!problem.empty()) found.files.push_back({root_ / relative, std::move(problem)});
  }

  const fs::path& root_;
};

}  // namespace

bool is_registry_key(std::string_view name) {
  const std::size_t dash = name.rfind('-');
  return dash != std::string_view::npos &&
         name.size() - dash - 1 == Digest::of("").brief().size() &&
         name.find_first_not_of("0123456789abcdef", dash + 1) == std::string_view::npos;
}

bool is_ref_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".json";
  if (!name.ends_with(kSuffix)) return false;
  name.remove_suffix(kSuffix.size());
  return is_number(name) && name != "0";
}

Survey survey(const fs::path& root) {
  SurveyWalk walk(root);
  walk.visit("", {std::begin(kPlaces), std::end(kPlaces)});
  return std::move(walk.found);
}

}  // namespace kiln
