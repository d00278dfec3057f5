// SPDX-License-Identifier: Apache-2.0
#include "documents/lockfile.hpp"

#include "documents/facts.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "kiln/error.hpp"

namespace kiln {
namespace {

constexpr std::uint64_t kLockfileVersion = 1;
constexpr std::uint64_t kMaxLayerBytes = std::uint64_t{1} << 40;
constexpr std::size_t kMaxRegistry = 4096;
constexpr std::size_t kMaxLibrary = 1024;

Descriptor parse_locked(const JsonView& view, std::string_view media_type, std::uint64_t most) {
  const JsonView size = view.at("size");
  Descriptor descriptor{.media_type = std::string(media_type),
                        .digest = parse_digest(view.at("digest")),
                        .size = size.unsigned_integer()};
  if (descriptor.size > most) {
    size.fail("found " + std::to_string(descriptor.size) + " bytes, expected at most " +
              std::to_string(most));
  }
  return descriptor;
}

Json locked(const Descriptor& descriptor) {
  return {{"digest", descriptor.digest.str()}, {"size", descriptor.size}};
}

bool is_printable(const std::string& text, std::size_t most) {
  return !text.empty() && text.size() <= most && printable(text) == text;
}

std::string parse_printable(const JsonView& view, std::size_t most) {
  std::string text = view.string();
  if (!is_printable(text, most)) view.fail("found " + quote(text) + ", expected printable text");
  return text;
}

/// What parse_printable would refuse is not written either.
void check_printable(const std::string& name, std::string_view what, const std::string& text,
                     std::size_t most) {
  if (is_printable(text, most)) return;
  throw Error(ErrorCode::kUsage, "lock " + name + ": its " + std::string(what) + " is " +
                                     quote(text) + ", expected 1 to " + std::to_string(most) +
                                     " bytes of printable text. Give it another name");
}

LockedVariant parse_locked_variant(const JsonView& view) {
  const JsonView library = view.at("library");
  return {.manifest = parse_locked(view.at("manifest"), kMediaTypeManifest, kMaxDocumentBytes),
          .config = parse_locked(view.at("config"), kMediaTypeConfig, kMaxDocumentBytes),
          .layer = parse_locked(view.at("layer"), kMediaTypeLayer, kMaxLayerBytes),
          .library = parse_printable(library.at("path"), kMaxLibrary),
          .library_digest = parse_digest(library.at("sha256"))};
}

LockedKernel parse_kernel(const JsonView& view) {
  LockedKernel kernel{.registry = parse_printable(view.at("registry"), kMaxRegistry),
                      .version = view.at("requested").at("version").version_number(),
                      .index = parse_locked(view.at("index"), kMediaTypeIndex, kMaxDocumentBytes)};
  for (const auto& [id, variant] : view.at("variants").members()) {
    // The rule for ids is facts.hpp's, which reads values; a key becomes one.
    const Json name(id);
    parse_variant_id(JsonView(name, variant.path()));
    kernel.variants.emplace(id, parse_locked_variant(variant));
  }
  return kernel;
}

Lockfile read_lock(const Json& json, std::string_view subject) {
  const JsonView document(json, std::string(subject));
  const std::uint64_t version = document.at("lockfileVersion").unsigned_integer();
  if (version > kLockfileVersion) {
    throw Error(ErrorCode::kUpgrade,
                std::string(subject) + ": lockfileVersion is " + std::to_string(version) +
                    ", this kiln " KILN_VERSION " reads up to " + std::to_string(kLockfileVersion) +
                    ". Upgrade kiln; nothing was installed");
  }
  if (version != kLockfileVersion) document.at("lockfileVersion").fail("is not a version");
  Lockfile lock;
  for (const auto& [name, kernel] : document.at("kernels").members()) {
    if (!is_package_name(name)) kernel.fail("is not a package name");
    lock.emplace(name, parse_kernel(kernel));
  }
  return lock;
}

void add_variant_differences(const std::string& kernel, const LockedKernel& before,
                             const LockedKernel& after, std::vector<std::string>& lines) {
  const auto add = [&](std::string_view what, const std::string& id, const std::string& rest = {}) {
    lines.push_back(kernel);
    lines.back().append(": ").append(what).append("variant ").append(id).append(rest);
  };
  for (const auto& [id, variant] : before.variants) {
    const auto same = after.variants.find(id);
    if (same == after.variants.end()) {
      add("- ", id);
    } else if (same->second != variant) {
      add("", id,
          " " + variant.manifest.digest.brief() + " -> " + same->second.manifest.digest.brief());
    }
  }
  for (const auto& each : after.variants) {
    if (before.variants.count(each.first) == 0) add("+ ", each.first);
  }
}

}  // namespace

Lockfile parse_lockfile(std::string_view text, std::string_view subject) {
  try {
    return read_lock(parse_json(text, subject), subject);
  } catch (const Error& error) {
    // The file is the user's own, so it is not the registry's integrity that is in question.
    if (error.code() != ErrorCode::kIntegrity) throw;
    throw Error(ErrorCode::kLock, error.what());
  }
}

std::string serialize_lockfile(const Lockfile& lock) {
  Json kernels = Json::object();
  for (const auto& [name, kernel] : lock) {
    check_printable(name, "registry", kernel.registry, kMaxRegistry);
    Json variants = Json::object();
    for (const auto& [id, variant] : kernel.variants) {
      check_printable(name, "library", variant.library, kMaxLibrary);
      variants[id] = {
          {"manifest", locked(variant.manifest)},
          {"config", locked(variant.config)},
          {"layer", locked(variant.layer)},
          {"library", {{"path", variant.library}, {"sha256", variant.library_digest.str()}}}};
    }
    kernels[name] = {{"requested", {{"version", kernel.version}}},
                     {"registry", kernel.registry},
                     {"index", locked(kernel.index)},
                     {"variants", std::move(variants)}};
  }
  return Json{{"lockfileVersion", kLockfileVersion}, {"kernels", std::move(kernels)}}.dump(2) +
         "\n";
}

std::vector<std::string> differences(const Lockfile& before, const Lockfile& after) {
  std::vector<std::string> lines;
  for (const auto& [name, old] : before) {
    const auto found = after.find(name);
    if (found == after.end()) {
      lines.push_back("- " + label(name, old.version));
      continue;
    }
    const LockedKernel& now = found->second;
    if (old.version != now.version) {
      lines.push_back(name + ": version " + std::to_string(old.version) + " -> " +
                      std::to_string(now.version));
      continue;
    }
    const std::string kernel = label(name, now.version);
    if (old.registry != now.registry) {
      lines.push_back(kernel + ": registry " + old.registry + " -> " + now.registry);
    }
    if (old.index != now.index) {
      lines.push_back(kernel + ": index " + old.index.digest.brief() + " -> " +
                      now.index.digest.brief());
    }
    add_variant_differences(kernel, old, now, lines);
  }
  for (const auto& [name, kernel] : after) {
    if (before.count(name) == 0) lines.push_back("+ " + label(name, kernel.version));
  }
  return lines;
}

void check_only_grown(std::string_view name, const LockedKernel& before,
                      const LockedKernel& after) {
  for (const auto& [id, old] : before.variants) {
    const auto found = after.variants.find(id);
    const bool gone = found == after.variants.end();
    if (!gone && found->second == old) continue;
    // A manifest names config and layer by digest: an equal one with another of them is a lock file
    // that someone wrote by hand.
    const auto text = [](const LockedVariant& variant) {
      return "manifest " + variant.manifest.digest.str() + ", config " +
             variant.config.digest.brief() + ", layer " + variant.layer.digest.brief();
    };
    throw Error(
        ErrorCode::kIntegrity,
        "lock " + label(name, after.version) + ": variant " + id + " is locked as " + text(old) +
            "; " + after.registry + (gone ? " has it no more" : " now has " + text(found->second)) +
            ". A published version never changes: tell the registry's publisher; if you rebuilt "
            "it yourself, remove the entry from the lock file");
  }
}

}  // namespace kiln
