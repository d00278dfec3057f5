// SPDX-License-Identifier: Apache-2.0
//
// Archive: libarchive's objects, and what says that it had no memory for something. It goes on, or
// crashes, where some of its own allocations fail, and has the same status for that as for an
// archive that is broken; the two must not be told for each other. Part of oci.
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <cerrno>
#include <memory>
#include <new>
#include <string_view>

namespace kiln {

struct ArchiveFree {
  void operator()(archive* handle) const { archive_free(handle); }
  void operator()(archive_entry* entry) const { archive_entry_free(entry); }
};
using Archive = std::unique_ptr<archive, ArchiveFree>;
using ArchiveEntry = std::unique_ptr<archive_entry, ArchiveFree>;

/// archive_read_new() and its like, but throws bad_alloc.
inline Archive checked(archive* made) {
  if (made == nullptr) throw std::bad_alloc();
  return Archive(made);
}

/// For archive_read_next_header2(): a reader's own entry may be null.
inline ArchiveEntry new_entry() {
  ArchiveEntry entry(archive_entry_new());
  if (!entry) throw std::bad_alloc();
  return entry;
}

/// Of a call that sets a reader up, which fails for want of memory alone.
inline void check_set_up(int status) {
  if (status == ARCHIVE_FATAL) throw std::bad_alloc();
}

/// Throws bad_alloc where a call that failed had no memory. zstd's words have no error number, and
/// now and then there is no word at all, but errno, which was 0 before the call.
inline void check_memory(archive* handle) {
  constexpr std::string_view kNoMemory = "Zstd decompression failed: Allocation error";
  const char* const text = archive_error_string(handle);
  const bool none = archive_errno(handle) == ENOMEM || (text == nullptr && errno == ENOMEM) ||
                    (text != nullptr && std::string_view(text).starts_with(kNoMemory));
  if (none) throw std::bad_alloc();
}

}  // namespace kiln
