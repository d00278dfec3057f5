// SPDX-License-Identifier: Apache-2.0
#include "loader/cli/verbs/fleet.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "attest/describe.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "base/size.hpp"
#include "documents/json.hpp"
#include "documents/names.hpp"
#include "install/install.hpp"
#include "install/lock.hpp"
#include "install/signature_policy.hpp"
#include "loader/cli/frame/output.hpp"
#include "settings/settings.hpp"

namespace kiln::cli {
namespace {

namespace fs = std::filesystem;

/// A kernel of the lock file.
struct Locked {
  std::string name;
  LockedKernel kernel;
  std::vector<std::string> testers;  ///< keys that the user requires and that signed its tests
};

/// What one GPU of a machine, or its CPU, gets of a kernel.
struct Share {
  Device device;
  std::string processor;  ///< "NVIDIA H100 80GB HBM3, 9.0"; empty: the CPU
  std::optional<Variant> variant;
  std::uint64_t bytes = 0;
  bool compiles = false;
  std::vector<std::string> warnings;
  std::optional<Error> problem;
  Json refused = Json::array();  ///< where no variant fits: why each does not
};

/// Puts the index of a kernel into the cache, so that no machine's turn asks for it again, and
/// looks up who vouches for its tests.
void prepare(Locked& locked, const Request& request) {
  Install install(locked.name, request);
  const FileLock used = install.cache().use_to_write();
  const VersionIndex version = install.find_newest_index();
  if (!version.fetched.empty()) {
    install.cache().write_document(version.descriptor, version.fetched);
  }
  const Settings settings = load_settings();
  std::set<std::string> testers;
  for (const attest::Attestation& each : install.source().attestations(version.descriptor)) {
    if (attest::word_of(each.statement) != "tests") continue;
    for (std::string& key : known_signers(each, settings, locked.kernel.registry, locked.name)) {
      testers.insert(std::move(key));
    }
  }
  locked.testers = {testers.begin(), testers.end()};
}

/// One GPU of each kind; the CPU where there is none, or where it is asked for.
std::vector<std::pair<Device, std::string>> devices_of(const Host& host, Device asked) {
  if (asked.kind != Device::Kind::kAuto) return {{asked, ""}};
  std::vector<std::pair<Device, std::string>> devices;
  for (const Gpu& gpu : host.gpus) {
    const std::string text = printable(gpu.name) + ", " + to_string(gpu.capability);
    const bool is_known =
        std::ranges::any_of(devices, [&](const auto& each) { return each.second == text; });
    if (!is_known) devices.emplace_back(Device::cuda(gpu.ordinal), text);
  }
  if (devices.empty()) devices.emplace_back(Device::automatic(), "");
  return devices;
}

Share share_of(const Locked& locked, const Host& host, Device device, std::string processor,
               Request request) {
  Share share{.device = device, .processor = std::move(processor)};
  request.device = device;
  try {
    Install install(locked.name, request, {.host = &host});
    const Choice choice = install.choose();
    share.device = choice.resolution.device;
    for (const Decision& each : choice.resolution.decisions) {
      if (choice.resolution.chosen) break;
      share.refused.push_back({{"variant", each.variant},
                               {"refusal", std::string(to_string(each.refusal))},
                               {"detail", each.detail}});
    }
    if (!choice.resolution.chosen) throw Error(choice.resolution.code, choice.no_variant_brief);
    const Package package = install.pull(choice);  // throws where a statement is missing
    share.variant = package.variant;
    share.bytes = package.manifest.layer.size;
    share.compiles = choice.resolution.decisions[*choice.resolution.chosen].jit;
    for (const Advisory& each : choice.warnings()) {
      share.warnings.push_back(text_for(each, choice.resolution.host));
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) throw;
    share.problem = error;
  }
  return share;
}

Json to_json(const Locked& locked, const Share& share) {
  const bool fits = share.variant.has_value();
  return {{"name", locked.name},
          {"version", locked.kernel.version},
          {"device", to_string(share.device)},
          {"processor", share.processor.empty() ? Json() : Json(share.processor)},
          {"variant", fits ? Json(share.variant->id) : Json()},
          {"tested", fits ? Json(share.variant->tested) : Json()},
          {"tested_on", fits ? Json(share.variant->tested_on) : Json::array()},
          {"tests_signed_by", locked.testers},
          {"bytes", share.bytes},
          {"compiles_at_start", share.compiles},
          {"advisories", share.warnings},
          {"refused", share.refused},
          {"code", share.problem ? static_cast<int>(share.problem->code()) : 0},
          {"problem", share.problem ? Json(share.problem->what()) : Json()}};
}

/// The last lines of an error say what would help.
std::string indented(std::string_view text) {
  std::string lines;
  for (const std::string_view line : split(text, '\n')) lines += "\n    " + std::string(line);
  return lines;
}

void print_share(const Locked& locked, const Share& share) {
  const std::string what = label(locked.name, locked.kernel.version) + " " +
                           to_string(share.device) +
                           (share.processor.empty() ? "" : " (" + share.processor + ")");
  if (share.problem) {
    print("  %s  NOTHING%s\n", what.c_str(), indented(share.problem->what()).c_str());
    return;
  }
  const std::vector<std::string>& on = share.variant->tested_on;
  std::string text = on.empty() ? "untested" : "tested on " + join(on);
  if (!on.empty() && !locked.testers.empty()) {
    text += ", signed by " +
            join(locked.testers, ", ", [](const std::string& key) { return key.substr(0, 12); });
  }
  if (share.compiles) text += ", compiled by the driver at the first load";
  for (const std::string& each : share.warnings) text += "\n    " + each;
  print("  %s  %s, %s, %s\n", what.c_str(), share.variant->id.c_str(),
        size_text(share.bytes).c_str(), text.c_str());
}

}  // namespace

Fleet check_fleet(const std::vector<fs::path>& files, const fs::path& lock,
                  const Options& options) {
  Fleet fleet{Json::array(), 0};
  Request request = options.request;
  request.lock = lock;
  request.registry.clear();
  std::vector<Locked> kernels;
  for (const auto& [name, kernel] : read_lockfile(lock)) {
    kernels.push_back({name, kernel, {}});
    prepare(kernels.back(), request);
  }
  std::size_t served = 0;
  for (const fs::path& file : files) {
    Json document = {{"file", file.string()}, {"problem", nullptr}, {"kernels", Json::array()}};
    int code = 0;
    print("%s\n", printable(file.string()).c_str());
    try {
      const Host host = read_host(file.string());
      for (const Locked& locked : kernels) {
        for (auto& [device, processor] : devices_of(host, request.device)) {
          const Share share = share_of(locked, host, device, processor, request);
          document["kernels"].push_back(to_json(locked, share));
          print_share(locked, share);
          if (share.problem && code == 0) code = static_cast<int>(share.problem->code());
        }
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kCancelled) throw;
      code = static_cast<int>(error.code());
      document["problem"] = error.what();
      print("  NOT READ%s\n", indented(error.what()).c_str());
    }
    document["code"] = code;
    fleet.machines.push_back(std::move(document));
    if (code == 0) ++served;
    if (fleet.code == 0) fleet.code = code;
  }
  print("%zu of %zu machines get every kernel of %s\n", served, files.size(), lock.c_str());
  return fleet;
}

}  // namespace kiln::cli
