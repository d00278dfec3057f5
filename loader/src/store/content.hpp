// SPDX-License-Identifier: Apache-2.0
//
// Content: blobs by descriptor, wherever they are. One interface and five implementations: the
// cache, a registry folder, a bundle, a remote registry, and a registry with mirrors.
// store/copy.hpp moves a blob from one to another; everything that fetches goes through it.
//
//   Content     exists, open        reads; nothing it gives is trusted until it is verified
//   Storage     + write             the cache
//   Repository  + index, manifest,  one package as a registry, or what stands in for it, has it
//                 versions
//
// One object is used by one thread at a time, but for Cache.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "documents/descriptor.hpp"
#include "oci/referrers.hpp"
#include "verify/verify.hpp"

namespace kiln {

/// A document and the descriptor that its bytes have.
struct Document {
  Descriptor descriptor;
  std::string bytes;
};

/// Where the bytes of a blob go, and who verifies them.
class BlobSink {
 public:
  virtual ~BlobSink() = default;
  virtual std::uint64_t size() const = 0;  ///< bytes that it has: a source may go on from there
  virtual void write(std::string_view bytes) = 0;  ///< the next ones; throws to stop the transfer
  virtual void restart() = 0;                      ///< drops them: the source begins anew
  /// Throws kIntegrity unless it has exactly the promised bytes. May be called again.
  virtual void finish() = 0;
};

/// What a source is asked for, besides the descriptor.
struct Asking {
  std::string_view what;  ///< for messages: "layer of geglu-mlp@1 cpu-x86-64-v3"
  std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max();
};

class Content {
 public:
  virtual ~Content() = default;

  /// Whether the blob seems to be there. Looks and does not hash; a server is taken at its word, so
  /// it is not asked.
  virtual bool exists(const Descriptor& descriptor) const = 0;

  /// Writes a blob into the sink, from where the sink ends or from the start, in one go. Throws
  /// TryAgain (http/retry.hpp) where asking again may help, else kNotFound, kNetwork, kIntegrity,
  /// kCache, kCancelled. Its caller verifies: finish() of the sink.
  virtual void open(const Descriptor& descriptor, BlobSink& sink, const Asking& asking) const = 0;

  /// Where a blob comes from, for messages: a file or a URL.
  virtual std::string origin(const Descriptor& descriptor) const = 0;

  /// What a user can do about bytes from here that are wrong.
  virtual std::string advice() const = 0;
};

class Storage : public Content {
 public:
  /// Stores a blob, verified on its way, whole or not at all; does nothing if it is there. `fill`
  /// gets the sink, which may have the first bytes of a download that was cut short.
  virtual void write(const Descriptor& descriptor, const Subject& subject,
                     const std::function<void(BlobSink&)>& fill) const = 0;
};

class Repository : public Content {
 public:
  /// The image index that the tag of this version names. kNotFound says what there is instead.
  virtual Document index(int version) const = 0;

  /// The image manifest that another tag names; nothing if there is no such tag or repository.
  virtual std::optional<Document> manifest(const std::string& tag) const = 0;

  /// What hangs on a document, as the registry lists it, unverified. Empty where it lists
  /// nothing.
  virtual ReferrerList referrers(const Descriptor& subject) const = 0;

  /// The published versions, ascending. kNotFound if there is no such package.
  virtual std::vector<int> versions() const = 0;
};

}  // namespace kiln
