// SPDX-License-Identifier: Apache-2.0
#include "http/credentials.hpp"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/posix.hpp"
#include "base/quote.hpp"
#include "documents/json.hpp"
#include "http/credential_helper.hpp"
#include "kiln/error.hpp"
#include "settings/environment.hpp"

namespace kiln {
namespace {

constexpr off_t kMaxFileBytes = 1 << 20;
constexpr std::string_view kDockerHub = "registry-1.docker.io";
constexpr std::string_view kDockerHubKey = "https://index.docker.io/v1/";

/// Which keys of a file are meant for a registry.
enum class Keys {
  kHost,  // docker: the host alone
  kPath,  // podman: the host and the beginning of a repository, the longest first
};

struct Question {
  std::string registry;
  std::string repository;
  std::stop_token stop;
  std::chrono::milliseconds helper_time;
};

struct AuthFile {
  std::string path;
  Json json;
};

std::string variable(const char* name) {
  return std::string(environment().text(name));
}

/// The keys under which a file may hold the login, best first.
std::vector<std::string> keys_of(const Question& question, Keys keys) {
  std::vector<std::string> list;
  if (keys == Keys::kPath) {
    std::string path = question.registry + "/" + question.repository;
    for (; path.size() > question.registry.size(); path.erase(path.rfind('/'))) {
      list.push_back(path);
    }
  }
  list.push_back(question.registry);
  if (question.registry == kDockerHub) {
    list.insert(list.end(), {std::string(kDockerHubKey), "docker.io", "index.docker.io"});
  }
  return list;
}

/// Old files wrote "https://host/v1/" where the newer write "host".
std::string host_of(std::string_view key) {
  for (const std::string_view scheme : {"https://", "http://"}) {
    if (key.starts_with(scheme)) key.remove_prefix(scheme.size());
  }
  return std::string(key.substr(0, key.find('/')));
}

/// The member of `table` for this registry, or null.
const Json* member_of(const Json& table, const Question& question, Keys keys) {
  if (!table.is_object()) return nullptr;
  for (const std::string& key : keys_of(question, keys)) {
    if (const auto found = table.find(key); found != table.end()) return &*found;
  }
  if (keys == Keys::kPath) return nullptr;
  for (const auto& [key, value] : table.items()) {
    if (key.find("://") != std::string::npos && host_of(key) == question.registry) return &value;
  }
  return nullptr;
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

Credentials credentials_of(std::string username, std::string secret, std::string origin) {
  const bool identity = username == "<token>";
  return {std::move(username), std::move(secret), identity, std::move(origin)};
}

/// An entry of auths: {"auth": base64 of "user:password"}, or {"identitytoken": …} beside it. An
/// empty one is what docker writes where a helper keeps the login.
std::optional<Credentials> read_entry(const Json& entry, const std::string& path, Login& login) {
  if (!entry.is_object()) return std::nullopt;
  if (std::string token = text_of(entry, "identitytoken"); !token.empty()) {
    return Credentials{"<token>", std::move(token), true, path};
  }
  const std::string auth = text_of(entry, "auth");
  if (auth.empty()) return std::nullopt;
  const std::optional<std::string> plain = decode_base64(auth);
  const std::size_t colon = plain ? plain->find(':') : std::string::npos;
  if (colon == std::string::npos) {
    login.notes.push_back(path + " has one that is not base64 of user:password");
    return std::nullopt;
  }
  return credentials_of(plain->substr(0, colon), plain->substr(colon + 1), path);
}

std::optional<Credentials> read_helper(const std::string& name, const Question& question,
                                       Login& login) {
  const std::string program = "docker-credential-" + name;
  const std::string server =
      question.registry == kDockerHub ? std::string(kDockerHubKey) : question.registry;
  const HelperAnswer answer = ask_helper(name, server, question.helper_time, question.stop);
  if (!answer.output) {
    login.notes.push_back(quote(program) + " " + answer.failure);
    return std::nullopt;
  }
  try {
    const Json json = parse_json(*answer.output, program);
    if (json.is_object() && !text_of(json, "Secret").empty()) {
      return credentials_of(text_of(json, "Username"), text_of(json, "Secret"), program);
    }
  } catch (const Error&) {
    // Its words quote the text, which may be the secret.
  }
  login.notes.push_back(quote(program) + " gave no JSON with a Username and a Secret");
  return std::nullopt;
}

std::optional<AuthFile> read_file(const std::string& path, Login& login) {
  const auto broken = [&](const std::string& what) -> std::optional<AuthFile> {
    login.notes.push_back(path + " " + what);
    return std::nullopt;
  };
  // Not blocking: a pipe in its place must not hold up the read of a public registry.
  const FileDescriptor file = try_open(path, O_RDONLY | O_NONBLOCK);
  if (!file.valid()) {
    return broken(errno == ENOENT || errno == ENOTDIR ? "is not there" : "cannot be opened");
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return broken("is no file");
  if (info.st_size > kMaxFileBytes) return broken("is over 1 MiB");
  std::string text;
  try {
    read_pieces(file.get(), path, [&](std::string_view piece) { text += piece; });
    AuthFile read{path, parse_json(text, path)};
    if (read.json.is_object()) return read;
  } catch (const Error&) {
    // Its words quote the text, which may be a secret.
  }
  return broken("is not a JSON object");
}

std::optional<Credentials> search(const std::string& path, Keys keys, const Question& question,
                                  Login& login) {
  const std::optional<AuthFile> file = read_file(path, login);
  if (!file) return std::nullopt;
  const std::size_t before = login.notes.size();
  std::optional<Credentials> found;
  if (const auto helpers = file->json.find("credHelpers"); helpers != file->json.end()) {
    const Json* name = member_of(*helpers, question, keys);
    if (name != nullptr && name->is_string()) {
      found = read_helper(name->get<std::string>(), question, login);
    }
  }
  if (const std::string store = text_of(file->json, "credsStore"); !found && !store.empty()) {
    found = read_helper(store, question, login);
  }
  if (const auto auths = file->json.find("auths"); !found && auths != file->json.end()) {
    const Json* entry = member_of(*auths, question, keys);
    if (entry != nullptr) found = read_entry(*entry, path, login);
  }
  if (!found && login.notes.size() == before) login.notes.push_back(path + " has none");
  return found;
}

}  // namespace

Login find_login(const std::string& registry, const std::string& repository,
                 const std::stop_token& stop, std::chrono::milliseconds helper_time) {
  const Question question{registry, repository, stop, helper_time};
  std::string docker = variable("DOCKER_CONFIG");
  if (docker.empty() && !variable("HOME").empty()) docker = variable("HOME") + "/.docker";
  std::string podman = variable("REGISTRY_AUTH_FILE");
  if (const std::string run = variable("XDG_RUNTIME_DIR"); podman.empty() && !run.empty()) {
    podman = run + "/containers/auth.json";
  }
  Login login;
  if (!docker.empty()) {
    login.credentials = search(docker + "/config.json", Keys::kHost, question, login);
  }
  if (!login.credentials && !podman.empty()) {
    login.credentials = search(podman, Keys::kPath, question, login);
  }
  return login;
}

std::optional<std::string> decode_base64(std::string_view text) {
  // EVP_DecodeBlock skips spaces and counts padding as bytes: only the strict form reaches it.
  if (text.size() % 4 != 0 || text.size() > static_cast<std::size_t>(kMaxFileBytes)) {
    return std::nullopt;
  }
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  const bool strict =
      std::all_of(text.begin(), text.end() - static_cast<std::ptrdiff_t>(padding), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '+' || c == '/';
      });
  if (!strict) return std::nullopt;
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  if (size < 0 || static_cast<std::size_t>(size) != bytes.size()) return std::nullopt;
  bytes.resize(bytes.size() - padding);
  return bytes;
}

std::string encode_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // and a NUL, which OpenSSL writes
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

}  // namespace kiln
