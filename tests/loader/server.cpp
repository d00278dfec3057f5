// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "documents/json.hpp"
#include "scratch.hpp"

// In libc's place for libcurl, too: no test asks a name server.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  const std::string_view asked = name == nullptr ? "" : name;
  if (asked == kiln::test::kUnknownName) return EAI_NONAME;
  if (asked == kiln::test::kSilentName) {
    std::this_thread::sleep_for(kiln::test::kSilence);
    return EAI_AGAIN;
  }
  static const auto libcs =
      reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return libcs(name, service, hints, found);
}

namespace kiln::test {
namespace {

namespace fs = std::filesystem;

void send_all(int connection, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the client stopped listening, as it should for too many bytes
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

std::string header_of(const std::string& request, const std::string& name) {
  const std::size_t at = request.find("\r\n" + name + ": ");
  if (at == std::string::npos) return {};
  const std::size_t from = at + name.size() + 4;
  return request.substr(from, request.find("\r\n", from) - from);
}

/// The part of a whole answer that a Range header asks for: "bytes=5-".
Answer part_of(Answer answer, const std::string& range) {
  constexpr std::size_t kUnit = 6;  // "bytes="
  if (range.empty() || answer.status != 200) return answer;
  const std::size_t total = answer.body.size();
  const std::size_t from = std::stoul(range.substr(kUnit));
  if (from >= total)
    return {416, "", {"Content-Range: bytes */" + std::to_string(total)}, {}, false};
  answer.status = 206;
  answer.headers.push_back("Content-Range: bytes " + std::to_string(from) + "-" +
                           std::to_string(total - 1) + "/" + std::to_string(total));
  answer.body.erase(0, from);
  return answer;
}

}  // namespace

Server::Server(fs::path root, Override override_with)
    : root_(std::move(root)), override_(std::move(override_with)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(listener_ >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(listener_, 64) == 0);
  REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

Server::~Server() {
  ::shutdown(listener_, SHUT_RDWR);  // wakes accept
  thread_.join();
  for (std::thread& connection : connections_) connection.join();
  ::close(listener_);
}

std::string Server::url(const std::string& prefix) const {
  return "http://127.0.0.1:" + std::to_string(port_) + prefix;
}

std::vector<std::string> Server::asked() const {
  const std::scoped_lock held(mutex_);
  return {asked_.begin(), asked_.end()};
}

std::vector<std::string> Server::accepts() const {
  const std::scoped_lock held(mutex_);
  std::vector<std::string> all;
  for (const Asked& each : asked_) all.push_back(each.accept);
  return all;
}

std::vector<std::string> Server::ranges() const {
  const std::scoped_lock held(mutex_);
  std::vector<std::string> all;
  for (const Asked& each : asked_) {
    if (!each.range.empty()) all.push_back(each.range);
  }
  return all;
}

int Server::count(const std::string& part) const {
  const std::vector<std::string> all = asked();
  return static_cast<int>(std::count_if(all.begin(), all.end(), [&](const std::string& path) {
    return path.find(part) != std::string::npos;
  }));
}

void Server::serve() {
  for (;;) {
    const int connection = ::accept(listener_, nullptr, nullptr);
    if (connection < 0) return;
    connections_.emplace_back([this, connection] {
      answer(connection);
      ::close(connection);
    });
  }
}

void Server::answer(int connection) {
  std::string request;
  std::array<char, 4096> buffer{};
  while (request.find("\r\n\r\n") == std::string::npos) {
    const ssize_t count = ::recv(connection, buffer.data(), buffer.size(), 0);
    if (count <= 0) return;
    request.append(buffer.data(), static_cast<std::size_t>(count));
  }
  const std::size_t begin = request.find(' ') + 1;
  const Asked asked{request.substr(begin, request.find(' ', begin) - begin),
                    header_of(request, "Range"), header_of(request, "Accept")};
  {
    const std::scoped_lock held(mutex_);
    asked_.push_back(asked);
  }
  std::optional<Answer> special;
  if (override_) special = override_(asked);
  const Answer answer = special ? *special : part_of(from_folder(asked.path), asked.range);
  if (answer.hang_up) return;
  std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " Status\r\n";
  for (const std::string& header : answer.headers) head += header + "\r\n";
  head += "Content-Length: " + std::to_string(answer.content_length.value_or(answer.body.size())) +
          "\r\nConnection: close\r\n\r\n";
  send_all(connection, head);
  send_all(connection, answer.body);
  while (answer.stall && !answer.stall()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

/// /v2/<name>/{manifests/<tag or digest>,blobs/<digest>,tags/list}
Answer Server::from_folder(const std::string& path) const {
  const Answer missing{404, R"({"errors":[{"code":"MANIFEST_UNKNOWN"}]})", {}, {}, false};
  if (!path.starts_with("/v2/")) return missing;
  const std::string rest = path.substr(4);
  const std::string name = rest.substr(0, rest.find('/'));
  const fs::path layout = root_ / name / "index.json";
  if (!fs::exists(layout)) return missing;
  const Json json = Json::parse(read_file(layout));
  const std::string last = rest.substr(rest.rfind('/') + 1);
  std::string digest = last;
  Json tags = Json::array();
  for (const Json& entry : json["manifests"]) {
    const std::string tag = entry["annotations"]["org.opencontainers.image.ref.name"];
    tags.push_back(tag);
    if (tag == last) digest = entry["digest"];
  }
  if (last == "list") return {200, Json{{"name", name}, {"tags", tags}}.dump(), {}, {}, false};
  constexpr std::size_t kAlgorithm = 7;  // "sha256:"
  if (digest.size() < kAlgorithm) return missing;
  const fs::path blob = root_ / name / "blobs" / "sha256" / digest.substr(kAlgorithm);
  if (!fs::exists(blob)) return missing;
  return {200, read_file(blob), {"Docker-Content-Digest: " + digest}, {}, false};
}

}  // namespace kiln::test
