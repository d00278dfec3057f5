// SPDX-License-Identifier: Apache-2.0
#include "trust/updater.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/join.hpp"
#include "base/number.hpp"
#include "base/quote.hpp"
#include "kiln/error.hpp"

namespace kiln::trust {
namespace {

constexpr int kMaxRotations = 256;  // of the root, in one update

constexpr std::size_t kMaxListedRoles = 4096;  // as many as one artifact has layers

constexpr const char* kTargets = "targets";
constexpr const char* kAdvised = "advisories";
constexpr std::string_view kEndOfAdvised = "end";
constexpr std::size_t kMostAdvised = 65536;  // bytes; of more, everyone reads the metadata

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

/// Of whom a role's advisories speak, a line each: "targets geglu-* 1 0", and a last one, "end".
/// One that this Kiln cannot read may be read by a newer one, which has the same cache.
std::set<std::string> advised_lines(const std::string& role,
                                    const std::vector<Advisory>& advisories) {
  std::set<std::string> lines;
  for (const Advisory& each : advisories) {
    if (each.lifted) continue;
    lines.insert(file_name(role) + " " + (each.package.empty() ? "*" : each.package) + " " +
                 std::to_string(each.from_version) + " " + std::to_string(each.to_version) + "\n");
  }
  return lines;
}

/// What stands before the next line break. An empty line is a line as well, and as one that nobody
/// wrote it speaks of everything.
std::string_view take_line(std::string_view& rest) {
  const std::string_view line = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  return line;
}

/// A line that is none of the above speaks of everything.
bool line_speaks_of(std::string_view line, std::string_view package, int version) {
  const std::vector<std::string_view> words = split(line, ' ');
  if (words.size() != 4) return true;
  Advisory scope;
  scope.package = words[1];
  scope.from_version = parse_version_number(words[2]);
  scope.to_version = parse_version_number(words[3]);
  return speaks_of(scope, package, version);
}

/// Notes of whom this role's advisories speak, beside what is noted of others.
void note_advised(const MetadataFolder& folder, const std::string& role,
                  const std::vector<Advisory>& advisories) {
  const std::optional<std::string> known = folder.read(kAdvised);
  const std::string before = known.value_or("");
  const std::string own = file_name(role) + " ";
  // What a note that was lost or cut said of other roles, nobody knows.
  const bool is_whole = known ? known->ends_with(std::string(kEndOfAdvised) + "\n")
                              : !folder.read(json_file(kTargets));
  std::string now = is_whole ? "" : "everything\n";
  for (std::string_view rest = before; !rest.empty();) {
    const std::string_view line = take_line(rest);
    if (!line.starts_with(own) && line != kEndOfAdvised) now += std::string(line) + "\n";
  }
  for (const std::string& line : advised_lines(role, advisories)) now += line;
  if (now.size() > kMostAdvised) now = "everything\n";
  now += std::string(kEndOfAdvised) + "\n";
  if (now != known) folder.write(kAdvised, now);
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

bool may_advise(const MetadataFolder& folder, std::string_view package, int version) {
  const std::optional<std::string> noted = folder.read(kAdvised);
  // Lost, or from before there was one: the metadata says it.
  if (!noted) return folder.read(json_file(kTargets)).has_value();
  for (std::string_view rest = *noted; !rest.empty();) {
    const std::string_view line = take_line(rest);
    if (line == kEndOfAdvised) return false;
    if (line_speaks_of(line, package, version)) return true;
  }
  return true;  // it was cut
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
  note_advised(folder_, role, trusted_.targets(role, parent)->advisories);
  folder_.write(file, bytes);
}

void Updater::take_role(const MetadataSource& source, const std::string& role,
                        const std::string& parent) {
  if (trusted_.targets(role, parent) == nullptr) update_targets(source, role, parent);
}

void Updater::recall_role(const std::string& role, const std::string& parent,
                          Advisories advisories) {
  const std::optional<std::string> bytes = folder_.read(json_file(file_name(role)));
  if (bytes) return trusted_.recall_targets(*bytes, role, parent, advisories);
  throw Error(ErrorCode::kTrust, "recall trust metadata of " + origin_ + ": what " +
                                     printable(role) +
                                     " signed is not in the cache. Ask online once");
}

std::optional<SignedTarget> Updater::find(const std::string& name, const MetadataSource& source) {
  return trusted_.search(name, [&](const std::string& role, const std::string& parent) {
    take_role(source, role, parent);
    return true;
  });
}

Listed Updater::list(const MetadataSource& source) {
  return list_by(
      [&](const std::string& role, const std::string& parent) { take_role(source, role, parent); });
}

Listed Updater::recall_list() {
  recall_roots();
  const auto take = [&](const std::string& role, const std::string& parent) {
    recall_role(role, parent, Advisories::kLeft);
  };
  if (!holds([&] { return take(kTargets, "root"), true; })) return {};
  return list_by(take);
}

/// A role may speak of names that were not left to it: the search decides about each, and of a name
/// that a role may speak of which was passed over, nothing is known.
Listed Updater::list_by(const Take& take) {
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
      listed.passed.push_back(
          {by, Error(ErrorCode::kTrust, "list " + origin_ + ": more than " +
                                            std::to_string(kMaxListedRoles) +
                                            " roles speak of its versions. Tell the "
                                            "registry's publisher")});
      break;
    }
    try {
      take(by.role, parent);
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

std::optional<SignedTarget> Updater::recall(const std::string& package, int version) {
  recall_roots();
  const Advisories advisories =
      may_advise(folder_, package, version) ? Advisories::kRead : Advisories::kLeft;
  const auto load = [&](const std::string& role, const std::string& parent) {
    return holds([&] { return recall_role(role, parent, advisories), true; });
  };
  return trusted_.search(target_name(package, version), load);
}

}  // namespace kiln::trust
