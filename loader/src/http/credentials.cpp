// SPDX-License-Identifier: Apache-2.0
#include "http/credentials.hpp"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "base/base64.hpp"
#include "base/posix.hpp"
#include "base/process.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "kiln/error.hpp"
#include "settings/environment.hpp"
#include "settings/owners.hpp"

namespace kiln {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::chrono::seconds kHelperTime(30);
constexpr std::size_t kMaxOutputBytes = 64u << 10;
constexpr std::size_t kMaxServerBytes = 4096;  // fits into a pipe that nobody reads yet
constexpr int kPollMilliseconds = 50;          // how soon a stop is seen
constexpr std::string_view kDockerHub = "registry-1.docker.io";
constexpr std::string_view kDockerHubKey = "https://index.docker.io/v1/";

std::string variable(const char* name) {
  return std::string(environment().text(name));
}

/// Old files wrote "https://host/v1/" where the newer write "host".
std::string host_of(std::string_view key) {
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (key.starts_with(scheme)) key.remove_prefix(scheme.size());
  }
  return std::string(key.substr(0, key.find('/')));
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Looks for one login, in one file after the other.
class Search {
 public:
  Search(const std::string& registry, const std::string& repository, const std::stop_token& stop)
      : registry_(registry), repository_(repository), stop_(stop) {}

  /// Which keys of a file are meant for a registry.
  enum class Keys {
    kHost,  // docker: the host alone
    kPath,  // podman: the host and the beginning of a repository, the longest first
  };

  /// Goes on in this file, unless there is a login already or no such file is set.
  void look_into(const std::string& path, Keys keys) {
    if (path.empty() || login_.credentials) return;
    const std::optional<Json> file = read_file(path);
    if (!file) return;
    const std::size_t before = login_.notes.size();
    const Json* const helper = member_of(*file, "credHelpers", keys);
    if (helper != nullptr && helper->is_string()) read_helper(helper->get<std::string>());
    const std::string store = text_of(*file, "credsStore");
    if (!login_.credentials && !store.empty()) read_helper(store);
    const Json* const entry = member_of(*file, "auths", keys);
    if (!login_.credentials && entry != nullptr) read_entry(*entry, path);
    if (!login_.credentials && login_.notes.size() == before) note(path, "has none");
  }

  Login take() { return std::move(login_); }

 private:
  void note(const std::string& who, const std::string& what) {
    login_.notes.push_back(who + " " + what);
  }

  std::optional<Json> read_file(const std::string& path) {
    const NamedFile file = read_named_file(path, kMaxFileBytes);
    if (!file.problem.empty()) {
      note(path, file.absent ? "is not there" : "cannot be read: " + file.problem);
      return std::nullopt;
    }
    if (const std::optional<Doubt> doubt = doubt_about_logins(path)) {
      note(path, "is not read: " + doubt->why + ". " + doubt->next_step);
      return std::nullopt;
    }
    try {
      if (Json json = parse_json(file.text, path); json.is_object()) return json;
    } catch (const Error&) {
      // Its words quote the text, which may be a secret.
    }
    note(path, "is not a JSON object");
    return std::nullopt;
  }

  /// The member for this registry of one of a file's tables, or null.
  const Json* member_of(const Json& file, const char* name, Keys keys) const {
    const auto table = file.find(name);
    if (table == file.end() || !table->is_object()) return nullptr;
    std::vector<std::string> names;  // best first
    if (keys == Keys::kPath) {
      for (std::string path = registry_ + "/" + repository_; path.size() > registry_.size();
           path.erase(path.rfind('/'))) {
        names.push_back(path);
      }
    }
    names.push_back(registry_);
    if (registry_ == kDockerHub) {
      names.insert(names.end(), {std::string(kDockerHubKey), "docker.io", "index.docker.io"});
    }
    for (const std::string& each : names) {
      if (const auto found = table->find(each); found != table->end()) return &*found;
    }
    if (keys == Keys::kPath) return nullptr;
    for (const auto& [key, value] : table->items()) {
      if (key.find("://") != std::string::npos && host_of(key) == registry_) return &value;
    }
    return nullptr;
  }

  void found(std::string username, std::string secret, std::string origin) {
    const bool identity = username == "<token>";
    login_.credentials = {std::move(username), std::move(secret), identity, std::move(origin)};
  }

  /// An entry of auths: {"auth": base64 of "user:password"}, or {"identitytoken": …} as well. An
  /// empty one is what docker writes where a helper keeps the login.
  void read_entry(const Json& entry, const std::string& path) {
    if (!entry.is_object()) return;
    if (const std::string token = text_of(entry, "identitytoken"); !token.empty()) {
      return found("<token>", token, path);
    }
    const std::string auth = text_of(entry, "auth");
    if (auth.empty()) return;
    const std::optional<std::string> plain = decode_base64(auth);
    const std::size_t colon = plain ? plain->find(':') : std::string::npos;
    if (colon == std::string::npos) {
      return note(path, "has one that is not base64 of user:password");
    }
    found(plain->substr(0, colon), plain->substr(colon + 1), path);
  }

  void read_helper(const std::string& name) {
    const std::string program = "docker-credential-" + name;
    const std::string server = registry_ == kDockerHub ? std::string(kDockerHubKey) : registry_;
    const HelperAnswer answer = ask_helper(name, server, kHelperTime, stop_);
    if (!answer.output) return note(quote(program), answer.failure);
    try {
      const Json json = parse_json(*answer.output, program);
      if (json.is_object() && !text_of(json, "Secret").empty()) {
        return found(text_of(json, "Username"), text_of(json, "Secret"), program);
      }
    } catch (const Error&) {
      // Its words quote the text, which may be the secret.
    }
    note(quote(program), "gave no JSON with a Username and a Secret");
  }

  const std::string& registry_;
  const std::string& repository_;
  const std::stop_token& stop_;
  Login login_;
};

HelperAnswer failed(const std::string& why) {
  return {std::nullopt, why};
}

std::string message_of(int error) {
  return std::generic_category().message(error);
}

bool has_more(int output, int milliseconds) {
  pollfd ready{output, POLLIN, 0};
  return ::poll(&ready, 1, milliseconds) > 0;
}

/// Reads what is there; false at the end of the output.
bool read_more(int output, std::string& text) {
  if (!has_more(output, kPollMilliseconds)) return true;
  std::array<char, 4096> piece{};
  const ssize_t count = ::read(output, piece.data(), piece.size());
  if (count > 0) text.append(piece.data(), static_cast<std::size_t>(count));
  return count > 0 || (count < 0 && errno == EINTR);
}

HelperAnswer read_answer(int output, Child& child, std::chrono::milliseconds time,
                         const std::stop_token& stop) {
  const Clock::time_point end = Clock::now() + time;
  std::string text;
  bool open = true;
  while (open || !child.ended()) {
    if (stop.stop_requested()) {
      throw Error(ErrorCode::kCancelled,
                  "ask a credential helper: stopped by the caller. Nothing was changed");
    }
    if (Clock::now() >= end) {
      return failed("took over " + std::to_string(time.count()) + " ms and was ended");
    }
    // A helper may leave a program behind that has its output, and never ends.
    const bool ended = child.ended() && (child.exit_status() != 0 || Json::accept(text));
    if (ended && open && !has_more(output, 0)) break;
    if (open) {
      open = read_more(output, text);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (text.size() > kMaxOutputBytes) {
      return failed("answered with more than " + std::to_string(kMaxOutputBytes) + " bytes");
    }
  }
  if (child.was_killed()) return failed("was ended by a signal");
  if (child.exit_status() == 0) return {std::move(text), {}};
  // The protocol's word for "no such login"; every other text of a failure may hold anything.
  if (text.find("credentials not found") != std::string::npos) return failed("has none");
  return failed("failed with exit status " + std::to_string(child.exit_status()));
}

}  // namespace

Login find_login(const std::string& registry, const std::string& repository,
                 const std::stop_token& stop) {
  std::string docker = variable("DOCKER_CONFIG");
  if (docker.empty() && !variable("HOME").empty()) docker = variable("HOME") + "/.docker";
  if (!docker.empty()) docker += "/config.json";
  std::string podman = variable("REGISTRY_AUTH_FILE");
  if (const std::string run = variable("XDG_RUNTIME_DIR"); podman.empty() && !run.empty()) {
    podman = run + "/containers/auth.json";
  }
  Search search(registry, repository, stop);
  search.look_into(docker, Search::Keys::kHost);
  search.look_into(podman, Search::Keys::kPath);
  return search.take();
}

HelperAnswer ask_helper(const std::string& name, const std::string& server,
                        std::chrono::milliseconds time, const std::stop_token& stop) {
  constexpr const char* kNameBytes =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (name.empty() || name.find_first_not_of(kNameBytes) != std::string::npos) {
    return failed("is not the name of a helper: expected [A-Za-z0-9._-]+");
  }
  if (server.size() > kMaxServerBytes) return failed("is not asked for so long a name");
  try {
    Pipe input = make_pipe();
    Pipe output = make_pipe();
    // Written before there is a reader: a helper that reads nothing cannot raise SIGPIPE here.
    if (const int error = try_write_all(input.write.get(), server); error != 0) {
      return failed("could not be asked: " + message_of(error));
    }
    input.write = FileDescriptor();
    Child child({"docker-credential-" + name, "get"}, environment().block(),
                {.in = input.read.get(), .out = output.write.get(), .err = Streams::kNothing});
    output.write = FileDescriptor();
    return read_answer(output.read.get(), child, time, stop);
  } catch (const std::system_error& error) {
    if (error.code().value() == ENOENT) return failed("is not on PATH");
    return failed("could not be started: " + message_of(error.code().value()));
  }
}

}  // namespace kiln
