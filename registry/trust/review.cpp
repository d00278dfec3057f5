// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/review.hpp"

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/draft.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "registry/trust/role_signers.hpp"
#include "trust/trusted_set.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(ErrorCode code, const fs::path& file, const std::string& found) {
  throw Error(code, "sign draft " + file.string() + ": " + found);
}

/// The newest root of the draft, which must follow from each that the signer knows.
trust::Root root_of(const fs::path& file, const TrustDraft& draft,
                    const std::vector<fs::path>& known) {
  if (known.empty()) {
    fail(ErrorCode::kUsage, file,
         "the draft could hide what it changes behind a root of its own; nothing was signed. Give "
         "the registry's root as you know it: --root root.json");
  }
  const auto root = [&](std::uint64_t version) -> const std::string* {
    const auto found = draft.before.find(role_file(version, "root"));
    return found == draft.before.end() ? nullptr : &found->second;
  };
  for (const fs::path& path : known) {
    const std::string bytes = read_document(path, trust::kMaxRootBytes);
    const auto version = trust::parse<trust::Root>(bytes, path.string()).document.version;
    const std::string* const theirs = root(version);
    if (theirs == nullptr || *theirs != bytes) {
      fail(ErrorCode::kTrust, file,
           "it does not follow from root " + std::to_string(version) + " in " + path.string() +
               "; nothing was signed. Ask who sent it");
    }
  }
  if (root(1) == nullptr) fail(ErrorCode::kTrust, file, "it has no 1.root.json");
  trust::TrustedSet set(*root(1), file.string(), {std::time(nullptr)});
  while (const std::string* const next = root(set.root().version + 1)) set.take_root(*next);
  return set.root();
}

class Review {
 public:
  Review(const fs::path& file, const std::vector<fs::path>& roots)
      : file_(file), draft_(*read_draft(file)), before_{root_of(file, draft_, roots), {}} {
    const std::optional<Pending> before = document_before("targets");
    if (before && before_.is_complete("targets", *before)) {
      before_.targets = trust::parse<trust::Targets>(before->text("targets"), "targets").document;
      body_before_ = before->body();
    }
    after_ = before_;
    if (const auto next = draft_.next.find("targets"); next != draft_.next.end()) {
      after_.targets =
          trust::parse<trust::Targets>(next->second.text("targets"), "targets").document;
    }
  }

  Reviewed run(const std::vector<PrivateKey>& keys) {
    Reviewed result;
    bool any = false;
    for (auto& [role, pending] : draft_.next) {
      note_changes(role, pending, result);
      any = pending.sign(keys, after_.of(role)) || any;
      Missing missing = after_.missing_of(role, pending);
      if (missing.have < missing.need) result.missing.push_back(std::move(missing));
    }
    if (!any && !keys.empty()) {
      fail(ErrorCode::kTrust, file_,
           "none of the keys given may sign any of its documents; nothing was signed");
    }
    if (any) write_draft(followed_to_write(file_), draft_);
    return result;
  }

 private:
  /// What clients have of a role, as the draft says.
  std::optional<Pending> document_before(const std::string& role) const {
    const auto next = draft_.next.find(role);
    for (const auto& [name, bytes] : draft_.before) {
      if (name != name.substr(0, name.find('.')) + "." + role + ".json") continue;
      Pending found(bytes, name + " of " + file_.string());
      if (next == draft_.next.end() || found.version() + 1 == next->second.version()) return found;
    }
    return std::nullopt;
  }

  void note_changes(const std::string& role, const Pending& next, Reviewed& result) {
    if (role == "snapshot" || role == "timestamp") {
      result.changes.push_back(role + " " + std::to_string(next.version()) +
                               " says what is newest, until " +
                               next.body()["expires"].get<std::string>());
      return;
    }
    Json before;
    if (role == "targets") {
      before = body_before_;
    } else if (const std::optional<Pending> found = document_before(role)) {
      if (before_.is_complete(role, *found)) before = found->body();
    }
    const std::string label = printable(role) + " " + std::to_string(next.version());
    for (std::string& line : changes_of(label, before, next.body())) {
      result.changes.push_back(std::move(line));
    }
  }

  fs::path file_;
  TrustDraft draft_;
  RoleSigners before_;  ///< with the targets that clients see, if those are signed
  RoleSigners after_;   ///< with those that are to be
  Json body_before_;
};

}  // namespace

Reviewed review_draft(const fs::path& file, const std::vector<PrivateKey>& keys,
                      const std::vector<fs::path>& roots) {
  return Review(file, roots).run(keys);
}

}  // namespace kiln::registry
