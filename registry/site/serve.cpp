// SPDX-License-Identifier: Apache-2.0
#include "registry/site/serve.hpp"

#include <httplib.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/ascii.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "registry/folder/layout.hpp"
#include "registry/folder/trust_files.hpp"
#include "registry/site/pages.hpp"
#include "registry/site/pull_api.hpp"

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

/// The part of `size` bytes that a request asks for. Whole where it asks for several parts.
struct Part {
  std::uint64_t at = 0;
  std::uint64_t length = 0;
  int status = 200;
};

Part part_of(const httplib::Ranges& ranges, std::uint64_t size) {
  if (ranges.size() != 1 || size == 0) return {0, size, 200};
  const auto [first, last] = ranges.front();  // -1: not given
  const auto whole = static_cast<std::int64_t>(size);
  const std::int64_t begin = first >= 0 ? first : std::max<std::int64_t>(0, whole - last);
  const std::int64_t end =
      first < 0 || last < 0 ? whole : std::min<std::int64_t>(last, whole - 1) + 1;
  if (begin >= end) return {0, 0, 416};
  return {static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end - begin), 206};
}

/// A blob's bytes, as they are asked for.
void send_file(const std::shared_ptr<const HashedFile>& file, const Part& part,
               httplib::Response& response, const std::string& type) {
  response.status = part.status;
  const std::string of = "/" + std::to_string(file->size());
  if (part.status == 416) return response.set_header("Content-Range", "bytes *" + of);
  response.set_header("Accept-Ranges", "bytes");
  if (part.status == 206) {
    response.set_header("Content-Range", "bytes " + std::to_string(part.at) + "-" +
                                             std::to_string(part.at + part.length - 1) + of);
  }
  response.set_content_provider(
      part.length, type,
      [file, at = part.at](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
        const std::string piece = file->read(at + offset, std::min<std::size_t>(length, 1 << 16));
        return !piece.empty() && sink.write(piece.data(), piece.size());
      });
}

/// What is asked for, and by which name. A client that takes this server for a proxy sends the
/// whole URL, whose host then counts in place of the header's (RFC 9112, 3.2.2).
struct Target {
  std::string host;
  std::string path;
};

Target target_of(const httplib::Request& asked) {
  constexpr std::string_view kScheme = "http://";
  const std::string& whole = asked.path;
  const bool is_url = equal_but_for_case(whole.substr(0, kScheme.size()), kScheme);
  if (!is_url) return {asked.get_header_value("Host"), whole};
  const std::size_t slash = std::min(whole.find('/', kScheme.size()), whole.size());
  return {whole.substr(kScheme.size(), slash - kScheme.size()),
          slash == whole.size() ? "/" : whole.substr(slash)};
}

std::optional<std::string> parameter_of(const httplib::Request& asked, const char* name) {
  if (!asked.has_param(name)) return std::nullopt;
  return asked.get_param_value(name);
}

}  // namespace

class Server::Site {
 public:
  explicit Site(ServeRequest request) : request_(std::move(request)), pull_api_(request_.registry) {
    // Not httplib's own choice, SO_REUSEPORT: a second server would take half of the requests.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    port_ = request_.port == 0 ? server_.bind_to_any_port(kHost) : request_.port;
    errno = 0;
    if (port_ < 0 || (request_.port != 0 && !server_.bind_to_port(kHost, port_))) {
      const bool free = errno != 0 && errno != EADDRINUSE;
      throw Error(
          ErrorCode::kUsage,
          "serve " + request_.registry.string() + ": port " + std::to_string(request_.port) +
              " of 127.0.0.1 " +
              (free ? "cannot be had: " + std::generic_category().message(errno) : "is taken") +
              ". Name another one with --port");
    }
    url_ = std::string("http://") + kHost + ":" + std::to_string(port_);
    refresh();  // the pages have the URL in them
    server_.set_payload_max_length(0);
    server_.set_pre_routing_handler(
        [this](const httplib::Request& asked, httplib::Response& response) {
          // httplib 0.11 makes no sense of a range that goes past the end; part_of() does.
          httplib::Ranges ranges;
          std::swap(ranges, const_cast<httplib::Request&>(asked).ranges);  // NOLINT
          handle(asked, ranges, response);
          return httplib::Server::HandlerResponse::Handled;
        });
  }

  void run() { server_.listen_after_bind(); }
  const std::string& url() const { return url_; }

 private:
  static constexpr const char* kHost = "127.0.0.1";

  void handle(const httplib::Request& asked, const httplib::Ranges& ranges,
              httplib::Response& response) {
    try {
      response.set_header("X-Content-Type-Options", "nosniff");
      // A page of another site that has its name lead to this machine reads nothing here.
      const auto [host, path] = target_of(asked);
      const std::string port = ":" + std::to_string(port_);
      if (host != kHost + port && host != "localhost" + port) {
        response.status = 421;
      } else if (const bool reads = asked.method == "GET" || asked.method == "HEAD";
                 !reads || path == "/v2" || path.starts_with("/v2/")) {
        send(pull_api_.answer(
                 {asked.method, path, parameter_of(asked, "n"), parameter_of(asked, "last")}),
             ranges, response);
      } else {
        send_page(path, response);
      }
    } catch (const std::exception& error) {
      response.status = 500;
      response.set_content(
          dump_json({{"errors",
                      Json::array({{{"code", "UNKNOWN"}, {"message", printable(error.what())}}})}}),
          "application/json");
    }
  }

  static void send(const Answer& answer, const httplib::Ranges& ranges,
                   httplib::Response& response) {
    response.status = answer.status;
    response.set_header("Docker-Distribution-Api-Version", "registry/2.0");
    if (!answer.digest.empty()) response.set_header("Docker-Content-Digest", answer.digest);
    if (!answer.link.empty()) response.set_header("Link", answer.link);
    if (answer.status == 405) response.set_header("Allow", "GET, HEAD");
    if (!answer.file) return response.set_content(answer.body, answer.type);
    send_file(answer.file, part_of(ranges, answer.file->size()), response, answer.type);
  }

  void send_page(const std::string& path, httplib::Response& response) {
    std::string name = path.substr(1);
    if (name.empty() || name.ends_with('/')) name += "index.html";
    const std::scoped_lock lock(mutex_);
    refresh();
    const auto found = pages_.find(name);
    if (found == pages_.end()) {
      response.status = 404;
      response.set_content("nothing is at this URL\n", "text/plain");
      return;
    }
    response.set_content(found->second, type_of(name));
  }

  /// Makes the pages anew where something was published or signed since. Where that throws, the
  /// next request tries again.
  void refresh() {
    Stamps stamps = stamps_of(request_.registry);
    if (!pages_.empty() && stamps == stamps_) return;
    SiteFacts site = gather_site(request_.registry, [](const std::string&) {});
    site.title = request_.title;
    site.url = url_;
    pages_ = make_pages(site);
    stamps_ = std::move(stamps);
  }

  ServeRequest request_;
  PullApi pull_api_;
  httplib::Server server_;
  int port_ = 0;
  std::string url_;
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

}  // namespace kiln::registry
