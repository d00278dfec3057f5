// SPDX-License-Identifier: Apache-2.0
#include "trust/updater.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "kiln/error.hpp"

namespace kiln::trust {
namespace {

constexpr int kMaxRotations = 256;  // of the root, in one update

constexpr std::size_t kMaxListedRoles = 4096;  // as many as one artifact has layers

constexpr const char* kTargets = "targets";
constexpr const char* kAdvised = "advisories";

std::string json_file(const std::string& name) {
  return name + ".json";
}
std::string root_file(std::uint64_t version) {
  return "roots/" + json_file(std::to_string(version));
}

/// Whether a step that takes what an earlier update left went well. It may be of keys that are
/// gone, or damaged: it is fetched again.
template <class Step>
bool holds(const Step& step) {
  try {
    return step();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTrust) throw;
    return false;
  }
}

std::string fetch(const MetadataSource& source, const std::string& file, const Promise& promise,
                  std::size_t most, const std::string& origin) {
  const std::size_t promised = promise.length ? static_cast<std::size_t>(*promise.length) : most;
  std::optional<std::string> bytes = source.fetch(file, std::min(promised, most));
  if (bytes) return *std::move(bytes);
  throw Error(ErrorCode::kNotFound, "fetch trust metadata of " + origin + ": there is no " + file +
                                        ". Check the registry's name, or tell its publisher");
}

}  // namespace

/// Of a pattern of names, what stands before the last '/' is a pattern of packages.
bool may_speak_of(const Delegation& role, const std::string& package) {
  if (!role.hash_prefixes.empty()) return true;
  return std::ranges::any_of(role.paths, [&](const std::string& pattern) {
    const std::size_t slash = pattern.rfind('/');
    return slash != std::string::npos &&
           ::fnmatch(pattern.substr(0, slash).c_str(), package.c_str(),
                     FNM_PATHNAME | FNM_NOESCAPE) == 0;
  });
}

bool may_advise(const MetadataFolder& folder) {
  return folder.read(kAdvised).has_value();
}

Updater::Updater(std::string_view root, MetadataFolder folder, std::string origin,
                 const Clock& clock, SignatureMemo* memo)
    : folder_(std::move(folder)), origin_(origin), trusted_(root, std::move(origin), clock, memo) {}

std::string Updater::versioned(std::uint64_t version, const std::string& file) const {
  return trusted_.root().consistent_snapshot ? std::to_string(version) + "." + file : file;
}

void Updater::refresh(const MetadataSource& source) {
  update_root(source);
  update_timestamp(source);
  update_snapshot(source);
  update_targets(source, kTargets, "root");
}

/// Those that earlier updates took after the trusted one.
void Updater::recall_roots() {
  for (int i = 0; i < kMaxRotations; ++i) {
    const std::optional<std::string> next = folder_.read(root_file(trusted_.root().version + 1));
    if (!next || !holds([&] { return trusted_.take_root(*next), true; })) return;
  }
}

void Updater::update_root(const MetadataSource& source) {
  recall_roots();
  for (int i = 0; i < kMaxRotations; ++i) {
    const std::string file = json_file(std::to_string(trusted_.root().version + 1) + ".root");
    const std::optional<std::string> next = source.fetch(file, kMaxRootBytes);
    if (!next) break;
    if (trusted_.take_root(*next)) {
      folder_.remove("timestamp.json");
      folder_.remove("snapshot.json");
    }
    folder_.write(root_file(trusted_.root().version), *next);
    folder_.write("root.json", *next);
  }
  trusted_.check_root_is_fresh();
}

void Updater::update_timestamp(const MetadataSource& source) {
  const std::string file = "timestamp.json";
  if (const std::optional<std::string> last = folder_.read(file)) {
    holds([&] { return trusted_.take_timestamp(*last); });
  }
  const std::string bytes = fetch(source, file, {}, kMaxTimestampBytes, origin_);
  const bool newer = trusted_.take_timestamp(bytes);
  trusted_.check_timestamp_is_fresh();
  if (newer) folder_.write(file, bytes);
}

void Updater::update_snapshot(const MetadataSource& source) {
  const std::string file = "snapshot.json";
  const std::optional<std::string> last = folder_.read(file);
  if (!last || !holds([&] { return trusted_.recall_snapshot(*last); })) {
    const MetaFile& named = trusted_.timestamp()->snapshot;
    const std::string bytes =
        fetch(source, versioned(named.version, file), named.promise, kMaxSnapshotBytes, origin_);
    trusted_.take_snapshot(bytes);
    trusted_.check_snapshot_is_fresh();
    folder_.write(file, bytes);
    return;
  }
  trusted_.check_snapshot_is_fresh();
}

void Updater::update_targets(const MetadataSource& source, const std::string& role,
                             const std::string& parent) {
  const std::string file = json_file(file_name(role));
  const auto take = [&](const std::string& bytes) {
    trusted_.take_targets(bytes, role, parent);
    return true;
  };
  const std::optional<std::string> last = folder_.read(file);
  if (last && holds([&] { return take(*last); })) return;
  const MetaFile& named = trusted_.file_of(role);
  const std::string bytes =
      fetch(source, versioned(named.version, file), named.promise, kMaxTargetsBytes, origin_);
  take(bytes);
  if (!trusted_.targets(role, parent)->advisories.empty()) folder_.write(kAdvised, "\n");
  folder_.write(file, bytes);
}

void Updater::take_role(const MetadataSource& source, const std::string& role,
                        const std::string& parent) {
  if (trusted_.targets(role, parent) == nullptr) update_targets(source, role, parent);
}

std::optional<SignedTarget> Updater::find(const std::string& name, const MetadataSource& source) {
  return trusted_.search(name, [&](const std::string& role, const std::string& parent) {
    take_role(source, role, parent);
    return true;
  });
}

/// A role may speak of names that were not left to it: the search decides about each, and of a name
/// that a role may speak of which was passed over, nothing is known.
Listed Updater::list(const MetadataSource& source) {
  Listed listed;
  std::set<std::string> names;
  std::vector<std::pair<Delegation, std::string>> next;  // roles, and who delegates to them
  std::set<std::pair<std::string, std::string>> asked;
  const auto visit = [&](const std::string& role, const std::string& parent) {
    const Targets& targets = *trusted_.targets(role, parent);
    for (const auto& each : targets.targets) names.insert(each.first);
    for (const Delegation& each : targets.delegations) next.emplace_back(each, role);
  };
  visit(kTargets, "root");
  while (!next.empty()) {
    const auto [by, parent] = std::move(next.back());
    next.pop_back();
    if (!asked.emplace(by.role, parent).second) continue;
    if (asked.size() > kMaxListedRoles) {
      listed.passed.push_back({by, Error(ErrorCode::kTrust, "list " + origin_ + ": more than " +
                                                                std::to_string(kMaxListedRoles) +
                                                                " roles speak of its versions")});
      break;
    }
    try {
      take_role(source, by.role, parent);
      visit(by.role, parent);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) throw;
      listed.passed.push_back({by, error});
    }
  }
  for (const std::string& name : names) {
    const std::optional<SignedTarget> word =
        trusted_.search(name, [&](const std::string& role, const std::string& parent) {
          return trusted_.targets(role, parent) != nullptr;
        });
    if (word) listed.targets.emplace(name, word->target);
  }
  return listed;
}

std::optional<SignedTarget> Updater::recall(const std::string& name) {
  recall_roots();
  return trusted_.search(name, [&](const std::string& role, const std::string& parent) {
    const std::optional<std::string> bytes = folder_.read(json_file(file_name(role)));
    return bytes && holds([&] { return trusted_.recall_targets(*bytes, role, parent), true; });
  });
}

}  // namespace kiln::trust
