// SPDX-License-Identifier: Apache-2.0
#include "serve.hpp"

#include <fcntl.h>
#include <httplib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/posix.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "layout.hpp"
#include "pull_api.hpp"
#include "site_pages.hpp"
#include "trust_files.hpp"

namespace kiln::registry {
namespace {

namespace fs = std::filesystem;

/// When each package's index.json, and that of the metadata, was last replaced.
using Stamps = std::map<std::string, fs::file_time_type>;

Stamps stamps_of(const fs::path& registry) {
  Stamps stamps;
  std::vector<std::string> folders = packages_of(registry);
  folders.push_back(trust_layout(registry).folder().filename().string());
  for (const std::string& each : folders) {
    std::error_code error;
    const fs::file_time_type time = fs::last_write_time(registry / each / "index.json", error);
    if (!error) stamps[each] = time;
  }
  return stamps;
}

const char* type_of(std::string_view path) {
  if (path.ends_with(".css")) return "text/css; charset=utf-8";
  if (path.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (path.ends_with(".svg")) return "image/svg+xml";
  return "text/html; charset=utf-8";
}

/// The blob's bytes, as they are asked for; httplib makes ranges of it.
void send_file(const Answer& answer, httplib::Response& response) {
  const auto file = std::make_shared<FileDescriptor>(try_open_file(answer.file, O_RDONLY));
  if (!file->valid()) {
    response.status = 404;
    return;
  }
  response.set_content_provider(
      answer.size, answer.type,
      [file](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
        std::array<char, 1 << 16> piece;
        const ssize_t count = ::pread(file->get(), piece.data(), std::min(length, piece.size()),
                                      static_cast<off_t>(offset));
        return count > 0 && sink.write(piece.data(), static_cast<std::size_t>(count));
      });
}

}  // namespace

class Server::Site {
 public:
  explicit Site(ServeRequest request) : request_(std::move(request)) {
    // Not httplib's own choice, SO_REUSEPORT: a second server would take half of the requests.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    port_ = request_.port == 0 ? server_.bind_to_any_port(kHost) : request_.port;
    if (port_ < 0 || (request_.port != 0 && !server_.bind_to_port(kHost, port_))) {
      throw Error(ErrorCode::kUsage, "serve " + request_.registry.string() + ": port " +
                                         std::to_string(request_.port) +
                                         " of 127.0.0.1 is taken. Name another one with --port");
    }
    url_ = std::string("http://") + kHost + ":" + std::to_string(port_);
    pages_ = make();  // it has the URL in it
    server_.set_payload_max_length(0);
    server_.Get(".*", [this](const httplib::Request& asked, httplib::Response& response) {
      handle(asked, response);
    });
  }

  void run() {
    server_.listen_after_bind();
    ended_ = true;
  }

  /// httplib forgets a stop() that comes before it listens.
  void stop() {
    while (!server_.is_running() && !ended_)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    server_.stop();
  }
  const std::string& url() const { return url_; }

 private:
  static constexpr const char* kHost = "127.0.0.1";

  void handle(const httplib::Request& asked, httplib::Response& response) {
    try {
      response.set_header("X-Content-Type-Options", "nosniff");
      // A page of another site that has its name lead to this machine reads nothing here.
      const std::string host = asked.get_header_value("Host");
      const std::string port = ":" + std::to_string(port_);
      if (host != kHost + port && host != "localhost" + port) {
        response.status = 421;
      } else if (asked.path == "/v2" || asked.path.starts_with("/v2/")) {
        send(answer_pull(request_.registry, asked.path), response);
      } else {
        send_page(asked.path, response);
      }
    } catch (const Error& error) {
      response.status = 500;
      response.set_content(
          dump_json({{"errors", Json::array({{{"code", "UNKNOWN"}, {"message", error.what()}}})}}),
          "application/json");
    }
  }

  static void send(const Answer& answer, httplib::Response& response) {
    if (answer.status != 200) response.status = answer.status;  // else httplib says 200 or 206
    response.set_header("Docker-Distribution-Api-Version", "registry/2.0");
    if (!answer.digest.empty()) response.set_header("Docker-Content-Digest", answer.digest);
    if (!answer.file.empty()) return send_file(answer, response);
    response.set_content(answer.body, answer.type);
  }

  void send_page(const std::string& path, httplib::Response& response) {
    std::string name = path.substr(1);
    if (name.empty() || name.ends_with('/')) name += "index.html";
    const std::scoped_lock lock(mutex_);
    if (stamps_of(request_.registry) != stamps_) pages_ = make();
    const auto found = pages_.find(name);
    if (found == pages_.end()) {
      response.status = 404;
      response.set_content("nothing is at this URL\n", "text/plain");
      return;
    }
    response.set_content(found->second, type_of(name));
  }

  Pages make() {
    stamps_ = stamps_of(request_.registry);
    SiteFacts site = gather_site(request_.registry, [](const std::string&) {});
    site.title = request_.title;
    site.url = url_;
    return make_pages(site);
  }

  ServeRequest request_;
  httplib::Server server_;
  int port_ = 0;
  std::string url_;
  std::atomic<bool> ended_ = false;
  std::mutex mutex_;  // around what follows
  Stamps stamps_;
  Pages pages_;
};

Server::Server(ServeRequest request) : site_(std::make_unique<Site>(std::move(request))) {}
Server::~Server() = default;

const std::string& Server::url() const {
  return site_->url();
}

void Server::run() {
  site_->run();
}

void Server::stop() {
  site_->stop();
}

}  // namespace kiln::registry
