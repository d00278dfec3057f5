// SPDX-License-Identifier: Apache-2.0
//
// Draft: files that are whole or absent, wherever a user wants them: a registry's folder, a tree to
// be served. A file is written under a name of its own, synced and renamed, and then its folder is
// synced, so that `kill -9` or a power cut leaves the old file or the new one. Errors are
// kNotFound for what is not there, kCache for what the disk refuses. No globals; any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.hpp"
#include "base/file_lock.hpp"
#include "base/posix.hpp"

namespace kiln {

/// "<what errno means>. <next step>", of a file that is not the cache's.
std::string told_of_file(int error);
/// "<operation> <path>: <told_of_file>": kNotFound of what is missing, else kCache.
[[noreturn]] void fail_file(std::string_view operation, const std::filesystem::path& path,
                            int error);

/// Of a path that is not a folder: kNotFound with `next_step` where nothing is, else kUsage with
/// what it is.
[[noreturn]] void fail_no_folder(std::string_view operation, const std::filesystem::path& path,
                                 std::string_view next_step);

/// kNotFound where the current folder, of a relative path, was removed; kUsage for an empty one.
std::filesystem::path absolute_path(const std::filesystem::path& path);

/// The file behind symbolic links, absolute. A link to what does not exist is followed, too. What a
/// user keeps elsewhere, and links to, is replaced there: the link stays.
std::filesystem::path followed(const std::filesystem::path& file);
/// The same of a file to be replaced: kUsage for what only the kernel has behind a link.
std::filesystem::path followed_to_write(const std::filesystem::path& file);

/// Calls `sink` with the file's bytes, piece by piece. kUsage for what open_named_file refuses.
void stream_file(const std::filesystem::path& path, const Sink& sink);

/// The whole of a document; kIntegrity if it has more than `limit` bytes.
std::string read_document(const std::filesystem::path& path, std::uint64_t limit);

/// Makes a folder and those above it (0755), syncs what was changed. kUsage where a file stands.
void make_folders(const std::filesystem::path& folder);

Digest digest_of_file(const std::filesystem::path& path);

/// Throws kUsage unless `to` is a file, a link or nothing: a draft renamed over a device, a pipe or
/// a folder would take its place, or fail once all is written.
void check_replaceable(const std::filesystem::path& to);

/// The file `to` under way: created exclusively in `folder`, which is on the same file system,
/// removed again unless it is published. Errors name `to`: the draft is gone when somebody reads
/// them. The umask narrows `mode`: 0666 for a file that is the user's to edit. Locked, so that
/// sweep_drafts() knows it from one that a killed process left.
class Draft {
 public:
  Draft(const std::filesystem::path& folder, std::string_view name, std::filesystem::path to,
        mode_t mode = 0600);
  ~Draft();
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  void write(std::string_view bytes);
  /// For a library that writes by itself: the file, and its name for messages.
  int fd() const { return file_.get(); }
  const std::filesystem::path& to() const { return to_; }
  /// Syncs, renames to `to` (check_replaceable) and syncs its folder.
  void publish();
  void publish(mode_t mode);  ///< with another mode

 private:
  std::filesystem::path path_;
  std::filesystem::path to_;
  FileDescriptor file_;
  bool published_ = false;
};

/// Removes the drafts of this name in `folder` that killed processes left. What cannot be removed
/// stays.
void sweep_drafts(const std::filesystem::path& folder, std::string_view name);
/// The same of every hidden name, in `folder` and all below it, which are Kiln's to write.
void sweep_drafts_below(const std::filesystem::path& folder);

/// All of a file in one call: a draft in `folder`, published as `to`.
void publish_bytes(const std::filesystem::path& folder, const std::filesystem::path& to,
                   std::string_view bytes, mode_t mode);

/// The same for a file of the user's, wherever it is: that which followed() gives is replaced, and
/// what killed writers of it left is removed.
void replace_file(const std::filesystem::path& file, std::string_view bytes, mode_t mode);

/// For a change to files of the user's, from the read to the write: locks the folders that they are
/// in, each once and in one order, because the files themselves are replaced; of a link that of the
/// file which followed() gives. Holds nothing where the file system locks no folders.
std::vector<FileLock> lock_folders_of(const std::vector<std::filesystem::path>& files,
                                      const Waiting& waiting);

/// Links `from` to `to`, in the place of what is there; false where the disk links no such files.
bool link_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace kiln
