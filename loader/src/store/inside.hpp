// SPDX-License-Identifier: Apache-2.0
//
// Inside: the folder of a cache and what is below it. Whose it is, whether it is Kiln's, and how
// what is in it is opened and made. Below cache. Three rules:
//
//   Trust   Each folder is checked as it is opened, on its descriptor: a check of a path says
//           nothing of what the next open finds.
//   Mark    Kiln writes to a folder, and removes from it, if it bears Kiln's mark, CACHEDIR.TAG. A
//           new or empty one gets the mark first of all.
//   Rights  What is made in a folder that its group may write to has that group and that right,
//           under any umask.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file_lock.hpp"
#include "base/posix.hpp"

namespace kiln {

/// Throws kCache if another user could exchange or change the folder: he owns it, a folder above it
/// or a link on the way, or everyone may write there; unless the user vouches for the folder
/// (settings/owners.hpp). A folder that is not there yet is fine.
void check_root(const std::filesystem::path& root);

/// Makes the folder if it is not there, and marks it. kCache for one that has other things in it
/// and no mark.
void make_root(const std::filesystem::path& root);

/// Whether the folder is a cache. False for one that is not there, or that make_root() would mark;
/// kCache for a folder of something else.
bool is_marked(const std::filesystem::path& root);

/// Opens `<root>/<relative>` for reading. Below `root`, which may be reached through links, each
/// step must be what Kiln makes: a folder of this user, of root or of the group that shares the
/// cache, to which not everyone may write; at the end a regular file. An invalid descriptor if a
/// step does not exist; kIntegrity for a link or another kind of file in its place; kCache for
/// somebody else's folder, or if it cannot be read.
FileDescriptor open_inside(const std::filesystem::path& root,
                           const std::filesystem::path& relative);

/// The same where `relative` is a folder.
FileDescriptor open_folder_inside(const std::filesystem::path& root,
                                  const std::filesystem::path& relative);

/// A document, whole. Nothing if it is not there; kIntegrity, too, for one of more than
/// kMaxDocumentBytes: however long a file claims to be, no more of it is read.
std::optional<std::string> read_inside(const std::filesystem::path& root,
                                       const std::filesystem::path& relative);

/// The names in `<root>/<relative>`, sorted; none if there is no such folder.
std::vector<std::string> list_inside(const std::filesystem::path& root,
                                     const std::filesystem::path& relative);

/// Opens the folder, and makes those on the way that are missing. A link is refused.
FileDescriptor make_folder_inside(const std::filesystem::path& root,
                                  const std::filesystem::path& relative);

/// Removes what stands there with all that is below it. kCache where it cannot be removed.
void remove_whole(const std::filesystem::path& path);

/// Gives what was made just now the rights that the folder it is in has.
void share_made(int made, int parent, const std::filesystem::path& path);

/// Opens a file that exists to be locked in this mode, and makes it if it is not there. An invalid
/// descriptor, with errno set, if this user may not.
FileDescriptor open_lock_file(const std::filesystem::path& path, LockMode mode);

}  // namespace kiln
