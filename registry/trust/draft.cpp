// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/draft.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/draft.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "trust/canonical.hpp"
#include "trust/trusted_set.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "kiln.registry-draft/1\n";
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 28;  // many publishers' documents, twice

[[noreturn]] void fail(const fs::path& file, const std::string& found) {
  throw Error(ErrorCode::kTrust, "read draft " + file.string() + ": " + found +
                                     ". Get it again from who sent it; 'kiln registry sign' makes "
                                     "one anew");
}

/// Takes "<kind> <name> <size>\n<size bytes>\n" off the front of `rest`.
struct Section {
  std::string kind;
  std::string name;
  std::string bytes;
};
Section take_part(std::string_view& rest, const fs::path& file) {
  const std::string_view line = rest.substr(0, rest.find('\n'));
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (line.size() == rest.size() || first == std::string_view::npos || first == last) {
    fail(file, "found " + quote(std::string(line.substr(0, 80))) +
                   ", expected 'before' or 'next', a name and a number of bytes");
  }
  const std::optional<std::uint64_t> size = parse_decimal(line.substr(last + 1), kMostBytes);
  rest.remove_prefix(line.size() + 1);
  if (!size || *size >= rest.size() || rest[*size] != '\n') {
    fail(file, "it was cut short, or changed");
  }
  Section part{std::string(line.substr(0, first)),
               std::string(line.substr(first + 1, last - first - 1)),
               std::string(rest.substr(0, *size))};
  rest.remove_prefix(*size + 1);
  return part;
}

void put(Draft& draft, const std::string& head, const std::string& bytes) {
  draft.write(head + " " + std::to_string(bytes.size()) + "\n" + bytes + "\n");
}

/// "sha256:… 812 bytes, published 2026-11-26T00:00:00Z", "yanked: …".
std::string shown(const Json& target) {
  std::string text = "sha256:" + target["hashes"].value("sha256", "none") + ", " +
                     target["length"].dump() + " bytes";
  const auto custom = target.find("custom");
  if (custom == target.end()) return text;
  if (custom->contains("published")) text += ", published " + custom->value("published", "");
  if (custom->contains("advisory")) {
    const Json& advisory = (*custom)["advisory"];
    text += ", " + printable(dump_json(advisory));
  }
  if (custom->contains("yanked")) text += ", yanked: " + quote(custom->value("yanked", ""));
  return text;
}

std::string shown_role(const Json& role) {
  std::string text = role["threshold"].dump() + " of keys";
  for (const Json& id : role["keyids"]) text += " " + id.get<std::string>();
  if (role.contains("paths")) {
    text += ", for";
    for (const Json& path : role["paths"]) text += " " + path.get<std::string>();
  }
  return text;
}

std::map<std::string, Json> roles_of(const Json& body) {
  std::map<std::string, Json> roles;
  if (!body.is_object() || !body.contains("delegations")) return roles;
  for (const Json& each : body["delegations"]["roles"]) {
    roles.emplace(each["name"].get<std::string>(), each);
  }
  return roles;
}

}  // namespace

// ---- Pending ----

Pending::Pending(Json body) : body_(std::move(body)), canonical_(trust::canonical_json(body_)) {}

Pending::Pending(std::string_view document, const std::string& what) {
  const auto take = [&](const auto& found) {
    canonical_ = found.canonical;
    for (const trust::Signature& each : found.signatures) signatures_[each.key_id] = each.signature;
  };
  const Json json = parse_json(document, what);
  body_ = JsonView(json, what).at("signed").json();
  if (body_.is_object() && body_.contains("_type") && body_["_type"] == trust::Snapshot::kType) {
    take(trust::parse<trust::Snapshot>(document, what));
  } else if (body_.is_object() && body_.contains("_type") &&
             body_["_type"] == trust::Timestamp::kType) {
    take(trust::parse<trust::Timestamp>(document, what));
  } else {
    take(trust::parse<trust::Targets>(document, what));
  }
}

std::uint64_t Pending::version() const {
  return body_["version"].get<std::uint64_t>();
}

bool Pending::sign(const std::vector<PrivateKey>& keys, const trust::Signers& signers) {
  bool any = false;
  for (const PrivateKey& key : keys) {
    const std::string id = trust::key_id(key.key());
    if (!signers.ids.contains(id)) continue;
    signatures_[id] = key.sign(canonical_);
    any = true;
  }
  return any;
}

bool Pending::join(const Pending& other) {
  if (other.canonical_ != canonical_) return false;
  signatures_.insert(other.signatures_.begin(), other.signatures_.end());
  return true;
}

std::set<std::string> Pending::signed_by(const trust::Keys& keys,
                                         const trust::Signers& signers) const {
  std::vector<trust::Signature> signatures;
  signatures.reserve(signatures_.size());
  for (const auto& [id, signature] : signatures_) signatures.push_back({id, signature});
  return trust::who_signed(canonical_, signatures, keys, signers);
}

bool Pending::is_only_of(const std::vector<PrivateKey>& keys) const {
  return std::ranges::all_of(signatures_, [&](const auto& signature) {
    return std::ranges::any_of(
        keys, [&](const PrivateKey& key) { return trust::key_id(key.key()) == signature.first; });
  });
}

std::string Pending::text(const std::string& role) const {
  Json signatures = Json::array();
  for (const auto& [id, signature] : signatures_) {
    signatures.push_back({{"keyid", id}, {"sig", signature}});
  }
  std::string text = dump_json({{"signatures", signatures}, {"signed", body_}});
  if (text.size() <= trust::kMaxTargetsBytes) return text;
  throw Error(ErrorCode::kUsage, "sign " + role + ": it would have " + std::to_string(text.size()) +
                                     " bytes, clients read at most " +
                                     std::to_string(trust::kMaxTargetsBytes) +
                                     "; nothing was signed. Leave new packages to a "
                                     "publisher, who signs a document of its own: 'kiln registry "
                                     "delegate'");
}

// ---- the file ----

fs::path draft_path(const fs::path& registry) {
  return trust_layout(registry).folder() / "draft";
}

bool is_trust_draft(const fs::path& file) {
  std::string start;
  stream_file(file, [&](std::string_view piece) {
    start += piece.substr(0, kMagic.size() - std::min(kMagic.size(), start.size()));
  });
  return start == kMagic;
}

std::optional<TrustDraft> read_draft(const fs::path& file) {
  if (!fs::exists(file)) return std::nullopt;
  const std::string bytes = read_document(file, kMostBytes);
  std::string_view rest = bytes;
  if (!rest.starts_with(kMagic)) fail(file, "this is not a draft of a registry's metadata");
  rest.remove_prefix(kMagic.size());
  TrustDraft draft;
  while (!rest.empty()) {
    Section part = take_part(rest, file);
    const std::string what = quote(part.name) + " of " + file.string();
    if (part.kind == "before") {
      draft.before[part.name] = std::move(part.bytes);
    } else if (part.kind == "next" &&
               draft.next.emplace(part.name, Pending(part.bytes, what)).second) {
      continue;
    } else {
      fail(file, what + " is there twice, or of an unknown kind");
    }
  }
  return draft;
}

void write_draft(const fs::path& file, const TrustDraft& draft) {
  const fs::path itself = absolute_path(file);
  Draft out(itself.parent_path(), "draft", itself);
  out.write(kMagic);
  for (const auto& [name, bytes] : draft.before) put(out, "before " + name, bytes);
  for (const auto& [role, pending] : draft.next) put(out, "next " + role, pending.text(role));
  out.publish(0644);
}

std::vector<std::string> changes_of(const std::string& role, const Json& before, const Json& next) {
  std::vector<std::string> changes;
  const Json none = Json::object();
  const auto targets_of = [&](const Json& body) -> const Json& {
    return body.is_object() && body.contains("targets") ? body["targets"] : none;
  };
  const Json& was = targets_of(before);
  const Json& is = targets_of(next);
  for (const auto& [name, target] : is.items()) {
    if (was.contains(name) && was[name] == target) continue;
    changes.push_back(role + (was.contains(name) ? " changes " : " adds ") + printable(name) +
                      ": " + shown(target));
  }
  for (const auto& [name, target] : was.items()) {
    if (!is.contains(name)) changes.push_back(role + " drops " + printable(name));
  }
  const std::map<std::string, Json> roles_before = roles_of(before);
  const std::map<std::string, Json> roles_next = roles_of(next);
  for (const auto& [name, each] : roles_next) {
    const auto found = roles_before.find(name);
    if (found != roles_before.end() && found->second == each) continue;
    changes.push_back(role + (found == roles_before.end() ? " appoints " : " changes ") +
                      printable(name) + ": " + printable(shown_role(each)));
  }
  for (const auto& [name, each] : roles_before) {
    if (!roles_next.contains(name)) changes.push_back(role + " dismisses " + printable(name));
  }
  return changes;
}

}  // namespace kiln::registry
