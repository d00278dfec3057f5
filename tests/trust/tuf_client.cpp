// SPDX-License-Identifier: Apache-2.0
//
// kiln-tuf: the loader's client of The Update Framework behind the command line of TUF's
// conformance suite, for repositories of static files: 0, or 1 for whatever is refused, with one
// line on stderr.
//
//   kiln-tuf --metadata-dir DIR init ROOT
//   kiln-tuf --metadata-dir DIR --metadata-url URL refresh
//   kiln-tuf --metadata-dir DIR --metadata-url URL
//            --target-name NAME... --target-base-url URL --target-dir DIR download
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "base/draft.hpp"
#include "base/quote.hpp"
#include "http/retry.hpp"
#include "http/transfer.hpp"
#include "kiln/error.hpp"
#include "trust/updater.hpp"

namespace kiln::trust {
namespace {

/// Static files of a web server.
class WebSource final : public MetadataSource {
 public:
  WebSource(std::string url, const Patience& patience);

  /// Statuses 403 and 404 mean that there is no such file.
  std::optional<std::string> fetch(const std::string& file, std::size_t most) const override;

 private:
  std::string url_;  ///< with a slash at its end
  Patience patience_;
  mutable Transfer transfer_;
};

WebSource::WebSource(std::string url, const Patience& patience)
    : url_(std::move(url)), patience_(patience), transfer_(patience.limits, patience.stop) {
  if (!url_.ends_with('/')) url_ += '/';
}

std::optional<std::string> WebSource::fetch(const std::string& file, std::size_t most) const {
  const std::string url = url_ + file;
  std::string bytes;
  bool found = false;
  const auto once = [&](Tries::Clock::time_point until) {
    bytes.clear();
    transfer_.finish_by(until);
    const HttpAnswer answer = transfer_.ask({url}, [&](std::string_view piece) {
      bytes += piece;
      if (bytes.size() <= most) return;
      throw Error(ErrorCode::kTrust, "get " + url + ": more than " + std::to_string(most) +
                                         " bytes; nothing of it is used. Tell its publisher");
    });
    found = answer.status == 200;
    if (found || answer.status == 403 || answer.status == 404) return;
    throw TryAgain("get " + url + ": status " + std::to_string(answer.status),
                   "Check the URL, or try again later");
  };
  persist(
      patience_, file, std::chrono::seconds(0), [] { return false; }, once);
  return found ? std::optional(std::move(bytes)) : std::nullopt;
}

}  // namespace
}  // namespace kiln::trust

namespace {

namespace fs = std::filesystem;
using kiln::Error;
using kiln::ErrorCode;
using kiln::trust::kMaxRootBytes;
using kiln::trust::MetadataFolder;
using kiln::trust::SignedTarget;
using kiln::trust::Target;
using kiln::trust::Updater;
using kiln::trust::WebSource;

constexpr std::size_t kMaxTargetBytes = std::size_t{1} << 30;

struct Options {
  fs::path metadata;
  std::string metadata_url;
  fs::path root;
  std::vector<std::string> names;
  std::string targets_url;
  fs::path targets;
};

Updater updater_of(const Options& options, const std::string& root) {
  const fs::path folder = kiln::absolute_path(options.metadata);
  const std::string origin = options.metadata_url.empty() ? folder.string() : options.metadata_url;
  return {root, MetadataFolder(folder, {}), origin, {std::time(nullptr)}};
}

void init(const Options& options) {
  const std::string root = kiln::read_document(options.root, kMaxRootBytes);
  updater_of(options, root);  // throws for a root that is none
  kiln::make_folders(kiln::absolute_path(options.metadata));
  kiln::replace_file(options.metadata / "root.json", root, 0644);
}

Updater refresh(const Options& options, const WebSource& source) {
  const std::string root = kiln::read_document(options.metadata / "root.json", kMaxRootBytes);
  Updater updater = updater_of(options, root);
  updater.refresh(source);
  return updater;
}

/// "a/b" of a repository with consistent snapshots is the file "a/<hash>.b".
std::string place_of(const Target& target, const std::string& name, bool consistent) {
  if (!consistent) return name;
  const auto& hashes = target.promise.hashes;
  const auto sha256 = hashes.find("sha256");
  const std::string& hash = sha256 == hashes.end() ? hashes.begin()->second : sha256->second;
  const std::size_t slash = name.rfind('/') + 1;  // 0 where there is none
  return name.substr(0, slash) + hash + "." + name.substr(slash);
}

void download(const Options& options, const std::string& name, const WebSource& source,
              Updater& updater) {
  const std::optional<SignedTarget> word = updater.find(name, source);
  if (!word) {
    throw Error(ErrorCode::kNotFound, "download " + kiln::quote(name) + ": no role of " +
                                          options.metadata_url + " speaks of it. Check its name");
  }
  const Target& target = word->target;
  const std::string place = place_of(target, name, updater.root().consistent_snapshot);
  const std::size_t most = std::min<std::uint64_t>(target.length, kMaxTargetBytes);
  const std::optional<std::string> bytes = WebSource(options.targets_url, {}).fetch(place, most);
  if (!bytes) {
    throw Error(ErrorCode::kNotFound, "download " + kiln::quote(name) + ": there is no " + place +
                                          " at " + options.targets_url);
  }
  target.promise.check(*bytes, name);
  kiln::replace_file(options.targets / kiln::trust::file_name(name), *bytes, 0644);
}

/// All of them by one state of the metadata.
void download(const Options& options) {
  const WebSource source(options.metadata_url, {});
  Updater updater = refresh(options, source);
  for (const std::string& name : options.names) download(options, name, source, updater);
}

int run(int argc, char** argv) {
  CLI::App app("A client of The Update Framework", "kiln-tuf");
  Options options;
  app.add_option("--metadata-dir", options.metadata, "Folder of what is trusted")->required();
  app.add_option("--metadata-url", options.metadata_url, "Where the metadata is");
  app.add_option("--target-name", options.names, "What to download (repeatable)")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--target-base-url", options.targets_url, "Where the targets are");
  app.add_option("--target-dir", options.targets, "Folder that gets the target");
  app.require_subcommand(1);
  CLI::App* const beginning = app.add_subcommand("init", "Trust this root");
  beginning->add_option("root", options.root, "Root metadata")->required();
  CLI::App* const refreshing = app.add_subcommand("refresh", "Bring the metadata up to date");
  app.add_subcommand("download", "Bring it up to date, then download a target");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  if (beginning->parsed()) {
    init(options);
  } else if (refreshing->parsed()) {
    refresh(options, WebSource(options.metadata_url, {}));
  } else {
    download(options);
  }
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "kiln-tuf: " << kiln::printable_lines(error.what()) << '\n';
    return EXIT_FAILURE;
  }
}
