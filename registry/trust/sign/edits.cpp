// SPDX-License-Identifier: Apache-2.0
#include "registry/trust/sign/edits.hpp"

#include <utility>

#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "documents/json.hpp"

namespace kiln::registry {

Edits::Edits(const SignRequest& request, const Start& start)
    : request_(request),
      start_(start),
      signers_{start.root, {}},
      pending_(start.pending),
      returned_(start.returned),
      verified_(start.seen.set()) {
  if (const trust::Targets* const targets = start.seen.targets()) signers_.targets = *targets;
}

const Pending* Edits::find_pending(const std::string& role) const {
  const auto found = pending_.find(role);
  return found == pending_.end() ? nullptr : &found->second;
}

Json Edits::body_of(const std::string& role) const {
  const Pending* const pending = find_pending(role);
  return pending == nullptr ? start_.seen.body_of(role) : pending->body();
}

Json Edits::next_body(const std::string& role) {
  Json body = start_.seen.body_of(role);
  if (body.is_null()) {
    body = {{"_type", "targets"}, {"spec_version", "1.0.31"}, {"targets", Json::object()}};
  } else if (role != "targets" && verified_->targets(role, "targets") == nullptr) {
    verified_->take_targets(*start_.seen.file_of(role), role, "targets");
  }
  body["version"] = start_.seen.version_of(role) + 1;
  body["expires"] = trust::to_text(start_.now + kTargetsLast);
  return body;
}

void Edits::edit(const std::string& role, const std::function<void(Json&)>& change) {
  const auto found = pending_.find(role);
  if (found == pending_.end()) {
    const Json before = start_.seen.body_of(role);
    Json body = next_body(role);
    change(body);
    const auto same = [&](const char* part) {
      const auto was = before.find(part);
      const auto is = body.find(part);
      return was == before.end() ? is == body.end() : is != body.end() && *was == *is;
    };
    if (before.is_null() || !same("targets") || !same("delegations")) {
      pending_.emplace(role, Pending(std::move(body)));
    }
    return;
  }
  Json body = found->second.body();
  change(body);
  if (body == found->second.body()) return;
  if (is_finished_elsewhere(role) || was_signed_elsewhere(role)) fail_to_change(role);
  body["expires"] = trust::to_text(start_.now + kTargetsLast);
  found->second = Pending(std::move(body));
}

void Edits::renew(const std::string& role) {
  if (!pending_.contains(role)) pending_.emplace(role, Pending(next_body(role)));
}

bool Edits::was_signed_elsewhere(const std::string& role) const {
  const Pending* const own = find_pending(role);
  return own != nullptr && signers_.is_complete(role, *own) &&
         !signers_.has_enough_of(request_.keys, role);
}

void Edits::fail_to_change(const std::string& role) const {
  std::string drafts;
  for (const auto& each : request_.drafts) drafts += " --draft " + shell_word(each.string());
  fail_to_sign(ErrorCode::kConflict, request_.registry,
               printable(role) + " " + std::to_string(find_pending(role)->version()) +
                   " waits with every signature that it needs, and this change would take them "
                   "away; nothing was signed. Give --key as often as it needs signatures, and all "
                   "of it is signed anew; or, where no publisher has yet to sign, make it visible "
                   "first: 'kiln registry sign --registry " +
                   shell_word(request_.registry.string()) + drafts +
                   " --key KEY', of the key that says what is newest; or give up all that waits: "
                   "remove " +
                   draft_path(request_.registry).string());
}

void Edits::take_returned(const std::string& role) {
  for (const Pending& each : std::exchange(returned_[role], {})) {
    const auto own = pending_.find(role);
    if (own != pending_.end() && own->second.join(each)) continue;
    if (signers_.is_complete(role, each)) {
      pending_.insert_or_assign(role, each);
      finished_elsewhere_.insert(role);
      continue;
    }
    fail_to_sign(
        ErrorCode::kConflict, request_.registry,
        "the draft that came back has another " + printable(role) +
            ".json than this folder's, and fewer have signed it than must; nothing was signed. "
            "See what it says, and sign it itself: 'kiln registry sign FILE'");
  }
  // Its signatures came from several places: they are not thrown away for one more version, which
  // the next signing takes up.
  if (was_signed_elsewhere(role)) finished_elsewhere_.insert(role);
}

void Edits::decide_targets() {
  take_returned("targets");
  if (const Pending* const next = find_pending("targets")) {
    signers_.targets = trust::parse<trust::Targets>(next->text("targets"), "targets").document;
  }
}

void Edits::check_all_are_taken() const {
  for (const auto& [role, left] : returned_) {
    if (role == "snapshot" || role == "timestamp" || left.empty()) continue;
    fail_to_sign(
        ErrorCode::kConflict, request_.registry,
        "the draft that came back has " + printable(role) + ".json, to which nobody delegates");
  }
}

void Edits::drop_roles_of_nobody() {
  std::erase_if(pending_, [&](const auto& each) { return signers_.of(each.first).ids.empty(); });
}

bool Edits::still_holds(const std::string& role) const {
  const std::string* const file = start_.seen.file_of(role);
  return file != nullptr &&
         Pending(*file, role).is_complete(signers_.keys_of(role), signers_.of(role));
}

PendingRoles Edits::sign() && {
  for (auto& [role, pending] : pending_) {
    if (!is_finished_elsewhere(role)) pending.sign(request_.keys, signers_.of(role));
  }
  return std::move(pending_);
}

}  // namespace kiln::registry
