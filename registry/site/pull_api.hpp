// SPDX-License-Identifier: Apache-2.0
//
// Pull API: what a registry folder answers to the requests of the OCI distribution specification
// 1.1 that read. Under serve, which carries the answers over HTTP; for many clients and for good
// there is export, with a web server. Reads the folder at each request, so that what is published
// is there at once, and answers with bytes that it has hashed. Safe from several threads.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/digest.hpp"
#include "base/posix.hpp"

namespace kiln::registry {

class Layout;

struct PullRequest {
  std::string method = "GET";            ///< or "HEAD"; another one is answered with 405
  std::string path;                      ///< "/v2/geglu-mlp/manifests/1", decoded
  std::optional<std::string> n = {};     ///< of a list: at most so many names
  std::optional<std::string> last = {};  ///< of a list: those that sort after this one
};

/// The bytes of a blob, as they were when they were hashed.
class HashedFile {
 public:
  /// Nothing where the file has other bytes than `digest` says.
  static std::shared_ptr<const HashedFile> open(FileDescriptor file, const Digest& digest);

  std::uint64_t size() const { return static_cast<std::uint64_t>(status_.st_size); }
  /// At most `most` bytes. Empty where the file was changed since it was hashed.
  std::string read(std::uint64_t at, std::size_t most) const;

  /// Whether a file has not been written to in between.
  static bool same(const struct stat& left, const struct stat& right);

 private:
  friend class PullApi;
  HashedFile(FileDescriptor file, const struct stat& status)
      : file_(std::move(file)), status_(status) {}
  FileDescriptor file_;
  struct stat status_;
};

struct Answer {
  int status = 200;
  std::string type;
  std::string body;                        ///< without a `file`
  std::shared_ptr<const HashedFile> file;  ///< a blob, whose bytes are the answer
  std::string digest;                      ///< Docker-Content-Digest; empty: of neither
  std::string link;                        ///< Link: to the next page of a list
};

class PullApi {
 public:
  explicit PullApi(std::filesystem::path registry) : registry_(std::move(registry)) {}

  /// A refusal has a code of the specification's table. Bytes that are damaged or not the
  /// registry's are not there, by their digest; by a tag, and for a damaged index.json, kIntegrity
  /// is thrown.
  Answer answer(const PullRequest& request);

 private:
  Answer blob(const Layout& layout, const std::string& reference);

  std::filesystem::path registry_;
  std::mutex mutex_;
  std::map<Digest, struct stat> hashed_;  ///< files whose bytes were found to be these
};

}  // namespace kiln::registry
