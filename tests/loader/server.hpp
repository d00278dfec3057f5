// SPDX-License-Identifier: Apache-2.0
//
// Server: a small HTTP/1.1 server on the loopback interface that serves a Published folder under
// the URLs of an OCI registry, counts what it is asked, and misbehaves where a test says so.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace kiln::test {

/// A name of which no name server answers, for as long as this; and one of which they say, at once
/// and wherever a test runs, that there is no such host.
constexpr std::string_view kSilentName = "silent.test";
constexpr std::chrono::seconds kSilence{10};
constexpr std::string_view kUnknownName = "registry.invalid";

/// What was asked. Where only the path counts, it is the path.
struct Asked {
  std::string path;
  std::string range;  ///< "bytes=5-", or empty
  std::string accept;
  operator const std::string&() const { return path; }
};

struct Answer {
  int status = 200;
  std::string body;
  std::vector<std::string> headers;           ///< "Location: …", beyond Content-Length
  std::optional<std::size_t> content_length;  ///< as the header says it; the body's if not set
  bool hang_up = false;                       ///< close without a word
  /// After the body: nothing more, and no end, until this says true.
  std::function<bool()> stall = {};
};

class Server {
 public:
  /// Answers a path ("/v2/sample/manifests/1") or gives it on to the folder, which knows ranges.
  using Override = std::function<std::optional<Answer>(const Asked& asked)>;

  explicit Server(std::filesystem::path root, Override override_with = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string url(const std::string& prefix = "") const;
  int port() const { return port_; }
  /// The paths asked for so far, in order; and the Accept header of each.
  std::vector<std::string> asked() const;
  int count(const std::string& part) const;  ///< of paths that contain it
  std::vector<std::string> accepts() const;
  std::vector<std::string> ranges() const;  ///< of the requests that had one

 private:
  void serve();
  void answer(int connection);
  Answer from_folder(const std::string& path) const;

  std::filesystem::path root_;
  Override override_;
  int listener_ = -1;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::vector<Asked> asked_;
  std::vector<std::thread> connections_;
  std::thread thread_;
};

}  // namespace kiln::test
