// SPDX-License-Identifier: Apache-2.0
//
// Serve: a registry folder over HTTP, on this machine alone: its site, and its pull API. For a try;
// export and a web server are for users. Above pages and pull_api; cpp-httplib speaks HTTP.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace kiln::registry {

struct ServeRequest {
  std::filesystem::path registry;
  std::string title = "Kernels";
  int port = 0;  ///< 0: a free one
};

class Server {
 public:
  /// Listens on 127.0.0.1. Makes the site, and makes it anew at the first request after the
  /// registry has changed. Throws what gather_site does, and kUsage for a port that is taken.
  explicit Server(ServeRequest request);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const std::string& url() const;  ///< "http://127.0.0.1:8080"

  /// Answers until the process ends. It only reads: to end it anywhere harms nothing.
  void run();

 private:
  class Site;
  std::unique_ptr<Site> site_;
};

}  // namespace kiln::registry
