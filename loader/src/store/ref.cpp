// SPDX-License-Identifier: Apache-2.0
//
// The cache's refs: small JSON files, each written under another name and renamed, so that two
// processes never rewrite one shared list.
#include <algorithm>
#include <tuple>

#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"
#include "store/cache.hpp"
#include "store/places.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRefSchema = "kiln.ref/1";

/// A path component for a registry: a readable tail of its name, and a digest that tells two
/// registries apart whose tails are the same.
std::string registry_key(const std::string& registry) {
  std::string tail;
  for (const char c : registry) {
    if (is_word({&c, 1}, ".-")) {
      tail += c;
    } else if (!tail.empty() && tail.back() != '_') {
      tail += '_';
    }
  }
  constexpr std::size_t kTail = 40;
  if (tail.size() > kTail) tail.erase(0, tail.size() - kTail);
  return tail + "-" + Digest::of(registry).brief();
}

std::optional<Ref> read_ref_file(const fs::path& root, const fs::path& path) {
  const std::optional<std::string> bytes = read_inside(root, path.lexically_relative(root));
  if (!bytes) return std::nullopt;
  const Json json = parse_json(*bytes, "ref " + path.string());
  const JsonView view(json, "ref " + path.string());
  check_schema(view, kRefSchema, "");
  Ref ref{view.at("registry").string(), view.at("name").string(),
          view.at("version").version_number(), parse_descriptor(view.at("index"))};
  if (view.has("signers")) ref.signers = Digest::parse(view.at("signers").string());
  return ref;
}

/// A ref that was moved or edited to speak of another version is not that version's.
void check_place(const Ref& ref, const fs::path& found, const fs::path& expected) {
  if (found == expected) return;
  throw Error(ErrorCode::kIntegrity,
              "read ref " + found.string() + ": it speaks of " + label(ref.name, ref.version) +
                  " of " + ref.registry +
                  "; nothing was loaded. Run 'kiln cache repair', which removes it");
}

/// What may not be read is not damaged: nothing is known of it.
template <class Step>
void report_damage(const fs::path& path, const Cache::Damaged& damaged, const Step& step) {
  try {
    step();
  } catch (const Error& problem) {
    if (problem.code() == ErrorCode::kCache) throw;
    if (damaged) damaged(path, problem);
  }
}

}  // namespace

fs::path Cache::ref_path(const std::string& registry, std::string_view name, int version) const {
  return root_ / "refs" / registry_key(registry) / name / (std::to_string(version) + ".json");
}

Digest Cache::ref_lock(const std::string& registry, std::string_view name, int version) const {
  return Digest::of(ref_path(registry, name, version).lexically_relative(root_).string());
}

std::optional<Ref> Cache::read_ref(const std::string& registry, std::string_view name,
                                   int version) const {
  const fs::path path = ref_path(registry, name, version);
  std::optional<Ref> ref = read_ref_file(root_, path);
  if (ref) check_place(*ref, path, ref_path(ref->registry, ref->name, ref->version));
  return ref;
}

void Cache::write_ref(const Ref& ref,
                      const std::function<bool(const Ref& known)>& may_replace) const {
  const fs::path path = ref_path(ref.registry, ref.name, ref.version);
  const FileLock used = use_to_write();
  // Between the read and the write no other install of this version may write a newer one.
  const FileLock held = lock(ref_lock(ref.registry, ref.name, ref.version));
  std::optional<Ref> known;
  try {
    known = read_ref(ref.registry, ref.name, ref.version);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIntegrity) throw;  // damaged: written anew
  }
  if (known && !may_replace(*known)) return;
  Json json = {{"schema", kRefSchema},
               {"registry", ref.registry},
               {"name", ref.name},
               {"version", ref.version},
               {"index", to_json(ref.index)}};
  if (ref.signers) json["signers"] = ref.signers->str();
  const std::string bytes = dump_json(json);
  make_folder(path.parent_path().lexically_relative(root_));
  write_file(path, bytes);
}

std::vector<Ref> Cache::refs(const Damaged& damaged) const {
  std::vector<Ref> found;
  const auto names_in = [&](const fs::path& relative) {
    std::vector<std::string> names;
    report_damage(root_ / relative, damaged, [&] { names = list_inside(root_, relative); });
    return names;
  };
  for (const std::string& registry : names_in("refs")) {
    if (!is_registry_key(registry)) continue;
    const fs::path of_registry = fs::path("refs") / registry;
    for (const std::string& package : names_in(of_registry)) {
      if (!is_package_name(package)) continue;
      for (const std::string& name : names_in(of_registry / package)) {
        if (!is_ref_name(name)) continue;
        const fs::path path = root_ / of_registry / package / name;
        report_damage(path, damaged, [&] {
          std::optional<Ref> ref = read_ref_file(root_, path);
          if (!ref) return;
          check_place(*ref, path, ref_path(ref->registry, ref->name, ref->version));
          found.push_back(std::move(*ref));
        });
      }
    }
  }
  std::sort(found.begin(), found.end(), [](const Ref& a, const Ref& b) {
    return std::tie(a.registry, a.name, a.version) < std::tie(b.registry, b.name, b.version);
  });
  return found;
}

}  // namespace kiln
