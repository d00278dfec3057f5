// SPDX-License-Identifier: Apache-2.0
//
// Owners: whether somebody else could decide what stands at a path. Of what decides what is loaded
// (the cache, the settings, the trust file) this user or root owns each folder and each link on the
// way, and not everyone may write there. Root is nobody's other user.
//
// Where that cannot be so, as in a container whose HOME is another user's, or on a volume that
// everyone may write to, the user says once that all who may write there are trusted:
// $KILN_SAFE_FOLDERS, "/cache:/github/home". What lies in such a folder is taken as it is. Safe
// from several threads.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

namespace kiln {

/// This user's or root's.
bool is_own(uid_t owner);

/// Whether the path is one of $KILN_SAFE_FOLDERS, or in one. Each has to be absolute: kUsage.
bool is_vouched_for(const std::filesystem::path& path);

/// What makes a path somebody else's.
struct Doubt {
  std::filesystem::path at;  ///< the folder or link
  std::string why;
  std::string next_step;
};

/// Nothing where only this user and root decide what stands at the path, or the user vouches for
/// it. What is not there yet is fine. `variable` is the one that names the path, for the next step:
/// "KILN_CACHE".
std::optional<Doubt> doubt_about_way(const std::filesystem::path& path,
                                     const std::string& variable);

/// The same of a file that decides, there or not yet, and of who may remove it: no group may write
/// to its folder, nor to that of the file behind a link, but the user's own private group and
/// root's. A cache may be a group's.
std::optional<Doubt> doubt_about_place(const std::filesystem::path& path,
                                       const std::string& variable);

/// The same of a file that decides, and of its bytes: they are this user's or root's, and neither
/// everyone nor a group may write to it. Nothing where there is no such file.
std::optional<Doubt> doubt_about_file(const std::filesystem::path& path,
                                      const std::string& variable);

/// Of a project's file that decides, such as its lock file, wherever the project lies and whoever
/// works on it: it, and the link that leads to it, belong to this user, to root or to whoever has
/// the folder that it is in, and not everyone may write to it or to that folder. So nobody else's
/// counts that was put into /tmp. A group may write: that is how projects are shared.
std::optional<Doubt> doubt_about_project_file(const std::filesystem::path& path);

/// Of a file with logins: it says who one is, and names programs that are asked. Its bytes are
/// this user's or root's, and not everyone may write to it; so whoever has the folder can take it
/// away and put none of his in its place.
std::optional<Doubt> doubt_about_logins(const std::filesystem::path& path);

}  // namespace kiln
