// SPDX-License-Identifier: Apache-2.0
//
// Export: the embedded registry as static files at the URLs of the OCI pull API, so that a plain
// web server serves it to docker-style clients and to Kiln. After publish. A second export into the
// same folder updates it: blobs come first, then manifests by digest, then tags, then the tag list,
// each by an atomic rename, so that a client meanwhile sees the old or the new version, whole.
//
//   v2/<name>/blobs/sha256:<hex>
//   v2/<name>/manifests/<tag or sha256:hex>   every manifest and index
//   v2/<name>/indexes/<tag or sha256:hex>     the indexes again: a web server tells their media
//                                             type by the folder in which it finds them
//   v2/<name>/tags/list                       JSON
//   metadata/<N.root.json, timestamp.json, …>  of a signed registry: for any client of The Update
//   targets/<name>/<sha256>.<version>          Framework; v2/kiln.tuf has them for Kiln
//   nginx.conf                                a server block for this tree
//
// The tree only gains files: a client that read a timestamp or a tag before an export still finds
// what it names. An export into a new folder has the newest state alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "registry/folder/submission.hpp"

namespace kiln::registry {

struct ExportRequest {
  std::filesystem::path registry;
  std::filesystem::path out;
  std::string prefix;  ///< in front of every name: "kernels" gives kernels/<package>; may be empty
};

struct Exported {
  std::string name;  ///< with the prefix
  std::vector<std::string> tags;
  std::size_t files_written = 0;  ///< 0: the tree had everything
};

/// Verifies every blob before it is offered (kIntegrity). Files are hard links where the file
/// system allows, else copies. Its metadata names no version that the folder has and the tree has
/// not (kIntegrity). A tree whose metadata has what the folder's lacks stays as it is (kConflict).
std::vector<Exported> export_static(const ExportRequest& request, const Progress& progress);

}  // namespace kiln::registry
