// SPDX-License-Identifier: Apache-2.0
//
// Upload: the push side of the OCI distribution API, for one repository of a server. Under push.
// Each call tries again as the settings' limits say; an upload that was cut is begun anew. Nothing
// is ever whole in memory but documents. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/connection.hpp"
#include "store/content.hpp"
#include "store/registry.hpp"

namespace kiln::registry {

HttpBody body_of(std::string_view bytes);  ///< which outlive it
/// Read from the disk as it is sent; kIntegrity if the file has fewer than `size` bytes by then.
HttpBody body_of_file(const std::filesystem::path& path, std::uint64_t size);

class Upload {
 public:
  /// `registry` is a canonical URL. It is asked itself, never a mirror of it.
  Upload(const std::string& registry, std::string_view name, const Settings& settings,
         const Patience& patience, Traffic& traffic);

  /// What is there, as a client sees it.
  const Repository& repository() const { return *repository_; }

  /// "https://host/prefix/name:tag", for messages.
  std::string place(const std::string& tag) const { return place_ + ":" + tag; }

  /// The document that a tag names; nothing where there is no such tag, or no such repository.
  std::optional<std::string> tagged(const std::string& tag);

  /// Whether the server says that it has a blob or a document of this digest and size.
  bool has(const Descriptor& descriptor, const std::string& what);

  /// The bytes as the server gives them, hashed: kIntegrity unless they are the promised ones, and
  /// for what is not there. Larger blobs are not kept.
  void verify(const Descriptor& descriptor, const std::string& what);
  std::string read(const Descriptor& descriptor, const std::string& what);

  void put_blob(const Descriptor& descriptor, const HttpBody& body, const std::string& what);
  /// `reference`: a tag, or the document's digest.
  void put_document(const std::string& reference, std::string_view media_type,
                    const std::string& bytes, const std::string& what);

  /// What hangs on a document, as the server lists it; nothing where it does not know the request,
  /// so that the list is a tag, which its clients keep.
  std::optional<ReferrerList> referrers(const Digest& subject) {
    return list_referrers(*connection_, patience_, subject);
  }

  /// Has a tag that names `before` (nothing: that is not there) name `after`. The tag is read right
  /// before it is written, and again afterwards: kConflict if it names something else by then, and
  /// kIntegrity if it does not name `after` in the end.
  void move_tag(const std::string& tag, std::string_view media_type,
                const std::optional<std::string>& before, const std::string& after);

 private:
  using Until = Tries::Clock::time_point;
  bool has_once(const Descriptor& descriptor, const std::string& what);
  bool has_last_byte(const Descriptor& descriptor, const std::string& what);
  void put_blob_once(const Descriptor& descriptor, const HttpBody& body, const std::string& what);
  void put_document_once(const std::string& reference, std::string_view media_type,
                         const std::string& bytes, const std::string& what);
  void persist_in(const std::string& what, std::uint64_t bytes,
                  const std::function<void(Until)>& once);

  std::string place_;
  std::vector<std::string> insecure_http_;
  Patience patience_;
  std::shared_ptr<Connection> connection_;
  std::unique_ptr<Repository> repository_;
};

}  // namespace kiln::registry
