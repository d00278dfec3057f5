// SPDX-License-Identifier: Apache-2.0
#include "trust/updater.hpp"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "kiln/error.hpp"

namespace kiln::trust {
namespace {

constexpr int kMaxRotations = 256;  // of the root, in one update

constexpr std::size_t kMaxListedRoles = 1024;

constexpr const char* kTargets = "targets";

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
  folder_.write(file, bytes);
}

void Updater::take_role(const MetadataSource& source, const std::string& role,
                        const std::string& parent) {
  if (trusted_.targets(role) == nullptr) update_targets(source, role, parent);
}

std::optional<Word> Updater::find(const std::string& name, const MetadataSource& source) {
  return trusted_.search(name, [&](const std::string& role, const std::string& parent) {
    take_role(source, role, parent);
    return true;
  });
}

/// A role may speak of names that were not left to it: find() decides about each.
std::map<std::string, Target> Updater::list(const MetadataSource& source) {
  std::vector<std::pair<std::string, std::string>> next = {{kTargets, "root"}};
  std::set<std::string> asked;
  std::set<std::string> names;
  while (!next.empty() && asked.size() < kMaxListedRoles) {
    const auto [role, parent] = std::move(next.back());
    next.pop_back();
    if (!asked.insert(role).second) continue;
    take_role(source, role, parent);
    const Targets& targets = *trusted_.targets(role);
    for (const auto& each : targets.targets) names.insert(each.first);
    for (const Delegation& each : targets.delegations) next.emplace_back(each.role, role);
  }
  std::map<std::string, Target> found;
  for (const std::string& name : names) {
    if (std::optional<Word> word = find(name, source)) found.emplace(name, std::move(word->target));
  }
  return found;
}

std::optional<Word> Updater::recall(const std::string& name) {
  recall_roots();
  return trusted_.search(name, [&](const std::string& role, const std::string& parent) {
    const std::optional<std::string> bytes = folder_.read(json_file(file_name(role)));
    return bytes && holds([&] { return trusted_.recall_targets(*bytes, role, parent), true; });
  });
}

}  // namespace kiln::trust
