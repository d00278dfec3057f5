// SPDX-License-Identifier: Apache-2.0
#include "settings/owners.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/draft.hpp"
#include "base/join.hpp"
#include "base/quote.hpp"
#include "base/shell_word.hpp"
#include "kiln/error.hpp"
#include "settings/environment.hpp"

namespace kiln {
namespace {

namespace fs = std::filesystem;

bool is_within(const fs::path& path, const fs::path& folder) {
  const auto [left, end] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return left == folder.end();
}

/// Whoever owns a folder may rename what is in it, and so may everyone where everyone may write,
/// unless the sticky bit keeps each to his own.
std::optional<Doubt> doubt_about(const fs::path& folder, const fs::path& path,
                                 const std::string& variable) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return {};  // to open what is below it will say why
  if (!S_ISDIR(status.st_mode)) return {};              // it will say that, too
  const std::string above = "its path leads through " + folder.string() + ", ";
  const std::string vouch =
      ". Where all who may write there are trusted, as in a container of "
      "your own, set KILN_SAFE_FOLDERS=" +
      shell_word(folder.string());
  if (!is_own(status.st_uid)) {
    return Doubt{path,
                 above + "which belongs to user " + std::to_string(status.st_uid) +
                     ", who could put another folder in its place",
                 "Set " + variable + " to a place below a folder of your own" + vouch};
  }
  if ((status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0) {
    return Doubt{path, above + "where everyone may put another folder in its place",
                 "Run 'chmod o-w " + shell_word(folder.string()) + "' or 'chmod +t " +
                     shell_word(folder.string()) + "', or set " + variable +
                     " to a place below a folder of your own" + vouch};
  }
  return {};
}

/// Whoever may write to the folder of a file may remove it, and with it what it forbids. A user's
/// own private group has nobody else in it: adduser and useradd give it the user's number, and a
/// umask of 002 is usual there. Of the folders above a group is not asked: who may write to those
/// decides what runs by other files, such as .profile.
std::optional<Doubt> doubt_about_group(const fs::path& path, const fs::path& file) {
  const fs::path folder = file.parent_path();
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return {};
  const bool may_remove = (status.st_mode & S_IWGRP) != 0 && (status.st_mode & S_ISVTX) == 0;
  const gid_t group = status.st_gid;
  if (!may_remove || group == 0 || group == status.st_uid || group == ::geteuid()) return {};
  return Doubt{path,
               "group " + std::to_string(group) + " may remove it from " + folder.string() +
                   ", or put another in its place",
               "Run 'chmod g-w " + shell_word(folder.string()) +
                   "'. Where all of that group are trusted, set KILN_SAFE_FOLDERS=" +
                   shell_word(folder.string())};
}

/// Of a file itself: it is one's own, and not everyone may write to it.
std::optional<Doubt> doubt_about_bytes(const fs::path& path, const struct stat& status) {
  if (!is_own(status.st_uid)) {
    return Doubt{
        path,
        "it belongs to user " + std::to_string(status.st_uid) + ", expected this user or root",
        "Make one of your own"};
  }
  if ((status.st_mode & S_IWOTH) != 0) {
    return Doubt{path, "everyone may write to it",
                 "Look at what it says, then run 'chmod o-w " + shell_word(path.string()) + "'"};
  }
  return {};
}

}  // namespace

bool is_own(uid_t owner) {
  return owner == ::geteuid() || owner == 0;
}

bool is_vouched_for(const fs::path& path) {
  const std::string_view list = environment().text("KILN_SAFE_FOLDERS");
  for (const std::string_view word : split(list, ':')) {
    const fs::path folder = fs::path(word).lexically_normal();
    if (!folder.is_absolute()) {
      throw Error(ErrorCode::kUsage, "read KILN_SAFE_FOLDERS: found " + quote(word) +
                                         ", expected absolute folders with ':' between them");
    }
    const bool trailing = !folder.has_filename() && folder.has_relative_path();
    if (is_within(path.lexically_normal(), trailing ? folder.parent_path() : folder)) return true;
  }
  return false;
}

std::optional<Doubt> doubt_about_way(const fs::path& named, const std::string& variable) {
  std::error_code unknown;
  const fs::path path = fs::absolute(named, unknown);
  if (unknown || is_vouched_for(path)) return {};  // no current folder: to open it will say so
  constexpr int kMostLinks = 40;                   // as many as Linux follows
  std::vector<fs::path> rest(path.begin(), path.end());
  std::reverse(rest.begin(), rest.end());
  fs::path at = "/";
  for (int links = 0; !rest.empty();) {
    const fs::path part = rest.back();
    rest.pop_back();
    if (part.empty() || part == "/" || part == ".") continue;
    if (part == "..") {
      at = at.parent_path();
      continue;
    }
    if (std::optional<Doubt> doubt = doubt_about(at, path, variable)) return doubt;
    struct stat entry {};
    const fs::path next = at / part;
    if (::lstat(next.c_str(), &entry) != 0) return {};  // not there yet, or not to be seen
    if (!S_ISLNK(entry.st_mode)) {
      at = next;
      continue;
    }
    if (!is_own(entry.st_uid)) {
      return Doubt{next,
                   "it is a symbolic link of user " + std::to_string(entry.st_uid) +
                       ", who could turn it elsewhere",
                   "Set " + variable + " to the place that it names, or to one of your own"};
    }
    if (++links > kMostLinks) return {};
    std::error_code error;
    const fs::path target = fs::read_symlink(next, error);
    if (target.is_absolute()) at = "/";
    const auto middle = rest.insert(rest.end(), target.begin(), target.end());
    std::reverse(middle, rest.end());
  }
  return {};
}

std::optional<Doubt> doubt_about_place(const fs::path& named, const std::string& variable) {
  if (std::optional<Doubt> doubt = doubt_about_way(named, variable)) return doubt;
  std::error_code unknown;
  const fs::path path = fs::absolute(named, unknown);
  if (unknown) return {};
  for (const fs::path& file : {path, followed(path)}) {
    if (is_vouched_for(file)) continue;
    if (std::optional<Doubt> doubt = doubt_about_group(path, file)) return doubt;
  }
  return {};
}

std::optional<Doubt> doubt_about_file(const fs::path& path, const std::string& variable) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  // First the way: whoever cannot change that cannot exchange the file that is looked at next.
  if (std::optional<Doubt> doubt = doubt_about_place(path, variable)) return doubt;
  std::error_code unknown;
  if (is_vouched_for(fs::absolute(path, unknown))) return {};
  if (std::optional<Doubt> doubt = doubt_about_bytes(path, status)) return doubt;
  if ((status.st_mode & S_IWGRP) != 0) {
    return Doubt{path, "its group may write to it",
                 "'chmod g-w " + shell_word(path.string()) + "' makes it yours alone"};
  }
  return {};
}

std::optional<Doubt> doubt_about_project_file(const fs::path& named) {
  std::error_code unknown;
  const fs::path path = fs::absolute(named, unknown);
  struct stat folder {};
  struct stat entry {};
  struct stat file {};
  if (unknown || ::stat(path.parent_path().c_str(), &folder) != 0 ||
      ::lstat(path.c_str(), &entry) != 0 || ::stat(path.c_str(), &file) != 0 ||
      is_vouched_for(path)) {
    return {};
  }
  const std::string vouch = ". Where all who may write there are trusted, set KILN_SAFE_FOLDERS=" +
                            shell_word(path.parent_path().string());
  const bool is_shared = (folder.st_mode & S_IWOTH) != 0;
  if (is_shared && (folder.st_mode & S_ISVTX) == 0) {
    return Doubt{named, "everyone may put another file in its place",
                 "Run 'chmod o-w " + shell_word(path.parent_path().string()) + "'" + vouch};
  }
  for (const struct stat& each : {entry, file}) {
    if (is_own(each.st_uid) || (!is_shared && each.st_uid == folder.st_uid)) continue;
    return Doubt{named,
                 "it belongs to user " + std::to_string(each.st_uid) +
                     ", expected this user, root or who has the folder",
                 "Make one of your own" + vouch};
  }
  if ((file.st_mode & S_IWOTH) == 0) return {};
  return Doubt{named, "everyone may write to it",
               "Look at what it says, then run 'chmod o-w " + shell_word(path.string()) + "'"};
}

std::optional<Doubt> doubt_about_logins(const fs::path& path) {
  struct stat status {};
  std::error_code unknown;
  if (::stat(path.c_str(), &status) != 0 || is_vouched_for(fs::absolute(path, unknown))) return {};
  return doubt_about_bytes(path, status);
}

}  // namespace kiln
