// SPDX-License-Identifier: Apache-2.0
//
// Choose: the second step of install: which variant of an index this machine gets, and what is said
// where none fits.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "documents/host.hpp"
#include "documents/names.hpp"
#include "install/install.hpp"
#include "install/lock.hpp"
#include "install/tested_here.hpp"
#include "kiln/error.hpp"
#include "probe/probe.hpp"
#include "resolve/rules.hpp"

namespace kiln {
namespace {

constexpr std::size_t kMaxOtherVersions = 8;  // that are tried for a hint

std::string describe_refusal(const Resolution& refused) {
  return "no variant of " + label(refused.name, refused.version) + " fits for " +
         (refused.all_gpus ? "every GPU" : to_string(refused.device)) + " (" + refused.hint + ")";
}

/// A line of its own, unless the text has it already.
void add_line(std::string& text, const std::string& line) {
  if (line.empty() || text.find(line) != std::string::npos) return;
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += line;
}

}  // namespace

const Variant& Choice::variant() const {
  if (!resolution.chosen) throw Error(resolution.code, no_variant);
  return version.index.variants.at(*resolution.chosen);
}

std::vector<Advisory> Choice::warnings() const {
  if (advised.warning.empty() || !resolution.chosen) return {};
  return warnings_of(advised.warning, variant(), resolution);
}

Choice Install::choose() {
  Choice choice = choose_or_fall_back(request_.refresh);
  if (!deny_is_its_own_) return choice;
  std::string not_asked;
  const std::vector<std::string> unknown = unknown_denied(choice, not_asked);
  if (unknown.empty()) return choice;
  const std::string package = label(source_.name, choice.version.index.version);
  if (not_asked.empty()) fail_unknown_denied(unknown, package);
  // It may be a variant of an index that nothing is taken from now.
  if (request_.on_event) {
    request_.on_event({Event::Stage::kWarning, package, 0, 0,
                       "deny " + join(unknown) +
                           ": no variant that is known here is called so; the registry was not "
                           "asked for others: " +
                           not_asked});
  }
  return choice;
}

std::vector<std::string> Install::unknown_denied(Choice& choice, std::string& not_asked) {
  std::vector<std::string> unknown = request_.deny;
  const auto strike = [&](const Index& index) {
    for (const Variant& variant : index.variants) {
      std::erase(unknown, variant.id);
      std::erase(unknown, variant.manifest.digest.str());
    }
  };
  strike(choice.version.index);
  for (std::size_t i = 0; i <= request_.fallback.size() && !lock_ && !unknown.empty(); ++i) {
    const int version = attempt(i).version;
    if (version == choice.version.index.version) continue;
    const auto other = answer([&] { return find_index(version, false); }, not_asked);
    if (other) strike(other->index);
  }
  const std::size_t before = unknown.size();
  if (before == 0) return unknown;
  if (const auto newer = newer_index(choice.version, not_asked)) strike(newer->index);
  // From the newer index, so that the cache keeps what knows the entry.
  if (unknown.size() < before) choice = choose_or_fall_back(true);
  return unknown;
}

void fail_unknown_denied(const std::vector<std::string>& unknown, const std::string& package) {
  throw Error(ErrorCode::kNotFound, "resolve " + package + ": deny " + join(unknown) +
                                        ": no variant is called so. 'kiln resolve " + package +
                                        "' lists them");
}

Choice Install::choose_or_fall_back(bool ask) {
  check_version();
  std::vector<Resolution> refused;
  std::string told;
  for (std::size_t i = 0;; ++i) {
    const Attempt tried = attempt(i);
    Choice choice = choose(find_index(tried.version, ask), tried.selection);
    if (choice.resolution.chosen || i == request_.fallback.size()) {
      if (!choice.resolution.chosen) choice.no_variant.insert(0, told);
      choice.refused = std::move(refused);
      return choice;
    }
    const std::string next = to_string(request_.fallback[i]);
    if (request_.on_event) {
      request_.on_event({Event::Stage::kFallback, label(source_.name, tried.version), 0, 0,
                         describe_refusal(choice.resolution) + "; trying fallback " + next});
    }
    told += choice.no_variant + "\nfallback " + next + ": ";
    refused.push_back(std::move(choice.resolution));
  }
}

/// The request itself, or the request changed by its n-th fallback alone. A pinned variant was
/// among what was refused.
Install::Attempt Install::attempt(std::size_t fallbacks) const {
  Attempt attempt{source_.version, selection_of(request_, source_.settings)};
  if (fallbacks == 0) return attempt;
  const Fallback& fallback = request_.fallback[fallbacks - 1];
  attempt.selection.variant.clear();
  if (fallback.kind == Fallback::Kind::kVersion) {
    attempt.version = fallback.version;
  } else {
    attempt.selection.device = Device::cpu();
    attempt.selection.all_gpus = false;
  }
  return attempt;
}

/// With what its publishers say of it in mind.
Choice Install::judge(VersionIndex version, const Selection& selection) {
  Choice choice{.registry = source_.registry, .version = std::move(version)};
  // What passed here counts for this machine alone, and is looked up where it may decide.
  const bool by_tests = selection.tested != Tested::kAny && other_host_ == nullptr;
  Selection told = selection;
  if (by_tests) told.failed_here = add_tested_here(choice.version.index, selection.device);
  const Index& index = choice.version.index;
  choice.advised = advised(choice.version.advisories, index.name, index.version, source_.settings);
  told.advisories = choice.advised.refusing;
  choice.resolution = resolve(index, told);
  if (!request_.on_event) return choice;
  for (const Advisory& each : choice.warnings()) {
    request_.on_event({Event::Stage::kWarning,
                       label(index.name, index.version) + " " + choice.variant().id, 0, 0,
                       text_for(each, choice.resolution.host)});
  }
  return choice;
}

Choice Install::choose(VersionIndex version, const Selection& selection) {
  Choice choice = judge(std::move(version), selection);
  if (choice.resolution.chosen) return choice;
  std::string not_asked;
  // Else no variant would fit: it is the machine that lacks something.
  if (choice.resolution.code == ErrorCode::kNoVariant) {
    if (auto newer = newer_index(choice.version, not_asked)) {
      choice = judge(*std::move(newer), selection);
    }
  }
  if (!choice.resolution.chosen) explain_none(choice, selection, not_asked);
  return choice;
}

std::optional<VersionIndex> Install::newer_index(const VersionIndex& known,
                                                 std::string& not_asked) {
  if (lock_) {
    not_asked = lock_file_.string() + " pins this index; 'kiln lock" + lock_option(lock_file_) +
                "' takes newer ones";
    return std::nullopt;
  }
  if (!known.fetched.empty()) return std::nullopt;
  return answer([&] { return ask_index(known.index.version, &known); }, not_asked);
}

std::optional<VersionIndex> Install::answer(const std::function<std::optional<VersionIndex>()>& ask,
                                            std::string& not_asked) const {
  try {
    return ask();
  } catch (const Error& error) {
    // A cache that may only be read cannot keep what is signed anew either.
    const bool no_answer =
        error.code() == ErrorCode::kNetwork || error.code() == ErrorCode::kNotFound ||
        (error.code() == ErrorCode::kCache && ::access(source_.cache.root().c_str(), W_OK) != 0);
    if (!no_answer && error.code() != ErrorCode::kOffline) throw;
    not_asked = no_answer ? error.what() : "offline nothing is fetched";
    return std::nullopt;
  }
}

Resolution Install::resolve(const Index& index, const Selection& selection) {
  if (!host_) {
    const bool for_gpu = request_.device.kind != Device::Kind::kCpu || request_.all_gpus;
    host_ = other_host_ != nullptr ? *other_host_ : probe_host(for_gpu);
    if (!driver_problem_.empty()) {
      host_->gpus.clear();
      host_->driver_problem = driver_problem_;
    }
  }
  look_up_libraries(index, selection);
  return kiln::resolve(*host_, index, selection);
}

/// The sonames that the choice depends on. Another machine's facts must speak of them all: this
/// machine's answer could differ from that one's.
void Install::look_up_libraries(const Index& index, const Selection& selection) {
  if (other_host_ == nullptr) {
    return probe_libraries(*host_, deciding_libraries(*host_, index, selection));
  }
  const std::string unknown = join(unknown_libraries(*host_, index));
  if (unknown.empty()) return;
  const std::string package = label(index.name, index.version);
  throw Error(ErrorCode::kUsage, "resolve " + package + ": the facts" +
                                     (host_->origin.empty() ? "" : " in " + host_->origin) +
                                     " do not say whether that machine has " + unknown +
                                     ". Write them there again with 'kiln host " + package +
                                     " --json'");
}

/// Every variant and its reason, the nearest one and what would make it fit, another version that
/// would do. `not_asked`: why the registry was not asked for newer builds; empty if it was. A GPU
/// that is not there, or a variant's name that the version does not have, needs no table.
void Install::explain_none(Choice& choice, const Selection& selection,
                           const std::string& not_asked) {
  const Index& index = choice.version.index;
  const Resolution& resolution = choice.resolution;
  const std::string subject = "resolve " + label(source_.name, index.version) + ": ";
  if (resolution.code != ErrorCode::kNoVariant) {
    choice.no_variant = choice.no_variant_brief = subject + resolution.hint;
    return;
  }
  const std::string head = subject + "no variant fits this machine (index " +
                           choice.version.descriptor.digest.brief() + " of " + source_.registry +
                           ")\n";
  const bool unknown = !selection.variant.empty() && !find_variant(index, selection.variant);
  std::string advice = resolution.hint;
  if (!request_.fallback.empty()) {  // the caller knows what to try instead
  } else if (!not_asked.empty()) {
    add_line(advice, "the registry was not asked for newer builds: " + not_asked);
  } else {
    try {
      add_line(advice, other_version(index.version, selection));
    } catch (const Error& error) {
      add_line(advice,
               "the registry was not asked for other versions: " + std::string(error.what()));
    }
  }
  choice.no_variant_brief = head + advice;
  choice.no_variant =
      unknown ? choice.no_variant_brief : head + resolution.explain() + "\n" + advice;
}

/// "geglu-mlp@3 has a build for this machine", or nothing. Of a variant that was named: that one.
std::string Install::other_version(int version, const Selection& selection) {
  const Repository& from = source_.repository("versions of " + source_.name);
  std::vector<int> versions = from.versions();
  std::erase(versions, version);
  std::reverse(versions.begin(), versions.end());
  versions.resize(std::min(versions.size(), kMaxOtherVersions));
  for (const int other : versions) {
    try {
      if (source_.is_signed && source_.vouch().recall_yanked(source_.name, other)) continue;
      const VersionIndex tried = read_index(from.index(other), other, true);
      const Resolution resolution = resolve(tried.index, selection);
      if (!resolution.chosen) continue;
      return label(source_.name, other) +
             " has a build for this machine: " + tried.index.variants[*resolution.chosen].id +
             ". Ask for version " + std::to_string(other);
    } catch (const Error& error) {
      // Neither an index that this Kiln cannot read nor a registry that is gone can help.
      if (error.code() == ErrorCode::kNetwork || error.code() == ErrorCode::kCancelled) throw;
    }
  }
  return {};
}

Selection selection_of(const Request& request, const Settings& settings) {
  Selection selection{request.device,   request.variant, request.allow_jit,
                      request.all_gpus, request.deny,    settings.tested};
  selection.deny.insert(selection.deny.end(), settings.deny.begin(), settings.deny.end());
  return selection;
}

std::string to_string(Fallback fallback) {
  return fallback.kind == Fallback::Kind::kCpu ? "cpu"
                                               : "version:" + std::to_string(fallback.version);
}

Fallback parse_fallback(std::string_view text) {
  constexpr std::string_view kPrefix = "version:";
  if (text == "cpu") return Fallback::cpu();
  if (text.starts_with(kPrefix)) {
    const int version = parse_version_number(text.substr(kPrefix.size()));
    if (version != 0) return Fallback::other_version(version);
  }
  throw Error(ErrorCode::kUsage, "fallback " + quote(text) + " is not cpu or version:N");
}

}  // namespace kiln
