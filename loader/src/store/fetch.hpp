// SPDX-License-Identifier: Apache-2.0
//
// Fetch: bytes out of a registry, which is not trusted: documents are size-capped and compared with
// their descriptor before they are returned, a blob is streamed into a sink that verifies it. After
// probe, before cache. One Source is used by one thread at a time.
//
// A registry is named by a string:
//   /path, ./path, file:///path    a folder with one OCI image layout per package
//   /path/to/bundle.tar            a bundle (bundle.hpp): such layouts in one file
//   https://host[:port][/prefix]   an OCI registry, or a static tree of the same URLs
//   http://host[:port][/prefix]    the same; only for a loopback host, or one that is listed in
//                                  $KILN_INSECURE_HTTP (host[:port], comma-separated): without TLS
//                                  nothing vouches for which digest a version's tag names
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "documents/manifest.hpp"
#include "kiln/event.hpp"

namespace kiln {

/// A document and the descriptor that its bytes have.
struct Document {
  Descriptor descriptor;
  std::string bytes;
};

/// Takes the bytes of a document piece by piece; throws to stop the transfer.
using Sink = std::function<void(std::string_view)>;

/// Where the bytes of a blob go, and who verifies them.
class BlobSink {
 public:
  virtual ~BlobSink() = default;
  virtual std::uint64_t size() const = 0;          ///< bytes it has: a source may go on from there
  virtual void write(std::string_view bytes) = 0;  ///< the next ones; throws to stop the transfer
  virtual void restart() = 0;                      ///< forgets them: the source begins anew
  /// Throws kIntegrity unless it has exactly the promised bytes. Each source ends with it, so that
  /// one which went on from old bytes, or asked a mirror, can restart() and fetch them elsewhere.
  /// May be called again.
  virtual void finish() = 0;
};

class Source {
 public:
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  /// The registry in its canonical spelling: an absolute folder, or a URL without a final slash.
  const std::string& registry() const { return registry_; }

  /// The image index that the tag of this version names. kNotFound says what there is instead.
  virtual Document index(std::string_view name, int version) = 0;

  /// A manifest of this package, at most kMaxDocumentBytes, verified.
  virtual std::string manifest(std::string_view name, const Descriptor& descriptor) = 0;

  /// Streams a blob, from where the sink ends or from the start, and has the sink verify it.
  virtual void blob(std::string_view name, const Descriptor& descriptor, BlobSink& sink) = 0;

  /// The published versions of a package, ascending. kNotFound if there is no such package.
  virtual std::vector<int> versions(std::string_view name) = 0;

  /// Where a blob would come from, for messages.
  virtual std::string origin(std::string_view name, const Descriptor& descriptor) const = 0;

  int requests() const { return requests_; }                      ///< HTTP requests, or files read
  std::uint64_t bytes_fetched() const { return bytes_fetched_; }  ///< of bodies

 protected:
  explicit Source(std::string registry) : registry_(std::move(registry)) {}
  void count_request() { ++requests_; }
  void count_bytes(std::uint64_t bytes) { bytes_fetched_ += bytes; }

 private:
  std::string registry_;
  int requests_ = 0;
  std::uint64_t bytes_fetched_ = 0;
};

/// The registry that a request means, in canonical spelling: its own words, else $KILN_REGISTRY,
/// else the default that Kiln was built with. Touches no network and no disk. Throws kUsage for a
/// string that names no registry.
std::string canonical_registry(const std::string& requested);

/// What a source may do on its way to the bytes.
struct SourceOptions {
  Observer on_event = {};     ///< told of each request that is made again, as Stage::kRetry
  std::stop_token stop = {};  ///< ends a wait or a transfer with kCancelled
};

/// `registry` is canonical. A folder that does not exist is kNotFound; a server is not asked yet.
std::unique_ptr<Source> open_source(const std::string& registry, SourceOptions options = {});

/// The tags of an OCI repository that are version numbers, ascending.
std::vector<int> versions_among(const std::vector<std::string>& tags);

/// Throws kNotFound: no `name`@`version` in `registry`, which has these versions of it.
[[noreturn]] void fail_no_version(std::string_view name, int version, const std::string& registry,
                                  const std::vector<int>& published);

}  // namespace kiln
