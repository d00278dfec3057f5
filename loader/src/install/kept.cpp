// SPDX-License-Identifier: Apache-2.0
#include "install/kept.hpp"

#include "base/digest.hpp"
#include "base/draft.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "settings/owners.hpp"
#include "settings/trust_file.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxKeptBytes = std::size_t{1} << 20;
constexpr std::size_t kPlaceDigits = 16;

std::string next_step(const Kept& kept) {
  return "Remove it, and run '" + std::string(kept.command) + "' again";
}

}  // namespace

void fail_kept(const Kept& kept, const std::string& found) {
  throw Error(ErrorCode::kIntegrity,
              "read " + std::string(kept.what) + " " + found + ". " + next_step(kept));
}

fs::path folder_of(const Kept& kept) {
  const fs::path trust = trust_path();
  return trust.empty() ? trust : trust.parent_path() / kept.folder;
}

std::string place_word(std::string_view hardware) {
  return Digest::of(hardware).hex().substr(0, kPlaceDigits);
}

fs::path place_of(const Kept& kept, const std::string& name) {
  const std::string subject = "keep the " + std::string(kept.what);
  const fs::path folder = folder_of(kept);
  if (folder.empty()) {
    throw Error(ErrorCode::kUsage,
                subject +
                    ": the environment names no folder for settings. Set KILN_CONFIG, "
                    "XDG_CONFIG_HOME or HOME");
  }
  fs::path file = folder / name;
  if (const std::optional<Doubt> doubt = doubt_about_place(file, "KILN_CONFIG")) {
    throw Error(ErrorCode::kUsage, subject + " in " + doubt->at.string() + ": " + doubt->why +
                                       ". " + doubt->next_step);
  }
  make_folders(absolute_path(folder));
  return file;
}

void check_writable(const Kept& kept, const std::string& name) {
  const fs::path file = followed_to_write(place_of(kept, name));
  const Draft draft(file.parent_path(), "." + file.filename().string(), file);
}

fs::path keep(const Kept& kept, const std::string& name, Json document) {
  fs::path file = place_of(kept, name);
  document["checksum"] = Digest::of(dump_json(document)).str();
  const std::string text = document.dump(2) + "\n";
  if (text.size() > kMaxKeptBytes) {
    throw Error(ErrorCode::kUsage, "keep the " + std::string(kept.what) + " " + file.string() +
                                       ": it would have " + std::to_string(text.size()) +
                                       " bytes, at most " + std::to_string(kMaxKeptBytes) +
                                       " are read. What was there before stays; remove it to "
                                       "begin anew");
  }
  replace_file(file, text, 0644);
  return file;
}

std::optional<Json> read_kept(const Kept& kept, const fs::path& file) {
  const auto text = read_owned(file, kMaxKeptBytes, {kept.what, next_step(kept)});
  if (!text) return std::nullopt;
  try {
    Json document = parse_json(*text, file.string());
    const JsonView view(document, file.string());
    const std::string checksum = view.at("checksum").string();
    document.erase("checksum");
    if (Digest::of(dump_json(document)).str() != checksum) {
      view.fail("it is not as '" + std::string(kept.command) + "' wrote it");
    }
    return document;
  } catch (const Error& error) {
    fail_kept(kept, error.what());
  }
}

}  // namespace kiln
